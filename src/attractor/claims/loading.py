"""Execute Python files by their paths: studies, and the claims, rules and probes of a folder of papers.

    FOLDER/PAPER/claims.py            defines PAPER, a paper with its claims
    FOLDER/PAPER/studies/NAME.py      defines STUDY
    FOLDER/PAPER/results/             has the records of studies

Files of such a folder may import one another relatively, as `from ..claims import TABLE`. A study that lies elsewhere
may import files of its own folder. Only files that a command names, and what these import, are executed.
"""

import importlib
import importlib.util
import sys
import traceback
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from attractor.errors import InputError

CLAIMS_FILE = "claims.py"
STUDIES = "studies"
CHECKOUT = Path(__file__).resolve().parents[3]
_PREFIX = "by_path_"  # of the names under which these files are imported


def papers_folder() -> Path | None:
    """Return the folder of the five papers in attractor's own checkout; an installed wheel has none."""
    folder = CHECKOUT / "papers"
    return folder if (CHECKOUT / "pyproject.toml").is_file() and folder.is_dir() else None


def paper_around(study: Path) -> Path | None:
    """Return the paper's folder that a study's file belongs to, if it belongs to one."""
    paper = study.resolve().parent.parent
    return paper if study.resolve().parent.name == STUDIES and (paper / CLAIMS_FILE).is_file() else None


def executed(path: Path, what: str) -> ModuleType:
    """Execute a file anew. Whatever its code raises becomes one line with the place where it was raised."""
    path = path.resolve()
    name = module_of(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where the dataclasses of a file look for their module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        importlib.import_module(name.rpartition(".")[0])  # for relative imports
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(
            f"{what} {_place_of(error, path)} cannot be executed: {in_words(error)}; mend that line"
        ) from error
    return module


def module_of(path: Path) -> str:
    """Return the name under which a file is imported, which says where its root lies, and register this root."""
    path = path.resolve()
    if path.name == CLAIMS_FILE:
        root = path.parents[1]
    else:
        root = path.parents[2] if paper_around(path) is not None else path.parent
    package = _PREFIX + sha256(str(root).encode()).hexdigest()[:12]
    if package not in sys.modules:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(root)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return ".".join((package, *path.relative_to(root).with_suffix("").parts))


def error_in_executed_code(error: Exception) -> InputError | None:
    """Return one line with the place where an executed file, or one beside it, led to the error; None for others."""
    files = [module.__file__ for name, module in list(sys.modules.items()) if name.startswith(_PREFIX)]
    folders = {Path(file).parent for file in files if file}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent in folders]
    if not frames:
        return None
    return InputError(
        f"study file '{frames[-1].filename}' line {frames[-1].lineno} fails: {in_words(error)}; mend that line"
    )


def in_words(error: BaseException) -> str:
    kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())


def _place_of(error: BaseException, path: Path) -> str:
    """Say in which line of a file an error arose; of a syntax error, in which file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    if isinstance(error, SyntaxError) and error.lineno and not lines:
        lines = [error.lineno]
    return f"'{path}' line {lines[-1]}" if lines else f"'{path}'"
