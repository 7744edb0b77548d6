"""A folder of papers is judged wherever it lies, and a fault in one part hides no other."""

import json
import re
import warnings
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from attractor.claims.ledger import find_records, ledger, read_papers
from attractor.claims.verdicts import Rule
from attractor.cli.evidence import ClaimsArguments, claims
from attractor.study import load_study
from invented_records import losses, record

SOURCE = Path(__file__).parents[2] / "src" / "attractor"

CLAIMS = """
from attractor.claims.claim import Claim, Paper, pair
from attractor.claims.rules import Differs
from .rules import Broken

PAPER = Paper("Sixth", "A sixth paper", "A. N. Author", 2026, None, "It lowers a loss.", (
    Claim("S1", "the new one is better", "1.6 vs 1.7", "new", Differs((pair("new", "standard", -0.1),))),
    Claim("S2", "and for a reason", "stated", "new", Broken()),
    Claim("S3", "and everywhere", "stated", "elsewhere", Differs((pair("new", "standard", -0.1),))),
))
"""
RULES = """
from dataclasses import dataclass
from attractor.claims.verdicts import Rule

@dataclass(frozen=True)
class Broken(Rule):
    words = "cannot be applied"

    def parts(self, record):
        return [record.design.nothing]
"""
STUDY = """
from attractor.study import Probe, Scale, Study, axis
from attractor.train.config import RECIPES
from ..probes.width import width

STUDY = Study("New", "Is it better?", "table 1", axis("attention", "standard", "gated"), "standard",
              {"own": Scale(RECIPES["laptop"], (0,))}, probes=(Probe("width", width),), claims=("S1", "S2"))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {"claims.py": CLAIMS, "rules.py": RULES, "studies/new.py": STUDY, "probes/width.py": "width = len\n"}
    runs = record({"standard": losses(1.7), "new": losses(1.6), "uniform": losses(2.0)})
    design = replace(runs.design, name="new", claims=("S1", "S2", "S3"), scale="desk")
    texts["results/study-new-desk.json"] = json.dumps(replace(runs, design=design).to_dict())
    for name, text in texts.items():
        path = tmp_path / "papers" / "sixth" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "papers"


def shown(*names: str) -> str:
    text = StringIO()
    claims(ClaimsArguments(names), Console(file=text, width=200))
    return text.getvalue()


def test_a_paper_elsewhere_is_judged_by_its_own_rules_and_records(folder: Path) -> None:
    """Criterion: a rule that raises is one line, a claim without records is "not run", and the rest is judged."""
    papers = read_papers(folder)
    (paper,) = papers.values()
    verdicts = [entry.verdict for entry in ledger(find_records(papers), paper.claims)]
    assert [verdict.status for verdict in verdicts] == ["holds", "unclear", "not run"]
    assert re.search("cannot be applied: AttributeError: .*nothing.*; mend the rule$", verdicts[1].reason)
    assert read_papers(folder / "sixth") == papers
    (probe,) = load_study(folder / "sixth" / "studies" / "new.py").probes  # its files import one another
    assert (probe.name, probe.measure, isinstance(paper.claims[1].rule, Rule)) == ("width", len, True)
    assert "S1" in shown(str(folder))
    assert "published: 1.6 vs 1.7" in shown(str(folder), "S1")
    assert shown(str(folder)).startswith(f"'{folder}' is Python code from outside")


@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        ("seventh/claims.py", "import nothing_of_that_name", "left out a paper: .*line 1 cannot be executed"),
        ("seventh/claims.py", "PAPER = 7", "must define PAPER, a Paper, and has int"),
        *(
            ("sixth/results/study-old-desk.json", text, "left out a damaged study: .*study-old-desk")
            for text in ('{"format": 99}', '{"format": 1}', "[]", '{"format": 1, "design": {}, "cells": []}', '"half"')
        ),
        ("sixth/results/study-torn-desk.json", '{"format": ', "left out a damaged study: .*study-torn-desk"),
    ],
)
def test_what_is_damaged_is_named_and_the_rest_is_judged(folder: Path, place: str, text: str, said: str) -> None:
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text(text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert "S1 holds (desk" in shown(str(folder))
    (line,) = (str(warning.message) for warning in caught)
    assert re.search(said, line)
    assert "\n" not in line


def test_the_tool_imports_no_paper() -> None:
    for file in SOURCE.rglob("*.py"):
        assert not re.search(r"^\s*(from|import) papers\b", file.read_text(), re.MULTILINE), file
