"""Alternating measurement: every case once a round, the order reversed from round to round, so that whatever drifts
(temperature, neighbours, frequency) drifts for all alike. Ratios are taken within a round."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Timing:
    """Seconds of one case by round, and those of the baseline in the same rounds."""

    seconds: tuple[float, ...]
    baseline: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)

    @property
    def ratios(self) -> list[float]:
        """Speed relative to the baseline, round by round: above 1 is faster."""
        return [base / own for base, own in zip(self.baseline, self.seconds, strict=True)]

    @property
    def ratio(self) -> float:
        """The middle one of the rounds' ratios."""
        return median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The middle half of the rounds' ratios."""
        if len(self.seconds) < 2:
            return self.ratio, self.ratio
        low, _, high = quantiles(self.ratios, n=4, method="inclusive")
        return low, high


def alternate(
    cases: Mapping[str, Callable[[], object]],
    baseline: str,
    n_rounds: int,
    warm_up: int = 2,
    tell: Callable[[int], None] = lambda done: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time each case `n_rounds` times; `tell` hears of every finished round."""
    for _ in range(warm_up):
        for run in cases.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(n_rounds):
        names = list(cases)
        for name in names if number % 2 == 0 else reversed(names):
            started = clock()
            cases[name]()
            seconds[name].append(clock() - started)
        tell(number + 1)
    return {name: Timing(tuple(own), tuple(seconds[baseline])) for name, own in seconds.items()}
