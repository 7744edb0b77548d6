"""Compare two rows of a study's record: their paired differences, and the obstacles to a conclusion.

    d_s = x_s(of) - x_s(against)   over the seeds s that both rows have                                     (1)

On language tasks each column must first prove sensitive: the control must be worse than the baseline by more than the
smallest effect in question (`sensitivity.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from attractor.runs.quantity import LOSS, LOSS_OF_VALIDATION, Quantity
from attractor.runs.study_record import Cell, StudyRecord
from attractor.verdict.intervals import seed_differences
from attractor.verdict.sensitivity import control_gap

ROUNDS = {"tokens_per_second": "step_seconds", "forward_tokens_per_second": "forward_seconds"}
# the summary field that holds a timing's seconds, round by round

SENSITIVITY_UNKNOWN = "sensitivity unknown"  # how the reason begins where the control or the baseline has too few runs


@dataclass(frozen=True)
class Pair:
    """Two rows of one column, the claimed effect (`of` minus `against`) and the smallest effect that would matter.
    With `against_column`, the second row is read from that column instead."""

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
class Control:
    """The two rows that show whether a setting is sensitive. `part` names what the control row lacks."""

    row: str
    against: str
    part: str


@dataclass(frozen=True)
class Obstacle:
    """The reason why nothing can be concluded."""

    status: Literal["unclear", "not run"]
    reason: str


@dataclass(frozen=True)
class Compared:
    """The differences (1), and the obstacle to a conclusion, if any. Differences are shown even beside an obstacle."""

    differences: Mapping[int, float] = field(default_factory=dict)  # of pairs whose two runs were made on one device
    obstacle: Obstacle | None = None
    rates: tuple[float, ...] = ()  # the learning rates of both rows, where they differ
    apart: Mapping[int, float] = field(default_factory=dict)  # pairs of two devices, which decide nothing
    looks: tuple[int, ...] = ()  # numbers of pairs at which they were looked at, the last of them now; none: once

    @property
    def testable(self) -> bool:
        return len(self.differences) > 1 and all(map(math.isfinite, self.differences.values()))


def compare(record: StudyRecord, quantity: Quantity, pair: Pair, control: Control | None = None) -> Compared:
    places = list(zip((pair.of, pair.against), pair.columns, strict=True))
    of, against = (values(record, quantity, *place) for place in places)
    if isinstance(of, Obstacle):
        return Compared(obstacle=of)
    if isinstance(against, Obstacle):
        return Compared(obstacle=against)
    columns = dict.fromkeys(pair.columns)
    instruments = [instrument(record, quantity, column, pair.margin, control) for column in columns]
    rates = [learning_rate(record, *place) for place in places]
    differing = tuple(rate for rate in rates if rate is not None) if len(set(rates)) > 1 else ()
    two_devices = seeds_on_two_devices(*(record.cell(*place) for place in places))
    paired = seed_differences(of, against) if of.keys() & against.keys() else {}
    differences = {seed: difference for seed, difference in paired.items() if seed not in two_devices}
    apart = {seed: difference for seed, difference in paired.items() if seed in two_devices}
    obstacles = [
        *(why for why in instruments if why and not why.reason.startswith(SENSITIVITY_UNKNOWN)),
        _too_little([(pair.of, of), (pair.against, against)], differences, len(apart)),
        *(_idle(record, quantity, *place) for place in places),
        *instruments,
    ]
    first = next(filter(None, obstacles), None)
    return Compared(differences, first, differing, apart, looks_so_far(record, len(differences)))


def looks_so_far(record: StudyRecord, n: int) -> tuple[int, ...]:
    """Return the numbers of pairs at which n pairs have been judged, the last of them now; none if this is the first.

    Looks at more pairs than there are now count those of another record, and are left out."""
    before = sorted({look for look in record.looks if 2 <= look < n})
    return (*before, n) if before else ()


def seeds_on_two_devices(cell: Cell, other: Cell) -> set[int]:
    """Return the seeds whose two runs were made on two kinds of device, where the same run rounds in other ways.

    A device is a kind and the processor's name. A run that did not record one of these is taken to have that of the
    other run."""
    ours, theirs = ({outcome.seed: outcome.summary for outcome in some.outcomes} for some in (cell, other))

    def differ(seed: int, name: str) -> bool:
        here, there = ours[seed].get(name), theirs[seed].get(name)
        return bool(here and there) and str(here).partition(":")[0] != str(there).partition(":")[0]

    return {seed for seed in ours.keys() & theirs.keys() if differ(seed, "device") or differ(seed, "processor")}


def _idle(record: StudyRecord, quantity: Quantity, row: str, column: str) -> Obstacle | None:
    other = row_of_equal_runs(record, row, column, quantity)
    why = f"runs of {row} equal those of {other}: what sets these rows apart never acted"
    return Obstacle("unclear", why) if other else None


def row_of_equal_runs(record: StudyRecord, row: str, column: str, quantity: Quantity) -> str:
    """Return an earlier row that has, seed by seed, exactly this row's validation losses and quantity; else "".

    What sets the two rows apart never acted there. An intervention at logits above 30 is an example, in runs whose
    logits stay below.
    """
    cells = {cell.row: cell for cell in record.cells if cell.column == column and len(cell.outcomes) > 1}
    if row not in cells:
        return ""

    def of_first_seed(cell: Cell) -> float | None:
        return quantity.compared(min(cell.outcomes, key=lambda outcome: outcome.seed))

    ours, first = cells[row], of_first_seed(cells[row])
    earlier = (cells[name] for name in record.design.rows[: record.design.rows.index(row)] if name in cells)
    alike = [cell for cell in earlier if of_first_seed(cell) == first]  # soon tells most rows apart
    if not alike or not all(map(math.isfinite, ours.compared(LOSS_OF_VALIDATION).values())):
        return ""
    measures = (LOSS_OF_VALIDATION, quantity)
    return next((cell.row for cell in alike if all(ours.compared(x) == cell.compared(x) != {} for x in measures)), "")


def learning_rate(record: StudyRecord, row: str, column: str) -> float | None:
    rate = record.cell(row, column).config.get("lr")
    return None if rate is None else float(rate)


def values(record: StudyRecord, quantity: Quantity, row: str, column: str) -> dict[int, float] | Obstacle:
    """Return the quantity of a row's runs by seed. Seeds are sorted, so that the order of runs has no effect."""
    place = f"{row} ({column})" if column else row
    cell = record.cell(row, column)
    if not cell.outcomes:
        return Obstacle("not run", f"no finished run of {place}")
    if quantity.unit == "nats/byte" and record.loss_unit == "nats/token":
        return Obstacle("unclear", "these runs did not record how many bytes a token has; new runs do")
    return cell.compared(quantity) or Obstacle("not run", f"{quantity.name} of {place} not measured")


def without_a_number(record: StudyRecord, quantity: Quantity, row: str, column: str) -> list[int]:
    """Return the seeds of finished runs without the quantity, which may be runs where it was not finite."""
    cell = record.cell(row, column)
    return sorted({outcome.seed for outcome in cell.outcomes} - cell.by_seed(quantity).keys())


def by_round(record: StudyRecord, quantity: Quantity, of: str, against: str, seed: int) -> list[float]:
    """Return the logarithm of the speed ratio of two rows for every round of one timing; each round times all rows."""
    seconds: list[Sequence[float]] = []
    for row in (of, against):
        timings = {outcome.seed: outcome.summary for outcome in record.cell(row).outcomes}
        seconds.append(timings.get(seed, {}).get(ROUNDS.get(quantity.path, "")) or ())
    if len(seconds[0]) != len(seconds[1]) or len(seconds[0]) < 2:
        return []
    return [math.log(theirs / ours) for ours, theirs in zip(*seconds, strict=True)]


def instrument(
    record: StudyRecord, quantity: Quantity, column: str, margin: float = 0.0, control: Control | None = None
) -> Obstacle | None:
    """Return why a column may not tell rows apart: it is not sensitive, or its sensitivity is unknown."""
    if not quantity.needs_context or (record.design.control is None and not quantity.is_loss):
        return None
    row, against = (
        (record.design.control, record.design.baseline) if control is None else (control.row, control.against)
    )
    what = "the control" if control is None else f"the control without {control.part} ('{control.row}')"
    unknown = Obstacle("unclear", f"{SENSITIVITY_UNKNOWN}: it takes two seeds or more of {what} and of '{against}'")
    if row is None:
        return unknown
    loss = quantity if quantity == LOSS_OF_VALIDATION else LOSS  # the first is of tasks whose tokens are no text
    losses, losses_against = (values(record, loss, name, column) for name in (row, against))
    if isinstance(losses, Obstacle) or isinstance(losses_against, Obstacle):
        return unknown
    # A margin in another unit than the loss cannot bound the control's loss.
    gap = control_gap(losses, losses_against, margin if quantity.is_loss else 0.0)
    if gap.sensitive is None or gap.interval is None:
        return unknown
    if gap.sensitive:
        return None
    where = f" in {column}" if column else ""
    bounds = f"{gap.interval.mean:.4f} [{gap.interval.low:.4f}, {gap.interval.high:.4f}]"
    least = f"more than {gap.margin:.2g}" if gap.margin else "more than 0"
    return Obstacle(
        "unclear",
        f"not sensitive{where}: {what} is worse by {bounds} {record.loss_unit}, and must be shown to be worse by "
        f"{least}; a setting in which it matters more would decide it",
    )


def _too_little(
    rows: Sequence[tuple[str, Mapping[int, float]]], differences: Mapping[int, float], n_apart: int
) -> Obstacle | None:
    if not differences and n_apart:
        return Obstacle("unclear", "each pair is of two devices: pairs of one device would decide it")
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
