"""The verdict of a thorough comparison, in legs that are never drawn together into one word.

    a token      the final loss against the baseline's, at equal tokens
    a second     the effective speedup (`verdict/speedup.py`), which is above 1 where a row is faster to the same loss
    stability    the change of the loss at 2 and 4 times a row's learning rate
    both sizes   the final loss at another size, with an interval of its own
    recall       the accuracy on associative recall, where it was asked for

The judge decides the losses and the accuracies, at each size by itself. A speedup is decided by its interval, at a
confidence that covers all rows together.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean

from attractor.claims.comparisons import learning_rate
from attractor.report.judged_study import JudgedStudy, VerdictLine, VerdictPart
from attractor.runs.quantity import LOSS_OF_VALIDATION, Quantity
from attractor.runs.study_record import HIGHER_RATES, LADDER, OTHER_SIZE, RECALL, RUNGS
from attractor.verdict.speedup import Speedup, effective_speedup
from attractor.verdict.words import UNKNOWN, signed

ALPHA = 0.05
SPEED = Quantity("tok/s", "tokens_per_second")


@dataclass(frozen=True)
class LegOfRow:
    """What a leg says of one row."""

    leg: str
    row: str
    n: int  # seeds, or pairs of them
    rate: float | None  # the row's learning rate
    outcome: str
    words: str  # the outcome in a sentence
    result: str  # the numbers
    remark: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def numbers(self) -> str:
        return "" if self.result == UNKNOWN else f"{self.result} ({self.n} seed{'s' * (self.n > 1)})"


def verdict_of(judged: JudgedStudy) -> list[VerdictLine]:
    """Return the verdict of any study. That of a thorough comparison begins with the parameters, since these alone may
    explain a lead, and has a line on each leg."""
    if not judged.record.legs:
        return judged.verdict()
    baseline = judged.design.baseline
    apart = [f"{row}{remark}" for row in judged.design.rivals if (remark := judged.more_parameters(row))]
    matched = f"Parameters are matched: every row has those of '{baseline}' within 1%."
    gap = f"Parameters are not matched (--match parameters does): {'; '.join(apart)} than '{baseline}'."
    first = VerdictLine("", (VerdictPart("doubt" if apart else "sensitive", "", gap if apart else matched),))
    about = []
    for name, rows in legs_of(judged).items():
        parts = [VerdictPart(row.outcome, row.row, row.words, row.numbers) for row in rows]
        remarks = "".join(f"; {row.row}: {row.remark}" for row in rows if row.remark)
        about.append(VerdictLine(name, tuple(parts), remarks))
    return [first, *judged.verdict(about)]


@lru_cache(maxsize=1)
def legs_of(judged: JudgedStudy) -> dict[str, list[LegOfRow]]:
    """Return what each leg of a comparison says of each row; nothing where there are no further studies."""
    legs: dict[str, list[LegOfRow]] = {}
    further = {leg: JudgedStudy(record) for leg, record in judged.record.legs.items()}
    of_tokens = [of_difference(judged, row, "loss", "a token") for row in judged.design.rivals if further]
    legs["Loss"] = [replace(of_row, remark=judged.remark(of_row.row).strip(",; ")) for of_row in of_tokens]
    if ladder := further.get(LADDER):
        legs["Time"] = [of_speedup(judged, row, speedup) for row, speedup in speedups(judged, ladder).items()]
    if stability := further.get(HIGHER_RATES):
        places = [(row, by) for row in stability.design.rows for by in stability.design.columns[1:]]
        legs["Stability"] = [of_rate(stability, *place) for place in places]
    if other := further.get(OTHER_SIZE):
        legs["Size"] = [of_sizes(of_row, other) for of_row in of_tokens]
    if recall := further.get(RECALL):
        legs["Recall"] = [of_difference(recall, row, "recall", "at recall") for row in recall.design.rivals]
    return {name: rows for name, rows in legs.items() if rows}


def of_difference(judged: JudgedStudy, row: str, leg: str, phrase: str) -> LegOfRow:
    """Return the judged difference between a row and the baseline in the first tested quantity."""
    measure = judged.tested[0]
    difference = judged.differences[row, "", measure]
    verdict, interval = difference.verdict, difference.shown
    words = f"{verdict.outcome} {phrase}" if verdict.outcome in ("better", "worse") else difference.words
    ends = (None, None, None) if interval is None else (interval.mean, interval.low, interval.high)
    result = UNKNOWN if interval is None else signed(interval, measure.unit)
    return LegOfRow(leg, row, verdict.n, rate_of(judged, row), verdict.outcome, words, result, "", *ends)


def of_sizes(at_first: LegOfRow, other: JudgedStudy) -> LegOfRow:
    """Return the difference at another size, and say whether it is that of the first size."""
    width = other.cell(at_first.row, "").config.get("model", {}).get("d_model", "another")
    at_other = of_difference(other, at_first.row, f"loss at width {width}", f"at width {width} alone")
    if at_other.outcome == at_first.outcome != "undecided":
        return replace(at_other, words=f"{at_other.outcome} at both sizes")
    return at_other


def speedups(judged: JudgedStudy, ladder: JudgedStudy) -> dict[str, Speedup]:
    """Return the effective speedup of each row for which there are runs, with intervals that cover all rows."""
    baseline = judged.cell(judged.design.baseline, "")
    rungs = {1.0: baseline.losses} | {by: ladder.cell(rung, "").losses for rung, by in RUNGS.items()}
    rivals = [row for row in judged.design.rivals if judged.cell(row, "").losses]
    measured = {}
    for row in rivals if all(rungs.values()) else ():
        cell = judged.cell(row, "")
        ours, theirs = cell.by_seed(SPEED), baseline.by_seed(SPEED)
        ratios = [ours[seed] / theirs[seed] for seed in ours if seed in theirs]
        measured[row] = effective_speedup(rungs, cell.losses, ratios or 1.0, 1 - ALPHA / len(rivals))
    return measured


def of_speedup(judged: JudgedStudy, row: str, speedup: Speedup) -> LegOfRow:
    is_blind, outcome = judged.is_blind("", judged.tested[0]), "undecided"
    if speedup.low is not None and speedup.high is not None and not is_blind:
        outcome = "better" if speedup.low > 1 else "worse" if speedup.high < 1 else outcome
    words = f"{outcome} a second" if outcome != "undecided" else "undecided"
    words += " (the setting is not sensitive)" * is_blind
    ends = (speedup.value, speedup.low, speedup.high)
    rate, numbers = rate_of(judged, row), speedup.numbers
    return LegOfRow("speedup", row, speedup.n, rate, outcome, words, numbers, speedup.reason, *ends)


def of_rate(stability: JudgedStudy, row: str, factor: str) -> LegOfRow:
    """Return the change of a row's loss at a multiple of its learning rate. Few seeds have no interval here."""
    losses, unit = stability.cell(row, factor).compared(LOSS_OF_VALIDATION), stability.record.loss_unit
    at_rate = stability.cell(row, stability.design.columns[0]).compared(LOSS_OF_VALIDATION)
    changes = [losses[seed] - at_rate[seed] for seed in losses if seed in at_rate]
    at, rate = f"at {factor} its learning rate", learning_rate(stability.record, row, factor)
    known = LegOfRow(f"loss at {factor} the rate", row, len(changes), rate, "did not end", f"did not end {at}", UNKNOWN)
    if not changes:
        return known
    change = fmean(changes)
    if not math.isfinite(change):
        return replace(known, outcome="diverged", words=f"diverged {at}")
    outcome = "higher loss" if change > 0 else "lower loss"
    return replace(known, outcome=outcome, words=f"{outcome} {at}", result=f"{change:+.3g} {unit}", value=change)


def rate_of(judged: JudgedStudy, row: str) -> float | None:
    return learning_rate(judged.record, row, "")
