"""Execute Python files by their paths: mechanisms, studies, and the claims, rules and probes of a folder of papers.

    FOLDER/PAPER/claims.py            defines PAPER, a paper with its claims
    FOLDER/PAPER/studies/NAME.py      defines STUDY
    FOLDER/PAPER/results/             has the records of studies

Files of such a folder may import one another relatively, as `from ..claims import TABLE`. A study that lies elsewhere
may import files of its own folder. Only files that a command names, and what these import, are executed.
"""

import ast
import hashlib
import importlib
import importlib.util
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from attractor.errors import InputError

CLAIMS_FILE = "claims.py"
STUDIES = "studies"
LONGEST_SECONDS = 60  # that a file may take to be executed
CHECKOUT = Path(__file__).resolve().parents[3]
_NAMED: list[ModuleType] = []  # modules that a command or a program named
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
        with time_limit(LONGEST_SECONDS):
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
    package = _PREFIX + hashlib.sha256(str(root).encode()).hexdigest()[:12]
    if package not in sys.modules:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(root)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return ".".join((package, *path.relative_to(root).with_suffix("").parts))


def is_by_path(thing: Any) -> bool:
    """Whether a class or function is of a file that was executed by its path, or of the script that runs."""
    return thing.__module__ == "__main__" or thing.__module__.startswith(_PREFIX)


def name_in_code(thing: Any) -> str:
    """Return what a file or package defines as FILE.py:NAME or package.module:NAME."""
    file = _file_of(thing)
    return f"{file.name if file and is_by_path(thing) else thing.__module__}:{thing.__qualname__}"


def code_option(things: Iterable[Any]) -> str:
    """Return what a command on a run of such code has to say besides, as " --code mine.py", or an empty string."""
    files = [(thing, file) for thing in things if (file := _file_of(thing)) is not None]
    places = [os.path.relpath(file) if is_by_path(thing) else thing.__module__ for thing, file in files]
    return f" --code {shlex.quote(places[0])}" if places else ""


def _file_of(thing: Any) -> Path | None:
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    return Path(file) if file and Path(file).exists() else None  # a script from standard input has no file


def found_in_code(name: str) -> Any:
    """Return what has this name in the code that this process was told to load. A name may come from anybody, so it
    loads nothing, and reaches nothing that its module only imports."""
    place, _, attribute = name.rpartition(":")
    for module in reversed(_NAMED):  # of two files of one name, the later one
        thing = getattr(module, attribute, None)
        if thing is not None and getattr(thing, "__module__", None) == module.__name__ and name_in_code(thing) == name:
            return thing
    raise InputError(
        f"'{name}' is code, which is executed only from a path that the command names; add --code {place}, or in "
        f"Python attractor.attention.defined_by('{place}')"
    )


def portable(thing: Any) -> tuple[str, str, str]:
    """Return the file or module and the name by which another process finds what code defines, and its checksum."""
    module: ModuleType = sys.modules[thing.__module__]
    file = _file_of(thing)
    place = str(file.resolve()) if file and is_by_path(thing) else str(thing.__module__)
    if place == "__main__" or getattr(module, thing.__qualname__, module) is not thing:
        raise InputError(
            f"'{thing.__qualname__}' must stand at the top of a file, from which other processes load it; write it "
            "into a file, and give FILE.py:NAME"
        )
    return place, thing.__qualname__, checksum_of_code(thing)


def found_again(place: str, name: str, checksum: str) -> Any:
    """Return what `portable` described, unless its file has changed since."""
    thing: Any = getattr(imported(place, "file"), name, None)
    if thing is None or checksum_of_code(thing) != checksum:
        raise InputError(f"file '{place}' must stay as it was when the command began; repeat the command")
    return thing


class DefinedByPath:
    """A dataclass that other processes make again where a file defines it: they execute that file first."""

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        if not is_by_path(type(self)):
            return super().__reduce_ex__(protocol)
        return _made_again, (portable(type(self)), {f.name: getattr(self, f.name) for f in fields(cast(Any, self))})


def _made_again(place: tuple[str, str, str], values: dict[str, Any]) -> Any:
    return found_again(*place)(**values)


def source_of(thing: Any) -> str | None:
    """Return the text of the file that defines a class or function, or None for code that is in no file."""
    file = _file_of(thing)
    return file.read_text(errors="replace") if file else None


@cache
def checksum_of_code(thing: Any) -> str:
    """Return a checksum of the file that defines a class or function, as it was when first asked for.

    Comments, the docstring of the file and the definition of a study do not count: they change no result. Code that is
    in no file, as in a notebook, is `unknown`.
    """
    source = source_of(thing)
    if source is None:
        return "unknown"
    counted = [ast.unparse(statement) for statement in ast.parse(source).body if not _without_effect(statement)]
    return hashlib.sha256("\n".join(counted).encode()).hexdigest()[:12]


def _without_effect(statement: ast.stmt) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    defines_study = any(isinstance(target, ast.Name) and target.id == "STUDY" for target in targets)
    return defines_study or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


def imported(place: str, what: str) -> ModuleType:
    """Return the module of a file or of a dotted path. A file is executed once, and the current folder is not searched
    for a dotted path."""
    module = _from_file(Path(place), what) if place.endswith(".py") else _from_path(place, what)
    _NAMED.append(module)
    return module


def _from_file(path: Path, what: str) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{what} must be a file that exists, and '{path}' does not; check the path")
    name = module_of(path)
    return sys.modules[name] if name in sys.modules else executed(path, what)


def _from_path(place: str, what: str) -> ModuleType:
    searched = list(sys.path)
    here = {"", str(Path.cwd())}
    try:
        sys.path[:] = [folder for folder in searched if folder not in here]
        return importlib.import_module(place)
    except Exception as error:
        raise InputError(
            f"{what} must be FILE.py or the dotted path of an installed module, and '{place}' cannot be imported: "
            f"{in_words(error)}; a file of the current folder is named by its path, as {place.replace('.', '/')}.py"
        ) from error
    finally:
        sys.path[:] = searched


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError in this block if it takes longer. Only a main thread can be stopped."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it takes more than {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def error_in_executed_code(error: BaseException) -> InputError | None:
    """Return one line with the place where an executed file, or one beside it, led to the error; None for others."""
    files = [module.__file__ for name, module in list(sys.modules.items()) if name.startswith(_PREFIX)]
    folders = {Path(file).parent for file in files if file}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent in folders]
    if not frames:
        return None
    return InputError(f"file '{frames[-1].filename}' line {frames[-1].lineno} fails: {in_words(error)}; mend that line")


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
