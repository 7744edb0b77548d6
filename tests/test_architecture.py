"""Imports between rooms go only in the permitted directions. The rooms are the top-level packages and modules."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "attractor"
FILES = sorted(SOURCE.rglob("*.py"))
ANYTHING = None

# Each room may import these rooms, besides itself and `errors`.
MAY_IMPORT: dict[str, set[str] | None] = {
    "errors": set(),
    "files": set(),
    "console": set(),
    "fields": set(),
    "attention": {"fields", "files", "kernels"},
    "train": {
        "fields",
        "analysis",
        "attention",
        "console",
        "control",
        "corpus",
        "equilibrium",
        "files",
        "kernels",
        "models",
        "runs",
        "tasks",
    },
    "kernels": set(),
    "analysis": set(),
    "equilibrium": set(),
    "tables": {"files"},
    "verdict": {"files", "tables"},
    "runs": {"files", "verdict"},
    "claims": {"files", "runs", "verdict"},
    "corpus": {"console", "files", "tables"},
    "tasks": {"fields", "corpus", "files", "tables"},
    "models": {"fields", "analysis", "attention", "equilibrium", "files", "kernels"},
    "control": {"attention", "kernels"},
    "hf": {
        "attention",
        "console",
        "control",
        "corpus",
        "files",
        "kernels",
        "models",
        "runs",
        "tasks",
        "train",
        "verdict",
    },
    "evaluate": {
        "analysis",
        "attention",
        "claims",
        "console",
        "control",
        "corpus",
        "files",
        "hf",
        "kernels",
        "models",
        "report",
        "runs",
        "tasks",
        "train",
        "verdict",
    },
    "report": {"claims", "console", "files", "runs", "verdict"},
    "study": {
        "analysis",
        "attention",
        "bench",
        "claims",
        "console",
        "control",
        "equilibrium",
        "files",
        "kernels",
        "models",
        "report",
        "runs",
        "tasks",
        "train",
        "verdict",
    },
    "bench": {"attention", "console", "corpus", "files", "hf", "kernels", "models", "report", "runs", "tasks", "train"},
    "cli": ANYTHING,
    "__main__": {"cli", "console", "train"},
    "__init__": ANYTHING,
}


def place(file: Path) -> str:
    return file.relative_to(SOURCE).as_posix()


def module(file: Path) -> str:
    """Return the dotted name of a file: attractor/tasks/text.py is attractor.tasks.text, and a package has its folder's
    name."""
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(file): file for file in FILES}


@cache
def imports(file: Path) -> frozenset[str]:
    """Return the dotted names that a file imports, also in functions and for types, since a late import is a
    dependency, too."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{place(file)}:{node.lineno}: write the full name, from attractor... import ..."
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def room_of(name: str) -> str:
    """Return the room of an imported name; `import attractor` and `from attractor import f` import the public face, a
    room, too."""
    first = name.split(".")[1] if "." in name else "__init__"
    on_disk = (SOURCE / first).is_dir() or (SOURCE / f"{first}.py").exists()
    return first if on_disk else "__init__"


def file_of(name: str) -> Path | None:
    """Return the file of an imported name, which may be a module or an object in one."""
    return MODULES.get(name) or MODULES.get(name.rpartition(".")[0])


def inside(file: Path) -> set[str]:
    return {name for name in imports(file) if name.split(".")[0] == "attractor"}


def test_every_room_is_in_the_table() -> None:
    rooms = {place(file).split("/")[0].removesuffix(".py") for file in FILES}
    missing = sorted(rooms - MAY_IMPORT.keys())
    assert not missing, (
        f"add {missing} to MAY_IMPORT and to the tree in CONTRIBUTING.md, or move the files to a room that is there"
    )


def test_imports_point_one_way() -> None:
    for file in FILES:
        room = place(file).split("/")[0].removesuffix(".py")
        allowed = MAY_IMPORT.get(room, set())
        if allowed is ANYTHING:
            continue
        allowed = allowed | {room, "errors"}
        wrong = sorted(name for name in inside(file) if room_of(name) not in allowed)
        assert not wrong, (
            f"{place(file)} imports {wrong}, but '{room}' may import only {sorted(allowed)}: "
            "move the code to the room that may, or pass the object in as an argument"
        )


def test_files_import_one_another_without_circles() -> None:
    """Criterion: late imports and those for type checkers count, since they only hide a circle.

    The __init__ of a package counts where it does more than export names, as that of the command line.
    """
    parts = [file for file in FILES if file.name != "__init__.py" or file.parent.name == "cli"]
    graph = {file: {file_of(name) for name in inside(file)} & set(parts) for file in parts}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = " <- ".join(place(file) for file in error.args[1])
        pytest.fail(f"{circle}: move what the two need to a file of its own, which both import")


TESTS = {"paired_t_test", "welch", "welch_estimate", "holm", "moderated"}
PLANS = {"detectable_with_power", "power_of_pairs", "pairs_needed"}


def test_only_the_judge_computes_p_values_and_power() -> None:
    """Criterion: outside `verdict` no file imports a test, a correction or a plan; they ask `judge_family`."""
    asked = 0
    for file in FILES:
        if place(file).startswith("verdict/"):
            continue
        from_verdict = {name for name in inside(file) if room_of(name) == "verdict"}
        asked += "attractor.verdict.family.judge_family" in from_verdict
        wrong = sorted(name for name in from_verdict if name.rpartition(".")[2] in TESTS | PLANS)
        assert not wrong, f"{place(file)} imports {wrong}: ask `judge_family`"
    assert asked


def test_files_are_named_for_what_they_hold() -> None:
    vague = {"util", "utils", "helper", "helpers", "manager", "managers"}
    wrong = [place(file) for file in FILES if vague & set(place(file).removesuffix(".py").split("/"))]
    assert not wrong, f"rename {wrong} for the one idea each file holds"
