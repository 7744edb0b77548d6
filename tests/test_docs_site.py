"""Every page of the site is reachable, and its figures are drawn, counted and cited, never typed."""

import ast
import importlib.util
import json
import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from attractor.verdict.words import markdown_escaped
from five_papers import CLAIMS, PAPERS, RECORDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))
PAGES = sorted([*DOCS.rglob("*.md"), *NOTEBOOKS])
PAGES_OF_PAPERS = [folder / "page.md" for folder in PAPERS]  # which docs/papers/ includes
RESULTS = ROOT / "results"
DIRECTIVE = re.compile(
    r"^(?:<!-- )?:::\{(\w+)\} ?([^\n]*?)(?: -->)?\n(.*?)^(?:<!-- )?:::(?: -->)?$", re.MULTILINE | re.DOTALL
)
# These pages show measurements by directives, since a typed figure would not follow the results.
MEASURED = [*sorted((DOCS / "mechanisms").glob("*.md")), DOCS / "stabilise.md", DOCS / "controlled-comparisons.md"]


def name(page: Path) -> str:
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).with_suffix("").as_posix()


def directives(kind: str) -> list[tuple[Path, str, str]]:
    """Return the page, argument and body of every directive of this kind."""
    return [
        (page, found[2].strip(), found[3])
        for page in [*PAGES, *PAGES_OF_PAPERS]
        for found in DIRECTIVE.finditer(page.read_text())
        if found[1] == kind
    ]


def definitions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def in_docs(module: str) -> ModuleType:
    """Import a module of the documentation's build, which is not on the path."""
    path = next(folder / f"{module}.py" for folder in (DOCS / "_ext", DOCS) if (folder / f"{module}.py").exists())
    spec = importlib.util.spec_from_file_location(f"docs_{module}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_every_page_is_in_one_table_of_contents() -> None:
    listed = [
        (page.parent / entry).relative_to(DOCS).as_posix()
        for page, _, body in directives("toctree")
        for entry in body.splitlines()
        if entry and not entry.startswith(":")
    ]
    assert sorted([*listed, "index"]) == sorted(map(name, PAGES))


def test_the_configuration_loads_with_its_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    settings = runpy.run_path(str(DOCS / "conf.py"))
    own = {path.stem for path in (DOCS / "_ext").glob("*.py")}
    assert own <= set(settings["extensions"])
    assert all((DOCS / folder).is_dir() for folder in settings["html_static_path"] + settings["templates_path"])


@pytest.mark.parametrize("page", [*PAGES, *PAGES_OF_PAPERS], ids=name)
def test_fences_contain_code_and_colons_contain_directives(page: Path) -> None:
    """Pages are also read as plain text, where ``` marks code, and ~~~ marks code that takes long."""
    fences = re.findall(r"^(```|~~~)(.*)$", page.read_text(), re.MULTILINE)
    assert len(fences) % 2 == 0
    for (opening, language), (closing, nothing) in zip(fences[::2], fences[1::2], strict=True):
        assert opening == closing
        assert nothing == ""
        assert language in ("python", "sh") if opening == "~~~" else re.fullmatch(r"\w*", language)


@pytest.mark.parametrize("page", NOTEBOOKS, ids=name)
def test_a_notebook_holds_no_outputs_and_its_code_and_links_are_those_of_a_page(page: Path) -> None:
    code = [cell for cell in json.loads(page.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    shown = in_docs("notebooks").in_markdown(page.read_text())
    sources = ["".join(cell["source"]) for cell in code if not cell["source"][0].startswith("!")]
    assert re.findall(r"^```python\n(.*?)\n```$", shown, re.MULTILINE | re.DOTALL) == sources
    for source in sources:
        compile(source, str(page), "exec")
    for target in re.findall(r"\]\(([^)#:]+)[)#]", shown):
        assert (page.parent / target).exists(), target


def test_the_output_of_a_notebooks_cells_is_shown_below_them(tmp_path: Path) -> None:
    cells = [
        "x = 6 * 7",
        "x",
        "'<b>'",
        "!echo one\n!echo 'two'",
        "class Shown:\n    def _repr_html_(self): return '<i>a\\n\\nb</i>'\nShown()",
    ]
    notebook = {"cells": [{"cell_type": "code", "source": [source], "outputs": []} for source in cells]}
    page = tmp_path / "page.ipynb"
    page.write_text(json.dumps(notebook))
    in_docs("run_blocks").run_notebook(page, tmp_path / "executed")
    in_markdown = in_docs("notebooks").in_markdown
    shown = in_markdown(page.read_text(), tmp_path / "executed" / "page.ipynb")
    assert re.findall(r"^````\n(.*?)\n````$", shown, re.MULTILINE | re.DOTALL) == ["42", "'<b>'", "one\ntwo"]
    assert "```sh\necho one\necho 'two'\n```" in shown
    assert '<div class="output">\n<i>a\nb</i>\n</div>' in shown
    page.write_text(page.read_text().replace("6 * 7", "6 * 8"))
    assert "42" not in in_markdown(page.read_text(), tmp_path / "executed" / "page.ipynb")


def test_notebooks_run_with_the_pages_that_train() -> None:
    assert {*NOTEBOOKS} <= {*in_docs("run_blocks").long_pages()}


def test_every_figure_of_a_page_is_drawn_and_every_drawing_is_shown() -> None:
    shown = {argument for _, argument, _ in directives("picture") if "/" not in argument}
    functions = definitions(DOCS / "figures.py")
    assert shown <= functions
    text = (DOCS / "figures.py").read_text()
    assert {function for function in functions - shown if len(re.findall(rf"\b{function}\b", text)) < 2} == set()


def test_the_results_that_pages_show_are_stored() -> None:
    claims = {claim.id for claim in CLAIMS}
    for page, argument, _ in directives("verdicts"):
        assert set(argument.split()) <= claims, name(page)
    for page, argument, body in directives("costs"):
        record = json.loads(RECORDS[f"study-{argument}-laptop"].read_text())
        rows = re.search(r":rows: (.*)", body)
        assert rows is None or set(re.split(", *", rows[1])) <= set(record["design"]["rows"]), name(page)
    for page, argument, body in directives("results"):
        scale, quantities = (re.search(rf":{option}: (.*)", body)[1] for option in ("scale", "quantities"))
        record = json.loads(RECORDS[f"study-{argument}-{scale}"].read_text())
        known = {quantity["name"] for quantity in record["design"]["quantities"]}
        assert set(re.split("; *", quantities)) <= known, name(page)
    for _, argument, _ in directives("comparison"):
        assert (RESULTS / f"compare-{argument}.json").exists()


def test_no_page_contains_a_typed_measurement() -> None:
    measured = in_docs("measured")
    figures = {entry.verdict.ours.split()[0] for entry in measured.entries().values() if entry.verdict.ours}
    for _, argument, _ in directives("costs"):
        rows = measured.cost_rows(measured.read_record(RECORDS[f"study-{argument}-laptop"]), [])
        figures |= {word for row in rows for cell in row[2:] for word in cell.split() if word[0].isdigit()}
    telling = {figure for figure in figures if len(re.sub(r"\D", "", figure).lstrip("0")) >= 2}
    assert telling
    for page in MEASURED:
        text = re.sub(r"^(```|~~~).*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        found = {figure for figure in telling if re.search(rf"(?<![\w.]){re.escape(figure)}(?![\w.])", text)}
        assert not found, f"{name(page)} types {sorted(found)}, which results/ has"


def test_the_verdicts_of_pages_are_those_of_the_page_of_claims() -> None:
    """Criterion: scale and dagger, too, which says that a rule is younger than its runs."""
    page = (DOCS / "claims.md").read_text(encoding="utf-8")
    for entry in in_docs("measured").entries().values():
        shown = (entry.claim.id, entry.claim.statement, in_docs("measured").cells(entry)[-1])
        assert f"| {' | '.join(map(markdown_escaped, shown))} |" in page


def test_verdicts_have_the_colours_of_reports() -> None:
    ours, of_reports = (DOCS / "_static/site.css").read_text(), (ROOT / "src/attractor/report/page.css").read_text()
    for outcome in ("better", "worse", "doubt"):
        light_and_dark = re.findall(rf"--{outcome}: #\w{{6}}", ours)
        assert light_and_dark == re.findall(rf"--{outcome}: #\w{{6}}", of_reports)
        assert len(light_and_dark) == 2


def test_costs_are_ratios_to_the_baseline() -> None:
    measured = in_docs("measured")
    record = measured.read_record(RECORDS["study-overhead-laptop"])
    baseline, gqa = measured.cost_rows(record, ["standard", "gqa"])
    assert baseline[2:4] == ("baseline", "baseline")
    ours, theirs = (record.cell(row).outcomes[0].summary for row in ("gqa", "standard"))
    product = 1.0
    for a, b in zip(ours["step_seconds"], theirs["step_seconds"], strict=True):
        product *= b / a
    assert gqa[3].startswith(f"{product ** (1 / len(ours['step_seconds'])):.2f}x [")
    assert gqa[4] == f"{ours['peak_memory_bytes'] / theirs['peak_memory_bytes']:.2f}x"
    with pytest.raises(ValueError, match="rows must be of standard"):
        measured.cost_rows(record, ["standart"])


def test_results_show_the_rows_that_ran_and_the_chosen_quantities() -> None:
    measured = in_docs("measured")
    record = measured.read_record(RECORDS["study-recurrent-rates-desk"])
    one_rate = replace(record, design=replace(record.design, columns=("0.008",)))
    headings, rows, caption = measured.result_rows(one_rate, ["boards"])
    assert headings == ["model", "seeds", "params", "boards ↑"]
    ran = [cell for cell in record.cells if cell.column == "0.008" and cell.outcomes]
    assert [row[0] for row in rows] == [cell.row for cell in ran]
    found = [cell.outcomes[0].summary["measures"]["board_accuracy"] for cell in ran]
    assert [float(row[-1]) for row in rows] == pytest.approx(found, abs=5e-4)
    assert caption.startswith("One seed")
    with pytest.raises(ValueError, match="quantities must be of validation loss, cells, boards, got bords"):
        measured.result_rows(one_rate, ["bords"])


def test_the_site_has_the_page_of_every_paper() -> None:
    included = [(page.parent / argument).resolve() for page, argument, _ in directives("include")]
    assert sorted(included) == sorted(PAGES_OF_PAPERS)


@pytest.mark.parametrize("page", [page for page in PAGES_OF_PAPERS if page.parent.name != "contested"], ids=name)
def test_every_finding_names_its_evidence(page: Path) -> None:
    text = page.read_text()
    tests = {each for path in (ROOT / "tests").rglob("test_*.py") for each in definitions(path)}
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named <= tests, sorted(named - tests)
    assert all((ROOT / study).exists() for study in re.findall(r"`(papers/\w+/studies/[\w-]+\.py)`", text))
    (section,) = re.findall(r"^## What the \w+ leaves open$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    findings = re.split(r"^(?=- \*\*)", section, flags=re.MULTILINE)[1:]
    assert len(findings) >= 5
    for finding in findings:
        evidence = r"`test_|`papers/|\(arXiv|^```python|/mechanisms/fast-slow\.md|/claims\.md\)"
        assert re.search(evidence, finding, re.MULTILINE), finding.splitlines()[0]


def test_every_public_room_has_a_page_of_reference() -> None:
    promised = {
        ".".join(path.parent.relative_to(ROOT / "src").parts)
        for path in (ROOT / "src" / "attractor").glob("**/__init__.py")
        if path.parents[1].name in ("attractor", "evaluate", "src") and "__all__" in path.read_text()
    }
    assert {argument for _, argument, _ in directives("room")} == promised


def test_docstrings_become_prose_with_literal_formulas() -> None:
    as_rst = in_docs("reference").as_rst
    told = as_rst("Norms |q| of `W_q`, a*b.\n\n    |q|^2 <- x*y   (1)\n\n(1) is kept_ as it is.")
    prose, formula = (r"Norms \|q\| of ``W_q``, a\*b.", r"\(1) is kept\_ as it is."), "    |q|^2 <- x*y   (1)"
    assert told.split("\n\n") == [prose[0], "::", formula, prose[1]]
