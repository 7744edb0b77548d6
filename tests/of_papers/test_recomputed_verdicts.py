"""The numbers behind every verdict, computed once more from the stored records by numpy and scipy alone."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats

import five_papers
from attractor.claims.claim import Claim
from attractor.claims.rules import Conditional, Costs, Differs, Equivalent, Reaches, Reported, Stays
from attractor.claims.verdicts import P_VALUE, AllOf, Rule
from attractor.runs.study_record import StudyRecord, read_record
from five_papers import CLAIMS
from papers.coupled_qk.rules import Contrast
from papers.jacobians.rules import WhereActing

AGREES = 1e-9
Numbers = dict[int, float]


def at(path: str, run: Any) -> Any:
    found: Any = {**run.summary, "probes": run.probes}
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def measured(quantity: Any, run: Any) -> float | None:
    """Return what is compared of a run: a loss a byte, a logarithm of a ratio, or the number itself."""
    nan, per = math.nan, run.summary.get("bytes_per_token")
    loss = run.summary.get("valid_loss")
    loss = nan if loss is None else loss / (per or 1.0)
    far = run.probes.get("elsewhere") or {}
    widths = run.probes.get("elsewhere_bytes_per_token", {})
    elsewhere = np.mean([x / widths.get(name, per) for name, x in far.items()]) if far and per else None
    solved = at("probes.dynamics.accuracy.ood.board_accuracy", run) or {}
    memory = at("timescales.slow_memory_by_head", run)
    computed = {
        "loss_per_byte": loss if per else None,
        "end_loss": None if not per else min(loss, 8 * math.log(2)) if math.isfinite(loss) else 8 * math.log(2),
        "elsewhere_loss": elsewhere,
        "loss_gap_elsewhere": None if elsewhere is None else elsewhere - loss,
        "gate_opening": None if at("timescales.gate", run) is None else abs(at("timescales.gate", run)),
        "shortest_slow_memory": min(map(np.mean, memory)) if memory else None,
        "gained_by_time": solved["64"] - solved["16"] if {"16", "64"} <= solved.keys() else None,
        "solved_by_time": max(solved["16"], solved["64"]) if {"16", "64"} <= solved.keys() else None,
    }
    if quantity.path == "loss_of_training":
        t, x = np.array(run.curve).T if len(run.curve) > 1 else ([], [])
        return float(np.trapezoid(x, t) / (t[-1] - t[0]) / per) if per and len(t) else None
    if quantity.path == "loss_since_a_third":
        early = [x for t, x in run.curve if 3 * t <= run.curve[-1][0]]
        return (run.curve[-1][1] - early[-1]) / per if per and early else None
    if quantity.path == "valid_loss":
        return loss
    number = computed[quantity.path] if quantity.path in computed else at(quantity.path, run)
    if isinstance(number, list | tuple):
        layer = quantity.layer
        known = isinstance(layer, int)
        if known and not -len(number) <= layer < len(number):
            return None
        number = number[layer] if known else float(np.mean(number))
    return math.log(number) if number is not None and quantity.unit in ("x", "%") else number


def of_row(record: StudyRecord, quantity: Any, row: str, column: str) -> dict[int, tuple[float, str]]:
    """Return the number and the kind of device of every run."""
    (cell,) = [cell for cell in record.cells if (cell.row, cell.column) == (row, column)] or [None]
    runs = [] if cell is None else cell.outcomes
    found = {run.seed: (measured(quantity, run), str(run.summary.get("device")).partition(":")[0]) for run in runs}
    return {seed: (x, device) for seed, (x, device) in sorted(found.items()) if x is not None}


def differences(record: StudyRecord, quantity: Any, pair: Any) -> Numbers:
    other = pair.column if pair.against_column is None else pair.against_column
    ours, theirs = of_row(record, quantity, pair.of, pair.column), of_row(record, quantity, pair.against, other)
    return {s: ours[s][0] - theirs[s][0] for s in ours if s in theirs and ours[s][1] == theirs[s][1]}


def simple(rule: Any) -> Iterator[Any]:
    """Yield the rules without conditions, in the order of their parts."""
    if isinstance(rule, AllOf):
        for part in rule.rules:
            yield from simple(part)
    elif isinstance(rule, Conditional) and not isinstance(rule, WhereActing):  # which judges rows by other names
        yield from simple(rule.rule)
    else:
        yield rule


def interval(x: list[float], quantity: Any) -> list[float]:
    mean = float(np.mean(x))
    half = stats.t.ppf(0.975, len(x) - 1) * np.std(x, ddof=1) / math.sqrt(len(x)) if len(x) > 1 else math.nan
    ends = np.array([mean, mean - half, mean + half])
    shown = np.exp(ends) if quantity.unit == "x" else 100 * np.expm1(ends) if quantity.unit == "%" else ends
    return [float(end) for end in shown if math.isfinite(end)]


def holm(p: list[float], n: int) -> list[float]:
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda k: p[k])):
        largest = max(largest, min(1.0, (n - rank) * p[place]))
        adjusted[place] = largest
    return adjusted


def expected(rule: Any, record: StudyRecord) -> list[list[float]]:
    """Return for each part of a rule the mean and the ends of its interval; an empty list where there are no runs."""
    if isinstance(rule, Differs | Equivalent | Reported):
        found = [list(differences(record, rule.quantity, pair).values()) for pair in rule.pairs]
        return [interval(x, rule.quantity) if x and np.isfinite(x).all() else [] for x in found]
    if isinstance(rule, Reaches):
        rows = [[x for x, _ in of_row(record, rule.quantity, rule.row, column).values()] for column in rule.columns]
        return [interval(x, rule.quantity) if x else [] for x in rows]
    if isinstance(rule, Stays):
        return [
            [max((x for x, _ in of_row(record, rule.quantity, row, column).values()), default=math.nan)]
            for row in rule.rows
            for column in rule.columns
        ]
    by_column = [
        differences(record, rule.quantity, type(rule.pair)(**vars(rule.pair) | {"column": column}))
        for column, _ in rule.weights
    ]
    seeds = sorted(set.intersection(*map(set, by_column)))
    weights = [weight for _, weight in rule.weights]
    sums = [sum(w * x[seed] for w, x in zip(weights, by_column, strict=True)) for seed in seeds]
    return [interval(sums, rule.quantity) if sums else []]


def p_values(rule: Any, record: StudyRecord, n_tests: int) -> list[float]:
    """Return the p values on which statements that hold rest."""
    found = [np.array(list(differences(record, rule.quantity, pair).values())) for pair in rule.pairs]
    if isinstance(rule, Differs):
        return holm([float(stats.ttest_1samp(x, 0.0).pvalue) for x in found], max(n_tests, len(found)))
    sides = [
        [stats.ttest_1samp(x, pair.margin, alternative="less").pvalue]
        + ([] if rule.only_above else [stats.ttest_1samp(x, -pair.margin, alternative="greater").pvalue])
        for x, pair in zip(found, rule.pairs, strict=True)
    ]
    return [float(max(of_pair)) for of_pair in sides]


JUDGED = [claim for claim in CLAIMS if claim.rule is not None and claim.study is not None]


@pytest.mark.parametrize("claim", JUDGED, ids=lambda claim: claim.id)
def test_every_number_of_a_verdict_is_that_of_other_code(claim: Claim) -> None:
    """Criterion: means, intervals, corrected p values and largest values agree to 1e-9, in one look at every record."""
    assert isinstance(claim.rule, Rule)
    known = Differs | Equivalent | Reported | Reaches | Stays | Contrast
    for name, path in five_papers.RECORDS.items():
        if name.removeprefix("study-").rpartition("-")[0] != claim.study:
            continue
        record = read_record(path)
        for rule in simple(claim.rule.corrected(claim.rule.n_comparisons)):
            if not isinstance(rule, known) or (isinstance(rule, Contrast) and rule.looks):
                continue
            parts = rule.parts(record)
            for part, numbers in zip(parts, expected(rule, record), strict=True):
                if isinstance(rule, Stays):
                    assert not part.ours or float(part.ours) == pytest.approx(numbers[0], rel=6e-3)
                    assert part.weakness is None or part.weakness[1] == pytest.approx(numbers[0], rel=AGREES)
                elif part.interval is not None and math.isfinite(part.interval.mean):
                    ends = [part.interval.mean, part.interval.low, part.interval.high]
                    shown = [end for end in ends if end is not None]
                    assert shown == pytest.approx(numbers, rel=AGREES, abs=AGREES), (name, part.statement)
            if isinstance(rule, Differs | Equivalent) and all(part.n > 1 and not part.apart for part in parts):
                for part, p in zip(parts, p_values(rule, record, claim.rule.n_comparisons), strict=True):
                    if part.weakness is not None and part.weakness[0] == P_VALUE and math.isfinite(p):
                        assert part.weakness[1] == pytest.approx(p, rel=1e-7, abs=AGREES), (name, part.statement)


def test_costs_are_those_of_rounds() -> None:
    record = read_record(five_papers.RECORDS["study-overhead-laptop"])
    (rule, *_) = [rule for claim in CLAIMS if claim.id == "C12" for rule in simple(claim.rule)]
    assert isinstance(rule, Costs)
    seconds = {cell.row: cell.outcomes[0].summary["step_seconds"] for cell in record.cells}
    for part, (row, _) in zip(rule.parts(record), rule.published, strict=True):
        logs = [math.log(b / a) for a, b in zip(seconds[row], seconds[rule.against], strict=True)]
        assert part.interval is not None
        ends = [part.interval.mean, part.interval.low, part.interval.high]
        assert ends == pytest.approx(interval(logs, rule.quantity), rel=AGREES)
