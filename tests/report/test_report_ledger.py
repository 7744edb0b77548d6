"""The ledger of claims is readable and complete, and the published page follows from the stored records."""

import io
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from studies import study

from attractor.claims.ledger import Entry, find_records, ledger, renewed_rule_dates
from attractor.claims.verdicts import ClaimVerdict
from attractor.report.ledger import cells, extent, markdown, print_ledger, shortened
from attractor.runs.study_record import StudyRecord
from five_papers import CLAIMS, PAPERS, RULE_DATES
from invented_records import with_summaries
from papers.coupled_qk.claims import COUPLED

ROOT = Path(__file__).parents[2]
BASE = [1.66, 1.68, 1.70, 1.69]
WOBBLES = ((-0.001, 0.0, 0.001, 0.0), (0.0, -0.001, 0.0, 0.001))  # of each coupled row, which are not equal runs
DATES = renewed_rule_dates({}, "2026-01-01", CLAIMS)


IDS = [claim.id for claim in CLAIMS]


def entries(lead: float = 0.06, scale: str = "laptop") -> tuple[Entry, ...]:
    rows = {"standard": BASE, "mlp-only": [loss + 1e-6 for loss in BASE], "uniform": [loss + 1 for loss in BASE]}
    rows |= {
        row: [loss - lead + turn for loss, turn in zip(BASE, wobble, strict=True)]
        for row, wobble in zip(COUPLED, WOBBLES, strict=True)
    }
    record = study(rows, seeds=(0, 1, 2, 3), name="coupling-ablation", scale=scale, claims=("C2", "C5"))
    return ledger([record], CLAIMS, DATES)


def printed(found: tuple[Entry, ...], *only: str, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_ledger(console, found, only)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_console_shows_every_claim_within_its_width() -> None:
    found = entries()
    table = re.split(r"\nC1 \w+ \(laptop", printed(found))[0]
    assert max(map(len, table.splitlines())) <= 100
    for claim in CLAIMS:
        assert any(line.startswith(f"{claim.id} ") for line in table.splitlines())


def test_figures_are_shown_with_the_verdict() -> None:
    by_id = {entry.claim.id: cells(entry) for entry in entries()}
    _, _, _, ours, size, seeds, interval, verdict = by_id["C5"]
    assert (ours, size, seeds, verdict) == ("-0.0600 nats/byte", "1.23M", "4", "holds † (laptop)")
    low, high = map(float, interval.strip("[]").split(","))
    assert low < -0.06 < high < 0
    assert by_id["C6"][3:] == ["–", "–", "–", "–", "not run"]  # noqa: RUF001
    assert by_id["C1"][-1] == "unclear, 4 of 8 parts † (laptop)"
    one_pair = ClaimVerdict("unclear", "one pair", ours="-0.1 nats", seeds=1, scale="laptop")
    assert cells(Entry(CLAIMS[0], one_pair))[6] == "–"  # noqa: RUF001


def test_claims_with_runs_have_a_reason() -> None:
    text = printed(entries())
    assert "C5 holds (laptop, text): all 2 parts hold, the weakest is coupled-" in text
    assert "C6 not run" not in text
    smoke, place = entries(scale="smoke"), IDS.index("C5")
    assert "C5 unclear (smoke, text): smoke scale" in printed(smoke)
    both = replace(entries()[place], others=(smoke[place].verdict,))
    assert "otherwise unclear (smoke, text): smoke scale" in markdown(PAPERS, [both])


def test_requested_claims_are_shown_with_their_rule() -> None:
    text = printed(entries(), "C5", "J1")
    assert "since 2026-01-01, younger than the runs that it judges: validation loss: coupled-euler below mlp" in text
    assert "(margin 0.003 nats/byte)" in text
    assert "J1: normalisation keeps" in text
    assert "not run: studies/recurrent-norms.py has no stored runs" in text
    assert "C6" not in text


def test_texts_are_shortened_between_words() -> None:
    assert shortened("a short one", 20) == "a short one"
    assert shortened("coupling shrinks seed variance", 20) == "coupling shrinks…"
    assert all(len(shortened(claim.statement, 40)) <= 40 for claim in CLAIMS)


def test_the_page_has_each_claim_in_its_papers_table_once() -> None:
    sections = markdown(PAPERS, entries()).split("\n## ")[1:]
    assert [section.splitlines()[0] for section in sections] == [paper.key for paper in PAPERS.values()]
    for section, paper in zip(sections, PAPERS.values(), strict=True):
        rows = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")]
        assert rows[2:] == [claim.id for claim in paper.claims]


def test_every_row_of_the_page_has_all_cells() -> None:
    """A vertical bar in a text would shift the following cells, and a character of markup would disappear."""
    found = entries()
    lines = [line for line in markdown(PAPERS, found).splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}
    first = found[IDS.index("C1")]
    awkward = replace(first, claim=replace(first.claim, statement="a | b < c", rule=None))
    (line,) = [line for line in markdown(PAPERS, [awkward]).splitlines() if line.startswith("| C1")]
    assert r"a \| b &lt; c" in line


def test_the_page_counts_each_run_once_and_its_hours_by_core_and_by_gpu() -> None:
    def ran(record: StudyRecord, scale: str, **summary: object) -> StudyRecord:
        return with_summaries(replace(record, design=replace(record.design, scale=scale)), lambda *_: summary)

    record = study({"standard": BASE, "gated": BASE}, seeds=(0, 1, 2, 3))
    on_cores = ran(record, "desk", device="cpu", threads=2, wall_seconds=1800.0)
    on_gpus = ran(study({"mla": BASE}, seeds=(0, 1, 2, 3)), "bench", device="cuda", threads=8, wall_seconds=3600.0)
    assert extent([on_cores, on_cores]) == "8 runs at `desk` (8 core-hours)"
    assert extent([on_cores, on_gpus]) == "4 runs at `bench` (4 GPU-hours), 8 runs at `desk` (8 core-hours)"
    assert "Behind the verdicts stand 8 runs" in markdown(PAPERS, entries(), [on_cores])


def test_the_published_page_follows_from_the_stored_records() -> None:
    """`attractor claims --write docs/claims.md` writes the page; nobody edits a verdict by hand. No rule asks for a
    quantity that its study does not measure."""
    records = find_records(PAPERS)
    entries = ledger(records, CLAIMS, RULE_DATES)
    assert [entry.claim.id for entry in entries if entry.verdict.reason.endswith("not measured")] == []
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == markdown(PAPERS, entries, records)
