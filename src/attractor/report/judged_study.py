"""Judge a study: ask the judge about the paired differences of its rows, and put the verdict into lines.

Each row is compared with the baseline of its column, seed by seed:

    d_s = x_s(row) - x_s(baseline)   over the seeds s that both have                                        (1)

`verdict/family.py` judges these differences, those of one table with one correction. Costs (parameters, speed, memory)
are shown and not tested, so that they do not weaken the tests of quality; a study of costs alone tests them. Studies of
language first check the control: unless the 95% interval of its paired gap to the baseline lies above zero, quality in
that column is not judged (`verdict/sensitivity.py`).

Where a study planned its looks before the first run, the verdicts are those of its sequential test, which counts all
looks and rows (`verdict/sequential_rows.py`), and intervals hold over all looks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from attractor.claims.comparisons import learning_rate, row_of_equal_runs, seeds_on_two_devices
from attractor.claims.further_seeds import FEWEST, with_seeds
from attractor.console import with_prefix
from attractor.runs.quantity import LOSS_OF_VALIDATION, MEAN, Quantity
from attractor.runs.study_record import Cell, StudyRecord
from attractor.verdict.family import MOST, Comparison, judge_family
from attractor.verdict.intervals import Interval, seed_differences, summary
from attractor.verdict.outcome import Verdict
from attractor.verdict.sensitivity import ControlGap, control_gap
from attractor.verdict.words import signed

# Fields that determine the validation batches, which are as large as a micro-batch.
VALIDATED_ON = ("data", "task", "seq_len", "batch_size", "accumulation", "eval_batches")


@dataclass(frozen=True)
class Spread:
    """The values of one quantity in one cell, by seed."""

    by_seed: Mapping[int, float]
    mean: float | None = None  # NaN if a run diverged, as is the deviation
    sd: float | None = None

    @property
    def n(self) -> int:
        return len(self.by_seed)


@dataclass(frozen=True)
class JudgedDifference:
    """The verdict on the difference between a row and the baseline of its column in one quantity."""

    row: str
    column: str
    measure: Quantity
    verdict: Verdict
    margin: float | None = None  # in the unit of the quantity

    @property
    def shown(self) -> Interval | None:
        """The interval in the unit of the quantity. Ratios are tested as logarithms, and shown as ratios."""
        measured = self.verdict.measured
        return None if measured is None else self.measure.shown(measured)

    @property
    def is_shown(self) -> bool:
        return self.verdict.outcome not in ("no difference", "undecided")

    @property
    def smallest(self) -> str:
        """The smallest true difference that these seeds show with a power of 80%, in the unit of the quantity."""
        detectable = self.verdict.detectable
        digits = 3 if self.measure.unit == "x" else 2
        return "" if detectable is None else f"{self.measure.in_unit(detectable):.{digits}g}"

    @property
    def words(self) -> str:
        """The outcome, with its reason where no difference is shown."""
        verdict, unit = self.verdict, f"{' ' if self.measure.unit else ''}{self.measure.unit}"
        if verdict.outcome == "no difference":
            return f"no difference within {self.margin:g}{unit}"
        if self.is_shown:
            return verdict.outcome
        if verdict.detectable is None:
            reason = verdict.reason.removesuffix(".")
            return f"undecided ({reason[:1].lower()}{reason[1:]})"
        further = ""
        if verdict.further_seeds:
            more = f"{verdict.further_seeds} further seed{'s' * (verdict.further_seeds > 1)}"
            further = f"; {more} would show a difference of {self.margin:g}{unit}"
        return f"undecided (smallest detectable {self.smallest}{unit}{further})"


@dataclass(frozen=True)
class VerdictPart:
    """The verdict on one cell. Its kind is an outcome, 'sensitive', 'insensitive', 'doubt', 'rates' or 'next'."""

    kind: str
    place: str
    words: str
    numbers: str = ""
    command: str = ""  # what to run next

    @property
    def text(self) -> str:
        said = " ".join(filter(None, (self.place, self.words))) + (f", {self.numbers}" if self.numbers else "")
        return said + (f": {self.command}" if self.command else "")


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
        return self.record.cell(row, column)

    def spread(self, row: str, column: str, measure: Quantity) -> Spread:
        key = row, column, measure
        if key not in self._spreads:
            by_seed = self.cell(row, column).by_seed(measure)
            moments = summary(by_seed) if by_seed else None
            ends = () if moments is None else (moments.mean, moments.standard_deviation)
            self._spreads[key] = Spread(by_seed, *ends)
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
            self.differences[row, column, measure].verdict.p is not None
            for row in self.design.rivals
            for column in self.design.columns
            for measure in family
            if self.is_tested(measure)
        )

    def verdict(self, about: Sequence[VerdictLine] = ()) -> list[VerdictLine]:
        """Return lines on sensitivity, on rates, on each rival in the first tested quantity, and on what to do next.

        The lines `about` stand in place of those on each rival.
        """
        about = about or [self._about(row) for row in self.design.rivals]
        return [*self._instrument(), *self._best_rates(), *about, *self._what_next()]

    def _sensitivity(self, column: str) -> ControlGap:
        """Return the gap that tells whether a column can distinguish mechanisms."""
        assert self.design.control is not None
        rows = (self.design.control, self.design.baseline)
        control, baseline = (self.cell(row, column).compared(LOSS_OF_VALIDATION) for row in rows)
        return control_gap({} if self.unpaired(self.design.control, column) else control, baseline)

    def is_blind(self, column: str, measure: Quantity) -> bool:
        """Say whether the setting of a column is not sensitive, so that this quantity is not judged there."""
        return measure.judges_quality and column in self.sensitivity and self.sensitivity[column].sensitive is False

    def _judge(self, family: tuple[Quantity, ...]) -> list[JudgedDifference]:
        """Judge a family of differences. The control tests the setting, and is not among the tests."""
        measures = [measure for measure in family if self.is_tested(measure)]
        differences = []
        for rows in (self.design.rivals, [row for row in self.design.rows if row == self.design.control]):
            places = [(row, column, measure) for measure in measures for column in self.design.columns for row in rows]
            asked = {place: self._comparison(*place) for place in places}
            differences += [
                JudgedDifference(*place, verdict, self._margin(place[2]))
                for place, verdict in judge_family(asked).items()
            ]
        return [self._in_its_setting(difference) for difference in differences]

    def _in_its_setting(self, difference: JudgedDifference) -> JudgedDifference:
        """Withdraw the verdict on the control, and those of a setting that is not sensitive; else follow the plan."""
        verdict = replace(difference.verdict, outcome="undecided", further_seeds=None)
        if difference.row == self.design.control:
            verdict = replace(verdict, adjusted_p=None, reason="The control tests the setting.")
        elif self.is_blind(difference.column, difference.measure) and verdict.p is not None:
            verdict = replace(verdict, detectable=None, reason="The setting is not sensitive.")
        elif self.at_looks is not None and difference.row in self.at_looks.tests and verdict.difference is not None:
            verdict = self.at_looks.verdict(difference.row, 0.05)
            if difference.row not in self.at_looks.decisions:
                verdict = replace(verdict, detectable=None, further_seeds=None)
        else:
            return difference
        return replace(difference, verdict=verdict)

    def paired(self, row: str, column: str, measure: Quantity) -> tuple[float, ...]:
        """Return the differences (1), as they are compared; nothing for a row that cannot be paired."""
        of, against = (self.cell(name, column).compared(measure) for name in (row, self.design.baseline))
        has_pairs = of.keys() & against.keys() and not self.unpaired(row, column)
        return tuple(seed_differences(of, against).values()) if has_pairs else ()

    def _comparison(self, row: str, column: str, measure: Quantity) -> Comparison:
        numbers, obstacle = self.paired(row, column, measure), ""
        if not numbers:
            cell, unpaired = self.cell(row, column), self.unpaired(row, column)
            absent = "" if cell.compared(measure) else "Not measured." if cell.outcomes else "Not run."
            obstacle = absent or (f"{unpaired}." if unpaired else f"No seed in common with '{self.design.baseline}'.")
        elif not all(map(math.isfinite, numbers)):
            obstacle = "A run diverged, or a ratio has a value of 0."
        margin = self._margin(measure)
        return Comparison(
            row,
            numbers,
            margin=None if margin is None else abs(measure.as_compared(margin)),
            lower_is_better=lower_is_better(measure),
            group=(column, measure),
            obstacle=obstacle,
        )

    def _margin(self, measure: Quantity) -> float | None:
        """Return the margin of the study, which is one of its first quantity, in that quantity's unit."""
        return self.design.margin if measure == self.headlines[0] else None

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
            if (interval := difference.shown) is None:
                without.setdefault((difference.verdict.outcome, difference.words), []).append(column)
            else:
                numbers = f"{signed(interval, measure.unit)} ({interval.n} pair{'s' * (interval.n > 1)})"
                parts.append(VerdictPart(difference.verdict.outcome, self.place(column), difference.words, numbers))
        parts += [VerdictPart(kind, self._places(columns), words) for (kind, words), columns in without.items()]
        return VerdictLine(row, tuple(parts), self.more_parameters(row) + self.remark(row))

    def remark(self, row: str) -> str:
        """Return what else sets a row apart from the baseline, or does not."""
        return self._rates_apart(row) + self._devices_apart(row) + self._without_effect(row)

    def _what_next(self) -> list[VerdictLine]:
        """Say what would decide an open verdict. A study of stored runs or of costs alone has nothing to add."""
        if self.design.budget == "stored" or self.tested[0].is_cost:
            return []
        first, command = self.tested[0], self.design.command
        places = [(row, column, first) for row in self.design.rivals for column in self.design.columns]
        known = self.design.seeds if self.at_looks is None else ()  # a test after planned looks needs seeds of its own
        needed = [
            FEWEST if verdict.n == 1 else verdict.n + (verdict.further_seeds or 0)
            for verdict in (self.differences[place].verdict for place in places)
            if verdict.n == 1 or verdict.further_seeds
        ]
        n_seeds = max((n for n in needed if n <= MOST), default=0)
        n_further = n_seeds - len(known)
        steps = []
        if any(column.sensitive is False for column in self.sensitivity.values()):
            advice = "where the setting is not sensitive, run more seeds, train for more steps, or use a larger model"
            steps.append(VerdictPart("next", "", advice))
        if command and self.at_looks is not None and (n_left := len(list(self.at_looks.wanted()))):
            words = f"the same command goes on, with {n_left} run{'s' * (n_left > 1)} to do at most"
            steps.append(VerdictPart("next", "", words, command=command))
        elif n_further > 0 and command:
            further = with_seeds(command, self.design.seeds, n_seeds, self.at_looks is not None)
            words = f"{n_further} further seed{'s' * (n_further > 1)}"
            steps.append(VerdictPart("next", "", words, command=further))
        return [VerdictLine("What next", tuple(steps))] if steps else []

    def more_parameters(self, row: str) -> str:
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
            ours, theirs = (learning_rate(self.record, name, column) for name in (row, self.design.baseline))
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
        n_apart = sum(len(seeds_on_two_devices(*pair)) for pair in cells)
        return f"; {n_apart} of its pairs are of two devices" if n_apart else ""

    def _without_effect(self, row: str) -> str:
        """Return a remark for a row whose runs were, to the last digit, those of another row."""
        columns: dict[str, list[str]] = {}
        for column in self.design.columns:
            if other := row_of_equal_runs(self.record, row, column, self.tested[0]):
                columns.setdefault(other, []).append(column)
        return "".join(
            f"; its runs equal those of {other}{f' ({self._places(places)})' if any(places) else ''}, "
            "so what sets the two apart had no effect"
            for other, places in columns.items()
        )

    def n_parameters(self, row: str, column: str) -> int | None:
        counts = [outcome.summary.get("n_parameters") for outcome in self.cell(row, column).outcomes]
        return max((count for count in counts if count), default=None)


def lower_is_better(measure: Quantity) -> bool | None:
    """Return which side of a quantity is better as it is compared, where perplexities are losses; None for neither."""
    return True if measure.is_loss else None if measure.better is None else measure.better == "lower"


def parameters_apart(ours: int, theirs: int) -> str:
    """Return a remark on the difference in parameters, if it is above 1%, since parameters alone may explain a gain."""
    share = abs(ours / theirs - 1)
    if share <= 0.01:
        return ""
    return f", with {100 * share:.{0 if share >= 0.1 else 1}f}% {'more' if ours > theirs else 'fewer'} parameters"


def _counted(tokens: Sequence[int]) -> str:
    return " and ".join(map(with_prefix, tokens))
