"""The modules of stored results and reports import only what they need."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "attractor"


def test_no_room_of_results_imports_torch():
    """A report can be read on a machine without torch. The test stubs the package itself, which imports the layers."""
    rooms = [
        path for room in ("runs", "statistics", "claims", "report") for path in sorted((SOURCE / room).glob("*.py"))
    ]
    names = [".".join(("attractor", path.parent.name, path.stem)).removesuffix(".__init__") for path in rooms]
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
