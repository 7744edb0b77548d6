"""Compare rows with a baseline, seed after seed, until the sequential test that was planned decides each row.

Pairs count in the order of the seeds, whichever run ended first, since a look at the fastest runs is no random sample.
A run without a finite value ends the test of its row as undecided: without it, the other seeds would be selected.
Runs beyond the deciding look change nothing.

Rows that are all known beforehand share the error rate alpha equally. By Bonferroni's inequality, which holds for any
dependence between rows, the chance of any false "better" or "worse" over all rows and looks is at most alpha, and so is
that of any false "no difference".

A control, where there is one, runs first: two pairs with the baseline, or four where two do not show that it is worse.
Where it is not shown to be worse, no other run can tell rows apart, and none is wanted.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Literal, Self

from attractor.verdict.intervals import correlation, seed_differences, summary
from attractor.verdict.observations import Seed
from attractor.verdict.outcome import Outcome, Verdict
from attractor.verdict.power import detectable_with_power, pairs_needed
from attractor.verdict.sensitivity import ControlGap, control_gap
from attractor.verdict.sequential import Decision, Sequential, p_over_looks
from attractor.verdict.t_tests import paired_t_test

ALPHA = 0.05  # the error rate that rows share, by default
CONTROL_PAIRS = 2
MORE_CONTROL_PAIRS = 4  # where two do not show that the control is worse
OUTCOMES: dict[str, Outcome] = {"better": "better", "worse": "worse", "no relevant difference": "no difference"}


class SequentialRows:
    """The values of rows by seed, with what the planned test of each row decides and which runs it still needs."""

    def __init__(
        self, baseline: str, tests: Mapping[str, Sequential], seeds: Sequence[int], control: str | None = None
    ) -> None:
        self.baseline, self.tests, self.seeds, self.control = baseline, dict(tests), tuple(seeds), control
        self.values: dict[tuple[str, int], float] = {}
        self.problems: dict[tuple[str, int], str] = {}  # why a run has no finite value
        self.differences: dict[str, list[float]] = {row: [] for row in tests}
        self.decisions: dict[str, Decision] = {}  # of each row, the first that is final
        self.stopped: set[str] = set()  # rows that cannot be decided, since a run has no finite value

    @classmethod
    def of_equal_shares(
        cls,
        baseline: str,
        rows: Sequence[str],
        seeds: Sequence[int],
        margin: float = 0.0,
        alpha: float = ALPHA,
        better: Literal["lower", "higher"] = "lower",
        looks: tuple[int, ...] = (),
        control: str | None = None,
    ) -> Self:
        """Return the comparison of rows that are all known beforehand."""
        test = Sequential(alpha / max(1, len(rows)), margin, len(seeds), better, looks)
        return cls(baseline, dict.fromkeys(rows, test), seeds, control)

    def observe(self, row: str, seed: int, value: float | None, problem: str = "") -> None:
        """Count an ended run, by its value or by the problem for which it has no finite one."""
        if value is not None and math.isfinite(value):
            self.values[row, seed] = value
        else:
            self.problems[row, seed] = problem or "diverged"
        for of in self.tests if row == self.baseline else self.tests.keys() & {row}:
            self._look(of)

    def is_open(self, row: str) -> bool:
        return row not in self.decisions and row not in self.stopped

    def _look(self, row: str) -> None:
        """Count the pairs that are complete, and make each planned look once."""
        differences, test = self.differences[row], self.tests[row]
        for seed in self.seeds[len(differences) :]:
            ours, theirs = (row, seed), (self.baseline, seed)
            if not self.is_open(row):
                return
            if ours in self.problems or theirs in self.problems:
                self.stopped.add(row)
                return
            if ours not in self.values or theirs not in self.values:
                return
            differences.append(seed_differences({seed: self.values[ours]}, {seed: self.values[theirs]})[seed])
            if len(differences) in test.looks and (decision := test.look(differences)).final:
                self.decisions[row] = decision

    @property
    def gap(self) -> ControlGap:
        """How much worse the control is than the baseline, by two pairs or, where these do not show it, by four."""
        control, baseline = (
            {seed: self.values[row, seed] for seed in self.seeds if (row, seed) in self.values}
            for row in (self.control or "", self.baseline)
        )
        paired = list(takewhile(lambda seed: seed in control and seed in baseline, self.seeds))
        few, more = (
            control_gap({seed: control[seed] for seed in paired[:n]}, baseline)
            for n in (CONTROL_PAIRS, MORE_CONTROL_PAIRS)
        )
        return few if few.sensitive or len(paired) < len(self.seeds[:MORE_CONTROL_PAIRS]) else more

    def wanted(self, under_way: Iterable[tuple[str, int]] = ()) -> Iterator[tuple[str, int]]:
        """Yield the runs that are still needed at most: those of the control, then seed after seed, the baseline
        first."""
        begun = {*self.values, *self.problems, *under_way}
        yield from (run for run in dict.fromkeys(self._needed()) if run not in begun)

    def _needed(self) -> Iterator[tuple[str, int]]:
        if self.control is not None:
            gap = self.gap
            n_pairs = 0 if gap.interval is None else gap.interval.n
            n_needed = CONTROL_PAIRS if n_pairs < CONTROL_PAIRS or gap.sensitive else MORE_CONTROL_PAIRS
            first = [(row, seed) for seed in self.seeds[:n_needed] for row in (self.baseline, self.control)]
            lost = any(run in self.problems for run in first)
            better = n_pairs >= CONTROL_PAIRS and gap.interval is not None and gap.interval.mean <= 0
            if not gap.sensitive and (lost or better or 2 * n_pairs == len(first)):
                return
            yield from first
        ends = {row: self._first_problem(row) for row in self.tests if self.is_open(row)}
        for place, seed in enumerate(self.seeds):
            rows = [row for row, end in ends.items() if place <= end]
            yield from ((row, seed) for row in (self.baseline, *rows) if rows)

    def _first_problem(self, row: str) -> int:
        """Return the place of the first seed whose pair cannot be complete, or that of the last seed."""
        places = (self.seeds.index(seed) for of, seed in self.problems if of in (row, self.baseline))
        return min(places, default=len(self.seeds) - 1)

    def standing(self, row: str) -> str:
        """Say in a few words where a row stands."""
        if row in self.decisions:
            return OUTCOMES.get(self.decisions[row].outcome, "undecided")
        return "stopped, undecided" if row in self.stopped else f"open, pairs: {len(self.differences[row])}"

    def verdict(self, row: str, alpha: float) -> Verdict:
        """Return the verdict on a row so far. `alpha` is the error rate that all rows share: the interval is that of
        this comparison alone, and the adjusted p value counts the share of the row."""
        test, decision, differences = self.tests[row], self.decisions.get(row), self.differences[row]
        n = len(differences)
        lost: dict[Seed, str] = {
            seed: problem if of == row else f"the baseline {problem}"
            for (of, seed), problem in self.problems.items()
            if of in (row, self.baseline)
        }
        outcome = OUTCOMES.get(decision.outcome, "undecided") if decision is not None else "undecided"
        if row in self.stopped:
            reason = f"After {n} pairs a run had no value, and to leave it out would be a choice of runs by its outcome"
        elif decision is None:
            reason = f"{n} of at most {test.n_max} pairs have been run; the same command goes on"
        elif outcome == "undecided":
            within = f" nor one within the margin of {test.margin:g}" if test.margin else ""
            reason = f"All {n} pairs show {'neither' if within else 'not'} a difference{within}"
        elif outcome == "no difference":
            reason = f"After {n} pairs the difference lies within the margin of {test.margin:g}"
        else:
            reason = f"After {n} pairs a difference is shown at a look that was planned"
        verdict = Verdict(row, outcome, f"{reason}.", "paired", n, lost=lost)
        if n < test.looks[0]:
            return verdict if n == 0 else replace(verdict, difference=summary(differences).mean)
        at = max(look for look in test.looks if look <= n)  # the latest look, whose interval holds over all looks
        interval = replace(test, alpha=alpha).look(differences[:at]).interval
        p_values = [paired_t_test(differences[:look]).p for look in test.looks if look <= at]
        spread = summary(differences[:at]).standard_deviation
        adjusted = p_over_looks(p_values, test.looks) * alpha / test.alpha
        undecided = spread and test.margin and outcome == "undecided"
        more = pairs_needed(spread, test.margin, level=test.alpha) if spread and undecided else None
        return replace(
            verdict,
            n=at,
            difference=interval.mean,
            low=interval.low,
            high=interval.high,
            p=p_values[-1],
            adjusted_p=min(1.0, adjusted),
            spread=spread,
            correlation=correlation(
                *([self.values[of, seed] for seed in self.seeds[:at]] for of in (row, self.baseline))
            ),
            detectable=detectable_with_power(spread, at, level=test.alpha) if spread else None,
            further_seeds=None if more is None else max(0, more - at),
        )
