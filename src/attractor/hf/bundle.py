"""The code of a model as files that stand alone: what an export carries to machines where attractor is not installed.

Starting from one module, every module of ours that it imports, and that those import, becomes one file of a flat
folder, because loaders of remote code copy the relative imports of a single folder and nothing else:

    attractor/models/block.py               models_block.py
    from attractor.attention import Rope    from .attention_position import Rope    from where it is defined
    Float[Tensor, "B T D"]                  Tensor                                  shapes need a package of their own
    import triton                           in try, with except: raise              loaders ask for what is not tried

The rest of a file, its comments included, stays as it is, so both compute the same, bit by bit.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeGuard

PACKAGE = Path(__file__).parents[1]
ENTRY = "attractor.hf.model"
FILES = {ENTRY: "modeling_attractor", "attractor.hf.config": "configuration_attractor"}  # as is the custom there
SHAPES = "jaxtyping"
OPTIONAL = "triton"  # which only what runs on a GPU imports
HEAD = "# {place} of attractor {version}. SPDX-License-Identifier: Apache-2.0\n"


@cache
def self_contained_code(entry: str = ENTRY) -> Mapping[str, str]:
    """The files by name, that of the entry first."""
    files: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        module = waiting.pop(0)
        name = f"{file_name(module)}.py"
        if name not in files:
            source = source_of(module)
            assert source is not None, f"{module} is no module of ours"
            text, needed = rewritten(source.read_bytes())
            head = HEAD.format(place=source.relative_to(PACKAGE.parent).as_posix(), version=version(PACKAGE.name))
            files[name] = head + text
            waiting += needed
    return files


def file_name(module: str) -> str:
    return FILES.get(module) or "_".join(module.split(".")[1:])


def rewritten(content: bytes) -> tuple[str, list[str]]:
    """A module's text with the imports and annotations of a flat folder, and the modules of ours that it imports."""
    nodes = list(ast.walk(ast.parse(content)))
    from_ours = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module and is_ours(node.module)]
    of_shapes = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == SHAPES]
    origins = {node: [origin(str(node.module), alias) for alias in node.names] for node in from_ours}
    shapes = {alias.name for node in of_shapes for alias in node.names}
    starts = list(accumulate(map(len, content.splitlines(keepends=True)), initial=0))
    edits = [Edit.of_lines(starts, node, "".join(relative(origins[node], node.col_offset))) for node in from_ours]
    edits += [Edit.of_lines(starts, node, "") for node in of_shapes]
    edits += [Edit.of(starts, node, type_of(node)) for node in nodes if is_annotation(node, shapes)]
    edits += [Edit.of_lines(starts, node, tried(node)) for node in nodes if is_optional(node)]
    for edit in sorted(edits, reverse=True):  # from the end, so that the places before stay what they are
        content = content[: edit.start] + edit.text.encode() + content[edit.end :]
    return content.decode(), [each.module for node in from_ours for each in origins[node]]


class Edit(NamedTuple):
    """What replaces a part of a file, in bytes, as the parser counts columns."""

    start: int
    end: int
    text: str

    @classmethod
    def of(cls, starts: list[int], node: ast.expr, text: str) -> "Edit":
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return cls(starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset, text)

    @classmethod
    def of_lines(cls, starts: list[int], node: ast.stmt, text: str) -> "Edit":
        assert node.end_lineno is not None
        return cls(starts[node.lineno - 1], starts[node.end_lineno], text)


def is_optional(node: ast.AST) -> TypeGuard[ast.Import]:
    return isinstance(node, ast.Import) and node.names[0].name.split(".")[0] == OPTIONAL


def tried(node: ast.Import) -> str:
    return f"try:\n    {ast.unparse(node)}\nexcept ImportError:\n    raise\n"


def is_annotation(node: ast.AST, shapes: set[str]) -> TypeGuard[ast.Subscript]:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in shapes


def type_of(annotation: ast.Subscript) -> str:
    assert isinstance(annotation.slice, ast.Tuple)
    return ast.unparse(annotation.slice.elts[0])


@dataclass(frozen=True)
class Origin:
    """Where an imported name is defined, and what the importer calls it. A module itself has no name in it."""

    module: str
    name: str | None
    called: str


def origin(module: str, alias: ast.alias) -> Origin:
    called = alias.asname or alias.name
    if source_of(f"{module}.{alias.name}") is not None:
        return Origin(f"{module}.{alias.name}", None, called)
    passed_on = passed_on_by(module).get(alias.name)
    if passed_on is None:
        return Origin(module, alias.name, called)
    return Origin(passed_on.module, passed_on.name, called)


@cache
def passed_on_by(module: str) -> dict[str, Origin]:
    """The names that a package's face has from elsewhere in the package; a plain module is asked for its own alone."""
    source = source_of(module)
    if source is None or source.name != "__init__.py":
        return {}
    nodes = [node for node in ast.parse(source.read_bytes()).body if isinstance(node, ast.ImportFrom)]
    named = [(node.module, alias) for node in nodes for alias in node.names if node.module and is_ours(node.module)]
    return {alias.asname or alias.name: origin(place, alias) for place, alias in named}


def relative(origins: list[Origin], indent: int) -> Iterator[str]:
    """One line for each module that names come from, and two for a module that is itself what is imported."""
    space = " " * indent
    by_module: dict[str, list[str]] = {}
    for each in origins:
        file = file_name(each.module)
        if each.name is None:
            # Loaders copy the files that they see imported in the first form only.
            yield f"{space}from .{file} import __name__ as _\n"
            yield f"{space}from . import {file} as {each.called}\n"
        else:
            spelled = each.name if each.name == each.called else f"{each.name} as {each.called}"
            by_module.setdefault(file, []).append(spelled)
    for file, names in by_module.items():
        yield f"{space}from .{file} import {', '.join(names)}\n"


def is_ours(module: str) -> bool:
    return module.split(".")[0] == PACKAGE.name


def source_of(module: str) -> Path | None:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
