"""Every command that a message suggests parses, and names are suggested only for words that are close to them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attractor import cli
from attractor.attention import PRESETS
from attractor.corpus.documents import CORPORA
from attractor.errors import nearest
from attractor.models import SIZES
from attractor.tasks import KINDS
from attractor.train.config import RECIPES
from five_papers import CLAIMS

SOURCE = Path(__file__).parents[1] / "src" / "attractor"
QUOTED = re.compile(r"'attractor ([a-z][^']*)'")
PLACEHOLDER = "X"  # stands for the value of an f-string


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield every text of a file except docstrings, with a placeholder for each value of an f-string."""
    source = file.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source))) if "'attractor" in source else []
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    skipped = inside | alone
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(p.value) if isinstance(p, ast.Constant) else PLACEHOLDER for p in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def suggestions() -> list[tuple[str, str]]:
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        for line, text in texts(file):
            found += [(f"{file.relative_to(SOURCE)}:{line}", words) for words in QUOTED.findall(text)]
    return found


def test_every_suggested_command_parses() -> None:
    """A name alone is the name of a command; a line with options or arguments must parse as a whole."""
    commands = suggestions()
    assert {"list", "train --task sudoku"} <= {words for _, words in commands}, "the search misses commands"
    for place, words in commands:
        argv = words.split()
        if words not in cli.COMMANDS and argv[-1] not in cli.HELP:
            try:
                cli.parse(argv)
            except Exception as error:
                raise AssertionError(f"{place}: 'attractor {words}' does not parse") from error


VOCABULARIES = {
    "attention": PRESETS,
    "size": SIZES,
    "recipe": RECIPES,
    "task": [kind.kind for kind in KINDS],
    "corpus": CORPORA,
    "command": cli.COMMANDS,
    "precision": ("fp32", "bf16", "fp16"),
    "claim": [claim.id for claim in CLAIMS],
}
every_vocabulary = pytest.mark.parametrize("names", VOCABULARIES.values(), ids=VOCABULARIES)


@every_vocabulary
def test_a_word_without_a_near_match_has_no_suggestion(names: list[str]) -> None:
    for word in ("nope", "none", "something", "xyz", "foo", "softmax"):
        assert nearest(word, sorted(names)) is None, word


@every_vocabulary
def test_a_typing_error_leads_to_the_name(names: list[str]) -> None:
    """Criterion: in every name of five letters or more, two letters are exchanged, the last is left out, or one is
    doubled. The suggestion may be another name that is as near."""
    for name in (name for name in names if len(name) >= 5):
        for slip in (name[:-3] + name[-2] + name[-3] + name[-1], name[:-1], name + name[-1]):
            assert nearest(slip, sorted(names)) is not None, slip
        assert nearest(name[:-1], sorted(names)) in [each for each in names if name[:-1] in each or each in name]


def test_the_nearest_of_several_names_is_suggested() -> None:
    meant = {"eular": "coupled-euler", "standrad": "standard", "gatd": "gated", "diff": "differential", "gq": "gqa"}
    assert {word: nearest(word, sorted(PRESETS)) for word in meant} == meant
