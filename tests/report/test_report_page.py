"""The page stands alone, escapes what it is given, and comes out the same every time."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from attractor.report.comparison import Comparison
from attractor.report.figure import differences, loss_curves
from attractor.report.page import write_page

SOURCE = Path(__file__).parents[2] / "src" / "attractor"
HOSTILE = "<script>alert('$x$')</script>"


@pytest.fixture
def comparison(fake_runs):
    runs = fake_runs({"standard": [1.66, 1.68, 1.71], "uniform": [1.85, 1.9, 1.9], HOSTILE: [1.6, 1.61, 1.7]})
    return Comparison.read(runs, "standard")


@pytest.fixture
def page(comparison, tmp_path):
    write_page(comparison, tmp_path / "report.html", "attractor compare --seeds 3 && echo '<done>'")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_it_needs_no_network_and_runs_nothing(page):
    addresses = set(re.findall(r'https?://[^"\s<]+', page))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, never fetched
    assert not re.search(r"<(script|link|iframe|img|object)\b|@import|\bsrc=|javascript:", page)


def test_a_hostile_label_is_text_everywhere(page):
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(") >= 5  # verdict, table, both figures, configuration
    assert "&lt;done&gt;" in page


def test_it_holds_verdict_table_figures_differences_and_command(page):
    for part in (
        "sensitive: the control",
        "baseline",
        "1.23M",
        "model.attention",
        "Shared by all",
        "attractor compare",
    ):
        assert part in page
    assert page.count("<svg") == page.count("<figcaption>") == 2
    assert "python" in page


def test_every_tag_is_closed_and_every_id_is_unique(page):
    class Outline(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open, self.ids = [], []

        def handle_starttag(self, tag, attrs):
            self.ids += [value for name, value in attrs if name == "id"]
            if tag != "meta":
                self.open.append(tag)

        def handle_startendtag(self, tag, attrs):
            self.ids += [value for name, value in attrs if name == "id"]

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert set(re.findall(r'(?:url\(|xlink:href=")#([^")]+)', page)) <= set(outline.ids)


def test_figures_are_deterministic_and_take_the_colour_of_the_text(comparison):
    for draw in (loss_curves, differences):
        assert draw(comparison) == draw(comparison)
        assert "currentColor" in draw(comparison)
        assert "#010203" not in draw(comparison)


def test_without_validations_or_pairs_there_are_no_figures(fake_runs, tmp_path):
    runs = fake_runs(standard=[1.6], unfinished=[None])
    (runs[0].path / "metrics.jsonl").unlink()
    comparison = Comparison.read(runs, "standard")
    assert loss_curves(comparison) == differences(comparison) == ""
    write_page(comparison, tmp_path / "report.html", "make compare")
    assert "<svg" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_an_outcome_that_is_no_number_leaves_a_page(fake_runs, tmp_path):
    runs = fake_runs(standard=[1.6, 1.7], uniform=[1.9, 1.9], rival=[1.6, float("nan")])
    write_page(Comparison.read(runs, "standard"), tmp_path / "report.html", "make compare")
    assert "without a finite loss" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_neither_room_imports_torch():
    """A report is read on machines without torch; the package itself is stubbed, since its face imports the layers."""
    rooms = [path for room in ("evidence", "report") for path in sorted((SOURCE / room).glob("*.py"))]
    names = [".".join(("attractor", path.parent.name, path.stem)).removesuffix(".__init__") for path in rooms]
    script = f"""
import importlib, sys, types
package = types.ModuleType("attractor")
package.__path__ = [{str(SOURCE)!r}]
sys.modules["attractor"] = package
for name in {names!r}:
    importlib.import_module(name)
late = {{"torch", "scipy", "matplotlib"}} & sys.modules.keys()
assert not late, late
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
