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
from attractor.verdict.intervals import seed_differences
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
        lower_is_better = not any(part in observations.value.lower() for part in HIGHER_IS_BETTER)
        notes.append(f"{'Lower' if lower_is_better else 'Higher'} {observations.value} is taken to be better.")
    chosen, said = at_step(observations, at, lower_is_better)
    notes += said
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
    compared = {row: _compare(chosen, row, baseline, against) for row in rows}
    compared = {
        row: replace(each, margin=margin, lower_is_better=lower_is_better, group="") for row, each in compared.items()
    }
    verdicts = [*judge_family(compared, n_tests=n_tried, looks=plan, level=level).values()]
    notes += _notes_on(chosen, baseline, verdicts, n_tried, plan, lower_is_better, margin)
    return Verdicts(
        chosen, baseline, tuple(verdicts), lower_is_better, level, margin, against, n_tried, plan, str(at), tuple(notes)
    )


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
            return replace(run, value=pick(finite) if finite else math.nan)
        values = dict(run.curve)
        if step not in values:
            raise InputError(
                f"step {short_number(step)} must be in every run, and seed {seed} of '{row}' has none; give --at best, "
                f"or a step that all runs have, such as {short_number(max(_common_steps(curves), default=0))}"
            )
        return replace(run, value=values[step])

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


def _compare(observations: Observations, row: str, baseline: str | None, against: float | None) -> Comparison:
    ours = observations.rows[row]
    if baseline is None:
        lost = {seed: "diverged" for seed, run in ours.items() if run.diverged}
        numbers = tuple(run.value for run in ours.values())
        differences = _minus(numbers, against or 0.0)
        return Comparison(row, differences, design="against a number", lost=lost, obstacle=_diverged(row, lost))
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
    sides = ((row, ours), (baseline, theirs))
    lost |= {seed: f"diverged in {name}" for name, runs in sides for seed in common if runs[seed].diverged}
    obstacles = (_diverged(name, [seed for seed in common if runs[seed].diverged]) for name, runs in sides)
    obstacle = next(filter(None, obstacles), "")
    keyed = dict(enumerate(sorted(common, key=_order)))
    pairs = [{place: runs[seed].value for place, seed in keyed.items()} for runs in (ours, theirs)]
    numbers = tuple(seed_differences(*pairs).values())
    correlation = None if obstacle else _correlation(list(pairs[0].values()), list(pairs[1].values()))
    return Comparison(row, numbers, lost=lost, correlation=correlation, obstacle=obstacle)


def _order(seed: Seed) -> tuple[bool, float, str]:
    """Numbers in rising order, then texts."""
    return (True, 0.0, seed) if isinstance(seed, str) else (False, float(seed), "")


def _minus(numbers: Sequence[float], constant: float) -> tuple[float, ...]:
    return tuple(value - constant for value in numbers)


def _diverged(row: str, seeds: Sequence[Seed] | Mapping[Seed, str]) -> str:
    if not seeds:
        return ""
    return f"Runs of '{row}' diverged or have no number, and with them there is no mean."


def _correlation(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    if len(ours) < 3 or min(np.ptp(ours), np.ptp(theirs)) == 0:
        return None
    return float(np.corrcoef(ours, theirs)[0, 1])


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
    days = sorted(max(ours[seed].date, theirs[seed].date)[:10] for seed in ours if seed in theirs)
    counts = [place for place in range(2, len(days) + 1) if place == len(days) or days[place] != days[place - 1]]
    if not days or not days[0] or len(counts) < 2:
        return ""
    dated = sorted((seed for seed in ours if seed in theirs), key=lambda s: max(ours[s].date, theirs[s].date))
    differences = [ours[seed].value - theirs[seed].value for seed in dated]
    p, _ = p_at_looks(differences, tuple(counts))
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
