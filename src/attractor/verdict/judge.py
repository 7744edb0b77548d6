"""Judge every row of a table against its baseline: is a difference real, absent, or not decided by these runs?

Rows that share at least two seeds with the baseline are compared by their paired differences; rows without common seeds
by Welch's test; a row with one run by the spread of at least five runs of the baseline. The data decide which of these
it is, and never a p value. `family.py` has the tests, and corrects them over all ideas that were tried. A run that
diverged is an outcome: its row gets no other verdict than "undecided", and the run is named.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from attractor.errors import InputError, require, unknown
from attractor.verdict.family import Comparison, judge_family, p_at_looks
from attractor.verdict.intervals import correlation, differences_as_written
from attractor.verdict.observations import Observations, ObservedRun, Seed
from attractor.verdict.outcome import Design, Verdict, Verdicts
from attractor.verdict.sequential import Sequential
from attractor.verdict.words import p_in_words, short_number

FEWEST_REPEATS = 5  # runs of the baseline that allow a verdict on rows with one run
BASELINES = ("baseline", "standard", "control", "default", "base", "reference")
HIGHER_IS_BETTER = ("acc", "score", "reward", "f1", "bleu", "rouge", "auc", "tokens_per", "tok/s", "throughput", "mfu")


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
    plain = {row: _compare(chosen, row, baseline, against) for row in rows}
    compared = {
        row: replace(of_row, margin=margin, lower_is_better=lower_is_better, group="") for row, of_row in plain.items()
    }
    verdicts = [*judge_family(compared, n_tests=n_tried, looks=plan, level=level).values()]
    notes += _notes_on(chosen, baseline, verdicts, n_tried, plan, lower_is_better, margin)
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
    if all(len(curve) == 1 for curve in curves.values()):  # the table has the result of each run, not its course
        steps = {curve[0][0] for curve in curves.values()}
        ends = [short_number(end(steps, default=0.0)) for end in (min, max)]
        return observations, [f"The results are of steps {ends[0]} to {ends[1]}."] if len(steps) > 1 else []
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
        advice += ", or write nan as the last value of a run that failed"
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


def _compare(observations: Observations, row: str, baseline: str | None, against: float | None) -> Comparison:
    ours = observations.rows[row]
    if baseline is None:
        lost = {seed: "diverged" for seed, run in ours.items() if run.diverged}
        numbers = tuple(run.value - (against or 0.0) for run in ours.values())
        return Comparison(row, numbers, design="against a number", lost=lost, obstacle=_diverged(row, lost))
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
    return Comparison(row, values, others, design, lost=lost | lost_there, obstacle=obstacle)


def _paired(
    row: str,
    baseline: str,
    ours: Mapping[Seed, ObservedRun],
    theirs: Mapping[Seed, ObservedRun],
    common: Sequence[Seed],
) -> Comparison:
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
    differences = tuple(differences_as_written(values, others))
    return Comparison(row, differences, lost=lost, correlation=correlated, obstacle=obstacle)


def _diverged(row: str, seeds: Sequence[Seed] | Mapping[Seed, str]) -> str:
    if not seeds:
        return ""
    return f"Runs of '{row}' diverged or have no number, and with them there is no mean."


def _notes_on(
    observations: Observations,
    baseline: str | None,
    verdicts: Sequence[Verdict],
    n_tried: int,
    looks: tuple[int, ...],
    lower_is_better: bool,
    margin: float | None,
) -> list[str]:
    """Return what holds for the table: how runs are compared, what luck does, chains of ideas, and unplanned looks."""
    notes = []
    if margin is None:
        notes.append("Without a margin, runs can never show that there is no difference.")
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
    p, *_ = p_at_looks(differences, tuple(counts))
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
