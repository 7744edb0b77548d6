"""The numbers of a run that a study's table shows, one for each column or panel.

A quantity is one number of a run, or a list with one entry for each layer. A measure is always one number: the quantity
itself, one layer of it, or the mean over its layers.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attractor.evidence.quantity import Quantity
from attractor.evidence.statistics import Interval, Summary, mean_interval, summary
from attractor.evidence.study import Cell, Outcome, StudyRecord

LOSS = Quantity("validation loss", "valid_loss", "lower")


@dataclass(frozen=True)
class Measure:
    quantity: Quantity
    layer: int | None = None
    n_layers: int = 0  # 0: the quantity is one number

    @property
    def name(self) -> str:
        if not self.n_layers:
            return self.quantity.name
        return f"{self.quantity.name}, {'mean' if self.layer is None else f'layer {self.layer}'}"

    @property
    def in_nats(self) -> bool:
        """Perplexities are compared as losses: a difference of logarithms does not depend on how high they are."""
        return self.quantity.is_loss

    @property
    def judges_quality(self) -> bool:
        """Whether it is measured on validation data, where only a sensitive setting tells mechanisms apart."""
        return self.quantity.path.startswith(("metric.", "valid_loss"))

    @property
    def unit(self) -> str:
        return self.quantity.unit

    def of(self, outcome: Outcome) -> float | None:
        """None where it was not measured; a run that diverged wrote null, which is not a number."""
        value = self.quantity.value(outcome)
        if isinstance(value, list | tuple):
            return self._of_layers(value)
        if value is None:
            return math.nan if self.judges_quality else None
        return float(value)

    def _of_layers(self, values: list[Any] | tuple[Any, ...]) -> float | None:
        numbers = [math.nan if value is None else float(value) for value in values]
        if self.layer is None:
            return sum(numbers) / len(numbers) if numbers else None
        return numbers[self.layer] if self.layer < len(numbers) else None

    def compared(self, outcome: Outcome) -> float | None:
        """What differences are taken of."""
        return replace(self.quantity, layer=self.layer).compared(outcome)


@dataclass(frozen=True)
class Spread:
    """A measure of one cell, by seed."""

    by_seed: Mapping[int, float]

    @classmethod
    def of(cls, cell: Cell, measure: Measure) -> "Spread":
        found = {outcome.seed: measure.of(outcome) for outcome in cell.outcomes}
        return cls({seed: value for seed, value in sorted(found.items()) if value is not None})

    @property
    def n(self) -> int:
        return len(self.by_seed)

    @property
    def summary(self) -> Summary | None:
        """The deviation is None for one seed; with one run that diverged, both are no numbers."""
        return summary(self.by_seed) if self.by_seed else None

    @property
    def interval(self) -> Interval | None:
        return mean_interval(self.by_seed) if self.by_seed else None

    @property
    def mean(self) -> float | None:
        return None if self.summary is None else self.summary.mean

    @property
    def sd(self) -> float | None:
        return None if self.summary is None else self.summary.standard_deviation


def n_layers(record: StudyRecord, quantity: Quantity) -> int:
    """How many layers a quantity has a value for; 0 where it is one number."""
    values = (quantity.value(outcome) for outcome in record.outcomes)
    return max((len(value) for value in values if isinstance(value, list | tuple)), default=0)


def headlines(record: StudyRecord) -> tuple[Measure, ...]:
    """One measure for each quantity: itself, or the mean over its layers. Losses bear the unit of the record."""
    quantities = (
        replace(quantity, unit=record.loss_unit) if quantity.is_loss else quantity
        for quantity in record.design.quantities
    )
    return tuple(Measure(quantity, None, n_layers(record, quantity)) for quantity in quantities)


def layers(headline: Measure) -> Iterator[Measure]:
    return (Measure(headline.quantity, layer, headline.n_layers) for layer in range(headline.n_layers))
