"""Tables of studies: entries, notes on missing runs, and valid LaTeX."""

import math
import re
import shutil
import subprocess

import pytest
from rich.console import Console
from studies import BASE, ENTROPY, SPEED, shifted, study

from attractor.console import with_prefix
from attractor.report.judged_study import JudgedStudy
from attractor.report.latex import in_latex, named_numbers, numbers
from attractor.report.study_table import (
    StudyTable,
    console_table,
    console_tables,
    markdown,
    table_in_markdown,
    tables,
)
from attractor.runs.quantity import PERPLEXITY, Quantity
from attractor.runs.study_record import Published, StudyRecord
from attractor.verdict.words import latex_escaped
from invented_records import with_summaries

LOSSES = {"standard": BASE, "uniform": shifted(0.5), "good": shifted(-0.05), "best": shifted(-0.1, 0.002)}


def first(record: StudyRecord) -> StudyTable:
    return tables(JudgedStudy(record))[0]


def texts(table: StudyTable) -> dict[str, dict[str, str]]:
    return {
        row[0].text: dict(zip(table.headings, (entry.text for entry in row), strict=True))
        for row in (*table.rows, *table.footer)
    }


def test_one_column_gives_rows_by_quantities_with_layers_and_their_mean():
    probes = {row: {"entropy": [2.0, 3.0, 4.0]} for row in LOSSES}
    table = first(study(LOSSES, quantities=(PERPLEXITY, SPEED, ENTROPY), probes=probes))
    assert table.headings == (
        *("attention", "seeds", "params", "perplexity ↓", "throughput ↑", "× standard"),  # noqa: RUF001
        *("entropy, mean", "layer 0", "layer 1", "layer 2", "gain"),
    )
    row = texts(table)["standard"]
    assert row["seeds"] == "3"
    assert row["entropy, mean"].startswith("3.0")
    assert row["× standard"] == "1.000"  # noqa: RUF001
    assert texts(table)["control gap (nats/byte)"]["perplexity ↓"] == "+0.5000 [+0.4975, +0.5025]"


def test_several_columns_give_rows_by_columns_of_each_quantity():
    columns = {"encyclopedic": LOSSES, "web": LOSSES | {"best": [None] * 3, "good": [1.61, 1.63, None]}}
    found = tables(JudgedStudy(study(columns=columns, quantities=(PERPLEXITY, SPEED))))
    assert [table.name for table in found] == ["results", "differences", "results-2"]  # costs have no tests
    assert found[0].headings == ("attention", "seeds", "params", "encyclopedic", "web")
    assert texts(found[0])["best"]["web"] == "not run"
    assert texts(found[0])["good"]["web"].endswith(" (n=2)")
    assert texts(found[0])["best"]["seeds"] == "0–3 of 3"  # noqa: RUF001
    assert "Not run: 'best' in web." in found[0].caption


def test_the_published_figure_is_shown_with_ours_and_changes_nothing():
    published = (Published("standard", "", 24.22, 0.31, 10), Published("good", "", 22.55))
    with_figures, without = first(study(LOSSES, published=published)), first(study(LOSSES))
    assert texts(with_figures)["standard"]["published"] == "24.22 ± 0.31 (n=10)"
    assert texts(with_figures)["good"]["published"] == "22.55"
    assert texts(with_figures)["best"]["published"] == "–"  # noqa: RUF001
    for row, cells in texts(without).items():
        assert cells.items() <= texts(with_figures)[row].items()


def test_budgets_other_than_tokens_are_labelled_and_unequal_tokens_shown():
    table = first(study(LOSSES, budget="wall", tokens={"best": 2_000_000}))
    assert "equal wall clock" in table.caption[0]
    assert [texts(table)[row]["tokens"] for row in ("standard", "best")] == ["1.00M", "2.00M"]
    equal = first(study(LOSSES))
    assert "tokens" not in equal.headings
    assert "equal tokens (1.00M)" in equal.caption[0]


def test_one_seed_has_no_spread_and_unfinished_and_diverged_runs_are_reported():
    alone = first(study({"standard": [1.7], "uniform": [2.2]}, seeds=(0,)))
    assert texts(alone)["standard"]["perplexity ↓"] == "5.474"
    assert alone.caption[0].startswith("One seed: no spread, no interval, no test.")
    table = first(study(LOSSES | {"lost": [1.6, math.nan, 1.6], "slow": [1.6, None, None]}))
    assert texts(table)["lost"]["perplexity ↓"] == "diverged (1 of 3)"
    assert [texts(table)["slow"][heading] for heading in ("perplexity ↓", "seeds")] == ["4.95", "1 of 3"]
    assert "Missing: 'slow' has no finished run of seeds 1, 2." in table.caption


def test_markdown_has_as_many_cells_in_every_line_whatever_the_labels():
    table = first(study({"standard": BASE, "a|b": BASE, "*<b>&": BASE}, control=None))
    lines = table_in_markdown(table).splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.headings) + 1}
    assert r"| \*&lt;b>& |" in lines[-1]


def test_markdown_escapes_the_name_of_a_quantity() -> None:
    hostile = Quantity("[x](javascript:1) <b>*`$\\", "probe.norm", better="lower")
    text = markdown(JudgedStudy(study({"standard": BASE, "uniform": BASE}, quantities=(hostile,), control=None)))
    assert text.count("javascript") > 1
    assert text.count("javascript") == text.count(r"[x]\(javascript:1) &lt;b>\*\`\$\\")


COMPARED = (PERPLEXITY, Quantity("tok/s", "tokens_per_second"), Quantity("memory", "peak_memory_bytes"))


def test_a_comparison_fits_into_one_console_table_of_100_columns() -> None:
    """Criterion: there is one table without folded or shortened cells, with every difference as in the verdict, and ±
    for tested quantities."""
    rivals = {"coupled-euler": shifted(-0.05), "coupled-hamiltonian": [1.6, None, 1.6]}
    judged = JudgedStudy(study({"standard": BASE, "uniform": shifted(0.5)} | rivals, quantities=COMPARED))
    (table,) = console_tables(judged)
    console = Console(width=100)
    with console.capture() as captured:
        console.print(console_table(table))
    printed = captured.get()
    for cell in ("coupled-hamiltonian", "1.23M", "45,123", "123 MB", "2 of 3"):
        assert cell in printed
    assert printed.count("─\n") == 1
    assert len([line for line in printed.splitlines() if not line.startswith(" ")]) == 2 + len(table.rows)
    shown = texts(table)
    assert shown["standard"]["difference (nats/byte)"] == "baseline"
    for line in judged.verdict():
        if line.subject in rivals:
            assert shown[line.subject]["difference (nats/byte)"] in line.text
    assert "±" in shown["standard"]["perplexity ↓"]
    assert not [cell for row in shown.values() for name, cell in row.items() if "±" in cell and "perpl" not in name]
    assert table.caption[0].startswith("Mean ± standard deviation over 3 seeds.")
    assert "Costs are means over seeds, shown and not tested: params, tok/s, memory." in table.caption


def test_speeds_of_seeds_that_were_trained_together_are_called_shares() -> None:
    record = study(LOSSES, quantities=(PERPLEXITY, SPEED))
    note = "Seeds were trained together in one process: speed and memory are shares of it, and rank no mechanisms."
    assert note not in first(record).caption
    together = with_summaries(record, lambda row, _: {"stacked": 3} if row == "standard" else {})
    assert note in first(together).caption


def test_skipped_steps_and_context_gain_are_shown_where_there_were_any() -> None:
    without = first(with_summaries(study(LOSSES), lambda *_: {"context_gain": None}))
    assert "gain" not in without.headings
    assert "Context gain" not in " ".join(without.caption)
    record = study(LOSSES)
    assert "skipped steps" not in first(record).headings
    record.cell("good").outcomes[0].summary["skipped_steps"] = 3
    assert [texts(first(record))[row]["skipped steps"] for row in ("standard", "good")] == ["0", "3"]


def test_a_step_that_was_better_than_the_last_is_named() -> None:
    record = study(LOSSES)
    best = [{"best_loss": 1.25, "best_step": 10}, {"best_loss": 1.75, "best_step": 1200}, {"best_step": 2000}]
    for outcome, found in zip(record.cell("good").outcomes, best, strict=True):
        outcome.summary.update(found, steps=2000)
    told = "Validation was better before it: 'good' (2 of 3 runs: loss 1.500 at step 10–1,200 of 2,000)."  # noqa: RUF001
    assert any(line.endswith(told) for line in first(record).caption)
    assert "better before it" not in " ".join(first(study(LOSSES)).caption)


def test_large_numbers_have_si_prefixes() -> None:
    values = (870, 45_123, 910_000, 1_234_567, 7e9, 8.1e12, 1.81038408e17, 2.5e19)
    shown = ["870", "45.1k", "910k", "1.23M", "7.00G", "8.10T", "181P", "25.0E"]
    assert [with_prefix(value) for value in values] == shown


@pytest.mark.parametrize("width", [120, 60, 40])
def test_the_console_table_holds_every_cell_however_narrow_the_console(width):
    """Columns that do not fit continue below with their labels, so that no number is shortened."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(console_table(first(study(LOSSES))))
    printed = captured.get()
    assert all(cell in printed for row in texts(first(study(LOSSES))).values() for cell in row.values())
    assert max(map(len, printed.splitlines())) <= width
    n_parts = sum("─" in line for line in printed.splitlines())
    assert all(printed.count(label) == n_parts for label in texts(first(study(LOSSES))))
    assert (n_parts > 1) == (width < 120)


def test_latex_escapes_its_input():
    record = study(
        {"standard": BASE, "50% of_$x$ & {y}": BASE, "[x]": shifted(0.1)}, control=None, title=r"a\b~c^d #1 <b>"
    )
    text = in_latex(JudgedStudy(record))
    assert r"50\% of\_\$x\$ \& \{y\} &" in text
    assert r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d \#1 $<$b$>$" in text
    assert "\n{}[x] &" in text, "a label in brackets is no argument of the line before"
    assert latex_escaped("±") == r"$\pm$"
    assert latex_escaped("Δ of λ₁², 10⁻³") == r"$\Delta$ of $\lambda$$_{1}$$^{2}$, 10$^{-}$$^{3}$"
    assert not re.search(r"[^\x00-\x7f]", text)


def test_numbers_have_names_that_one_can_type_and_each_its_own():
    published = (Published("standard", "web", 24.22, 0.31, 10),)
    columns = {"web": {"standard": BASE, "n=3": shifted(-0.05), "n 3": shifted(-0.06), "uniform": shifted(0.5)}}
    probes = {"standard": {"entropy": [1.0, 2.0]}}
    judged = JudgedStudy(study(columns=columns, quantities=(PERPLEXITY, ENTROPY), published=published, probes=probes))
    found = named_numbers(judged)
    assert all(re.fullmatch("[A-Za-z0-9.,+/ -]+", name) for name in found)
    assert found["standard web perplexity"] == "5.37"
    assert found["standard web perplexity published sd"] == "0.31"
    assert found["n 3 web perplexity difference"] == r"\ensuremath{-0.0500}"
    assert found["n 3 web perplexity difference 2"] == r"\ensuremath{-0.0600}"
    assert found["standard web entropy, layer 1"] == "2.000"
    names = re.findall(r"^\\attractornumber\{([^}]*)\}", numbers(judged), re.MULTILINE)
    assert len(names) == len(set(names)) == len(found)


@pytest.mark.parametrize("n_words", [1, 12, 40])
def test_captions_in_latex_have_at_most_thirty_words_and_comments_have_the_other_notes(n_words: int) -> None:
    record = study(LOSSES, quantities=(PERPLEXITY, SPEED), title=" ".join(["word"] * n_words))
    text = in_latex(JudgedStudy(record))
    captions = re.findall(r"\\caption\{(.*)\}", text)
    assert len(captions) == len(tables(JudgedStudy(record))) == 2
    for caption, table in zip(captions, tables(JudgedStudy(record)), strict=True):
        assert caption.startswith(" ".join(table.title.split()[:30]))
        assert 1 < len(caption.split()) <= 30
        for note in table.caption:
            assert latex_escaped(note) in caption or f"% {note}\n" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_can_typeset_a_paper_with_tables_and_macros(tmp_path):
    judged = JudgedStudy(study(LOSSES | {"<b>&_%": BASE}))
    (tmp_path / "table.tex").write_text(in_latex(judged))
    (tmp_path / "numbers.tex").write_text(numbers(judged))
    paper = r"\documentclass{article}\usepackage{booktabs}\input{numbers}\begin{document}\input{table}"
    (tmp_path / "paper.tex").write_text(paper + r"\attractor{best perplexity}\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
