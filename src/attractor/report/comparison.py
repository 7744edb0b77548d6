"""A comparison of presets over seeds, and the verdict that it supports.

A verdict needs a sensitive instrument: a model that has not learned to use its context cannot tell attention mechanisms
apart. So the first question goes to the control, a twin that attends to all positions alike. Only where it is shown to
be worse than the baseline do the other differences mean anything.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, Self

from attractor.errors import InputError, unknown
from attractor.evidence.configuration import config_differences
from attractor.evidence.run import RunFolder
from attractor.evidence.statistics import Interval, mean_interval, paired_difference

LEVEL = 0.95
SUMMARY_FIELDS = {
    "metric",
    "valid_loss",
    "context_gain",
    "n_parameters",
    "tokens_per_second",
    "peak_memory_bytes",
    "tokens",
    "skipped_steps",
}
Outcome = Literal["better", "worse", "no difference shown", "not judged", "one seed", "not finite", "no pairs"]


@dataclass(frozen=True)
class Row:
    """One label: its finished runs and what they measured. Nothing is measured where no run has finished."""

    label: str
    runs: tuple[RunFolder, ...]
    missing_seeds: tuple[int, ...]
    metric: Interval | None
    valid_loss: Interval | None
    difference: Interval | None
    """Validation loss minus the baseline's, paired by seed, in nats: below zero is better."""
    context_gain: float | None
    n_parameters: int | None
    tokens_per_second: float | None
    peak_memory_bytes: int | None
    skipped_steps: int


@dataclass(frozen=True)
class Comparison:
    """Labels side by side under one token budget, each held against the baseline by pairs of seeds."""

    baseline: str
    control: str
    metric_name: str
    better: Literal["lower", "higher"]
    rows: tuple[Row, ...]

    @classmethod
    def read(cls, runs: Sequence[RunFolder], baseline: str, control: str = "uniform") -> Self:
        labels = _by_label(runs)
        if baseline not in labels:
            raise unknown("baseline", baseline, labels)
        finished = {label: _finished(of_label) for label, of_label in labels.items()}
        everything = [(run, summary) for of_label in finished.values() for run, summary in of_label.values()]
        if not everything:
            raise InputError("a comparison needs finished runs, and none has a summary.json yet; let them finish")
        _refuse_unequal_budgets(everything)
        metric = _common_metric(everything)
        level = _simultaneous_level(labels, baseline, control)
        seeds = {run.config["seed"] for run in runs}
        losses = {label: _numbers(of_label, "valid_loss") for label, of_label in finished.items()}

        def row(label: str) -> Row:
            found = finished[label]
            summaries = [summary for _, summary in found.values()]
            paired = label != baseline and losses[label].keys() & losses[baseline].keys()
            row_level = LEVEL if label == control else level
            gains = _known(summaries, "context_gain")
            speeds = _known(summaries, "tokens_per_second")
            return Row(
                label=label,
                runs=tuple(run for run, _ in found.values()),
                missing_seeds=tuple(sorted(seeds - found.keys())),
                metric=mean_interval([_number(s["metric"]["value"]) for s in summaries]) if found else None,
                valid_loss=mean_interval(list(losses[label].values())) if found else None,
                difference=paired_difference(losses[label], losses[baseline], row_level) if paired else None,
                context_gain=sum(gains) / len(gains) if gains else None,
                n_parameters=max(_known(summaries, "n_parameters"), default=None),
                tokens_per_second=median(speeds) if speeds else None,
                peak_memory_bytes=max(_known(summaries, "peak_memory_bytes"), default=None),
                skipped_steps=sum(_known(summaries, "skipped_steps")),
            )

        return cls(baseline, control, metric["name"], metric["better"], tuple(row(label) for label in labels))

    def row(self, label: str) -> Row:
        return next(row for row in self.rows if row.label == label)

    @property
    def rivals(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.label not in (self.baseline, self.control))

    @property
    def rival_level(self) -> float:
        """The level of each rival's interval, so that all of them hold together with 95% confidence."""
        return _simultaneous_level([row.label for row in self.rows], self.baseline, self.control)

    @property
    def sensitive(self) -> bool | None:
        """Whether attending to all positions alike is shown to be worse than the baseline; None where unknown."""
        difference = self._control_difference
        if difference is None or difference.low is None or not math.isfinite(difference.mean):
            return None
        return difference.low > 0

    def outcome(self, row: Row) -> Outcome:
        """What may be said about a rival."""
        difference = row.difference
        if difference is None:
            return "no pairs"
        if not math.isfinite(difference.mean):
            return "not finite"
        if difference.n == 1:
            return "one seed"
        if self.sensitive is False:
            return "not judged"
        if not difference.excludes_zero:
            return "no difference shown"
        return "better" if difference.mean < 0 else "worse"

    def verdict(self) -> list[str]:
        """The instrument first, then one line for every rival."""
        return [self._instrument(), *(self._judgement(row) for row in self.rivals)]

    @property
    def _control_difference(self) -> Interval | None:
        return next((row.difference for row in self.rows if row.label == self.control), None)

    def _instrument(self) -> str:
        difference = self._control_difference
        if difference is None:
            return (
                f"sensitivity unknown: no run of the control '{self.control}' to hold against '{self.baseline}'; "
                "add it to learn whether this setting can tell attention mechanisms apart"
            )
        measured = f"'{self.control}' minus '{self.baseline}' is {in_nats(difference)}"
        if self.sensitive is None:
            cause = "one seed gives no interval" if difference.n == 1 else "a loss of one of them is not finite"
            return f"sensitivity unknown: {cause} ({measured}); add seeds of both"
        if self.sensitive:
            return f"sensitive: the control, which attends to all positions alike, is worse: {measured}"
        return (
            f"not sensitive: the control, which attends to all positions alike, is not shown to be worse: {measured}. "
            "This setting cannot tell attention mechanisms apart, whatever the other numbers say; "
            "train for more steps, use a larger model, or run more seeds"
        )

    def _judgement(self, row: Row) -> str:
        outcome, difference = self.outcome(row), row.difference
        if difference is None:
            return f"{row.label}: no verdict: no finished seed in common with '{self.baseline}'"
        measured = in_nats(difference) + parameters_apart(row.n_parameters, self.row(self.baseline).n_parameters)
        if outcome == "one seed":
            return f"{row.label}: one seed: no interval, no verdict: {measured}"
        if outcome == "not finite":
            return f"{row.label}: no verdict: a run of it or of '{self.baseline}' ended without a finite loss"
        if outcome == "not judged":
            return f"{row.label}: not judged, as this setting is not sensitive: {measured}"
        if outcome == "no difference shown":
            return (
                f"{row.label}: no difference shown: {measured}; "
                f"the smallest that this comparison would have shown is {difference.half_width:.4f} nats"
            )
        return f"{row.label}: {outcome} than '{self.baseline}': {measured}"


def parameters_apart(ours: int | None, theirs: int | None) -> str:
    """Said beside every difference: a gain bought with parameters is another gain."""
    if not ours or not theirs or abs(ours / theirs - 1) <= 0.01:
        return ""
    percent = 100 * abs(ours / theirs - 1)
    return f", with {percent:.{0 if percent >= 10 else 1}f}% {'more' if ours > theirs else 'fewer'} parameters"


def in_nats(difference: Interval) -> str:
    """A paired difference in words and numbers."""
    pairs = f"{difference.n} pair{'s' if difference.n > 1 else ''}"
    return f"{with_bounds(difference)} nats ({pairs})"


def with_bounds(interval: Interval) -> str:
    bounds = "" if interval.low is None else f" [{interval.low:+.4f}, {interval.high:+.4f}]"
    return f"{interval.mean:+.4f}{bounds}"


def _simultaneous_level(labels: Iterable[str], baseline: str, control: str) -> float:
    """Bonferroni: with m rivals, intervals of level 1 - 0.05 / m all hold together with at least 95% confidence."""
    n_rivals = len(set(labels) - {baseline, control})
    return 1 - (1 - LEVEL) / max(n_rivals, 1)


def _by_label(runs: Sequence[RunFolder]) -> dict[str, list[RunFolder]]:
    labels: dict[str, list[RunFolder]] = {}
    for run in runs:
        if not {"label", "seed"} <= run.config.keys():
            raise InputError(f"the config.json of a compared run needs label and seed: '{run.path}' lacks one of them")
        labels.setdefault(run.config["label"], []).append(run)
    for label, of_label in labels.items():
        _refuse_mixture(label, of_label)
    return labels


def _refuse_mixture(label: str, runs: Sequence[RunFolder]) -> None:
    """Runs of one label may differ by their seed only: a mean over anything else would mix two questions."""
    seed, count = Counter(run.config["seed"] for run in runs).most_common(1)[0]
    if count > 1:
        raise InputError(f"a label has one run for each seed: '{label}' has {count} of seed {seed}; remove all but one")
    differences = config_differences({str(run.path): run.config for run in runs})
    # A run of another seed may start from the weights of another seed.
    other = [name for name in differences if not name.endswith(("seed", "start_weights"))]
    if other:
        raise InputError(f"runs of one label may differ by their seed only: those of '{label}' differ in {other[0]}")


def _finished(runs: Sequence[RunFolder]) -> dict[int, tuple[RunFolder, dict[str, Any]]]:
    """The runs that have a summary, by seed."""
    found = {}
    for run in sorted(runs, key=lambda run: run.config["seed"]):
        summary = run.summary()
        if summary is not None:
            absent = sorted(SUMMARY_FIELDS - summary.keys())
            if absent:
                raise InputError(f"the summary.json of '{run.path}' lacks {', '.join(absent)}; run it again")
            found[run.config["seed"]] = (run, summary)
    return found


def _refuse_unequal_budgets(runs: Sequence[tuple[RunFolder, dict[str, Any]]]) -> None:
    budgets: dict[int, str] = {}
    for run, summary in runs:
        budgets.setdefault(summary["tokens"], f"'{run.config['label']}' seed {run.config['seed']}")
    if len(budgets) > 1:
        listed = ", ".join(f"{name} saw {tokens:,} tokens" for tokens, name in budgets.items())
        raise InputError(f"compared runs must have seen equally many tokens: {listed}; compare those of one budget")


def _common_metric(runs: Sequence[tuple[RunFolder, dict[str, Any]]]) -> dict[str, Any]:
    first: dict[str, Any] = runs[0][1]["metric"]
    for run, summary in runs:
        if summary["metric"]["name"] != first["name"]:
            names = f"'{first['name']}' and '{summary['metric']['name']}' ('{run.path}')"
            raise InputError(f"compared runs must report one metric, and these report {names}; compare one task")
    return first


def _known(summaries: Sequence[dict[str, Any]], field: str) -> list[Any]:
    return [summary[field] for summary in summaries if summary[field] is not None]


def _numbers(runs: dict[int, tuple[RunFolder, dict[str, Any]]], field: str) -> dict[int, float]:
    return {seed: _number(summary[field]) for seed, (_, summary) in runs.items()}


def _number(value: float | None) -> float:
    """JSON has no NaN: a diverged run wrote null."""
    return math.nan if value is None else value
