"""Read a study's title, question, source, claims and scales from its syntax tree, without executing the file.

A stranger's study is code, which listing must not execute. So only constants are read: those of the arguments in
`STUDY = Study(...)`, and the scales that are written there as a dictionary. A study that is made in another way is
listed without a description.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attractor.errors import InputError


@dataclass(frozen=True)
class Outline:
    """The description of a study, as its file states it."""

    title: str
    question: str = ""
    source: str = ""
    scales: tuple[str, ...] = ()  # scales that the file writes as a dictionary
    claims: tuple[str, ...] = ()


def outline_of(file: Path) -> Outline:
    """Return what the file of a study says about itself, without executing it."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as error:
        line = f" line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(f"study file '{file}'{line} cannot be read as Python: {error}; mend or remove it") from error
    fields = dict(_fields(tree))
    texts = {name: _text(fields.get(name)) for name in ("title", "question", "source")}
    if isinstance(_assigned(tree).get("STUDY"), ast.Constant | None):
        raise InputError(f"study file '{file}' must define STUDY = Study(title=...), and does not; mend or remove it")
    texts["title"] = texts["title"] or "(its title is computed, and 'attractor study plan' shows it)"
    return Outline(**texts, scales=_texts(fields.get("scales")), claims=_texts(fields.get("claims")))


def _fields(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the named arguments of the call whose result is assigned to STUDY."""
    call = _assigned(tree).get("STUDY")
    if isinstance(call, ast.Call):
        yield from zip(("title", "question", "source"), call.args, strict=False)
        yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg)


def _assigned(tree: ast.Module) -> dict[str, ast.expr | None]:
    """Return the expressions that a module assigns to names."""
    assigned: dict[str, ast.expr | None] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
    return assigned


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _texts(node: ast.expr | None) -> tuple[str, ...]:
    """Return the texts in a tuple or a list, or those that are keys of a dictionary."""
    parts: list[Any] = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    return tuple(filter(None, map(_text, parts)))
