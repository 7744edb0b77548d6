"""The ledger has every claim, its rules use only rows of their studies, and the largest scale decides."""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import five_papers
from attractor.claims.claim import Claim
from attractor.claims.comparisons import Control, Pair
from attractor.claims.ledger import SCALES, Entry, find_records, ledger, read_rule_dates, renewed_rule_dates
from attractor.claims.rules import Costs, Differs, Equivalent, InRegime, Reaches, Stays
from attractor.claims.verdicts import all_of
from attractor.errors import InputError
from attractor.runs.quantity import TOKENS_PER_PARAMETER, Quantity
from attractor.runs.study_record import StudyRecord
from attractor.study.study import Study, load_study
from five_papers import CLAIMS
from invented_records import losses, record
from papers.contested.rules import Factorial
from papers.coupled_qk.claims import CORPORA, COUNTS, COUPLED, LARGE, MEDIUM, POSITIONS, SMALL
from papers.coupled_qk.rules import Contrast, Counts, Steadier
from papers.fast_slow.claims import TWO_TIMESCALES
from papers.jacobians.rules import OfTheBest, Shown, WhereActing
from papers.psiqrh.rules import StableAtMore
from papers.published import BYTES_PER_TOKEN

ROOT = Path(__file__).parents[2]
STUDY = cache(lambda name: load_study(five_papers.STUDIES[name]))  # reading all of them takes seconds
BY_ID = {claim.id: claim for claim in CLAIMS}
IDS = [
    *(f"X{n}" for n in range(1, 11)),
    *(f"C{n}" for n in range(1, 31)),
    *(f"F{n}" for n in range(1, 14)),
    *(f"J{n}" for n in range(1, 17)),
    *(f"L{n}" for n in range(1, 15)),
    *(f"P{n}" for n in range(1, 6)),
]


def on(device: str, runs: Sequence[float]) -> list[dict[str, Any]]:
    return [{"valid_loss": run, "device": device} for run in runs]


def test_pairs_of_two_devices_are_shown_and_decide_nothing() -> None:
    """Criterion: two GPUs of one kind are one device, as are runs of which one did not record its own."""
    base, rival = losses(1.7), losses(1.72)
    devices = {"standard": on("cpu", base[:4]) + on("cuda:0", base[4:]), "all alike": on("cpu", rival[:4])}
    devices["apart"] = on("cuda", rival[:3]) + on("cpu", rival[3:6])
    devices["other"] = [run | {"processor": "b"} for run in on("cpu", rival[:3])] + on("cuda:1", rival[3:])
    devices["standard"] = [run | {"processor": "a"} for run in devices["standard"]]
    runs = record(devices | {"unknown": rival})
    parts = {row: Differs((Pair(row, "standard", -0.02, 0.005),)).parts(runs)[0] for row in runs.design.rows}
    assert [parts[row].n for row in ("all alike", "unknown", "apart", "other")] == [4, 8, 1, 4]
    assert parts["apart"].apart.startswith("5 pairs of two devices: +0.0")
    assert "one pair of seeds has no interval" in parts["apart"].reason
    assert parts["unknown"].apart == ""
    mixed = record({"standard": on("cpu", base), "rival": on("cuda", rival)})
    (part,) = Differs((Pair("rival", "standard", -0.02, 0.005),)).parts(mixed)
    assert (part.status, part.n, "pairs of one device would" in part.reason) == ("unclear", 0, True)


def test_a_row_that_equals_another_row_decides_nothing() -> None:
    """Clipping that no logit reaches trains the model without it, so that a claim about clipping says nothing of it."""
    clipped = losses(1.7)
    runs = record({"standard": losses(1.6), "MLA": clipped, "MLA QK-clip": clipped, "MLA QuacK": losses(1.72)})
    for rule in (Differs, Equivalent):
        (of_clip,) = rule((Pair("MLA QuacK", "MLA QK-clip", -0.02, 0.005),)).parts(runs)
        (of_plain,) = rule((Pair("MLA QuacK", "MLA", -0.02, 0.005),)).parts(runs)
        assert (of_clip.status, of_plain.status) == ("unclear", "fails")
        assert of_clip.reason.startswith("runs of MLA QK-clip equal those of MLA: what sets")


def test_comparisons_without_runs_count_and_the_verdict_names_the_part_that_was_judged() -> None:
    """Criterion: a difference that one comparison shows is not shown as one of eight of a claim, whichever rules they
    belong to."""
    pair = Pair("rival", "standard", -0.02, 0.005)
    others = tuple(replace(pair, of=f"not run {n}") for n in range(7))
    runs = record({"standard": losses(1.7, 4, 0.0), "rival": losses(1.6905, 4, 3.0)})
    assert Differs((pair,)).judge(runs).status == "holds"
    for rule in (Differs((pair, *others)), all_of(Differs((pair,)), Differs(others))):
        verdict = rule.judge(runs)
        assert (verdict.status, verdict.remark) == ("unclear", "1 of 8 parts")
        assert "not shown with 4 pairs" in verdict.reason


@pytest.mark.parametrize("looks", [(), (4, 6), (6, 6, 99)])
def test_looks_at_fewer_pairs_widen_the_interval(looks: tuple[int, ...]) -> None:
    """Criterion: a look at more pairs than there are, and one that is named twice, change nothing."""
    numbers = losses(1.694, 8, 3.0)
    runs = replace(record({"standard": losses(1.7, 8, 0.0), "rival": numbers}), looks=looks)
    (part,) = Differs((Pair("rival", "standard", -0.02, 0.001),)).parts(runs)
    (alone,) = Differs((Pair("rival", "standard", -0.02, 0.001),)).parts(replace(runs, looks=()))
    assert part.interval is not None
    assert alone.interval is not None
    before = sorted({look for look in looks if look < 8})
    assert ("at the last of looks at " + ", ".join(map(str, [*before, 8])) in part.reason) == bool(before)
    assert (part.interval.low < alone.interval.low) == bool(before)  # type: ignore[operator]


def test_looks_are_written_down_when_more_pairs_are_judged() -> None:
    claim = BY_ID["C5"]
    few, more = ablation(0.05, "laptop", n=4), ablation(0.05, "laptop", n=8)
    first = renewed_rule_dates({}, "2026-01-01T10:00", [claim], [few])
    again = renewed_rule_dates(first, "2026-01-02T10:00", [claim], [few])
    last = renewed_rule_dates(again, "2026-01-03T10:00", [claim], [more])
    assert first == again
    assert last["C5"]["looks"] == {"laptop": {"4": "2026-01-01", "8": "2026-01-03"}}
    (entry,) = ledger([more], [claim], last)
    assert "at the last of looks at 4, 8" in entry.verdict.reason


def test_a_result_near_a_cut_of_ours_is_partly_so() -> None:
    measured = Quantity("measured", "x")
    for value, status in ((1.0, "holds"), (3.0, "partly"), (5.0, "fails")):
        runs = record({"standard": [{"x": value}, {"x": 0.5}]}, control=None)
        rule = Stays(("standard",), ("",), 2.5, measured, near=4.0)
        both = all_of(rule, replace(rule, level=9.0, near=None))
        assert (rule.judge(runs).status, both.judge(runs).status) == (status, status)
    one_open = all_of(replace(rule, near=9.0), replace(rule, rows=("absent",))).judge(runs)
    assert (one_open.status, one_open.partial) == ("unclear", True)


INTERACTION = Contrast(Pair("rival", "standard", -0.02, 0.01), (("rich", 1.0), ("poor", -1.0)), looks=(4, 8))


def of_leads(rich: float, poor: float, n: int = 8) -> StudyRecord:
    """Return a record in which a rival leads by these losses in two columns."""
    leads = {"rich": rich, "poor": poor}
    cells = {("standard", column): losses(1.6, n) for column in leads}
    cells |= {("rival", column): losses(1.6 - lead, n, noise=-1.0) for column, lead in leads.items()}
    cells["rival", "poor"] = losses(1.6 - poor, n, noise=0.5)
    return record(cells)


@pytest.mark.parametrize(
    ("rich", "poor", "n", "status", "says"),
    [
        (0.03, 0.0, 8, "holds", "shown with 8 pairs"),
        (0.03, 0.0, 4, "holds", "shown with 4 pairs"),
        (0.03, 0.0, 7, "holds", "shown with 4 pairs"),  # between two looks the earlier one counts
        (0.03, 0.0, 3, "unclear", "3 pairs, but the first look is planned at 4"),
        (0.03, 0.03, 8, "fails", "shown to be less than the margin"),  # a lead in both columns is no interaction
        (0.0, 0.03, 8, "fails", "shown to be less than the margin"),
        (0.005, 0.0, 4, "unclear", "the next look may decide"),
    ],
)
def test_a_contrast_compares_leads_between_columns(rich: float, poor: float, n: int, status: str, says: str) -> None:
    (part,) = INTERACTION.parts(of_leads(rich, poor, n))
    assert (part.status, says in part.reason) == (status, True), part.reason
    if n >= INTERACTION.looks[0]:
        assert part.interval is not None
        assert part.interval.mean == pytest.approx(poor - rich, abs=1e-9)


def test_runs_below_the_regime_of_an_effect_decide_nothing() -> None:
    """Criterion: .9M parameters reach 2.7 tokens each after 10,000 steps of 256 tokens, and not after 1,000."""
    rows = {"standard": losses(1.6), "rival": losses(1.6001), "uniform": losses(2.6)}
    rule = Differs((Pair("rival", "standard", -0.02, 0.01),))
    for n_steps, status in ((1_000, "unclear"), (10_000, "fails")):
        runs = record({row: [{"valid_loss": x, "tokens": n_steps * 256} for x in of] for row, of in rows.items()})
        verdict = InRegime(rule, ("standard",), TOKENS_PER_PARAMETER, "longer runs would", least=2.7).judge(runs)
        assert (verdict.status, "regime not reached" in verdict.reason) == (status, status == "unclear")


def test_a_contrast_needs_every_column() -> None:
    (part,) = INTERACTION.parts(record({("standard", "rich"): losses(1.6), ("rival", "rich"): losses(1.6, noise=-1.0)}))
    assert part.status == "not run"


def test_every_claim_occurs_once_and_in_order() -> None:
    assert [claim.id for claim in CLAIMS] == IDS
    assert all(claim.statement and claim.published for claim in CLAIMS)


def test_studies_and_claims_name_one_another() -> None:
    """Criterion: a claim names every study that addresses it, and has a rule by then."""
    asked = {claim: name for name in five_papers.STUDIES for claim in STUDY(name).claims}
    assert asked == {claim.id: claim.study for claim in CLAIMS if claim.study is not None}
    without = [claim.id for claim in CLAIMS if claim.study is not None and claim.rule is None]
    assert not without, f"write the rules of {without} before the runs"


PLACES: dict[type, Callable[[Any], Iterable[tuple[str, str]]]] = {  # rows and columns, by the kind of what names them
    StableAtMore: lambda rule: itertools.product((rule.pair.of, rule.pair.against), rule.columns),
    Factorial: lambda rule: ((row, "") for row in (rule.pair.against, *dict(rule.weights))),
    Contrast: lambda rule: itertools.product((rule.pair.of, rule.pair.against), dict(rule.weights)),
    Control: lambda control: ((row, "") for row in (control.row, control.against)),
    Pair: lambda pair: zip((pair.of, pair.against), pair.columns, strict=True),
    Counts: lambda rule: ((row, column) for row, column, _ in rule.expected),
    Shown: lambda rule: [(rule.row, "")],
    Reaches: lambda rule: itertools.product([rule.row], rule.columns),
    OfTheBest: lambda rule: ((row, "") for row in rule.rows),
    Stays: lambda rule: itertools.product(rule.rows, rule.columns),
    Costs: lambda rule: ((row, "") for row in (rule.against, *dict(rule.published))),
    Steadier: lambda rule: ((row, "") for row in (*rule.of, rule.against)),
}


def places(part: Any) -> Iterator[tuple[str, str]]:
    """Yield every row and column that a rule uses."""
    if type(part) in PLACES:
        yield from PLACES[type(part)](part)
    elif isinstance(part, tuple):
        for each in part:
            yield from places(each)
    elif is_dataclass(part):
        if isinstance(part, InRegime | WhereActing):
            yield from itertools.product(part.rows, getattr(part, "columns", ("",)))
        for field in fields(part):
            yield from places(getattr(part, field.name))


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.study], ids=lambda claim: claim.id)
def test_a_rule_uses_only_rows_and_columns_of_its_study(claim: Claim) -> None:
    assert claim.study is not None
    study = STUDY(claim.study)
    spoken = set(places(claim.rule))
    assert spoken
    for scale in set(study.scales) - {"smoke"}:
        rows, columns = study.axes(scale)
        there = set(itertools.product(rows.labels, columns.labels))
        assert spoken <= there if scale == "paper" else spoken & there, scale


def published(study: Study) -> dict[tuple[str, str], float]:
    first = study.quantities[0].name
    return {(each.row, each.column): each.mean for each in study.published if (each.quantity or first) == first}


@pytest.mark.parametrize(
    ("study", "table"),
    [
        ("coupling-ablation", {"": SMALL}),
        ("scale-150m", {"": MEDIUM}),
        ("scale-350m", {"": LARGE}),
        ("corpus-sensitivity", CORPORA),
        ("positions", POSITIONS),
        ("fast-slow-baseline", {"": TWO_TIMESCALES}),
    ],
)
def test_claims_and_studies_print_the_same_published_figures(
    study: str, table: dict[str, dict[str, tuple[float, ...]]]
) -> None:
    printed = published(STUDY(study))
    for column, rows in table.items():
        for row, value in rows.items():
            assert printed[row, column] == value[0]


def test_published_counts_equal_ours_where_that_is_possible() -> None:
    printed = published(STUDY("parameters"))
    for column, rows in COUNTS.items():
        for row, count in rows.items():
            if (row, column) in printed and (row, column) not in (("gqa", "medium"), ("standard", "large")):
                assert count == pytest.approx(printed[row, column], rel=5e-4)


def test_margins_are_a_quarter_of_the_published_effect() -> None:
    in_regime = BY_ID["C1"].rule
    assert isinstance(in_regime, InRegime)
    rule = in_regime.rule
    pairs = {(pair.of, pair.against): pair for pair in rule.pairs}  # type: ignore[attr-defined]
    assert set(pairs) == set(itertools.product(COUPLED, SMALL.keys() - set(COUPLED)))
    assert pairs["coupled-euler", "standard"].effect == pytest.approx(
        -math.log(24.22 / 22.55) / BYTES_PER_TOKEN["encyclopedic"]
    )
    assert all(pair.margin == pytest.approx(abs(pair.effect) / 4) for pair in pairs.values())


def ablation(lead: float, scale: str, n: int = 8, claims: tuple[str, ...] = ("C5",)) -> StudyRecord:
    rows = {"standard": losses(1.7, n, 0.0), "mlp-only": losses(1.7, n, 0.5)}
    coupled = {row: losses(1.7 - lead, n, noise) for row, noise in zip(COUPLED, (1.0, -1.0), strict=True)}
    return record(rows | coupled, scale=scale, claims=claims)


def judged(claim: Claim, records: Sequence[StudyRecord]) -> Entry:
    (found,) = ledger(records, [claim])
    return found


def test_without_records_every_claim_is_not_run() -> None:
    entries = ledger([], CLAIMS)
    assert [each.claim for each in entries] == list(CLAIMS)
    assert {each.verdict.status for each in entries} == {"not run"}
    assert "studies/positions.py has no stored runs" in entries[IDS.index("C16")].verdict.reason


def test_the_largest_scale_decides_and_the_others_are_listed() -> None:
    leads = {"paper": -0.05, "bench": 0.05, "desk": 0.05, "laptop": 0.05, "smoke": -0.05}
    records = [ablation(lead, scale) for scale, lead in leads.items()]
    for first in range(len(records)):
        some = records[first:] + records[:first]
        found = judged(BY_ID["C5"], some)
        assert (found.verdict.status, found.verdict.scale) == ("fails", "paper")
        assert [(v.scale, v.status) for v in found.others] == [
            ("bench", "holds"),
            ("desk", "holds"),
            ("laptop", "holds"),
            ("smoke", "unclear"),
        ]
    assert {each.design.scale for each in records} == set(SCALES)


def test_a_larger_scale_without_the_runs_that_a_claim_needs_does_not_decide() -> None:
    unfinished = record({"standard": losses(1.7), "mlp-only": [None] * 8}, scale="paper", claims=("C5",))
    found = judged(BY_ID["C5"], [unfinished, ablation(0.05, "laptop")])
    assert (found.verdict.status, found.verdict.scale, found.others) == ("holds", "laptop", ())
    assert judged(BY_ID["C5"], [unfinished]).verdict.status == "not run"


def started(n: int, euler: str) -> StudyRecord:
    rows = {"standard": losses(1.7, n), "mlp-only": losses(1.7, n, 0.5), "coupled-hamiltonian": losses(1.69, n, -1.0)}
    of_euler = [None] * n if euler == "missing" else losses(1.69, n)
    return record(rows | {"coupled-euler": of_euler}, scale="bench", claims=("C5",))


@pytest.mark.parametrize("euler", ["missing", "run"])
def test_a_larger_scale_decides_once_it_has_two_pairs_and_its_control(euler: str) -> None:
    """Criterion: it then decides even if a row is missing. Without any other scale one pair stands."""
    whole = started(8, euler)
    cells = [replace(cell, outcomes=()) if cell.row == whole.design.control else cell for cell in whole.cells]
    without = replace(whole, cells=tuple(cells))
    for bench, scales in (
        *((started(1, euler), ["desk", "bench"]), (started(2, euler), ["bench", "desk"])),
        *((whole, ["bench", "desk"]), (without, ["desk", "bench"])),
    ):
        found = judged(BY_ID["C5"], [bench, ablation(0.05, "desk")])
        assert [verdict.scale for verdict in (found.verdict, *found.others)] == scales
    assert "sensitivity unknown" in found.others[0].reason
    assert judged(BY_ID["C5"], [started(1, euler)]).verdict.scale == "bench"


def test_of_all_records_the_fullest_of_the_study_that_a_claim_names_counts() -> None:
    """Criterion: a claim that is younger than a record of its study is judged by it; one without a rule by none."""
    few, many = (ablation(0.05, "laptop", n, claims=("C1",)) for n in (4, 8))
    for some in ([few, many], [many, few]):
        assert (judged(BY_ID["C5"], some).verdict.status, judged(BY_ID["C5"], some).verdict.seeds) == ("holds", 8)
    for other in ({"study": "positions"}, {"study": None, "rule": None}):
        found = judged(replace(BY_ID["C5"], **other), [many])  # type: ignore[arg-type]
        assert (found.verdict.status, found.others) == ("not run", ())


def store(folder: Path, name: str, stored: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(stored))


def test_stored_records_are_found_and_judged_as_they_were(tmp_path: Path) -> None:
    """Criterion: those of papers, and those of studies where they were run."""
    one, two = ablation(0.05, "laptop"), ablation(0.0, "bench")
    store(tmp_path / "results", "study-b-laptop.json", one.to_dict())
    store(tmp_path / "results", "study-a-bench.json", two.to_dict())
    store(tmp_path / "results", "compare-laptop.json", {"not": "a study"})
    found = find_records([tmp_path])
    assert [each.design.scale for each in found] == ["bench", "laptop"]
    assert ledger(found, CLAIMS) == ledger([one, two], CLAIMS)
    design = replace(one.design, rows=("standard",), claims=("C5",))
    store(tmp_path / "synthetic-laptop", "study.json", {"design": design.to_dict(), "cells": []})
    store(tmp_path / "other", "notes.json", {})
    (found_there,) = find_records([tmp_path / "none"], tmp_path)
    assert (found_there.design, found_there.finished) == (design, 0)
    with pytest.raises(InputError, match="nowhere"):
        find_records([tmp_path], tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("began", "since", "younger"),
    [
        ("2026-03-02T08:00:00+00:00", "2026-03-02", False),
        ("2026-04-01T08:00:00+00:00", "2026-03-02", False),
        ("2026-03-01T08:00:00+00:00", "2026-03-02", True),
        # changed on the day of the runs, after they had begun
        ("2026-03-02T08:00:00+00:00", "2026-03-02T09:30:00+00:00", True),
        ("2026-03-02T10:00:00+00:00", "2026-03-02T09:30:00+00:00", False),
        (None, "2026-03-02", True),  # runs without a recorded time are older than those with one
        ("2026-04-01T08:00:00+00:00", None, True),
    ],
)
def test_a_rule_that_is_newer_than_the_runs_it_judges_is_marked(
    began: str | None, since: str | None, younger: bool
) -> None:
    """Criterion: a rule that is not written down, or in other words, is newer than all runs."""
    claim = BY_ID["C5"]
    assert claim.rule is not None
    runs = replace(ablation(0.05, "laptop"), environments={} if began is None else {"time": [began, "2026-09-01"]})
    dates = {} if since is None else {"C5": {"rule": claim.rule.fingerprint, "since": since}}
    assert ledger([runs], [claim], dates)[0].rule_is_younger == younger
    assert ledger([runs], [claim], {"C5": {"rule": "another", "since": since}})[0].rule_is_younger


def test_only_rules_that_changed_get_a_new_date() -> None:
    dates = renewed_rule_dates({}, "2026-01-01", CLAIMS)
    assert set(dates) == {claim.id for claim in CLAIMS if claim.rule is not None}
    changed = dates | {"C5": {"rule": "another", "since": "2026-01-01"}}
    renewed = renewed_rule_dates(changed, "2026-02-02", CLAIMS)
    assert renewed["C5"] == {"rule": dates["C5"]["rule"], "since": "2026-02-02"}
    assert {claim for claim, day in renewed.items() if day != dates[claim]} == {"C5"}


def test_the_hash_of_a_rule_follows_its_fields_and_nothing_else() -> None:
    fingerprints = [claim.rule.fingerprint for claim in CLAIMS if claim.rule is not None]
    assert len(set(fingerprints)) == len(fingerprints)
    rule = BY_ID["C5"].rule
    assert rule is not None
    first, *others = rule.pairs  # type: ignore[attr-defined]
    wider = replace(rule, pairs=(replace(first, margin=2 * first.margin), *others))  # type: ignore[type-var]
    assert wider.fingerprint != rule.fingerprint
    assert replace(rule).fingerprint == rule.fingerprint  # type: ignore[type-var]


def test_the_dates_of_rules_are_stored_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert read_rule_dates(tmp_path) == {}
    dates = renewed_rule_dates({}, "2026-01-01", CLAIMS)
    store(tmp_path / "results", "rules.json", dates)
    assert read_rule_dates(tmp_path) == dates
    for damaged in ([], {"C1": "x"}, {"C1": {"rule": "x"}}):
        store(tmp_path / "results", "rules.json", damaged)
        with pytest.raises(InputError, match=r"rules\.json"):
            read_rule_dates(tmp_path)


def test_every_current_rule_has_a_stored_date() -> None:
    """`attractor claims --write docs/claims.md` writes the dates of rules that changed."""
    stored = five_papers.RULE_DATES
    changed = [c.id for c in CLAIMS if c.rule is not None and stored.get(c.id, {}).get("rule") != c.rule.fingerprint]
    assert not changed, f"the rules of {changed} are not those of their rules.json; run attractor claims --write"
