"""The rule that only a claim of PsiQRH needs.

StableAtMore  holds where a row trains stably at more learning rates of a sweep, fails as Differs does
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from attractor.claims.comparisons import Obstacle, Pair
from attractor.claims.rules import Differs, direction
from attractor.claims.verdicts import Rule, Statement
from attractor.runs.quantity import INSTABILITIES, LOSS, Quantity
from attractor.runs.study_record import Cell, Outcome, StudyRecord

TOLERANCE = 0.1  # the share by which a stable run's loss may exceed the row's best loss over all rates


@dataclass(frozen=True)
class StableAtMore(Rule):
    """The number of learning rates in a sweep over columns at which a row trains stably. A stable run has a finite
    loss, no spikes and no skipped steps, and ends not far above the row's best loss over all rates."""

    pair: Pair
    columns: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"learning rates with stable training, of {', '.join(self.columns)}: {direction(self.pair)}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        statement = f"learning rates with stable training: {direction(self.pair)}"
        counts = [self._counts(record, row) for row in (self.pair.of, self.pair.against)]
        for count in counts:
            if isinstance(count, Obstacle):
                return [Statement(statement, count.status, count.reason)]
        of, against = (count for count in counts if not isinstance(count, Obstacle))
        ends = {n for count in (of, against) for n in count.values()}
        if ends <= {0} or ends <= {len(self.columns)}:
            which = "no rate" if ends <= {0} else "every rate"
            return [Statement(statement, "unclear", f"both rows are stable at {which}: a wider sweep would decide")]
        quantity = Quantity("stable learning rates", "stable")
        summaries = {self.pair.of: of, self.pair.against: against}
        cells = tuple(
            Cell(row, "", {}, tuple(Outcome(seed, "", {"stable": n}, {}, ()) for seed, n in by_seed.items()), ())
            for row, by_seed in summaries.items()
        )
        (part,) = Differs((replace(self.pair, column=""),), quantity).parts(replace(record, cells=cells))
        return [replace(part, statement=statement)]

    def _counts(self, record: StudyRecord, row: str) -> dict[int, float] | Obstacle:
        outcomes = {}
        for column in self.columns:
            cell = record.cell(row, column)
            if not cell.outcomes:
                return Obstacle("not run", f"no finished run of {row} ({column})")
            outcomes[column] = {outcome.seed: outcome for outcome in cell.outcomes}
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in outcomes.values())))
        if not seeds:
            return Obstacle("unclear", f"no seed of {row} ran at all rates: runs of equal seeds would decide it")
        runs = {seed: [by_seed[seed] for by_seed in outcomes.values()] for seed in seeds}
        for of_seed in runs.values():
            if any(INSTABILITIES.number(run) is None or LOSS.compared(run) is None for run in of_seed):
                return Obstacle("unclear", f"runs of {row} did not record losses or instabilities; new runs do")
        return {seed: float(_n_stable(of_seed)) for seed, of_seed in runs.items()}


def _n_stable(runs: Sequence[Outcome]) -> int:
    losses = [LOSS.compared(run) for run in runs]
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    worst = (1 + TOLERANCE) * min(finite, default=math.inf)
    calm = (INSTABILITIES.number(run) == 0 for run in runs)
    return sum(quiet and loss is not None and loss <= worst for quiet, loss in zip(calm, losses, strict=True))
