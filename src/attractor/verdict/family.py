"""Judge a family of comparisons with one correction: is each difference real, absent, or not decided by these runs?

For the estimate m of a difference with the standard error e and d degrees of freedom,

    better, worse    2 P(T_d > |m| / e) < 1 - level after the correction                                     (1)
    no difference    max of P(T_d > (margin ± m) / e) < 1 - level after the correction                       (2)

Where both hold, the difference is real and too small to matter: "no difference". The correction is Holm's, over all
comparisons of the family. Comparisons of one group tell about one another's spread (`moderated.py`). Planned looks are
those of `sequential.py`. Everything else that calls a difference better or worse asks `judge_family`.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeVar

from attractor.verdict.intervals import Estimate, Summary, mean_estimate, summary
from attractor.verdict.moderated import moderated
from attractor.verdict.multiplicity import holm
from attractor.verdict.observations import Seed
from attractor.verdict.outcome import Design, Outcome, Verdict
from attractor.verdict.power import POWER, detectable_with_power, pairs_needed
from attractor.verdict.sequential import Sequential, p_over_looks
from attractor.verdict.t_tests import welch_estimate
from attractor.verdict.words import p_in_words, short_number, shown_size

Key = TypeVar("Key", bound=Hashable)
SHARED_BASELINE = 0.5  # correlation between differences from one baseline
MOST = 64  # pairs; where more are needed to show the margin, a setting with less noise is the better way


@dataclass(frozen=True)
class Comparison:
    """The numbers of a row that are compared, and what is asked of them."""

    row: str
    numbers: Sequence[float]  # paired differences, or the row's values
    against: Sequence[float] = ()  # the baseline's values where runs are not paired
    design: Design = "paired"
    margin: float | None = None  # the smallest difference that matters
    only_above: bool = False  # whether the margin bounds the difference from above alone
    lower_is_better: bool | None = True  # None: neither side is better, and outcomes are "lower" and "higher"
    group: Hashable | None = None  # comparisons of one group share a baseline and a unit; None: no help about spread
    lost: Mapping[Seed, str] = field(default_factory=dict)
    correlation: float | None = None
    obstacle: str = ""  # why nothing can be said
    pair_of: str = "seed"  # what both sides of a pair share
    looks: tuple[int, ...] = ()  # numbers of pairs at which these are tested, where they are not those of the family

    @property
    def tested_at(self) -> tuple[int, ...]:
        return self.looks if self.design in ("paired", "against a number") else ()


def judge_family(
    comparisons: Mapping[Key, Comparison],
    *,
    n_tests: int = 0,
    looks: tuple[int, ...] = (),
    level: float = 0.95,
    level_within: float | None = None,
) -> dict[Key, Verdict]:
    """Return the verdict on every comparison. The correction counts `n_tests`, or the comparisons with a p value.

    `level_within` is the confidence that "no difference" takes, if it is not `level`.
    """
    alpha, alpha_within = (_error_rate(confidence or level) for confidence in (level, level_within))
    compared = {
        key: _up_to_a_look(replace(comparison, looks=comparison.looks or looks))
        for key, comparison in comparisons.items()
    }
    verdicts = {key: _undecided(comparison) for key, comparison in compared.items()}
    estimates = _estimates({key: comparison for key, comparison in compared.items() if not verdicts[key].reason})
    p: dict[Key, float | None] = {}
    within: dict[Key, float | None] = {}
    beyond: dict[Key, float | None] = {}
    for key, estimate in estimates.items():
        comparison = compared[key]
        p[key], within[key], beyond[key] = _p_values(comparison, estimate)
    n_tests = max(n_tests, sum(value is not None for value in p.values()), 1)
    adjusted, adjusted_within, adjusted_beyond = (holm(values, n_tests) for values in (p, within, beyond))
    for key, estimate in estimates.items():
        verdict = replace(
            verdicts[key],
            p=p[key],
            adjusted_p=adjusted[key],
            p_within=within[key],
            adjusted_beyond=adjusted_beyond[key],
        )
        verdict = _with_interval(verdict, estimate, compared[key], level)
        outcome = _outcome(verdict, compared[key], adjusted_within[key], alpha, alpha_within)
        verdict = _with_plan(replace(verdict, outcome=outcome), estimate, compared[key], alpha / n_tests)
        verdicts[key] = replace(verdict, reason=_reason(verdict, compared[key], adjusted_within[key], n_tests))
    return verdicts


def pairs_to_show(spread: float | None, difference: float, error_rate: float) -> int | None:
    """Count the pairs that show a true difference with a power of 80%; None where there is no spread."""
    return pairs_needed(spread, difference, level=error_rate) if spread else None


def pairs_to_exclude(spread: float | None, margin: float, error_rate: float, n_sides: int = 2) -> int | None:
    """Count the pairs that give all one-sided tests at `error_rate` together a power of 80%: two have 90% each."""
    return pairs_needed(spread, margin, 1 - (1 - POWER) / n_sides, 2 * error_rate) if spread else None


PValues = tuple[float | None, float | None, float | None]
"""The p values of "no difference", of "a difference of the margin or more" and of "a difference within the margin"."""


def p_at_looks(
    numbers: Sequence[float], looks: tuple[int, ...], margin: float | None = None, only_above: bool = False
) -> PValues:
    """Return p values that count all looks."""
    so_far = [mean_estimate(numbers[:look]) for look in looks if look <= len(numbers)]
    if not so_far:
        return None, None, None
    p = p_over_looks([estimate.p() for estimate in so_far], looks)
    if margin is None:
        return p, None, None
    within = [estimate.p_within(margin, only_above) for estimate in so_far]
    beyond = [estimate.p_beyond(margin) for estimate in so_far]
    return p, p_over_looks(within, looks, two_sided=False), p_over_looks(beyond, looks)


def _error_rate(level: float) -> float:
    return round(1 - level, 12)  # 1 - 0.95 is a little more than 0.05


def _up_to_a_look(comparison: Comparison) -> Comparison:
    """Leave out the pairs after the last planned look so far, which wait for the next one."""
    done = [look for look in comparison.looks if look <= len(comparison.numbers)]
    if not done or comparison.against:
        return comparison
    return replace(comparison, numbers=tuple(comparison.numbers)[: done[-1]])


def _undecided(comparison: Comparison) -> Verdict:
    """Return the verdict without numbers, with its reason where nothing can be said."""
    obstacle, n, difference = comparison.obstacle, len(comparison.numbers), None
    if not obstacle and n == 1 and not comparison.against:
        difference = comparison.numbers[0]
        only = "One pair" if comparison.design == "paired" else "One run"
        obstacle = f"{only} has no interval."
    if not obstacle and not all(map(math.isfinite, (*comparison.numbers, *comparison.against))):
        obstacle = "A run diverged or has no number, and with it there is no mean."
    verdict = Verdict(comparison.row, "undecided", obstacle, comparison.design, n, difference)
    return replace(verdict, lost=dict(comparison.lost), correlation=comparison.correlation)


def _estimates(compared: Mapping[Key, Comparison]) -> dict[Key, Estimate]:
    """Return each difference with its standard error, by moderated spreads among comparisons of one group."""
    groups: dict[Hashable, list[Key]] = {}
    for key, comparison in compared.items():
        alone = comparison.looks or comparison.group is None  # the sequential test is that of each row's own spread
        groups.setdefault(("own", key) if alone else (comparison.design, comparison.group), []).append(key)
    estimates: dict[Key, Estimate] = {}
    for keys in groups.values():
        summaries = [summary(compared[key].numbers) for key in keys]
        variances = [(spread.standard_deviation or 0.0) ** 2 for spread in summaries]
        freedom = [float(max(spread.n - 1, 0)) for spread in summaries]
        shared = moderated(variances, freedom, SHARED_BASELINE if compared[keys[0]].design == "paired" else 0.0)
        for key, of_row, (variance, d) in zip(keys, summaries, shared, strict=True):
            estimates[key] = _estimate(compared[key], of_row, variance, d)
    return {key: estimates[key] for key in compared}


def _estimate(comparison: Comparison, of_row: Summary, variance: float, d: float) -> Estimate:
    n = of_row.n
    if not comparison.against:
        return Estimate(of_row.mean, math.sqrt(variance / n), d, n, 0.5**n)
    baseline = summary(comparison.against)
    if comparison.design == "one run a row":  # a prediction interval, under equal spread
        spread, m = baseline.standard_deviation or 0.0, baseline.n
        return Estimate(of_row.mean - baseline.mean, spread * math.sqrt(1 + 1 / m), m - 1, m + 1, 1 / (m + 1))
    return welch_estimate(Summary(of_row.mean, math.sqrt(variance), n), baseline, d)


def _p_values(comparison: Comparison, estimate: Estimate) -> PValues:
    margin = comparison.margin
    if comparison.tested_at:
        return p_at_looks(comparison.numbers, comparison.tested_at, margin, comparison.only_above)
    if margin is None:
        return estimate.p(), None, None
    return estimate.p(), estimate.p_within(margin, comparison.only_above), estimate.p_beyond(margin)


def _with_interval(verdict: Verdict, estimate: Estimate, comparison: Comparison, level: float) -> Verdict:
    interval, looks = estimate.interval(level), comparison.tested_at
    if looks and verdict.n >= looks[0]:
        plan = Sequential(_error_rate(level), 0.0, looks[-1], looks=looks)
        interval = plan.look(comparison.numbers[: looks[-1]]).interval
    return replace(verdict, difference=interval.mean, low=interval.low, high=interval.high)


def _outcome(
    verdict: Verdict, comparison: Comparison, within: float | None, alpha: float, alpha_within: float
) -> Outcome:
    if within is not None and within < alpha_within:  # (2)
        return "no difference"
    if verdict.adjusted_p is None or verdict.adjusted_p >= alpha or verdict.difference is None:  # (1)
        return "undecided"
    is_lower = verdict.difference < 0
    if comparison.lower_is_better is None:
        return "lower" if is_lower else "higher"
    return "better" if is_lower == comparison.lower_is_better else "worse"


def _with_plan(verdict: Verdict, estimate: Estimate, comparison: Comparison, error_rate: float) -> Verdict:
    """Return the verdict with the spread, what these runs could have shown, and the seeds that would decide about the
    margin: a plan for the difference that was seen would chase noise."""
    error, d = estimate.standard_error, estimate.degrees_of_freedom
    if not error or not d or not math.isfinite(error):
        return verdict
    in_errors = _detectable_in_errors(max(2, round(d) + 1), error_rate)  # so many pairs have as many degrees of freedom
    per_seed = error * math.sqrt(verdict.n)
    spread = per_seed if not comparison.against else summary(comparison.numbers).standard_deviation
    further = None if verdict.outcome == "undecided" else 0
    if verdict.outcome == "undecided" and comparison.design != "one run a row":
        needed = None if comparison.margin is None else pairs_needed(per_seed, comparison.margin, level=error_rate)
        further = None if needed is None else max(0, needed - verdict.n)
    detectable = None if in_errors is None else in_errors * error
    return replace(verdict, spread=spread, detectable=detectable, further_seeds=further)


@cache
def _detectable_in_errors(n: int, error_rate: float) -> float | None:
    """Return the smallest true mean that n pairs show with a power of 80%, as a multiple of its standard error."""
    return detectable_with_power(math.sqrt(n), n, level=error_rate)


def _reason(verdict: Verdict, comparison: Comparison, within: float | None, n_tests: int) -> str:
    counted = f", counted as one of {n_tests} ideas" if n_tests > 1 else ""
    runs = _runs(verdict, comparison)
    margin = None if comparison.margin is None else short_number(comparison.margin)
    if verdict.outcome == "no difference":
        return f"The difference is shown to lie within {margin} {runs} ({p_in_words(within)}{counted})."
    if verdict.outcome != "undecided":
        return f"Shown {runs} ({p_in_words(verdict.adjusted_p)}{counted})."
    if verdict.p is None and verdict.difference == 0:
        return f"Not shown {runs}, all of which are equal."
    words = f"Not shown {runs}"
    if verdict.detectable is not None:
        detectable = shown_size(verdict.detectable)
        words += f", which show a true difference of {detectable} in four of five such tables"
    if verdict.further_seeds:
        more = f"{verdict.further_seeds} further {comparison.pair_of}{'s' * (verdict.further_seeds > 1)}"
        return f"{words}. {more} would show a difference of {margin} as often."
    return f"{words}."


def _runs(verdict: Verdict, comparison: Comparison) -> str:
    of = {
        "paired": f"by {verdict.n} pairs of {comparison.pair_of}s",
        "unpaired": f"by {verdict.n} runs that share no seeds with the baseline",
        "one run a row": "by one run against the spread of the baseline's runs, taken to be that of the row, too",
        "against a number": f"by {verdict.n} runs",
    }
    missing = sum(why.startswith("missing") for why in verdict.lost.values())
    return of[verdict.design] + (f" ({missing} seed{'s' * (missing > 1)} missing on one side)" if missing else "")
