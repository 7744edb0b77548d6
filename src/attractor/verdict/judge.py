"""Judge every row of a table against its baseline: is a difference real, absent, or not decided by these runs?

Rows that share at least two seeds with the baseline are compared by their paired differences; rows without common seeds
by Welch's test; a row with one run by the spread of at least five runs of the baseline. The data decide which of these
it is, and never a p value. Of many rows, spreads are moderated (`moderated.py`) and p values corrected by Holm's method
over all ideas that were tried. Planned looks are those of `sequential.py`. For the estimate m with the standard error e
and d degrees of freedom,

    better, worse    2 P(T_d > |m| / e) < 1 - level after the correction                                     (1)
    no difference    max of P(T_d > (margin ± m) / e) < 1 - level after the correction                       (2)

Where both hold, the difference is real and too small to matter: "no difference". A run that diverged is an outcome: its
row gets no other verdict than "undecided", and the run is named.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from attractor.errors import InputError, require, unknown
from attractor.verdict.intervals import (
    Estimate,
    Summary,
    correlation,
    differences_as_written,
    mean_estimate,
    summary,
)
from attractor.verdict.moderated import moderated
from attractor.verdict.multiplicity import holm
from attractor.verdict.observations import Observations, ObservedRun, Seed
from attractor.verdict.outcome import Design, Outcome, Verdict, Verdicts
from attractor.verdict.power import detectable_with_power, pairs_needed
from attractor.verdict.sequential import Sequential, p_over_looks
from attractor.verdict.t_tests import welch_estimate
from attractor.verdict.words import p_in_words, short_number, shown_size

FEWEST_REPEATS = 5  # runs of the baseline that allow a verdict on rows with one run
SHARED_BASELINE = 0.5  # correlation between differences from one baseline
BASELINES = ("baseline", "standard", "control", "default", "base", "reference")
HIGHER_IS_BETTER = ("acc", "score", "reward", "f1", "bleu", "rouge", "auc", "tokens_per", "tok/s", "throughput", "mfu")


@dataclass(frozen=True)
class _Compared:
    """The numbers of a row that can be compared, before any correction."""

    design: Design
    numbers: tuple[float, ...]  # paired differences, or the row's values
    against: tuple[float, ...] = ()  # the baseline's values where runs are not paired
    lost: Mapping[Seed, str] = field(default_factory=dict)
    correlation: float | None = None
    obstacle: str = ""  # why nothing can be said


def judge_observations(
    observations: Observations,
    *,
    baseline: str | None = None,
    margin: float | None = None,
    tried: int | None = None,
    looks: Sequence[int] = (),
    against: float | None = None,
    at: str | float = "last",
    lower_is_better: bool | None = None,
    level: float = 0.95,
) -> Verdicts:
    """Return the verdict on every row. `attractor.judge` is the same for tables of any form."""
    require(margin is None or 0 < margin < math.inf, "margin", "a number above zero", margin)
    require(0.5 < level < 1, "level", "a confidence between 0.5 and 1", level)
    require(tried is None or tried >= 1, "tried", "at least 1", tried, "count every idea that was run")
    require(against is None or math.isfinite(against), "against", "a finite number", against)
    if not observations.rows:
        raise InputError("the table must have at least one run, and has none; check the file and its columns")
    notes: list[str] = []
    if lower_is_better is None:
        lower_is_better, said = better_side(observations.value)
        notes.append(said)
    chosen, of_step = at_step(observations, at, lower_is_better)
    notes += of_step
    if against is not None:
        baseline, rows = None, list(chosen.rows)
    else:
        baseline = _baseline(chosen, baseline, notes)
        rows = [row for row in chosen.rows if row != baseline]
        if not rows:
            raise InputError(
                f"a comparison needs a second row, and '{baseline}' is the only one; name another column by --row, or "
                "compare with a number by --against"
            )
    n_tried = max(tried or 0, len(rows))
    plan = tuple(looks)
    if plan:
        Sequential(1 - level, 0.0, plan[-1], looks=plan)  # refuses looks that do not rise
    compared = {row: _up_to_a_look(_compare(chosen, row, baseline, against), plan) for row in rows}
    estimates = _estimates({row: c for row, c in compared.items() if not c.obstacle}, plan)
    p_values: dict[str, float | None] = {}
    p_within: dict[str, float | None] = {}
    for row, estimate in estimates.items():
        p_values[row], p_within[row] = _p_values(estimate, compared[row], margin, plan)
    adjusted, within = holm(p_values, n_tried), holm(p_within, n_tried)
    verdicts = []
    for row, of_row in compared.items():
        verdict = Verdict(
            row,
            "undecided",
            of_row.obstacle,
            of_row.design,
            len(of_row.numbers),
            correlation=of_row.correlation,
            lost=dict(of_row.lost),
        )
        if row in estimates:
            numbers = _numbers(verdict, estimates[row], of_row, level, n_tried, margin, plan)
            verdict = replace(verdict, p=p_values[row], adjusted_p=adjusted[row], **numbers)
            verdict = _decided(verdict, within[row], level, margin, lower_is_better, n_tried)
        verdicts.append(verdict)
    notes += _notes_on(chosen, baseline, verdicts, n_tried, plan, lower_is_better)
    return Verdicts(
        chosen, baseline, tuple(verdicts), lower_is_better, level, margin, against, n_tried, plan, str(at), tuple(notes)
    )


def better_side(value: str) -> tuple[bool, str]:
    """Guess from the name of a value whether lower is better, and say so."""
    lower = not any(part in value.lower() for part in HIGHER_IS_BETTER)
    return lower, f"{'Lower' if lower else 'Higher'} {value} is taken to be better."


def at_step(observations: Observations, at: str | float, lower_is_better: bool) -> tuple[Observations, list[str]]:
    """Return the runs with the value at one step, the same for all rows: the last, the best, or a step by number."""
    curves = {(row, seed): run.curve for row, runs in observations for seed, run in runs.items() if run.curve}
    if not curves:
        return observations, []
    if at == "best":
        pick = min if lower_is_better else max
        notes = ["The best value of each run counts, whenever it was; this favours rows with many noisy values."]
    else:
        step = _last_step(curves) if at == "last" else _number_of_step(at)
        notes = [f"The value at step {short_number(step)} counts."]

    def chosen(run: ObservedRun, row: str, seed: Seed) -> ObservedRun:
        if not run.curve or (run.diverged and at != "best"):
            return run
        if at == "best":
            finite = [value for _, value in run.curve if math.isfinite(value)]
            return run._replace(value=pick(finite) if finite else math.nan)
        values = dict(run.curve)
        if step not in values:
            raise InputError(
                f"step {short_number(step)} must be in every run, and seed {seed} of '{row}' has none; give --at best, "
                f"or a step that all runs have, such as {short_number(max(_common_steps(curves), default=0))}"
            )
        return run._replace(value=values[step])

    rows = {row: {seed: chosen(run, row, seed) for seed, run in runs.items()} for row, runs in observations}
    return replace(observations, rows=rows), notes


def _last_step(curves: Mapping[tuple[str, Seed], Sequence[tuple[float, float]]]) -> float:
    """Return the step at which all runs end. A run whose last value is not finite diverged, wherever it ended."""
    ends = {place: curve[-1][0] for place, curve in curves.items() if math.isfinite(curve[-1][1])}
    last = max(ends.values(), default=0.0)
    early = [place for place, step in ends.items() if step != last]
    if early:
        row, seed = early[0]
        common = max(_common_steps(curves), default=None)
        advice = (
            f"give --at {short_number(common)}, the last step that all have" if common is not None else "give --at best"
        )
        raise InputError(
            f"runs must end at one step, but seed {seed} of '{row}' ends at {short_number(ends[early[0]])} and "
            f"others at {short_number(last)}; {advice}"
        )
    return last


def _common_steps(curves: Mapping[tuple[str, Seed], Sequence[tuple[float, float]]]) -> set[float]:
    return set.intersection(*({step for step, _ in curve} for curve in curves.values()))


def _number_of_step(at: str | float) -> float:
    try:
        return float(at)
    except ValueError:
        raise InputError(f"at must be last, best or a step, got {at!r}; as --at 1000") from None


def _baseline(observations: Observations, named: str | None, notes: list[str]) -> str:
    rows = list(observations.rows)
    if named is not None:
        if named not in observations.rows:
            raise unknown("row for the baseline", named, rows)
        return named
    guess = next((row for name in BASELINES for row in rows if row.lower() == name), rows[0])
    notes.append(f"The baseline is taken to be '{guess}'; --baseline names another row.")
    return guess


def _compare(observations: Observations, row: str, baseline: str | None, against: float | None) -> _Compared:
    ours = observations.rows[row]
    if baseline is None:
        lost = {seed: "diverged" for seed, run in ours.items() if run.diverged}
        numbers = tuple(run.value - (against or 0.0) for run in ours.values())
        obstacle = _diverged(row, lost) or ("One run has no interval; further seeds would give one." * (len(ours) < 2))
        return _Compared("against a number", numbers, (), lost, None, obstacle)
    theirs = observations.rows[baseline]
    common = [seed for seed in ours if seed in theirs] if observations.seeded else []
    if len(common) >= 2:
        return _paired(row, baseline, ours, theirs, common)
    lost = {seed: "diverged" for seed, run in ours.items() if run.diverged}
    lost_there = {seed: "diverged" for seed, run in theirs.items() if run.diverged}
    design: Design = "one run a row" if len(ours) == 1 else "unpaired"
    obstacle = _diverged(row, lost) or _diverged(baseline, lost_there)
    fewest = FEWEST_REPEATS if len(ours) == 1 else 2
    if not obstacle and len(theirs) < fewest:
        few = f"{len(theirs)} run{'s' * (len(theirs) > 1)} of '{baseline}'"
        runs = f"One run of the row and {few} allow" if len(ours) == 1 else f"With {few}, the row's runs allow"
        obstacle = f"{runs} no verdict: {fewest} runs of '{baseline}' with different seeds are needed."
    values, others = (tuple(run.value for run in runs.values()) for runs in (ours, theirs))
    return _Compared(design, values, others, lost | lost_there, None, obstacle)


def _up_to_a_look(of_row: _Compared, looks: tuple[int, ...]) -> _Compared:
    """Leave out the pairs after the last planned look so far, which wait for the next one."""
    done = [look for look in looks if look <= len(of_row.numbers)]
    return replace(of_row, numbers=of_row.numbers[: done[-1]]) if done and not of_row.against else of_row


def _paired(
    row: str,
    baseline: str,
    ours: Mapping[Seed, ObservedRun],
    theirs: Mapping[Seed, ObservedRun],
    common: Sequence[Seed],
) -> _Compared:
    lost: dict[Seed, str] = {seed: f"missing in {baseline}" for seed in ours if seed not in theirs}
    lost |= {seed: f"missing in {row}" for seed in theirs if seed not in ours}
    ordered: list[Seed] = sorted(seed for seed in common if not isinstance(seed, str))
    ordered += sorted(seed for seed in common if isinstance(seed, str))
    values, others = ([runs[seed].value for seed in ordered] for runs in (ours, theirs))
    diverged = {
        name: [seed for seed, value in zip(ordered, of_name, strict=True) if not math.isfinite(value)]
        for name, of_name in ((row, values), (baseline, others))
    }
    lost |= {seed: f"diverged in {name}" for name, seeds in diverged.items() for seed in seeds}
    obstacle = next((_diverged(name, seeds) for name, seeds in diverged.items() if seeds), "")
    correlated = None if obstacle else correlation(values, others)
    return _Compared("paired", tuple(differences_as_written(values, others)), (), lost, correlated, obstacle)


def _diverged(row: str, seeds: Sequence[Seed] | Mapping[Seed, str]) -> str:
    if not seeds:
        return ""
    return f"Runs of '{row}' diverged or have no number, and with them there is no mean."


def _estimates(compared: Mapping[str, _Compared], looks: tuple[int, ...]) -> dict[str, Estimate]:
    """Return each row's difference with its standard error, by moderated spreads among rows of one design."""
    estimates: dict[str, Estimate] = {}
    for design in ("paired", "against a number", "unpaired", "one run a row"):
        rows = {row: of_row for row, of_row in compared.items() if of_row.design == design}
        spreads = {row: summary(of_row.numbers) for row, of_row in rows.items()}
        variances = [(spread.standard_deviation or 0.0) ** 2 for spread in spreads.values()]
        freedom = [max(spread.n - 1, 0) for spread in spreads.values()]
        if looks:  # the sequential test is that of each row's own spread
            shared = list(zip(variances, map(float, freedom), strict=True))
        else:
            shared = moderated(variances, freedom, SHARED_BASELINE if design == "paired" else 0.0)
        for (row, of_row), (variance, d) in zip(rows.items(), shared, strict=True):
            estimates[row] = _estimate(of_row, spreads[row].mean, variance, d)
    return estimates


def _estimate(of_row: _Compared, mean: float, variance: float, d: float) -> Estimate:
    n = len(of_row.numbers)
    if not of_row.against:
        return Estimate(mean, math.sqrt(variance / n), d, n, 0.5**n)
    baseline = summary(of_row.against)
    if of_row.design == "one run a row":  # a prediction interval, under equal spread
        spread, m = baseline.standard_deviation or 0.0, baseline.n
        return Estimate(mean - baseline.mean, spread * math.sqrt(1 + 1 / m), m - 1, m + 1, 1 / (m + 1))
    return welch_estimate(Summary(mean, math.sqrt(variance), n), baseline, d)


def _p_values(
    estimate: Estimate, of_row: _Compared, margin: float | None, looks: tuple[int, ...]
) -> tuple[float | None, float | None]:
    """Return the p value of "no difference", and that of "a difference of the margin or more" (2)."""
    if looks and of_row.design in ("paired", "against a number"):
        return _p_values_at_looks(of_row.numbers, margin, looks)
    return estimate.p(), None if margin is None else estimate.p_within(margin)


def _p_values_at_looks(
    numbers: Sequence[float], margin: float | None, looks: tuple[int, ...]
) -> tuple[float | None, float | None]:
    done = [look for look in looks if look <= len(numbers)]
    if not done:
        return None, None
    estimates = [mean_estimate(numbers[:look]) for look in done]
    p = p_over_looks([estimate.p() for estimate in estimates], looks)
    if margin is None:
        return p, None
    return p, p_over_looks([estimate.p_within(margin) for estimate in estimates], looks, two_sided=False)


def _numbers(
    verdict: Verdict,
    estimate: Estimate,
    of_row: _Compared,
    level: float,
    n_tried: int,
    margin: float | None,
    looks: tuple[int, ...],
) -> dict[str, Any]:
    """Return the difference, its interval and what these runs could have shown, as fields of a verdict."""
    interval = estimate.interval(level)
    if looks and verdict.design in ("paired", "against a number") and verdict.n >= looks[0]:
        used = of_row.numbers[: looks[-1]]
        interval = Sequential(1 - level, 0.0, looks[-1], looks=looks).look(used).interval
    fields: dict[str, Any] = {"difference": interval.mean, "low": interval.low, "high": interval.high}
    error, d = estimate.standard_error, estimate.degrees_of_freedom
    if error and d and math.isfinite(error):
        alpha, per_seed = (1 - level) / n_tried, error * math.sqrt(verdict.n)
        detectable = _detectable_in_errors(max(2, round(d) + 1), alpha)  # so many pairs have as many degrees of freedom
        fields["detectable"] = None if detectable is None else detectable * error
        fields["spread"] = summary(of_row.numbers).standard_deviation if of_row.against else per_seed
        if margin is not None and verdict.design != "one run a row":
            fields["further_seeds"] = max(0, (pairs_needed(per_seed, margin, level=alpha) or 0) - verdict.n)
    return fields


@cache
def _detectable_in_errors(n: int, alpha: float) -> float | None:
    """Return the smallest true mean that n pairs show with a power of 80%, as a multiple of its standard error."""
    return detectable_with_power(math.sqrt(n), n, level=alpha)


def _decided(
    verdict: Verdict, p_within: float | None, level: float, margin: float | None, lower_is_better: bool, n_tried: int
) -> Verdict:
    """Return the verdict with its outcome by (1) and (2), and with the reason in words."""
    alpha = 1 - level
    counted = f", counted as one of {n_tried} ideas" if n_tried > 1 else ""
    runs = _runs(verdict)
    if p_within is not None and p_within < alpha:
        within = f"The difference is shown to lie within {short_number(margin or 0.0)}"
        return replace(verdict, outcome="no difference", reason=f"{within} {runs} ({p_in_words(p_within)}{counted}).")
    if verdict.adjusted_p is not None and verdict.adjusted_p < alpha:
        assert verdict.difference is not None
        outcome: Outcome = "better" if (verdict.difference < 0) == lower_is_better else "worse"
        words = f"Shown {runs} ({p_in_words(verdict.adjusted_p)}{counted})."
        return replace(verdict, outcome=outcome, reason=words)
    words = f"Not shown {runs}"
    if verdict.detectable is not None:
        words += f", which show a true difference of {shown_size(verdict.detectable)} in four of five such tables"
    words += "."
    if margin is not None and verdict.further_seeds:
        words += f" {verdict.further_seeds} further seeds would show a difference of {short_number(margin)} as often."
    elif margin is None:
        words += " Without a margin, these runs can never show that there is no difference."
    return replace(verdict, reason=words)


def _runs(verdict: Verdict) -> str:
    of = {
        "paired": f"by {verdict.n} pairs of seeds",
        "unpaired": f"by {verdict.n} runs that share no seeds with the baseline",
        "one run a row": "by one run against the spread of the baseline's runs, taken to be that of the row, too",
        "against a number": f"by {verdict.n} runs",
    }
    missing = sum(why.startswith("missing") for why in verdict.lost.values())
    return of[verdict.design] + (f" ({missing} seeds are missing on one side)" if missing else "")


def _notes_on(
    observations: Observations,
    baseline: str | None,
    verdicts: Sequence[Verdict],
    n_tried: int,
    looks: tuple[int, ...],
    lower_is_better: bool,
) -> list[str]:
    """Return what holds for the table: how runs are compared, what luck does, chains of ideas, and unplanned looks."""
    notes = []
    designs = {verdict.design for verdict in verdicts}
    if "unpaired" in designs:
        notes.append(
            "Runs without common seeds are compared by Welch's test. Common seeds would remove the noise that two runs "
            "of one seed share, and would so need fewer runs."
        )
    single = [verdict for verdict in verdicts if verdict.design == "one run a row"]
    if len(single) > 1:
        side = "below" if lower_is_better else "above"
        notes.append(
            f"The best of {n_tried} such rows lies {expected_best(n_tried):.1f} sd {side} the mean by luck alone."
        )
    if n_tried > len(verdicts):
        notes.append(f"The correction counts {n_tried} ideas; this table has {len(verdicts)} of them.")
    if any(run.kept is not None for _, runs in observations for run in runs.values()):
        notes.append(
            "Ideas that were kept became the baseline of later ones, so luck was kept with them: run the last one and "
            "the first baseline again, with the same fresh seeds, and judge these two."
        )
    if not looks:
        notes += [note for verdict in verdicts if (note := _unplanned_looks(observations, baseline, verdict))]
    return notes


def _unplanned_looks(observations: Observations, baseline: str | None, verdict: Verdict) -> str:
    """Say at which numbers of pairs the table may have been read before, by the days on which runs ended."""
    if verdict.design != "paired" or baseline is None or verdict.p is None:
        return ""
    ours, theirs = observations.rows[verdict.row], observations.rows[baseline]
    dates = {seed: max(ours[seed].date, theirs[seed].date) for seed in ours if seed in theirs}
    if not all(dates.values()):
        return ""
    days = sorted(date[:10] for date in dates.values())
    counts = [place for place in range(2, len(days) + 1) if place == len(days) or days[place] != days[place - 1]]
    if len(counts) < 2:
        return ""
    differences = [ours[seed].value - theirs[seed].value for seed in sorted(dates, key=lambda seed: dates[seed])]
    p, _ = _p_values_at_looks(differences, None, tuple(counts))
    several = ", ".join(map(str, counts))
    return (
        f"The pairs of '{verdict.row}' end on {len(set(days))} days, with {several} pairs: if the table was read after "
        f"each, its {p_in_words(verdict.p)} counts as {p_in_words(p)}; plan looks by --looks."
    )


def expected_best(n: int) -> float:
    """Return by how many standard deviations the best of n equal rows lies beyond their mean, on average."""
    from scipy.special import ndtr

    grid = np.linspace(-8, 8, 8001)
    middles = (grid[1:] + grid[:-1]) / 2
    return float((middles * np.diff(ndtr(grid) ** n)).sum())
