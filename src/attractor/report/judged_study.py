"""Judge a study: the paired differences of its rows, their tests, and the verdict in words.

Each row is compared with the baseline of its column, seed by seed:

    d_s = x_s(row) - x_s(baseline)   over the seeds s that both have                                        (1)

Each difference has its mean, its 95% t interval and the two-sided p of Student's paired test. The p values of one table
are adjusted together by Holm's method, and the outcome rests on the adjusted values. Costs (parameters, speed, memory)
are shown and not tested, so that they do not weaken the tests of quality; a study of costs alone tests them. If no
difference is shown, the outcome names the smallest mean difference that would have been shown:

    t(1 - 0.05 / 2m; n - 1) s / √n   among m tests                                                           (2)

Holm's method rejects every difference beyond (2), so a difference that is not shown is smaller. Studies of language
first check the control: unless the 95% interval of its paired gap to the baseline lies above zero, quality in that
column is not judged (`verdict/sensitivity.py`).

Where a study planned its looks before the first run, the outcomes are those of its sequential test, which counts all
looks and rows (`verdict/sequential_rows.py`), and intervals hold over all looks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attractor.claims.comparisons import double, n_on_two_devices
from attractor.claims.further_seeds import FEWEST, FurtherSeeds, further_seeds, with_seeds
from attractor.console import with_prefix
from attractor.runs.quantity import LOSS_OF_VALIDATION, MEAN, Quantity
from attractor.runs.study_record import Cell, StudyRecord
from attractor.verdict.intervals import Interval, Summary, seed_differences, smallest_detectable, summary
from attractor.verdict.multiplicity import holm
from attractor.verdict.sensitivity import ControlGap, control_gap
from attractor.verdict.sequential_rows import SequentialRows
from attractor.verdict.t_tests import Difference, paired_t_test
from attractor.verdict.words import signed

LEVEL = 0.95
# Fields that determine the validation batches, which are as large as a micro-batch.
VALIDATED_ON = ("data", "task", "seq_len", "batch_size", "accumulation", "eval_batches")
ComparisonOutcome = Literal[
    "better",
    "worse",
    "higher",
    "lower",
    "no difference",
    "no difference shown",
    "one seed",
    "not judged",
    "no pairs",
    "not paired",
    "not finite",
    "not measured",
    "not run",
]
SHOWN: tuple[ComparisonOutcome, ...] = ("better", "worse", "higher", "lower")
REASONS: dict[ComparisonOutcome, str] = {
    "no difference": "no difference that matters",
    "one seed": "one seed: no interval",
    "not judged": "not judged: not sensitive",
    "no pairs": "no seed in common with the baseline",
    "not finite": "not finite: a run diverged, or a ratio has a value of 0",
}


@dataclass(frozen=True)
class Spread:
    """The values of one quantity in one cell, by seed."""

    by_seed: Mapping[int, float]

    @property
    def n(self) -> int:
        return len(self.by_seed)

    @property
    def summary(self) -> Summary | None:
        """Mean and standard deviation. The deviation is None for one seed; both are NaN if a run diverged."""
        return summary(self.by_seed) if self.by_seed else None

    @property
    def mean(self) -> float | None:
        return None if self.summary is None else self.summary.mean

    @property
    def sd(self) -> float | None:
        return None if self.summary is None else self.summary.standard_deviation


@dataclass(frozen=True)
class JudgedDifference:
    """The difference between a row and the baseline of its column in one quantity, with its test and outcome."""

    row: str
    column: str
    measure: Quantity
    by_seed: Mapping[int, float]
    interval: Interval | None
    p: float | None
    adjusted: float | None
    detectable: float | None
    outcome: ComparisonOutcome
    reason: str = ""  # why the two rows are not paired, or not decided yet
    further: FurtherSeeds | None = None  # seeds that would decide, if no difference was shown

    @property
    def shown(self) -> Interval | None:
        """The interval in the unit of the quantity. Ratios are tested as logarithms, and shown as ratios."""
        return None if self.interval is None else self.measure.shown(self.interval)

    @property
    def smallest(self) -> str:
        """The smallest difference that would have been shown, in the unit of the quantity."""
        if self.detectable is None:
            return ""
        if self.detectable < 1e-12 and not self.measure.as_ratio:
            return "0"  # only rounding errors differ
        return f"{self.measure.in_unit(self.detectable):.{3 if self.measure.unit == 'x' else 2}g}"

    @property
    def words(self) -> str:
        """The outcome in words; if no difference was shown, with the smallest detectable one and the seeds to add."""
        if self.outcome == "no difference shown" and self.detectable is not None and not self.reason:
            smallest = f"{self.smallest}{' ' if self.measure.unit else ''}{self.measure.unit}"
            further = f"; {self.further.words(self.measure.unit)}" if self.further else ""
            return f"no difference shown (smallest detectable {smallest}{further})"
        return f"no verdict: {self.reason}" if self.reason else REASONS.get(self.outcome, self.outcome)


@dataclass(frozen=True)
class VerdictPart:
    """The verdict on one cell. Its kind is an outcome, 'sensitive', 'insensitive', 'doubt', 'rates' or 'next'."""

    kind: str
    place: str
    words: str
    numbers: str = ""

    @property
    def text(self) -> str:
        return " ".join(filter(None, (self.place, self.words))) + (f", {self.numbers}" if self.numbers else "")


@dataclass(frozen=True)
class VerdictLine:
    """A line of the verdict. Its subject is a row or "What next"; lines about the control and about rates have none."""

    subject: str
    parts: tuple[VerdictPart, ...]
    remark: str = ""

    @property
    def text(self) -> str:
        subject = f"{self.subject}: " if self.subject else ""
        return subject + "; ".join(part.text for part in self.parts) + self.remark


class JudgedStudy:
    """A study's record with its differences and verdict, all of which are computed from the record."""

    def __init__(self, record: StudyRecord) -> None:
        self.record = record
        self.design = record.design
        self._layers_by_path: dict[str, int] = {}  # computed once, since every table and figure asks for them
        self._spreads: dict[tuple[str, str, Quantity], Spread] = {}
        self.headlines = tuple(map(self.with_layers, self.design.quantities))
        self.tested = tuple(quantity for quantity in self.headlines if not quantity.is_cost) or self.headlines
        self._cells = {(cell.row, cell.column): cell for cell in record.cells}
        self.at_looks = record.sequential_rows() if self.design.looks else None
        language = self.design.control is not None
        self.sensitivity = {column: self._sensitivity(column) for column in self.design.columns} if language else {}
        self.differences = {
            (difference.row, difference.column, difference.measure): difference
            for family in self.families
            for difference in self._judge(family)
        }

    @property
    def families(self) -> tuple[tuple[Quantity, ...], ...]:
        """The quantities whose tests are adjusted together: all of them for one column, else one family for each."""
        if len(self.design.columns) == 1:
            return (self.headlines,)
        return tuple((measure,) for measure in self.headlines)

    def cell(self, row: str, column: str) -> Cell:
        return self._cells.get((row, column)) or Cell(row, column, {}, (), self.design.seeds)

    def spread(self, row: str, column: str, measure: Quantity) -> Spread:
        key = row, column, measure
        if key not in self._spreads:
            self._spreads[key] = Spread(self.cell(row, column).by_seed(measure))
        return self._spreads[key]

    def place(self, column: str) -> str:
        """Return a column's name for a sentence; a bare number is preceded by the name of the columns."""
        is_word = not column or any(map(str.isalpha, column))
        return column if is_word else f"{self.design.columns_name} {column}"

    def _places(self, columns: Sequence[str]) -> str:
        first, *others = columns
        return ", ".join([self.place(first), *others])

    @property
    def judged_in(self) -> str:
        """The unit or the quantity of the verdict's differences."""
        first = self.tested[0]
        return f"{self.record.loss_unit} of validation loss" if first.is_loss else first.title

    def is_tested(self, measure: Quantity) -> bool:
        return any(measure.path == tested.path for tested in self.tested)

    def with_layers(self, quantity: Quantity) -> Quantity:
        """Return the quantity in the record's unit of losses, or as its mean over layers where it has a value for each.

        A quantity of one layer stays one.
        """
        if quantity.is_loss:
            return replace(quantity, unit=self.record.loss_unit)
        return replace(quantity, layer=MEAN) if quantity.layer is None and self._n_layers(quantity) else quantity

    def layers(self, quantity: Quantity) -> Iterator[Quantity]:
        """Yield the single layers of a mean over layers; nothing for a quantity that is one number."""
        n_layers = self._n_layers(quantity) if quantity.layer == MEAN else 0
        return (replace(quantity, layer=layer) for layer in range(n_layers))

    def _n_layers(self, quantity: Quantity) -> int:
        if quantity.path not in self._layers_by_path:
            values = (quantity.value(outcome) for outcome in self.record.outcomes)
            counts = [len(value) for value in values if isinstance(value, list | tuple)]
            self._layers_by_path[quantity.path] = max(counts, default=0)
        return self._layers_by_path[quantity.path]

    @property
    def in_one_table(self) -> bool:
        """Whether the table of results holds the differences, too: for one quantity in one column."""
        return len(self.design.columns) == len(self.tested) == 1 and self.tested[0].layer is None

    def unpaired(self, row: str, column: str) -> str:
        """Return why a row of stored runs cannot be paired with the baseline; empty if it can."""
        ours, theirs = self.cell(row, column), self.cell(self.design.baseline, column)
        if self.design.budget != "stored" or not ours.outcomes or not theirs.outcomes:
            return ""
        differing = [name for name in VALIDATED_ON if ours.config.get(name) != theirs.config.get(name)]
        if differing:
            other = "other data" if differing[0] in ("data", "task") else f"another {differing[0]}"
            return f"{other} than the baseline's"
        tokens, of_baseline = (sorted({o.summary["tokens"] for o in cell.outcomes}) for cell in (ours, theirs))
        if tokens != of_baseline:
            return f"{_counted(tokens)} tokens, where the baseline saw {_counted(of_baseline)}"
        return ""

    def n_tests(self, family: tuple[Quantity, ...]) -> int:
        return sum(
            self.differences[row, column, measure].p is not None
            for row in self.design.rivals
            for column in self.design.columns
            for measure in family
            if self.is_tested(measure)
        )

    def leaders(self, family: tuple[Quantity, ...]) -> dict[tuple[str, Quantity], str]:
        """Return the best row by column and quantity, if the test shows it to be better than the second best.

        The test is paired by seed, and adjusted by Holm's method over the columns of the table. The control does not
        compete. Rows are ranked by all their seeds, so the common seeds may contradict the ranking; then there is no
        leader. Nor is there one where looks were planned, which are looks at differences from the baseline.
        """
        if self.at_looks is not None:
            return {}
        p_values: dict[tuple[str, Quantity], float | None] = {}
        first: dict[tuple[str, Quantity], str] = {}
        for measure in family:
            for column in self.design.columns:
                place = (column, measure)
                better = measure.better
                insensitive = column in self.sensitivity and self.sensitivity[column].sensitive is False
                if better is None or not self.is_tested(measure) or (measure.judges_quality and insensitive):
                    continue
                sign = 1 if better == "lower" else -1
                ranked = sorted(
                    (sign * mean, row)
                    for row in self.design.rows
                    if row != self.design.control
                    and not self.unpaired(row, column)
                    and (mean := self.spread(row, column, measure).mean) is not None
                    and math.isfinite(mean)
                )
                if len(ranked) >= 2:
                    (_, best), (_, second) = ranked[:2]
                    test = self._paired_test(best, second, column, measure)
                    contradicted = test is not None and (test.estimate < 0) != (measure.is_loss or better == "lower")
                    first[place] = best
                    p_values[place] = None if test is None or test.p is None else 1.0 if contradicted else test.p
        return {place: first[place] for place, p in holm(p_values).items() if p is not None and p < 1 - LEVEL}

    def verdict(self) -> list[VerdictLine]:
        """Return lines on sensitivity, on rates, on each rival in the first tested quantity, and on what to do next."""
        about = (self._about(row) for row in self.design.rivals)
        return [*self._instrument(), *self._best_rates(), *about, *self._what_next()]

    def _sensitivity(self, column: str) -> ControlGap:
        """Return the gap that tells whether a column can distinguish mechanisms."""
        assert self.design.control is not None
        rows = (self.design.control, self.design.baseline)
        control, baseline = (self.cell(row, column).compared(LOSS_OF_VALIDATION) for row in rows)
        return control_gap({} if self.unpaired(self.design.control, column) else control, baseline)

    def _compared(self, row: str, column: str, measure: Quantity) -> dict[int, float]:
        return self.cell(row, column).compared(measure)

    def _paired_test(self, row: str, other: str, column: str, measure: Quantity) -> Difference | None:
        of, against = self._compared(row, column, measure), self._compared(other, column, measure)
        return paired_t_test(seed_differences(of, against)) if of.keys() & against.keys() else None

    def _judge(self, family: tuple[Quantity, ...]) -> list[JudgedDifference]:
        compared = [row for row in self.design.rows if row != self.design.baseline]
        measures = [measure for measure in family if self.is_tested(measure)]
        places = [(row, column, measure) for measure in measures for column in self.design.columns for row in compared]
        by_seed = {place: self._by_seed(*place) for place in places}  # (1)
        tested = {place: paired_t_test(by_place, LEVEL) for place, by_place in by_seed.items() if by_place}
        adjusted = holm({place: test.p for place, test in tested.items() if place[0] != self.design.control})
        n_tests = sum(p is not None for p in adjusted.values())
        differences = []
        for place, values in by_seed.items():
            test = tested.get(place)
            p = adjusted.get(place)
            error_rate = (1 - LEVEL) / max(n_tests, 1)
            detectable = smallest_detectable(values, 1 - error_rate) if values else None  # (2)
            if detectable == 0 and test is not None and test.interval.mean:
                detectable = None  # differences without spread tell no more than their signs
            outcome = self._outcome(*place, None if test is None else test.interval, p)
            undecided = outcome == "no difference shown" and place[0] != self.design.control
            difference = JudgedDifference(
                *place,
                values,
                None if test is None else test.interval,
                None if test is None else test.p,
                p,
                detectable if detectable is not None and math.isfinite(detectable) else None,
                outcome,
                self.unpaired(*place[:2]),
                self._further(place[2], values, error_rate) if undecided else None,
            )
            differences.append(difference if self.at_looks is None else self._at_looks(difference, self.at_looks))
        return differences

    def _at_looks(self, difference: JudgedDifference, rows: SequentialRows) -> JudgedDifference:
        """Return the difference as the planned looks decide it, where it can be judged."""
        row, measure = difference.row, difference.measure
        if row not in rows.tests or difference.outcome not in ("better", "worse", "no difference shown", "one seed"):
            return difference
        verdict, decision = rows.verdict(row, 1 - LEVEL), rows.decisions.get(row)
        undecided = decision is not None and verdict.outcome == "undecided"
        seen = dict(zip(self.design.seeds, rows.differences[row][: verdict.n], strict=False))
        interval = difference.interval
        if verdict.difference is not None:
            interval = Interval(verdict.difference, verdict.low, verdict.high, verdict.n, LEVEL)
        further = self._further(measure, seen, rows.tests[row].alpha) if undecided else None
        return replace(
            difference,
            by_seed=seen or difference.by_seed,
            interval=interval,
            p=verdict.p,
            adjusted=verdict.adjusted_p,
            detectable=decision.interval.half_width if decision is not None and undecided else None,
            outcome="no difference shown" if verdict.outcome == "undecided" else verdict.outcome,
            reason=verdict.reason.removesuffix(".") if decision is None else "",
            further=None if further is None else replace(further, known=0),  # a further test needs seeds of its own
        )

    def _further(self, measure: Quantity, values: Mapping[int, float], error_rate: float) -> FurtherSeeds | None:
        """Plan further seeds. The margin of a study is one of its first quantity, in that quantity's unit."""
        margin = self.design.margin if measure == self.headlines[0] else None
        further = further_seeds(values, None if margin is None else measure.as_compared(margin), error_rate)
        return None if further is None else replace(further, margin=margin)

    def _by_seed(self, row: str, column: str, measure: Quantity) -> dict[int, float]:
        of, against = (self._compared(name, column, measure) for name in (row, self.design.baseline))
        paired = of.keys() & against.keys() and not self.unpaired(row, column)
        return seed_differences(of, against) if paired else {}

    def _outcome(
        self, row: str, column: str, measure: Quantity, interval: Interval | None, adjusted: float | None
    ) -> ComparisonOutcome:
        if not self.cell(row, column).outcomes:
            return "not run"
        if not self._compared(row, column, measure):
            return "not measured"
        if self.unpaired(row, column):
            return "not paired"
        if interval is None:
            return "no pairs"
        if not math.isfinite(interval.mean):
            return "not finite"
        if interval.n == 1:
            return "one seed"
        if measure.judges_quality and column in self.sensitivity and self.sensitivity[column].sensitive is False:
            return "not judged"
        if adjusted is None or adjusted >= 1 - LEVEL:
            return "no difference shown"
        if measure.better is None:
            return "lower" if interval.mean < 0 else "higher"
        lower_is_better = measure.is_loss or measure.better == "lower"
        return "better" if (interval.mean < 0) == lower_is_better else "worse"

    def _instrument(self) -> list[VerdictLine]:
        """Return lines on sensitivity; columns of the same result share a line."""
        lines: dict[str, list[str]] = {}
        kinds = {True: "sensitive", False: "insensitive", None: "doubt"}
        for column, gap in self.sensitivity.items():
            name = f"{self.place(column)}: " if column else ""
            known = gap.interval is not None and math.isfinite(gap.interval.mean)
            size = signed(gap.interval, self.record.loss_unit) if gap.interval and known else "no gap known"
            lines.setdefault(kinds[gap.sensitive], []).append(name + size)
        words = {
            "sensitive": f"Sensitive: the control '{self.design.control}', which attends to all positions alike, is "
            "worse than the baseline ({}).",
            "insensitive": f"Not sensitive: the control '{self.design.control}', which attends to all positions alike, "
            "is not shown to be worse than the baseline ({}). This setting cannot tell attention mechanisms apart, "
            "whatever the other numbers say; train for more steps, use a larger model, or run more seeds.",
            "doubt": f"Sensitivity unknown: it takes two seeds or more of the control '{self.design.control}' and of "
            "the baseline, with finite losses ({}).",
        }
        texts = {kind: text.format("; ".join(lines[kind])) for kind, text in words.items() if kind in lines}
        return [VerdictLine("", (VerdictPart(kind, "", text),)) for kind, text in texts.items()]

    def _best_rates(self) -> list[VerdictLine]:
        """Say at which learning rate each row is best, if rates are the columns, and where the grid does not tell.

        A rate is shown to be best only if both of its neighbours were tried.
        """
        if self.design.columns_name != "lr":
            return []
        rates, measure = self.design.columns, self.tested[0]
        known: dict[str, list[str]] = {"best": [], "open": [], "edge": []}
        for row in self.design.rows:
            means = {rate: self.spread(row, rate, measure).mean for rate in rates}
            finite = {rate: mean for rate, mean in means.items() if mean is not None and math.isfinite(mean)}
            if finite:
                choose = max if measure.better == "higher" else min
                best = choose(finite, key=lambda rate: finite[rate])
                at = rates.index(best)
                beside = [means[rate] for rate in rates[max(at - 1, 0) : at + 2]]
                kind = "open" if None in beside else "edge" if len(beside) < 3 else "best"
                known[kind].append(f"{row} {best}")
        words = {
            "best": f"The best learning rates by {measure.title} are: {{}}.",
            "open": "These are the best so far, but a rate beside them was not tried: {}.",
            "edge": "These are the best of the grid and stand at its edge, so that a wider grid is needed: {}.",
        }
        texts = [words[kind].format(", ".join(rows)) for kind, rows in known.items() if rows]
        return [VerdictLine("", (VerdictPart("rates", "", " ".join(texts)),))] if texts else []

    def _about(self, row: str) -> VerdictLine:
        """Return the outcome in each column; columns without a difference share a part for each reason."""
        measure, parts = self.tested[0], []
        without: dict[tuple[str, str], list[str]] = {}  # columns by outcome and words
        for column in self.design.columns:
            difference = self.differences[row, column, measure]
            if difference.interval is None:
                without.setdefault((difference.outcome, difference.words), []).append(column)
            else:
                parts.append(_part(difference, self.place(column)))
        parts += [VerdictPart(kind, self._places(columns), words) for (kind, words), columns in without.items()]
        remark = self._parameters_apart(row) + self._rates_apart(row) + self._devices_apart(row)
        remark += self._without_effect(row)
        return VerdictLine(row, tuple(parts), remark)

    def _what_next(self) -> list[VerdictLine]:
        """Say what would decide an open verdict. A study of stored runs or of costs alone has nothing to add."""
        if self.design.budget == "stored" or self.tested[0].is_cost:
            return []
        first, command = self.tested[0], self.design.command
        differences = [
            self.differences[row, column, first] for row in self.design.rivals for column in self.design.columns
        ]
        needed = [difference.further.pairs or 0 for difference in differences if difference.further]
        needed += [FEWEST] if any(difference.outcome == "one seed" for difference in differences) else []
        known = self.design.seeds if self.at_looks is None else ()
        n_seeds = max(needed, default=0)
        n_further = n_seeds - len(known)
        steps = []
        if any(column.sensitive is False for column in self.sensitivity.values()):
            steps.append(
                "where the setting is not sensitive, run more seeds, train for more steps, or use a larger model"
            )
        if command and self.at_looks is not None and (n_left := len(list(self.at_looks.wanted()))):
            steps.append(f"the same command goes on, with {n_left} run{'s' * (n_left > 1)} to do at most: {command}")
        elif n_further > 0 and command:
            further = with_seeds(command, self.design.seeds, n_seeds, only_new=self.at_looks is not None)
            steps.append(f"{n_further} further seed{'s' * (n_further > 1)}: {further}")
        return [VerdictLine("What next", tuple(VerdictPart("next", "", step) for step in steps))] if steps else []

    def _parameters_apart(self, row: str) -> str:
        remarks = {
            parameters_apart(ours, theirs)
            for column in self.design.columns
            if (ours := self.n_parameters(row, column)) and (theirs := self.n_parameters(self.design.baseline, column))
        }
        return remarks.pop() if len(remarks) == 1 else ""

    def _rates_apart(self, row: str) -> str:
        """Return a remark for a row that was trained at another learning rate than the baseline."""
        apart: dict[tuple[float, float], list[str]] = {}
        for column in self.design.columns:
            ours, theirs = (self.cell(name, column).config.get("lr") for name in (row, self.design.baseline))
            if ours and theirs and ours != theirs:
                apart.setdefault((ours, theirs), []).append(self.place(column))
        everywhere = sum(map(len, apart.values())) == len(self.design.columns) and len(apart) == 1
        return "".join(
            f", at its own learning rate {ours:g}, the baseline at {theirs:g}"
            + ("" if everywhere else f" ({', '.join(columns)})")
            for (ours, theirs), columns in apart.items()
        )

    def _devices_apart(self, row: str) -> str:
        """Return a remark for a row of which some runs are paired with runs on another kind of device."""
        cells = [(self.cell(row, column), self.cell(self.design.baseline, column)) for column in self.design.columns]
        n_apart = sum(n_on_two_devices(*pair) for pair in cells)
        return f"; {n_apart} of its pairs are of a CPU and a GPU" if n_apart else ""

    def _without_effect(self, row: str) -> str:
        """Return a remark for a row whose runs were, to the last digit, those of another row."""
        columns: dict[str, list[str]] = {}
        for column in self.design.columns:
            if other := double(self.record, row, column, self.tested[0]):
                columns.setdefault(other, []).append(column)
        return "".join(
            f"; its runs equal those of {other}{f' ({self._places(places)})' if any(places) else ''}, "
            "so what sets the two apart had no effect"
            for other, places in columns.items()
        )

    def n_parameters(self, row: str, column: str) -> int | None:
        counts = [outcome.summary.get("n_parameters") for outcome in self.cell(row, column).outcomes]
        return max((count for count in counts if count), default=None)


def _part(difference: JudgedDifference, place: str) -> VerdictPart:
    interval = difference.shown
    if interval is None or not math.isfinite(interval.mean):
        return VerdictPart(difference.outcome, place, difference.words)
    return VerdictPart(difference.outcome, place, difference.words, with_pairs(interval, difference.measure.unit))


def parameters_apart(ours: int, theirs: int) -> str:
    """Return a remark on the difference in parameters, if it is above 1%, since parameters alone may explain a gain."""
    share = abs(ours / theirs - 1)
    if share <= 0.01:
        return ""
    return f", with {100 * share:.{0 if share >= 0.1 else 1}f}% {'more' if ours > theirs else 'fewer'} parameters"


def with_pairs(interval: Interval, unit: str) -> str:
    """Write a paired difference as `-0.085 [-0.158, -0.013] nats (4 pairs)`."""
    return f"{signed(interval, unit)} ({interval.n} pair{'s' * (interval.n > 1)})"


def _counted(tokens: Sequence[int]) -> str:
    return " and ".join(map(with_prefix, tokens))
