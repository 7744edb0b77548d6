"""What a rule reads off a study's record: a number of each run, held against that of another row, seed by seed.

    d_s = x_s(of) - x_s(against)   over the seeds s that both rows have                                     (1)

Of costs and ranks, which live on a scale of ratios, x is the logarithm; losses are logarithms of perplexities already.
Where nothing may be concluded, an obstacle says why. In language the first question goes to the instrument: column by
column, the control must lie ten standard deviations of the baseline, over seeds, above the baseline.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from attractor.evidence.sensitivity import SENSITIVE_GAP, twin_gap_in_sds
from attractor.evidence.statistics import Interval, seed_differences
from attractor.evidence.study import Cell, Outcome, Quantity, StudyRecord


@dataclass(frozen=True)
class Reading:
    """One number of a run; None where it was not measured, not a number where the run diverged."""

    name: str
    unit: str  # of differences, as they are shown
    of: Callable[[Outcome], float | None]
    as_ratio: bool = False  # x in (1) is the logarithm, and differences are shown as ratios
    needs_context: bool = True  # judged only where the control shows that attention matters
    rounds: str = ""  # of a timing: where its seconds stand, round by round

    def compared(self, outcome: Outcome) -> float | None:
        value = self.of(outcome)
        if value is None or not self.as_ratio:
            return value
        return math.log(value) if value > 0 else math.nan

    def shown(self, interval: Interval) -> Interval:
        """A difference in the reading's unit: per cent, a factor, or as it is."""
        if not self.as_ratio:
            return interval
        low, high = (None if end is None else self._as_shown(end) for end in (interval.low, interval.high))
        return Interval(self._as_shown(interval.mean), low, high, interval.n, interval.level)

    def _as_shown(self, logarithm: float) -> float:
        return 100 * math.expm1(logarithm) if self.unit == "%" else math.exp(logarithm)


@dataclass(frozen=True)
class Pair:
    """Two rows of one column, the effect that is claimed (`of` minus `against`) and the smallest that would matter.
    With `against_column` the second is of another column."""

    of: str
    against: str
    effect: float
    margin: float
    column: str = ""
    against_column: str | None = None

    @property
    def place(self) -> str:
        if self.against_column is not None:
            return f" ({self.column} against {self.against_column})"
        return f" ({self.column})" if self.column else ""

    @property
    def columns(self) -> tuple[str, str]:
        return self.column, self.column if self.against_column is None else self.against_column


@dataclass(frozen=True)
class Obstacle:
    status: Literal["unclear", "not run"]
    reason: str


@dataclass(frozen=True)
class Compared:
    """(1), and what forbids a conclusion from it. Differences may be there all the same, to be shown."""

    differences: Mapping[int, float] = field(default_factory=dict)
    obstacle: Obstacle | None = None

    @property
    def testable(self) -> bool:
        return len(self.differences) > 1 and all(map(math.isfinite, self.differences.values()))


def compare(record: StudyRecord, reading: Reading, pair: Pair) -> Compared:
    of, against = (
        values(record, reading, row, column) for row, column in zip((pair.of, pair.against), pair.columns, strict=True)
    )
    for found in (of, against):
        if isinstance(found, Obstacle):
            return Compared(obstacle=found)
    assert not isinstance(of, Obstacle)
    assert not isinstance(against, Obstacle)
    differences = seed_differences(of, against) if of.keys() & against.keys() else {}
    blind, unknown = (
        next((each for each in of_columns if each is not None), None)
        for of_columns in zip(*(instrument(record, reading, column) for column in pair.columns), strict=True)
    )
    rows = [(pair.of, of), (pair.against, against)]
    return Compared(differences, blind or _too_little(rows, differences) or unknown)


def values(record: StudyRecord, reading: Reading, row: str, column: str) -> dict[int, float] | Obstacle:
    """By seed, in the order of seeds: what is computed from them must not depend on the order of runs."""
    place = f"{row} ({column})" if column else row
    cell = cell_of(record, row, column)
    if cell is None or not cell.outcomes:
        return Obstacle("not run", f"no finished run of {place}")
    found = {o.seed: reading.compared(o) for o in sorted(cell.outcomes, key=lambda outcome: outcome.seed)}
    measured = {seed: value for seed, value in found.items() if value is not None}
    return measured or Obstacle("not run", f"{reading.name} of {place} not measured")


def by_round(record: StudyRecord, reading: Reading, of: str, against: str) -> list[float]:
    """Logarithms of ratios of speed within each round of one timing, in which all rows had their turns."""
    seconds = []
    for row in (of, against):
        cell = cell_of(record, row, "")
        seconds.append(cell.outcomes[0].summary.get(reading.rounds) or () if cell and cell.outcomes else ())
    if len(seconds[0]) != len(seconds[1]) or len(seconds[0]) < 2:
        return []
    return [math.log(theirs / ours) for ours, theirs in zip(*seconds, strict=True)]


def cell_of(record: StudyRecord, row: str, column: str) -> Cell | None:
    return next((cell for cell in record.cells if (cell.row, cell.column) == (row, column)), None)


def instrument(record: StudyRecord, reading: Reading, column: str) -> tuple[Obstacle | None, Obstacle | None]:
    """Two obstacles: that the column cannot tell mechanisms apart, and that nobody knows whether it can."""
    if not reading.needs_context:
        return None, None
    unknown = Obstacle(
        "unclear", "sensitivity unknown: it takes the control and two seeds of the baseline, all with finite losses"
    )
    if record.design.control is None:
        return None, unknown
    control, baseline = (values(record, LOSS, row, column) for row in (record.design.control, record.design.baseline))
    if isinstance(control, Obstacle) or isinstance(baseline, Obstacle):
        return None, unknown
    gap = twin_gap_in_sds(control, baseline)
    if gap.in_sds is None:
        return None, unknown
    if not gap.sensitive:
        where = f" in {column}" if column else ""
        return Obstacle(
            "unclear",
            f"not sensitive{where}: the control is {gap.in_sds:.1f} standard deviations of the baseline worse, and "
            f"{SENSITIVE_GAP:g} are asked for; a setting in which context matters more would decide it",
        ), None
    return None, None


def _too_little(rows: Sequence[tuple[str, Mapping[int, float]]], differences: Mapping[int, float]) -> Obstacle | None:
    if not differences:
        return Obstacle("unclear", "no seed in common: runs of equal seeds would decide it")
    lost = [
        f"{row} (seed {seed})"
        for row, of_row in rows
        for seed, value in of_row.items()
        if seed in differences and not math.isfinite(value)
    ]
    if lost:
        return Obstacle("unclear", f"diverged: {', '.join(lost)}; a mean over such runs is no number")
    if len(differences) == 1:
        return Obstacle("unclear", "one pair of seeds has no interval: a second would give one")
    return None


def at_path(path: str) -> Callable[[Outcome], float | None]:
    """A number of the summary or of the probes."""
    quantity = Quantity(path, path)

    def read(outcome: Outcome) -> float | None:
        value = outcome.value(quantity)
        return None if value is None else float(value)

    return read


def at_layer(path: str, layer: int | None) -> Callable[[Outcome], float | None]:
    """One layer of a list in the probes, or its mean over layers where `layer` is None."""
    quantity = Quantity(path, path)

    def read(outcome: Outcome) -> float | None:
        found: Any = outcome.value(quantity)
        if not found:
            return None
        numbers = [math.nan if value is None else float(value) for value in found]
        if layer is None:
            return sum(numbers) / len(numbers)
        return numbers[layer] if -len(numbers) <= layer < len(numbers) else None

    return read


def _loss(outcome: Outcome) -> float:
    value = outcome.summary.get("valid_loss")
    return math.nan if value is None else float(value)


def _mean_loss_elsewhere(outcome: Outcome) -> float | None:
    losses = outcome.probes.get("elsewhere", {}).values()
    return math.fsum(math.nan if loss is None else loss for loss in losses) / len(losses) if losses else None


def _accuracy(outcome: Outcome) -> float:
    value = (outcome.summary.get("metric") or {}).get("value")
    return math.nan if value is None else float(value)


def _mean_loss_of_training(outcome: Outcome) -> float | None:
    """The area under the validation curve by its width: of two runs that end alike, the faster has less."""
    if not math.isfinite(_loss(outcome)):
        return math.nan
    if len(outcome.curve) < 2:
        return None
    area = sum((t - s) * (x + y) / 2 for (s, x), (t, y) in pairwise(outcome.curve))
    return area / (outcome.curve[-1][0] - outcome.curve[0][0])


def _instabilities(outcome: Outcome) -> float | None:
    spikes, skipped = outcome.summary.get("loss_spikes"), outcome.summary.get("skipped_steps")
    return None if spikes is None or skipped is None else float(len(spikes) + skipped)


def _opening(outcome: Outcome) -> float | None:
    """Which sign a gate opens with says nothing: what comes behind it may turn its own."""
    gate = at_path("timescales.gate")(outcome)
    return None if gate is None else abs(gate)


LOSS = Reading("validation loss", "nats", _loss)
AREA = Reading("mean validation loss of training", "nats", _mean_loss_of_training)
ELSEWHERE = Reading("mean validation loss on corpora it was not trained on", "nats", _mean_loss_elsewhere)
ACCURACY = Reading("accuracy", "", _accuracy, needs_context=False)
SPEED = Reading(
    "throughput", "x", at_path("tokens_per_second"), as_ratio=True, needs_context=False, rounds="step_seconds"
)
LAYERS = Reading("layers over all positions", "", at_path("layer_equivalents"), needs_context=False)
MEMORY = Reading("peak memory", "x", at_path("peak_memory_bytes"), as_ratio=True, needs_context=False)
INSTABILITIES = Reading("loss spikes and skipped steps", "", _instabilities, needs_context=False)


LARGEST_LOGIT = Reading("largest logit of training", "x", at_path("logits.max"), as_ratio=True, needs_context=False)
LOGIT_CHANGE = Reading(
    "mean change of logits in training", "x", at_path("logits.change"), as_ratio=True, needs_context=False
)
FIRST_ORDER = Reading(
    "first-order change of logits over its bound", "", at_path("probes.lemma.bounded"), needs_context=False
)
GATE = Reading("|tanh gamma| at the end", "", _opening, needs_context=False)
SLOW_MEMORY = Reading("memory of the slow path in tokens", "", at_path("timescales.slow_memory"), needs_context=False)
RELIANCE = Reading("loss added by shutting the gate", "nats", at_path("probes.coupling.worth"), needs_context=False)
LEAK = Reading(
    "change of logits before a changed token, the gate forced open",
    "",
    at_path("probes.structure.leak"),
    needs_context=False,
)
STATES = Reading("slow states read by one block", "", at_path("probes.structure.states"), needs_context=False)
APART = Reading(
    "difference of logits between shut and frozen", "", at_path("probes.structure.apart"), needs_context=False
)


def equation(name: str, path: str) -> Reading:
    """A figure of the master equation, which no corpus has to do with."""
    return Reading(name, "", at_path(f"probes.equations.{path}"), needs_context=False)


def of_dynamics(name: str, path: str) -> Reading:
    """A figure of a recurrent model on boards, which need their context."""
    return Reading(name, "", at_path(f"probes.dynamics.{path}"), needs_context=False)


def of_maps(name: str, path: str) -> Reading:
    """A figure of iterations that nobody has trained."""
    return Reading(name, "", at_path(f"probes.iteration_maps.{path}"), needs_context=False)


def _gained_by_time(outcome: Outcome) -> float | None:
    solved = outcome.probes.get("dynamics", {}).get("accuracy", {}).get("ood", {}).get("board_accuracy", {})
    return solved["64"] - solved["16"] if {"16", "64"} <= solved.keys() else None


def _distance_from_criticality(outcome: Outcome) -> float | None:
    exponent = at_path("probes.dynamics.exponents.largest")(outcome)
    return None if exponent is None else abs(exponent)


BOARDS = Reading("boards solved", "", at_path("measures.board_accuracy"), needs_context=False)
BOARDS_ELSEWHERE = Reading(
    "boards solved out of distribution", "", at_path("measures.ood_board_accuracy"), needs_context=False
)
GAINED_BY_TIME = Reading(
    "boards out of distribution that 64 iterations solve beyond 16",
    "",
    _gained_by_time,
    needs_context=False,
)
EXPONENT = of_dynamics("largest finite-time exponent", "exponents.largest")
FROM_CRITICALITY = Reading("|largest finite-time exponent|", "", _distance_from_criticality, needs_context=False)


def rank(layer: int | None) -> Reading:
    where = "last layer" if layer == -1 else f"layer {layer}"
    name = "mean effective rank" if layer is None else f"effective rank ({where})"
    return Reading(name, "%", at_layer("probes.effective_rank", layer), as_ratio=True)


def entropy(layer: int) -> Reading:
    return Reading(f"entropy of layer {layer}", "nats", at_layer("probes.entropy", layer))
