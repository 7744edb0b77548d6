"""Verdicts are shown on the console, in a page, in notebooks and in LaTeX, and names are text in each."""

import math
import random
import re
from html import escape, unescape
from pathlib import Path

import pytest
from rich.console import Console

from attractor.report.table import on_console
from attractor.report.verdict_page import pictures, thinned, write_page
from attractor.verdict.observations import Observations, ObservedRun
from attractor.verdict.outcome import Verdict, Verdicts

HOSTILE = "<script>alert('$x$')</script> | a_b & 50% \\input{x} ](y) \x1b[31mred\nnew\u202eline"
SHOWN = "<script>alert('$x$')</script> | a_b & 50% \\input{x} ](y) [31mred new line"


def numbers(n: int, centre: float = 3.28, n_steps: int = 0) -> dict[int, ObservedRun]:
    rng = random.Random(f"{n} {centre}")
    values = [centre + rng.gauss(0, 0.002) for _ in range(n)]
    return {
        seed: ObservedRun(value, tuple((step, value + 1 / step) for step in range(1, n_steps + 1)))
        for seed, value in enumerate(values)
    }


def judged(rows: dict[str, dict[int, ObservedRun]], *verdicts: Verdict, value: str = "val_loss", **fields) -> Verdicts:
    observations = Observations(rows, value, notes=(f"the value was guessed: {value}",))
    return Verdicts(observations, next(iter(rows)), verdicts, lower_is_better=True, **fields)


def paired(row: str = "mine", **fields) -> Verdict:
    ends = {"difference": -0.0121, "low": -0.0142, "high": -0.0098, "p": 0.0002, "adjusted_p": 0.0123}
    said = {"outcome": "better", "reason": f"All pairs of {row} are lower.", "design": "paired", "n": 4}
    return Verdict(row, **said | ends | {"detectable": 0.0034} | fields)


@pytest.fixture
def few() -> Verdicts:
    rows = {"baseline": numbers(4), "mine": numbers(4, 3.268), "other": numbers(4, 3.281)}
    other = paired("other", outcome="undecided", difference=0.0012, low=-0.002, high=0.005, p=0.4, adjusted_p=0.8)
    return judged(rows, paired(), other, margin=0.003, tried=7)


def printed(verdicts: Verdicts, width: int = 160) -> str:
    console = Console(width=width, force_terminal=True, color_system=None, record=True)
    with console.capture() as capture:
        console.print(on_console(verdicts))
    return capture.get()


def page_of(verdicts: Verdicts, folder: Path) -> str:
    return write_page(verdicts, folder).read_text(encoding="utf-8")


def test_every_form_has_the_same_numbers_and_reasons(few, tmp_path):
    page = unescape(re.sub(r"<svg.*?</svg>|<[^>]*>", " ", page_of(few, tmp_path), flags=re.DOTALL))
    forms = {
        "console": printed(few),
        "text": str(few),
        "page": page,
        "notebook": unescape(few._repr_html_()),
        "latex": few.to_latex().replace("$-$", "-").replace("$<$", "<"),
    }
    for name, form in forms.items():
        for number in ("-0.0121 [-0.0142, -0.0098]", "<.001", ".012", "0.0034", "undecided"):
            assert number in form, name
        if name != "latex":
            for text in ("All pairs of mine are lower.", "margin", "the value was guessed: val_loss"):
                assert text in form, name
    assert "$-$0.0121 [$-$0.0142, $-$0.0098]" in few.to_latex()


def test_names_from_files_are_text_in_every_form(tmp_path):
    rows = {HOSTILE: numbers(4, n_steps=3), HOSTILE + "2": numbers(4, 3.27, n_steps=3)}
    verdict = paired(HOSTILE + "2", lost={HOSTILE: HOSTILE})
    hostile = judged(rows, verdict, value=HOSTILE, notes=(HOSTILE,))
    page, fragment = page_of(hostile, tmp_path), hostile._repr_html_()
    for html in (page, fragment):
        assert "<script" not in html
        assert escape(SHOWN) in html.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
    for text in (page, fragment, printed(hostile), str(hostile), hostile.to_latex()):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert str(hostile).count(SHOWN) >= 4
    (row,) = [line for line in hostile.to_latex().splitlines() if "better" in line]
    assert len(re.findall(r"(?<!\\)&", row)) == 6
    assert r"\textbackslash{}input\{x\}" in row
    assert r"a\_b \& 50\% " in row


def test_the_page_is_one_file_that_loads_nothing_and_runs_nothing(few, tmp_path):
    page = page_of(few, tmp_path / "new" / "folder")
    assert {address for address in re.findall(r'https?://[^"\s<]+', page) if "www.w3.org" not in address} == set()
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|iframe|img|object|embed|base)\b|\son\w+=", page)
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["verdict.html"]


def test_the_caption_in_latex_has_at_most_thirty_words(few):
    (caption,) = re.findall(r"\\caption\{(.*)\}", few.to_latex())
    assert 10 < len(caption.split()) <= 30


def test_forty_rows_of_one_run_fit_a_narrow_console_and_a_page(tmp_path):
    rows = {"base": numbers(6)} | {f"idea {n}": numbers(1, 3.28 + n / 1e4) for n in range(40)}
    single = {"design": "one run a row", "n": 1, "outcome": "undecided", "p": None, "adjusted_p": None}
    many = judged(rows, *(paired(f"idea {n}", **single) for n in range(40)), tried=40)
    assert max(map(len, printed(many, width=60).splitlines())) <= 60
    assert "adjusted p" not in str(many)  # nothing stands in that column
    page = page_of(many, tmp_path)
    assert "<summary>40 undecided</summary>" in page
    assert page.count('<th scope="row">idea ') == 80  # in the table of verdicts and in that of values
    assert len(page) < 1e6


def test_a_figure_of_many_rows_says_which_it_has():
    rows = {"base": numbers(4)} | {f"idea {n}": numbers(4, 3.28 + n / 1e4) for n in range(100)}
    many = judged(rows, *(paired(f"idea {n}", p=(100 - n) / 100) for n in range(100)), tried=100)
    drawn = {picture.name: picture for picture in pictures(many)}
    assert "Of 100 rows it has the 60 with the lowest p." in drawn["differences"].caption
    labels = [label.get_text() for label in drawn["differences"].figure.axes[0].get_yticklabels()]
    assert labels == [f"idea {n}" for n in range(40, 100)]


@pytest.mark.parametrize(("n", "bars"), [(3, 0), (4, 1)])
def test_fewer_than_four_seeds_have_points_and_no_interval(n, bars):
    verdicts = judged({"base": numbers(n), "mine": numbers(n, 3.27)}, paired(n=n))
    differences = next(picture for picture in pictures(verdicts) if picture.name == "differences")
    drawn = [list(line.get_xdata()) for line in differences.figure.axes[0].get_lines()]
    assert drawn.count([-0.0142, -0.0098]) == bars
    assert any(len(points) == n for points in drawn) == (not bars)


def test_runs_that_diverged_are_named(tmp_path):
    rows = {
        "base": numbers(4),
        "mine": numbers(3, 3.27) | {3: ObservedRun(math.nan)},
        "gone": {0: ObservedRun(math.inf, ((1, 9.0),))},
    }
    gone = Verdict("gone", "undecided", "Its only run diverged.", "paired", 0, lost={0: "diverged", 1: "missing"})
    verdicts = judged(rows, paired(n=3, lost={3: "diverged"}), gone)
    page = page_of(verdicts, tmp_path)
    assert "3: diverged" in page
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL).lower()
    assert "runs: 9, 2 diverged" in str(verdicts)
    assert "Not compared: seeds 0 (diverged), 1 (missing)." in str(verdicts)


def test_curves_are_thinned_and_keep_their_end():
    verdicts = judged({"base": numbers(4, n_steps=1999), "mine": numbers(4, 3.27, 2000)}, paired())
    curves = {picture.name: picture for picture in pictures(verdicts)}["curves"]
    drawn = [line.get_xdata() for line in curves.figure.axes[0].get_lines()]
    assert len(drawn) == 8
    assert all(100 <= len(steps) <= 200 for steps in drawn)
    assert {steps[-1] for steps in drawn} == {1999, 2000}
    assert thinned(((1, math.nan), (2, 5.0))) == ((2, 5.0),)
    without = pictures(judged({"base": numbers(4), "mine": numbers(4)}, paired()))
    assert "curves" not in [picture.name for picture in without]


def test_differences_that_are_not_finite_names_in_any_script_and_no_rows_are_shown(tmp_path):
    rows = {"base": numbers(4), "方法 \U0001f600": {0: ObservedRun(math.nan)}}
    verdicts = judged(rows, paired("方法 \U0001f600", difference=math.nan, low=math.nan, high=math.nan))
    assert "nan" not in str(verdicts)
    assert "方法" in page_of(verdicts, tmp_path)
    none = judged({"base": numbers(4)})
    assert len(str(none).split("\n\n")[0].splitlines()) == 2
    assert "<figure" not in page_of(none, tmp_path)
    assert "runs: 4" in printed(none)


def test_rows_against_a_number_need_no_baseline(tmp_path):
    verdict = paired(design="against a number", outcome="worse", difference=0.01, low=0.004, high=0.016)
    verdicts = Verdicts(Observations({"mine": numbers(4)}, "loss"), None, (verdict,), True, against=3.28)
    assert "against: 3.28" in str(verdicts)
    assert "minus 3.28" in page_of(verdicts, tmp_path)
