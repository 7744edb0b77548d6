"""Describe what a result depends on besides its configuration: the machine, the versions and the commit."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]


def environment() -> dict[str, Any]:
    """Return the environment of a run, fit for publication: without host name, user name and paths."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpus": _gpus(),
        "versions": {name: _version(name) for name in ("attractor", "torch", "numpy")},
        **_commit(),
    }


def _processor() -> str:
    """Return the processor's model. Linux stores it in a file; Python knows it on some other systems only.

    Rented machines give one name to several generations, which round in other ways: family and model tell them apart.
    """
    cpuinfo = Path("/proc/cpuinfo")
    core = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0] if cpuinfo.exists() else ""
    values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in core.splitlines())}
    name = values.get("model name") or platform.processor() or platform.machine()
    known = {"cpu family", "model"} <= values.keys()
    return f"{name} (family {values['cpu family']}, model {values['model']})" if known else name


def _gpus() -> list[str]:
    """Return the names of the machine's GPUs, if this process uses one of them."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _version(package: str) -> str | None:
    """Return the installed version from the package's metadata, because importing torch would take seconds."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache  # of the source as this process imported it
def _commit() -> dict[str, Any]:
    """Return the commit of the source if git tracks this file; an installed package has no commit."""
    if _repository() is None:
        return {"commit": None, "dirty": None}
    return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain", "--", "."))}


def is_tracked(file: Path) -> bool:
    """Return whether the repository of attractor's source tracks this file; other repositories do not count."""
    repository, file = _repository(), file.resolve()
    if repository is None or not file.is_relative_to(repository):
        return False
    return _git("ls-files", "--error-unmatch", "--", str(file), folder=repository) is not None


@cache
def _repository() -> Path | None:
    """Return the repository that tracks this source; None for an installed package."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name, folder=Path(__file__).parent) is None:
        return None
    top = _git("rev-parse", "--show-toplevel")
    return Path(top).resolve() if top else None


def _git(*arguments: str, folder: Path = PACKAGE) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments],  # a repository may name a program
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
