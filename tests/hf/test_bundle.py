"""The code in an export contains what it needs and nothing more. Only its imports and annotated shapes are changed."""

import ast
import re
import sys
import tokenize
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_imports, get_relative_import_files

from attractor.hf import bundle
from attractor.hf.bundle import ENTRY, OPTIONAL, file_name, rewritten, self_contained_code

ENTRIES = [ENTRY, "attractor.hf.replace"]
THIRD_PARTY = {"torch", "transformers", "huggingface_hub"}  # huggingface_hub comes with transformers
BUNDLED = {"attention", "control", "equilibrium", "errors", "fields", "files", "kernels", "models", "taps", "hf"}


@cache
def code_by_file() -> dict[str, str]:
    return self_contained_code(ENTRIES[1]) | self_contained_code(ENTRIES[0])


def modules() -> dict[str, list[Path]]:
    """Return the sources of every file of the bundle under the file's name, in the order of their heads."""
    return {
        name: [bundle.PACKAGE.parent / place for place in re.findall(r"^# (\S+\.py) of attractor ", code, re.MULTILINE)]
        for name, code in code_by_file().items()
    }


def test_a_file_imports_its_neighbours_and_few_packages() -> None:
    for name, code in code_by_file().items():
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names} - {OPTIONAL}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                roots = {str(node.module).split(".")[0]}
            elif isinstance(node, ast.ImportFrom):
                files = [node.module] if node.module else [alias.name for alias in node.names]
                assert {f"{file}.py" for file in files} <= code_by_file().keys(), name
                continue
            else:
                continue
            assert roots <= THIRD_PARTY | sys.stdlib_module_names, name


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_loader_finds_every_file(entry: str, tmp_path: Path) -> None:
    """Criterion: transformers, which follows relative imports from the first file, finds exactly the files of the
    bundle."""
    bundled = self_contained_code(entry)
    for name, code in bundled.items():
        (tmp_path / name).write_text(code)
    found = {Path(file).name for file in get_relative_import_files(tmp_path / f"{file_name(entry)}.py")}
    assert found | {f"{file_name(entry)}.py"} == bundled.keys()


def test_packages_that_only_a_gpu_needs_are_not_required(tmp_path: Path) -> None:
    """Criterion: transformers does not list the optional package as required, since the code imports it in a `try`."""
    needed = [name for name, code in code_by_file().items() if f"import {OPTIONAL}" in code]
    assert needed
    for name in needed:
        (tmp_path / name).write_text(code_by_file()[name])
        assert OPTIONAL not in get_imports(tmp_path / name), name


def test_the_bundle_contains_no_unused_packages() -> None:
    sources = [source for parts in modules().values() for source in parts]
    assert {source.relative_to(bundle.PACKAGE).with_suffix("").parts[0] for source in sources} <= BUNDLED


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_name_has_one_meaning_in_a_file_of_several_modules(entry: str) -> None:
    """Criterion: what a module defines or imports, no other module of the file defines or imports as something else,
    and each module is a part of one file."""
    code = self_contained_code(entry)
    assert len(code) < 30
    for name, text in code.items():
        meanings: dict[str, set[str]] = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [
                    (alias.asname or alias.name, f"{getattr(node, 'module', '')}.{alias.name}") for alias in node.names
                ]
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [(node.name, f"line {node.lineno}")]
            else:
                stored = (
                    part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                )
                names = [(part.id, f"line {node.lineno}") for part in stored]
            for key, meaning in names:
                meanings.setdefault(key, set()).add(meaning)
        if text.count(" of attractor ") > 1:
            assert not {key: meant for key, meant in meanings.items() if len(meant) > 1}, name
    places = [place for parts in modules().values() for place in parts]
    assert len(places) == len(set(places))


def test_comments_and_docstrings_are_kept() -> None:
    def words(content: bytes) -> list[str]:
        return [t.string for t in tokenize.tokenize(BytesIO(content).readline) if t.type == tokenize.COMMENT]

    for name, sources in modules().items():
        kept = words(code_by_file()[name].encode())
        for source in sources:
            head, *kept = kept
            assert source.relative_to(bundle.PACKAGE.parent).as_posix() in head
            assert "SPDX-License-Identifier: Apache-2.0" in head
            content = source.read_bytes()
            comments, kept = kept[: len(words(content))], kept[len(words(content)) :]
            assert comments == words(content), source
            assert (ast.get_docstring(ast.parse(content), clean=False) or "") in code_by_file()[name], source
        is_entry = name in [f"{file_name(entry)}.py" for entry in ENTRIES]
        assert kept == (["# names all files for loaders that copy only these"] if is_entry else []), name


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("from attractor.attention import Rope, build", "from .attention import Rope, build\n"),
        ("from attractor.errors import InputError as Refused", "from .errors import InputError as Refused\n"),
        (
            "from attractor.kernels.gpu import coupling",
            "from .kernels_gpu_coupling import __name__ as _\nfrom . import kernels_gpu_coupling as coupling\n",
        ),
        ("from jaxtyping import Float", ""),
        ("import math", "import math\n"),
    ],
)
def test_an_import_is_rewritten_to_the_file_that_defines_the_name(line: str, becomes: str) -> None:
    """Criterion: each import is rewritten in a form that the loader recognises, and an import in a function stays
    there."""
    for indent in ("", "    "):
        before = "def f():\n    é = 1\n"
        text, _ = rewritten(f"{before}{indent}{line}\n".encode())
        assert text == before + "".join(f"{indent}{rewrite}\n" for rewrite in becomes.splitlines())


def test_shapes_become_types_in_lines_with_characters_of_several_bytes() -> None:
    text, _ = rewritten(
        b'from jaxtyping import Float, Int\nx = "\xc3\xa9"; y: Float[Tensor, "B T"] = {}  # \xc3\xa9\n'
        b'def f(z: dict[str, Float[\n    Tensor | None, "B"\n]], n: Int[Tensor, ""]) -> list[int]: ...\n'
    )
    assert text.splitlines() == [
        'x = "é"; y: Tensor = {}  # é',
        "def f(z: dict[str, Tensor | None], n: Tensor) -> list[int]: ...",
    ]
