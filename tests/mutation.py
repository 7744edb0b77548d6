"""Mutation check: plant faults in a copy of the source, one at a time, and show which test notices each.

`make mutants ARGS="--n 30 --seed 0 --files verdict attention/score"`. The faults follow patterns, and the seed draws
from their places, in turn from each pattern. The tests named like the faulty file run first, then the tests of its
room, then all other fast tests; a check ends at the first test that fails. The remedy for a missed fault is a new case
in a test, unless the fault changes nothing that a user could see.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, zip_longest
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_BEHIND = {".git", ".venv", "dist", "runs"}  # these entries of the repository's root are not copied
LONGEST_SECONDS = 3600  # a limit, since a fault may make a test wait for ever
ROOMS = ("attention", "control", "train", "verdict")

SWAPPED_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    old: new
    for pair in (
        (ast.Lt, ast.LtE),
        (ast.Gt, ast.GtE),
        (ast.Eq, ast.NotEq),
        (ast.Is, ast.IsNot),
        (ast.Add, ast.Sub),
        (ast.Mult, ast.Div),
        (ast.And, ast.Or),
    )
    for old, new in (pair, pair[::-1])
}
SWAPPED_NAMES = {
    old: new
    for pair in (("min", "max"), ("amin", "amax"), ("minimum", "maximum"), ("any", "all"))
    for old, new in (pair, pair[::-1])
}
WORDS = (ast.JoinedStr, ast.Raise, ast.Assert)  # faults inside these would change messages only


@dataclass(frozen=True)
class Fault:
    path: str  # below the root
    line: int
    pattern: str
    old: str  # the text in place of which the new one stands
    new: str
    source: str  # the whole file with the fault


def variants(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the pattern and the new text of each fault that this node itself can have."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=comparators) if type(operator) in SWAPPED_OPERATORS:
            swapped = ast.Compare(left, [SWAPPED_OPERATORS[type(operator)]()], comparators)  # type: ignore[list-item]
            yield "comparison", f"({ast.unparse(swapped)})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in SWAPPED_OPERATORS:
            swapped_sum = ast.BinOp(left, SWAPPED_OPERATORS[type(operator)](), right)  # type: ignore[arg-type]
            yield "arithmetic", f"({ast.unparse(swapped_sum)})"
        case ast.BoolOp(op=operator, values=values):
            yield "and, or", f"({ast.unparse(ast.BoolOp(SWAPPED_OPERATORS[type(operator)](), values))})"  # type: ignore[arg-type]
        case ast.Call(func=ast.Attribute(value=value, attr="detach")):
            yield "no detach", ast.unparse(value)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            for left_out in keywords:
                kept = [keyword for keyword in keywords if keyword is not left_out]
                yield "no keyword argument", ast.unparse(ast.Call(function, arguments, kept))
        case ast.Name(id="causal", ctx=ast.Load()) | ast.Attribute(attr="causal", ctx=ast.Load()):
            yield "causal negated", f"(not {ast.unparse(node)})"
        case ast.Name(id=name) if name in SWAPPED_NAMES:
            yield "min, max", SWAPPED_NAMES[name]
        case ast.Attribute(value=value, attr=name) if name in SWAPPED_NAMES:
            yield "min, max", f"{ast.unparse(value)}.{SWAPPED_NAMES[name]}"
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            yield "off by one", repr(number + 1)
        case ast.AugAssign() | ast.Assign(targets=[ast.Name()]) if reads_its_target(node):
            yield "early value", "pass"


def reads_its_target(node: ast.AugAssign | ast.Assign) -> bool:
    """Say whether an assignment replaces a value by one made of it, so that the early value can be left in place."""
    if isinstance(node, ast.AugAssign):
        return True
    names = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id in names


def computing_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that compute something: no annotations, no decorators, no messages."""
    yield node
    for name, children in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        for child in children if isinstance(children, list) else [children]:
            if isinstance(child, ast.AST) and not isinstance(child, WORDS):
                yield from computing_nodes(child)


def faults_in(path: str, source: str) -> Iterator[Fault]:
    """Yield each fault of a file, as it stands there with the fault planted."""
    encoded = source.encode()  # ast counts columns in bytes
    starts = [0, *accumulate(map(len, encoded.splitlines(keepends=True)))]
    for node in computing_nodes(ast.parse(source)):
        for pattern, text in variants(node):
            assert isinstance(node, ast.expr | ast.stmt)
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            planted = encoded[:begin] + text.encode() + encoded[end:]
            yield Fault(path, node.lineno, pattern, encoded[begin:end].decode(), text, planted.decode())


def source_files(names: Sequence[str]) -> list[Path]:
    """Return the Python files that are named, and those in the folders that are named, below src/attractor."""
    found: set[Path] = set()
    for name in names:
        path = ROOT / "src" / "attractor" / name
        inside = list(path.rglob("*.py")) if path.is_dir() else [path]
        found.update(inside)
    return sorted(found)


def drawn(files: Sequence[Path], n: int, seed: int) -> list[Fault]:
    """Draw n faults of the files, in turn from each pattern."""
    by_pattern: dict[str, list[Fault]] = {}
    for path in files:
        for fault in faults_in(path.relative_to(ROOT).as_posix(), path.read_text()):
            by_pattern.setdefault(fault.pattern, []).append(fault)
    random_numbers = random.Random(seed)
    shuffled = [random_numbers.sample(faults, len(faults)) for _, faults in sorted(by_pattern.items())]
    return [fault for fault in chain(*zip_longest(*shuffled)) if fault][:n]


def tests_in_order(path: str) -> Iterator[list[str]]:
    """Yield arguments for pytest: the tests named like the file, those of its room, and all others."""
    room, name = Path(path).parts[2], Path(path).stem
    named = [str(test.relative_to(ROOT)) for test in sorted((ROOT / "tests").rglob(f"test_*{name}*.py"))]
    folder = f"tests/{room}"
    if named:
        yield named
    if (ROOT / folder).is_dir():
        yield [folder, *(f"--ignore={test}" for test in named)]
    yield ["tests", *(f"--ignore={test}" for test in [*named, folder, "tests/test_mutation.py"])]


def first_failure(copy: Path, arguments: Sequence[str]) -> str | None:
    """Run the fast tests in the copy; return the first test that fails, or None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", *arguments]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"(no end within {LONGEST_SECONDS} s)"
    if done.returncode in (0, 5):  # 5 means that no test was selected
        return None
    failures = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failures[0] if failures else f"(pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-200:]})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=30, help="number of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", nargs="+", default=ROOMS, help="files and folders below src/attractor")
    parser.add_argument(
        "--depth", type=int, default=3, help="1: only the tests named like the file, 2: those of its room"
    )
    arguments = parser.parse_args()
    missed = []
    print("|  # | place | fault | noticed by | s |\n|---:|---|---|---|---:|")
    faults = drawn(source_files(arguments.files), arguments.n, arguments.seed)
    with tempfile.TemporaryDirectory(prefix="attractor-mutants-") as folder:
        copy = Path(folder) / "repository"
        shutil.copytree(ROOT, copy, ignore=lambda at, _: {"__pycache__"} | (LEFT_BEHIND if Path(at) == ROOT else set()))
        for number, fault in enumerate(faults, start=1):
            started = time.monotonic()
            intact = (copy / fault.path).read_text()
            (copy / fault.path).write_text(fault.source)
            runs = (first_failure(copy, tests) for tests in islice(tests_in_order(fault.path), arguments.depth))
            noticed = next((failure for failure in runs if failure is not None), None)
            (copy / fault.path).write_text(intact)
            seconds = time.monotonic() - started
            place = f"{fault.path.removeprefix('src/attractor/')}:{fault.line}"
            print(f"| {number:2} | {place} | {fault.pattern} | {noticed or 'MISSED'} | {seconds:.0f} |", flush=True)
            if noticed is None:
                missed.append(f"{place} ({fault.pattern})\n  - {fault.old}\n  + {fault.new}")
    print(f"\n{len(faults) - len(missed)} of {len(faults)} faults were noticed", *missed, sep="\n")


if __name__ == "__main__":
    main()
