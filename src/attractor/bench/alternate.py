"""Alternating measurement: every case once a round, the order reversed from round to round, so that whatever drifts
(temperature, neighbours, frequency) drifts for all alike. Ratios are taken within a round."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import TypeVar

Found = TypeVar("Found")


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


def in_turns(
    cases: Mapping[str, Callable[[], Found]], n_rounds: int, tell: Callable[[int], None] = lambda done: None
) -> dict[str, list[Found]]:
    """What each case gives in each of `n_rounds`; `tell` hears of every finished round."""
    found: dict[str, list[Found]] = {name: [] for name in cases}
    for number in range(n_rounds):
        names = list(cases)
        for name in names if number % 2 == 0 else reversed(names):
            found[name].append(cases[name]())
        tell(number + 1)
    return found


def alternate(
    cases: Mapping[str, Callable[[], object]],
    baseline: str,
    n_rounds: int,
    warm_up: int = 2,
    tell: Callable[[int], None] = lambda done: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time each case `n_rounds` times, after rounds that do not count."""
    for _ in range(warm_up):
        for run in cases.values():
            run()
    timed = {name: partial(_seconds, run, clock) for name, run in cases.items()}
    seconds = in_turns(timed, n_rounds, tell)
    return {name: Timing(tuple(own), tuple(seconds[baseline])) for name, own in seconds.items()}


def _seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    run()
    return clock() - started
