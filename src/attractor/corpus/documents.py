"""Where text comes from: the running Python's own library (nothing is shipped or downloaded), a file, or a folder."""

import ast
import os
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from attractor.errors import InputError

Document = tuple[str, bytes]
"""A name, unique within its corpus, and the text."""

# Installed packages and tests differ between machines; topics.py belongs to stdlib-docs. Character tables (encodings)
# and the retired copies of old grammars nearly repeat one another, which would flatter any model's validation loss.
LEFT_OUT = re.compile(
    r"site-packages|dist-packages|test|tests|idlelib|lib2to3|ensurepip|turtledemo|encodings|pydoc_data|__pycache__"
    r"|config-.*|_sysconfigdata.*|sitecustomize\.py|usercustomize\.py"
)
SEPARATOR_LINE = re.compile(rb"^<\|endoftext\|>\r?(?:\n|\Z)", re.MULTILINE)


def stdlib_code() -> list[Document]:
    """The sources of Python's standard library, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    names = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if not LEFT_OUT.fullmatch(name)]  # never walked into
        sources = [name for name in files if name.endswith(".py") and not LEFT_OUT.fullmatch(name)]
        names += [(Path(folder) / name).relative_to(root).as_posix() for name in sources]
    return [(name, (root / name).read_bytes()) for name in sorted(names)]


def stdlib_docs() -> list[Document]:
    """The docstrings of the standard library, a document per file, and the topics of `help()`, a document each."""
    from pydoc_data.topics import topics

    documents = [(name, "\n\n".join(_docstrings(source)).encode()) for name, source in stdlib_code()]
    return documents + [(f"topics/{name}", text.encode()) for name, text in sorted(topics.items())]


CORPORA: dict[str, Callable[[], list[Document]]] = {
    "stdlib-code": stdlib_code,
    "stdlib-docs": stdlib_docs,
}


def documents_at(path: Path) -> list[Document]:
    """The documents of one text file, or of all text files below a folder that are not hidden, by sorted name.

    A line `<|endoftext|>` in a .txt file separates documents. Binary files are an error alone, and skipped in a folder.
    """
    if path.is_file():
        return _documents_in(path, path.name)
    documents, binary = [], []
    for name in sorted(below.relative_to(path).as_posix() for below in path.rglob("*") if below.is_file()):
        if any(part.startswith(".") for part in name.split("/")):
            continue
        try:
            documents += _documents_in(path / name, name)
        except BinaryFileError:
            binary.append(name)
    if binary:
        warnings.warn(f"skipped {len(binary)} binary file(s) in '{path}', the first is '{binary[0]}'", stacklevel=2)
    return documents


class BinaryFileError(InputError):
    """A file that was to be read as text is not UTF-8."""


def _documents_in(path: Path, name: str) -> list[Document]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"corpus file must be readable, but '{path}' is not: {error.strerror}; check it") from error
    _check_is_text(text, path)
    if path.suffix != ".txt":
        return [(name, text)]
    parts = SEPARATOR_LINE.split(text)
    return [(name, text)] if len(parts) == 1 else [(f"{name}#{i}", part) for i, part in enumerate(parts)]


def _check_is_text(text: bytes, path: Path) -> None:
    if b"\0" in text:
        flaw = f"a NUL byte at offset {text.index(0)}"
    else:
        try:
            text.decode()
            return
        except UnicodeDecodeError as error:
            flaw = f"a byte at offset {error.start} that is not UTF-8"
    raise BinaryFileError(f"corpus file must be UTF-8 text, but '{path}' has {flaw}; convert it or give another file")


def _docstrings(source: bytes) -> Iterator[str]:
    """Every docstring of a file, in order. The file is parsed and never imported, for imports have effects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a stray backslash in someone's source is not this run's concern
        tree = ast.parse(source)
    for node in _definitions(tree):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring


def _definitions(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Depth first, through statements alone: `ast.walk` goes breadth first and into every expression."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _definitions(child)
