"""Rewrite the code of a model as stand-alone files, which an export carries to machines without attractor.

Starting from one module, every attractor module that it imports, directly or indirectly, becomes a part of a file in a
flat folder. Loaders of remote code copy only the relative imports of a single folder. The modules of a room in `ROOMS`
become one file, in the order in which they import one another.

    attractor/models/block.py               in models.py
    attractor/kernels/decay.py              kernels_decay.py
    from attractor.attention import Rope    from .attention import Rope             nothing within attention.py
    Float[Tensor, "B T D"]                  Tensor                                  jaxtyping may not be installed
    import triton                           in try, with except: raise              loaders require it outside try

The rest of a file, including comments, is unchanged, so the bundle computes the same, bit by bit.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeGuard

PACKAGE = Path(__file__).parents[1]
ENTRY = "attractor.hf.model"
FILES = {ENTRY: "modeling_attractor", "attractor.hf.config": "configuration_attractor"}  # Hugging Face's convention
ROOMS = ("attention", "equilibrium", "models")  # no two of their modules give one name to two things
SHAPES = "jaxtyping"
OPTIONAL = "triton"  # imported on a GPU only
HEAD = "# {place} of attractor {version}. SPDX-License-Identifier: Apache-2.0\n"


@cache
def self_contained_code(entry: str = ENTRY) -> Mapping[str, str]:
    """Return the text of all files by name, that of the entry first."""
    needed: dict[str, list[str]] = {}  # what each module imports, when it is imported
    texts: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        module = waiting.pop(0)
        if module not in texts:
            source = source_of(module)
            assert source is not None, f"{module} is no module of attractor"
            text, imported = rewritten(source.read_bytes(), file_name(module))
            head = HEAD.format(place=source.relative_to(PACKAGE.parent).as_posix(), version=version(PACKAGE.name))
            texts[module], needed[module] = head + text, [defined.module for defined in imported if defined.at_once]
            waiting += [defined.module for defined in imported]
    parts: dict[str, list[str]] = {}
    for module in TopologicalSorter(needed).static_order():
        parts.setdefault(f"{file_name(module)}.py", []).append(texts[module])
    files = {name: "\n\n".join(parts[name]) for name in dict.fromkeys(f"{file_name(module)}.py" for module in texts)}
    return files | {f"{file_name(entry)}.py": with_imports_of(files, entry)}


def with_imports_of(files: Mapping[str, str], entry: str) -> str:
    """Return the entry's text, followed by an import of every file, which is never executed.

    Loaders up to transformers 5.10 search the text of the entry for relative imports, and copy only those files."""
    name = f"{file_name(entry)}.py"
    imports = [f"    from .{other.removesuffix('.py')} import __name__ as _\n" for other in files if other != name]
    return "".join([files[name], "\n\nif False:  # names all files for loaders that copy only these\n", *imports])


def file_name(module: str) -> str:
    room, *inner = module.split(".")[1:]
    return FILES.get(module) or (room if room in ROOMS else "_".join([room, *inner]))


def rewritten(content: bytes, file: str = "") -> tuple[str, list["Origin"]]:
    """Return a module's text for this file of the flat folder, and what it imports from attractor."""
    nodes = list(ast.walk(ast.parse(content)))
    internal = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module and is_internal(node.module)]
    of_types = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == SHAPES]
    origins = {
        node: [origin(str(node.module), alias, not node.col_offset) for alias in node.names] for node in internal
    }
    shapes = {alias.name for node in of_types for alias in node.names}
    starts = list(accumulate(map(len, content.splitlines(keepends=True)), initial=0))
    edits = [Edit.of_lines(starts, node, "".join(relative(origins[node], node.col_offset, file))) for node in internal]
    edits += [Edit.of_lines(starts, node, "") for node in of_types]
    edits += [Edit.of(starts, node, type_of(node)) for node in nodes if is_annotation(node, shapes)]
    edits += [Edit.of_lines(starts, node, tried(node)) for node in nodes if is_optional(node)]
    for edit in sorted(edits, reverse=True):  # from the end, so that earlier offsets stay valid
        content = content[: edit.start] + edit.text.encode() + content[edit.end :]
    return content.decode(), [imported for node in internal for imported in origins[node]]


class Edit(NamedTuple):
    """A replacement of part of a file. Offsets count bytes, as the parser counts columns."""

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
    """The module that defines an imported name, and its name in the importing file."""

    module: str
    name: str | None  # None where the module itself is imported
    alias: str
    at_once: bool = True  # imported when the module is, and not in a function


def origin(module: str, alias: ast.alias, at_once: bool = True) -> Origin:
    local_name = alias.asname or alias.name
    if source_of(f"{module}.{alias.name}") is not None:
        return Origin(f"{module}.{alias.name}", None, local_name, at_once)
    reexport = reexports(module).get(alias.name)
    if reexport is None:
        return Origin(module, alias.name, local_name, at_once)
    return Origin(reexport.module, reexport.name, local_name, at_once)


@cache
def reexports(module: str) -> dict[str, Origin]:
    """Return the names that a package's `__init__` imports from other modules; a plain module has none."""
    source = source_of(module)
    if source is None or source.name != "__init__.py":
        return {}
    nodes = [node for node in ast.parse(source.read_bytes()).body if isinstance(node, ast.ImportFrom)]
    named = [(node.module, alias) for node in nodes for alias in node.names if node.module and is_internal(node.module)]
    return {alias.asname or alias.name: origin(place, alias) for place, alias in named}


def relative(origins: list[Origin], indent: int, own_file: str = "") -> Iterator[str]:
    """Yield a relative import for every file that names come from, and two lines for an imported module.

    What stands in the file already needs no import, but a block of code needs a line."""
    space = " " * indent
    by_file: dict[str, list[str]] = {}
    for defined in origins:
        file = file_name(defined.module)
        if file == own_file:
            by_file.setdefault("", [])
        elif defined.name is None:
            # Loaders copy only files that are imported in the first form.
            yield f"{space}from .{file} import __name__ as _\n"
            yield f"{space}from . import {file} as {defined.alias}\n"
        else:
            name = defined.name if defined.name == defined.alias else f"{defined.name} as {defined.alias}"
            by_file.setdefault(file, []).append(name)
    for file, names in by_file.items():
        if file:
            yield f"{space}from .{file} import {', '.join(names)}\n"
        elif indent:
            yield f"{space}pass\n"


def is_internal(module: str) -> bool:
    return module.split(".")[0] == PACKAGE.name


def source_of(module: str) -> Path | None:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
