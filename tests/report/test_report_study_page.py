"""The page of a study is self-contained, escaped, readable without a script, and interactive in a browser."""

import base64
import csv
import html
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import BASE, ENTROPY, shifted, study

from attractor.report.judged_study import JudgedStudy
from attractor.report.study_figure import pictures
from attractor.report.study_page import render
from attractor.report.study_report import write_report
from attractor.runs.quantity import PERPLEXITY
from attractor.runs.study_record import StudyRecord
from browser import in_browser, opened
from invented_records import with_outcomes, with_summaries

HOSTILE = "<b>&\"</script><script>alert('$x$')</script>"
VOID = {"meta", "br", "input", "wbr"}


def heatmaps(shift: float) -> dict[str, Any]:
    maps = np.tril(np.ones((2, 3, 5, 5)) + shift * np.arange(5))
    maps /= maps.sum(-1, keepdims=True)
    return {"layers": [0, 1], "heads": [0, 1, 2], "maps": maps.round(3).tolist(), "tokens": list("a<b>c")}


def full(**arguments: Any) -> StudyRecord:
    losses = {"standard": BASE, "uniform": shifted(0.5), HOSTILE: shifted(-0.05), "same": shifted(0.0003)}
    probes = {row: {"entropy": [2.0, 1.5, 2.5], "heatmaps": heatmaps(n)} for n, row in enumerate(losses)}
    columns = {"web": losses, "a & b": losses | {"same": [1.66, None, None]}}
    return study(columns=columns, quantities=(PERPLEXITY, ENTROPY), probes=probes, **arguments)


@pytest.fixture(scope="module")
def page() -> str:
    judged = JudgedStudy(full(title=f"Title {HOSTILE}", question=f"Why {HOSTILE}?", command="study && echo '<done>'"))
    return render(judged, pictures(judged))


class Outline(HTMLParser):
    """A parser that checks that tags close in order, and collects ids and the text outside of scripts and drawings."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style", "svg"} & set(self.open):
            self.said.append(data)


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    assert found.open == []
    return found


def test_the_page_loads_nothing_from_outside(page):
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # which are never fetched
    assert set(re.findall(r'https?://[^"\s<]+', page)) == namespaces
    assert not re.search(r"<(link|iframe|img|object|embed|base)\b|@import|url\((?!#)|javascript:|fetch\(|XMLHttp", page)
    for _, attributes in outline(page).tags:
        for name in ("src", "href", "xlink:href"):
            assert re.match(r"data:|#", attributes.get(name) or "#")
        assert not any(name.startswith("on") for name in attributes)
    (policy,) = [attributes["content"] for _, attributes in outline(page).tags if "http-equiv" in attributes]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")


def test_a_hostile_label_is_text_everywhere(page):
    assert page.count("</script>") == 2  # one for the data and one for the program
    assert "<script>alert" not in page
    assert "Title &lt;b&gt;&amp;&#34;&lt;/script&gt;" in page
    assert "&lt;done&gt;" in page
    said = "".join(outline(page).said)
    assert said.count(HOSTILE) >= 6


def test_the_embedded_data_can_be_read_back_unchanged(page):
    (stored,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(stored)
    assert set(data["looks"]) == {"standard", "uniform", HOSTILE, "same"}
    assert [chart["name"] for chart in data["charts"]] == ["curves", "profile-entropy"]
    assert [maps["row"] for maps in data["maps"]] == ["standard", "uniform", HOSTILE, "same"]
    assert data["maps"][data["rival"]]["row"] == HOSTILE
    weights = np.frombuffer(base64.b64decode(data["maps"][0]["bytes"]), "uint8").reshape(6, 5, 5) / 255
    expected = np.asarray(heatmaps(0)["maps"]).reshape(6, 5, 5)
    largest = np.asarray(data["maps"][0]["largest"])[:, None, None]
    np.testing.assert_allclose(weights * largest, expected, atol=1 / 255)


def test_tables_can_be_sorted_and_read(page):
    found = outline(page)
    headings = [attributes for tag, attributes in found.tags if tag == "th" and "aria-sort" in attributes]
    assert len(headings) > 20
    assert all(attributes["scope"] == "col" for attributes in headings)
    assert page.count('aria-sort="none"') == page.count('<button type="button">') == len(headings)
    row = re.search(r'<tr><th scope="row" class="word">standard</th>(.*?)</tr>', page)
    assert row is not None
    values = [float(value) for value in re.findall(r'data-value="([^"]+)"', row[1])]
    assert values[0] == 1_234_567
    assert values[1] == pytest.approx(np.exp(BASE).mean())


def test_the_page_is_complete_without_a_script(page):
    said = " ".join(outline(page).said)
    for part in ("Sensitive: the control", "undecided", "Table 1.", "Figure 4.", "d_model", "2.13"):
        assert part in said
    drawn = page.split("<script")[0]
    assert drawn.count("<svg") == drawn.count("<figcaption>") == 4


def test_ids_are_unique_and_every_reference_has_one(page):
    ids = outline(page).ids
    assert len(ids) == len(set(ids))
    named = re.findall(r'aria-labelledby="([^"]+)"', page) + re.findall(r'xlink:href="#([^"]+)"', page)
    assert set(named) <= set(ids)


def test_the_differences_of_configs_leave_out_only_seeds(page):
    assert re.search(r'<th scope="row" rowspan="4">model.<wbr>attention</th><td>standard</td><td>standard</td>', page)
    assert '<th scope="row">model.<wbr>d_model</th><td>64</td>' in page  # all rows share this value


def test_raw_numbers_can_be_downloaded(page):
    addresses = dict(re.findall(r'download="[^"]+\.(csv|json)" href="data:[^,]+,([^"]+)"', page))
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(addresses["csv"]).decode())))
    assert {row["quantity"] for row in rows} == {"perplexity", *(f"entropy, layer {n}" for n in range(3))}
    values = [float(row["value"]) for row in rows if (row["row"], row["column"]) == ("standard", "web")][::4]
    assert values == pytest.approx(np.exp(BASE))
    record = StudyRecord.from_dict(json.loads(base64.b64decode(addresses["json"])))
    assert record.design.rows == ("standard", "uniform", HOSTILE, "same")


def configured(*attentions: Any, **more: Any) -> StudyRecord:
    """Return a study whose rows have these mechanisms, by name or config, in models with the given fields."""
    record = study({f"row {n}": BASE for n in range(len(attentions))}, control=None, **more)
    cells = []
    for cell, attention in zip(record.cells, attentions, strict=True):
        task = {"kind": "text", "corpus": "/home/somebody/corpora/web"}
        model = {"attention": attention, "d_model": 64, "n_layers": 2}
        cells.append(replace(cell, config={"task": task, "model": model}))
    times = ["2025-03-01T10:00:00", "2025-03-04T11:00:00"]
    return with_summaries(replace(record, cells=tuple(cells), environments={"time": times}), lambda *_: {"steps": 800})


def test_data_size_length_and_date_precede_the_verdict() -> None:
    """Criterion: all of them are in the head of the page, and a corpus is named without its folder."""
    page = render(JudgedStudy(configured("standard", "gqa")), ())
    head = page.partition("<h2>")[0]
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", head))
    assert facts["corpus"] == "web"
    assert facts["model"] == "1.23M parameters, 2 layers, width 64"
    assert facts["training"] == "800 steps, 1.00M tokens"
    assert facts["date"] == "2025-03-01 to 2025-03-04"
    assert "somebody" not in head


PRESETS = {
    "standard": {"project": {"kind": "Heads"}, "couple": {"kind": "Uncoupled"}},
    "euler": {"project": {"kind": "Heads"}, "couple": {"kind": "Euler", "n_steps": 1, "dt": 0.1, "later": False}},
}


def test_a_row_given_as_a_config_differs_in_the_fields_that_were_changed() -> None:
    """Criterion: one field of the study differs, and a mechanism given as a config is shown as its preset with one
    change."""
    whole = {"project": {"kind": "Heads"}, "couple": {"kind": "Euler", "n_steps": 3, "dt": 0.1}}
    page = render(JudgedStudy(configured("standard", "euler", whole)), (), PRESETS)
    table = page.partition("<h2>Configuration</h2>")[2].partition("</table>")[0]
    assert len(re.findall('<th scope="row"', table)) == 1
    assert re.findall(r"<td>(.*?)</td><td>(.*?)</td>", table) == [
        ("standard", "row 0"),
        ("euler", "row 1"),
        ("euler, couple.n_steps=3", "row 2"),
    ]


def test_every_region_that_scrolls_can_be_reached_and_has_a_name(page):
    found = outline(page)
    regions = [attributes for _, attributes in found.tags if "scroll" in (attributes.get("class") or "").split()]
    assert len(regions) >= 8
    for attributes in regions:
        assert (attributes["tabindex"], attributes["role"]) == ("0", "region")
        assert attributes.get("aria-label") or attributes["aria-labelledby"] in found.ids
    assert [tag for tag, _ in found.tags].count("main") == 1


def test_a_label_that_looks_like_an_id_stays_as_it_is() -> None:
    record = study({"standard": BASE, 'x id="a url(#b)': shifted(0.1)}, control=None)
    shown = next(iter(pictures(JudgedStudy(record)))).svg()
    assert 'x id="a url(#b)' in shown.replace("&quot;", '"')


def test_remarks_begin_without_a_mark_and_captions_are_sentences() -> None:
    page = render(JudgedStudy(study({"standard": BASE, "a": shifted(0.1), "b": shifted(0.1)}, control=None)), [])
    assert "<small>its runs equal those of" in page
    for picture in pictures(JudgedStudy(full())):
        assert re.fullmatch(r"(Each|The) .*\.", picture.caption)
        assert not re.search(r"[:;] (mean|open|full)", picture.caption)


INCOMPLETE = {
    "nothing has run": study({"standard": [None, None, None], "rival": [None, None, None]}),
    "diverged": study({"standard": [float("nan")], "rival": [1.6], "uniform": [2.0]}, seeds=(0,)),
    "alone": study({"standard": BASE}, control=None),
}


@pytest.mark.parametrize("record", INCOMPLETE.values(), ids=INCOMPLETE)
def test_an_incomplete_record_also_gives_a_report(record, tmp_path):
    page = write_report(JudgedStudy(record), tmp_path, formats=("svg",)).read_text(encoding="utf-8")
    assert outline(page).ids
    assert not re.search(r"\bnan\b", "".join(outline(page).said))


@pytest.mark.slow
def test_the_folder_is_complete_and_reproducible(tmp_path):
    probes = {row: {"entropy": [2.0, 1.5], "heatmaps": heatmaps(n)} for n, row in enumerate(("standard", HOSTILE))}
    record = study({"standard": BASE, HOSTILE: shifted(0.1)}, quantities=(PERPLEXITY, ENTROPY), probes=probes)
    written = [
        write_report(JudgedStudy(record), tmp_path / name, kinds) for name, kinds in (("one", ALL), ("two", ALL[-1:]))
    ]
    assert [page.name for page in written] == ["report.html"] * 2
    one, two = ({path.relative_to(page.parent) for path in page.parent.rglob("*.*")} for page in written)
    figures = {f"figures/{name}.{kind}" for name in PICTURES for kind in ALL}
    files = {"report.html", "table.md", "table.tex", "numbers.tex", "record.json"}
    assert {path.as_posix() for path in one} == files | figures
    for file in one & two:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    stored = json.loads((tmp_path / "one" / "record.json").read_text(encoding="utf-8"))
    assert StudyRecord.from_dict(stored).design == record.design


ALL = ("png", "pdf", "svg")
PICTURES = ("curves", "differences", "profile-entropy", "attention")

ACTS = """
const press = (target, key, more) =>
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
const seen = {};
Object.defineProperty(navigator, "clipboard", { value: { writeText: (text) => { seen.copied = text; } } });
document.querySelector("pre .copy").click();
const first = (row) => [...document.querySelectorAll("table.sorted")][0].tBodies[0].rows[row].cells[0].textContent;
const buttons = [...document.querySelectorAll("table.sorted")][0].querySelectorAll("th button");
buttons[3].click(); seen.ascending = [first(0), first(3)];
buttons[3].click(); seen.descending = [first(0), first(3)];
seen.sort = buttons[3].parentElement.getAttribute("aria-sort");
const figure = document.getElementById("figure-curves");
const plot = figure.querySelector(".plot");
const ticks = () => [...plot.querySelectorAll("text")].map((text) => text.textContent).join(" ");
seen.home = ticks();
press(plot, "+"); seen.zoomed = ticks();
press(plot, "ArrowUp", { shiftKey: true }); seen.panned = ticks();
press(plot, "0"); seen.reset = ticks();
press(plot, "ArrowLeft"); seen.read = figure.querySelector(".readout").textContent;
const paths = () => plot.querySelectorAll("g path, g circle").length;
seen.paths = [paths()];
const legend = figure.querySelector(".tools button");
legend.click(); seen.paths.push(paths()); seen.pressed = legend.getAttribute("aria-pressed");
legend.click(); seen.paths.push(paths());
const maps = document.getElementById("figure-attention");
maps.querySelectorAll(".thumbs button")[4].click();
seen.map = [...maps.querySelectorAll("h3")].map((heading) => heading.textContent);
const large = maps.querySelector("canvas.large");
press(large, "ArrowDown"); press(large, "ArrowDown");
seen.weight = maps.querySelector(".weight").textContent;
const select = maps.querySelector("select");
select.value = "3"; select.dispatchEvent(new Event("change"));
seen.beside = maps.querySelectorAll("h3")[1].textContent;
seen.wide = document.documentElement.scrollWidth <= window.innerWidth;
document.body.setAttribute("data-seen", JSON.stringify(seen));
"""


def measured(page: str, folder: Path, width: int, script: str) -> Any:
    """Return the result of a script in the page at a width that may be smaller than a browser window."""
    frame = (
        f'<iframe id="frame" style="border: 0; width: {width}px; height: 900px" srcdoc="{html.escape(page)}"></iframe>'
    )
    look = f"document.body.dataset.seen = JSON.stringify((({script}))(frame.contentDocument, frame.contentWindow))"
    outer = f"<!doctype html><body>{frame}<script>frame.onload = () => {{ {look} }}</script></body>"
    (folder / "outer.html").write_text(outer, encoding="utf-8")
    (seen,) = re.findall(r'data-seen="([^"]*)"', opened((folder / "outer.html").as_uri(), folder))
    return json.loads(html.unescape(seen))


TOO_WIDE = """(document, window) => [...document.body.querySelectorAll("*")]
  .filter((element) => element.tagName === "svg" || !element.closest("svg"))
  .filter((element) => !element.closest(EXEMPT) && element.getBoundingClientRect().right > window.innerWidth + 1)
  .map((element) => `${element.tagName} ${element.textContent.slice(0, 40)}`)"""


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_scrolls_sideways_outside_of_its_regions(page, tmp_path, width):
    exempt = '".scroll, .visually-hidden"'
    assert measured(page, tmp_path, width, TOO_WIDE.replace("EXEMPT", exempt)) == []
    assert measured(page, tmp_path, width, "(document) => document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@in_browser
def test_a_print_shows_all_columns_and_the_charts_with_their_names(page, tmp_path):
    """Criterion: under the rules for print, an A4 page cuts and folds nothing and has no controls."""
    printed = page.replace("@media print", "@media all")
    assert printed != page
    assert measured(printed, tmp_path, 680, TOO_WIDE.replace("EXEMPT", '".visually-hidden"')) == []
    shown = """(document) => Object.fromEntries(["figure .drawing", ".stage", ".tools", ".files", "details table"].map(
      (name) => [name, [...document.querySelectorAll(name)].map((element) => element.checkVisibility())]))"""
    seen = measured(printed, tmp_path, 680, shown)
    assert (seen["figure .drawing"], seen["details table"]) == ([True] * 4, [True] * 2)
    assert not any(seen[".stage"] + seen[".tools"] + seen[".files"])
    names = re.findall(r"<text[^>]*>([^<]*)</text>", page.partition('id="figure-curves"')[2].partition("</svg>")[0])
    assert names.count("uniform") == 2  # each panel has a name at the end of its line


@in_browser
def test_two_evaluations_of_few_seeds_are_dots_between_ticks_that_differ(tmp_path: Path) -> None:
    record = study(
        {"standard": BASE, "same": shifted(0.0001)}, control=None, tokens={"standard": 153_600, "same": 153_600}
    )
    judged = JudgedStudy(with_outcomes(record, lambda _, __, run: replace(run, curve=run.curve[-2:])))
    look = """(document) => {
      const plot = document.querySelector("#figure-curves .plot");
      const texts = [...plot.querySelectorAll("text")].map((text) => [text.textContent, text.getAttribute("y")]);
      return [plot.querySelectorAll("circle").length, texts];
    }"""
    n_dots, texts = measured(render(judged, pictures(judged)), tmp_path, 900, look)
    assert n_dots == 2 * 2 * 3
    labels = [text for text, _ in texts]
    assert len(labels) == len(set(labels)) > 8
    heights = {text: float(y) for text, y in texts if text in ("standard", "same")}
    assert abs(heights["standard"] - heights["same"]) >= 12  # names of overlapping lines do not overlap


@in_browser
def test_the_script_runs_under_the_content_security_policy_and_a_foreign_one_does_not(page, tmp_path):
    intruder = "<script>document.body.id = 'taken'</script></body>"
    (tmp_path / "report.html").write_text(page.replace("</body>", intruder), encoding="utf-8")
    document = opened((tmp_path / "report.html").as_uri(), tmp_path)
    assert document.count('class="plot"') == 4  # there are two charts of two columns
    assert document.count('class="large"') == 2
    assert '<b>&"</script>' not in document
    assert '<body id="taken"' not in document


@in_browser
def test_a_logarithmic_axis_has_the_numbers_themselves(tmp_path: Path) -> None:
    """Criterion: for logits from 3 to 900 the axis has the powers of ten, and the chart has no NaN."""
    record = study({"standard": BASE}, control=None)
    for outcome in record.cells[0].outcomes:
        outcome.summary["trajectories"] = {"max_logit": [[50, 3.0], [100, 30.0 + outcome.seed], [150, 900.0]]}
    judged = JudgedStudy(record)
    (tmp_path / "report.html").write_text(render(judged, pictures(judged)), encoding="utf-8")
    document = opened((tmp_path / "report.html").as_uri(), tmp_path)
    (figure,) = re.findall(r'<figure id="figure-trajectory-max-logit".*?</figure>', document, re.DOTALL)
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", figure)
    assert {"10", "100", "steps", "max logit"} <= set(labels)
    assert "NaN" not in figure


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("width", [1280, 500])
def test_the_page_sorts_zooms_and_compares_by_keyboard(page, tmp_path, width):
    """The page contains a test script in the role of a visitor, which its policy would otherwise refuse."""
    visited = re.sub(r"<meta http-equiv[^>]*>", "", page).replace("</body>", f"<script>{ACTS}</script></body>")
    (tmp_path / "report.html").write_text(visited, encoding="utf-8")
    (stored,) = re.findall(r'data-seen="([^"]*)"', opened((tmp_path / "report.html").as_uri(), tmp_path, width))
    seen = json.loads(stored.replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert seen["ascending"] == [HOSTILE, "uniform"]
    assert seen["descending"] == ["uniform", HOSTILE]
    assert seen["sort"] == "descending"
    assert seen["home"] == seen["reset"] != seen["zoomed"] != seen["panned"]
    assert seen["read"].startswith("1,000,000 tokens")
    assert "1.630[1.609, 1.651]" in seen["read"]
    assert seen["paths"][0] == seen["paths"][2] == seen["paths"][1] + 1 + 20 * 3  # a line and its seeds return
    assert seen["copied"] == "study '&&' echo '<done>' --seeds 0-3"
    assert seen["pressed"] == "false"
    assert seen["map"] == ["standard: layer 1, head 1", f"{HOSTILE}: layer 1, head 1"]
    assert seen["weight"].startswith("2 “b” looks at 0 “a”: 0.33")
    assert seen["beside"] == "same: layer 1, head 1"
    assert seen["wide"]  # tables scroll by themselves, and the page never scrolls sideways


def test_texts_of_a_stored_record_stay_texts_in_every_file(tmp_path):
    """Criterion: for any label, no line of LaTeX begins with its words, no cell of markdown becomes a tag or a link,
    and a dollar sign is drawn as a dollar sign."""
    evil = "$\\foo_{$\n\\immediate\\write18{ls}\n<b>[here](javascript:x)|"
    record = study(columns={"$\\web$": {"standard": BASE, evil: shifted(-0.05)}}, title=evil)
    stored = StudyRecord.from_dict(record.to_dict() | {"design": record.design.to_dict() | {"name": evil}})
    assert "\n" not in stored.design.name + stored.design.title + "".join(stored.design.rows)
    write_report(JudgedStudy(stored), tmp_path)
    for path in (tmp_path / "numbers.tex", tmp_path / "table.tex"):
        assert not re.search(r"\\(immediate|write|input\{)", re.sub(r"^%.*", "", path.read_text(), flags=re.M))
    in_markdown = (tmp_path / "table.md").read_text()
    assert "<b>" not in in_markdown
    assert "](" not in in_markdown
