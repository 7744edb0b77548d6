"""The packages of stored results and reports do not import torch, scipy or matplotlib."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "attractor"


def test_no_package_of_results_imports_torch():
    """Results can be read on a machine without torch. The test stubs the package `attractor` itself, which imports the
    layers."""
    packages = ("runs", "verdict", "claims", "report")
    paths = [path for package in packages for path in sorted((SOURCE / package).glob("*.py"))]
    names = [".".join(("attractor", path.parent.name, path.stem)).removesuffix(".__init__") for path in paths]
    script = f"""
import importlib, sys, types
package = types.ModuleType("attractor")
package.__path__ = [{str(SOURCE)!r}]
sys.modules["attractor"] = package
for name in {names!r}:
    importlib.import_module(name)
late = {{"torch", "scipy", "matplotlib"}} & sys.modules.keys()
assert not late, late
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
