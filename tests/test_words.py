"""One word means one thing: rules for the names of the code.

The glossary (docs/glossary.md) says what the terms mean. These tests refuse a class name with two meanings, a variable
whose name says nothing, and a document that is not in the repository.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "attractor"
FILES = sorted(SOURCE.rglob("*.py"))
EMPTY_NAMES = {"found", "each", "own", "told", "one"}  # these names do not say what the variable holds
ABSENT_DOCUMENTS = re.compile(r"\b(CLAIMS|METHODS|DESIGN|STYLE)(\.md\b|,? section)")
READ_BY_PEOPLE = (*FILES, *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "papers").rglob("*.[mp][dy]")),
    ROOT / "README.md", ROOT / "CONTRIBUTING.md")  # fmt: skip


def test_each_class_name_means_one_thing():
    names = Counter(
        node.name for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, n in names.items() if n > 1]


@pytest.mark.parametrize("room", sorted({path.relative_to(SOURCE).parts[0] for path in FILES}))
def test_variables_are_named_for_what_they_hold(room):
    empty = []
    for path in FILES:
        if path.relative_to(SOURCE).parts[0] == room:
            for node in ast.walk(ast.parse(path.read_text())):
                name = node.arg if isinstance(node, ast.arg) else getattr(node, "id", "")
                bound = isinstance(node, ast.arg) or isinstance(getattr(node, "ctx", None), ast.Store)
                if bound and name in EMPTY_NAMES:
                    empty.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
    assert not empty


def test_nothing_refers_to_a_document_that_is_not_here():
    assert not [str(path) for path in READ_BY_PEOPLE if ABSENT_DOCUMENTS.search(path.read_text(encoding="utf-8"))]


def test_each_term_of_the_glossary_is_explained_once():
    rows = re.findall(r"^\| (?!Term|---)([^|]+?) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    names = Counter(term.strip().lower() for row in rows for term in row.split(","))
    assert names
    assert not [name for name, n in names.items() if n > 1]
