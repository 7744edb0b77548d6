"""The tables of a judged study, with the same cells for markdown, LaTeX, the console and the page.

A study of several columns has a table of rows by columns for each quantity. A study of one column has a single table of
rows by quantities; a quantity with a value for each layer takes a column for each layer and one for their mean. A table
of differences follows each table of results. If each row has one difference only, the results show it, too.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from attractor.console import in_bytes, with_prefix
from attractor.report.judged_study import JudgedDifference, JudgedStudy, Spread
from attractor.report.legs import legs_of, verdict_of
from attractor.report.table import InConsole, in_markdown
from attractor.runs.quantity import CONTEXT_GAIN, Quantity
from attractor.runs.run_folder import DIVERGED
from attractor.runs.study_record import BUDGETS, Cell, Published
from attractor.verdict.intervals import decimals
from attractor.verdict.moderated import FEWEST_ROWS
from attractor.verdict.words import UNKNOWN, bounds, markdown_escaped, shown_p, signed, with_sign

ARROWS = {"lower": " ↓", "higher": " ↑", None: ""}
NOT_RUN = "not run"


@dataclass(frozen=True)
class TableCell:
    """One cell of a table. The table sorts by `value`."""

    text: str
    value: float | None = None
    kind: str = ""  # an outcome, which the page shows in a colour


Row = tuple[TableCell, ...]


@dataclass(frozen=True)
class StudyTable:
    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    footer: tuple[Row, ...] = ()
    caption: tuple[str, ...] = ()
    n_texts: int = 1  # number of leading columns that hold words


@dataclass(frozen=True)
class Column:
    heading: str
    entry: Callable[[str], TableCell]  # takes a row
    footer: tuple[TableCell, ...] = ()


def tables(judged: JudgedStudy) -> list[StudyTable]:
    """Return the results and the differences for each family of tests. A study of quality does not test costs."""
    made = legs(judged)
    for family in judged.families:
        made.append(results(judged, family))
        if any(map(judged.is_tested, family)) and (of_family := differences(judged, family)).rows:
            made.append(of_family)
    return made


def console_tables(judged: JudgedStudy) -> list[StudyTable]:
    """Return the tables for a console, without a table of differences if the results show these."""
    return [*legs(judged), results(judged, judged.families[0])] if judged.in_one_table else tables(judged)


def legs(judged: JudgedStudy) -> list[StudyTable]:
    """Return the verdict of a thorough comparison, with a line for each leg and row."""
    rows = [row for leg in legs_of(judged).values() for row in leg]
    if not rows:
        return []
    numbers = [(row.n, "" if row.rate is None else f"{row.rate:g}", row.result) for row in rows]
    entries = [
        (*map(TableCell, (row.leg, row.row, *map(str, of_row))), TableCell(row.outcome, kind=row.outcome))
        for row, of_row in zip(rows, numbers, strict=True)
    ]
    caption = (
        f"Loss: minus that of '{judged.design.baseline}', paired by seed, each size judged by itself, with 95% "
        "intervals that are not adjusted for the number of rows, and outcomes that are.",
        "Speedup: how many times faster a row reaches its loss than the baseline does, by the baseline's loss at half "
        "and at twice the steps, with intervals that cover all rows together.",
        "Loss at 2x and 4x the rate: minus the row's own loss at its rate, for the seeds that it has.",
    )
    headings = ("leg", judged.design.rows_name, "seeds", "rate", "result", "outcome")
    return [StudyTable("legs", "The verdict by leg and row", headings, tuple(entries), caption=caption, n_texts=2)]


def results(judged: JudgedStudy, family: tuple[Quantity, ...]) -> StudyTable:
    design = judged.design
    columns = [Column(design.rows_name, TableCell), Column("seeds", lambda row: TableCell(_seeds(judged, row)))]
    if len(_tokens(judged)) > 1:
        columns.append(Column("tokens", lambda row: _ranged(judged, row, "tokens")))
    columns.append(Column("params", lambda row: _ranged(judged, row, "n_parameters")))
    if len(design.columns) == 1:
        for measure in family:
            columns += _columns_of(judged, measure, design.columns[0])
        if judged.sensitivity and _has_gain(judged):
            columns.append(replace(_values(judged, CONTEXT_GAIN, design.columns[0]), heading="gain"))
    else:
        for name in design.columns:
            columns += _columns_of(judged, family[0], name)
    if skipped := {row: n for row in design.rows if (n := _skipped(judged, row))}:
        columns.append(Column("skipped steps", lambda row: TableCell(str(skipped.get(row, 0)), skipped.get(row, 0))))
    first = family[0]
    title = design.title
    if len(design.columns) > 1:
        title += f": {first.title}{ARROWS[first.better]} by {design.columns_name}"
    return StudyTable(
        name=_slug("results", judged, family),
        title=title,
        headings=tuple(column.heading for column in columns),
        rows=tuple(tuple(column.entry(row) for column in columns) for row in design.rows),
        footer=_footer(judged, columns) if _has_footer(judged, first) else (),
        caption=tuple(_caption(judged, family)),
    )


def differences(judged: JudgedStudy, family: tuple[Quantity, ...]) -> StudyTable:
    design = judged.design
    tested = [measure for measure in family if judged.is_tested(measure)]
    judged_differences = [
        judged.differences[row, column, measure]
        for measure in tested
        for column in design.columns
        for row in design.rows
        if row != design.baseline
    ]
    # What has no pair of runs would be a line of dashes. The results and the verdict say so already.
    judged_differences = [entry for entry in judged_differences if entry.verdict.n]
    several_columns, several_measures = len(design.columns) > 1, len(tested) > 1
    headings = [design.rows_name]
    headings += [design.columns_name] * several_columns + ["quantity"] * several_measures
    n_texts = len(headings)
    unit = f" ({tested[0].unit})" if tested[0].unit and not several_measures else ""
    adjusted = "p (looks)" if design.looks else "p (Holm)"
    headings += [f"difference{unit}", "95% interval", "pairs", "p", adjusted, "outcome", "detectable"]
    rows = []
    for difference in judged_differences:
        measure = difference.measure
        quantity = f"{measure.title}{f' ({measure.unit})' if measure.unit else ''}"
        words = [difference.row] + [difference.column] * several_columns + [quantity] * several_measures
        rows.append((*map(TableCell, words), *_difference(difference, is_control=difference.row == design.control)))
    n_tests = judged.n_tests(family)
    in_losses = f", in {judged.record.loss_unit} of validation loss where the quantity is a perplexity"
    how = (
        "Intervals are 95% t intervals, not adjusted for the number of tests; p is of Student's paired test, and the "
        f"outcome rests on p (Holm), adjusted over the {n_tests} test{'s' * (n_tests != 1)} of this table at 0.05."
    )
    if design.looks:
        how = (
            "95% intervals hold over all planned looks, not adjusted for the number of rows; p is of the last "
            "look alone, p (looks) counts all looks and rows, and the outcome is that of the planned test."
        )
    caption = [
        f"Each row minus '{design.baseline}', paired by seed{in_losses if any(m.is_loss for m in tested) else ''}.",
        how,
        "Detectable: the smallest true difference that so many pairs show in four of five such tables.",
    ]
    if len(design.rivals) >= FEWEST_ROWS and not design.looks:
        caption.append("Rows of one column help one another to know their spread (the moderated t test).")
    if judged.design.margin is None or judged.headlines[0] not in tested:
        caption.append("Without a margin, runs can never show that there is no difference.")
    if any(measure.as_ratio for measure in tested):
        caption.append("Factors (x) and per cent (%) are ratios to the baseline, and are tested as logarithms.")
    if design.control:
        caption.append(f"The control '{design.control}' tests the setting, and is not among the {n_tests}.")
    quantity = f": {tested[0].name}" if len(judged.headlines) > 1 and not several_measures else ""
    return StudyTable(
        name=_slug("differences", judged, family),
        title=f"Differences from '{design.baseline}'{quantity}",
        headings=tuple(headings),
        rows=tuple(rows),
        caption=tuple(caption),
        n_texts=n_texts,
    )


def markdown(judged: JudgedStudy) -> str:
    """Return the verdict and all tables with titles and captions."""
    design = judged.design
    verdict = "".join(f"- {markdown_escaped(line.text)}\n" for line in verdict_of(judged))
    parts = [
        f"# {markdown_escaped(design.title)}\n",
        f"{markdown_escaped(design.question)}\n",
        markdown_escaped(f"Each against '{design.baseline}', in {judged.judged_in}:") + "\n",
        verdict,
    ]
    for table in tables(judged):
        caption = (f"{markdown_escaped(line)}\n" for line in table.caption)
        parts += [f"## {markdown_escaped(table.title)}\n", table_in_markdown(table), *caption]
    return "\n".join(parts)


def table_in_markdown(table: StudyTable) -> str:
    rows = [[entry.text for entry in row] for row in (*table.rows, *table.footer)]
    return in_markdown(table.headings, rows, table.n_texts)


def console_table(table: StudyTable) -> InConsole:
    """Return a table for the console, without its caption."""
    rows = [[entry.text for entry in row] for row in (*table.rows, *table.footer)]
    return InConsole(table.headings, rows, table.n_texts)


def shown(value: float, mean: float, digits: int, path: str = "") -> str:
    """Write a mean or its deviation; bytes, large counts and very small means have formats of their own."""
    if path.endswith("bytes"):
        return in_bytes(int(value))
    if path.endswith("parameters"):
        return f"{value:,.0f}"  # exact, since parameters are counted
    if abs(mean) >= 1e5:
        return with_prefix(value)
    if 0 < abs(mean) < 1e-4:
        return f"{value:.1e}"
    return f"{value:,.{digits}f}"


def digits_of(spreads: Iterable[Spread]) -> int:
    """Return the decimals of a column: two digits of its median standard deviation."""
    spreads = list(spreads)
    sds = [spread.sd for spread in spreads if spread.sd and math.isfinite(spread.sd)]
    if sds:
        return min(decimals(median(sds)), 4)
    means = [abs(spread.mean) for spread in spreads if spread.mean is not None and math.isfinite(spread.mean)]
    largest = max(means, default=0.0)
    return next(digits for digits, end in ((3, 10), (2, 100), (1, 1000), (0, math.inf)) if largest < end)


def published(judged: JudgedStudy, row: str, column: str, measure: Quantity) -> Published | None:
    return next((figure for figure in _published_of(judged, column, measure) if figure.row == row), None)


def _published_of(judged: JudgedStudy, column: str, measure: Quantity) -> list[Published]:
    """Return a paper's figures for a quantity; for a quantity with layers they are means over layers."""
    if isinstance(measure.layer, int) and measure not in judged.headlines:
        return []
    first = judged.design.quantities[0].name
    return [
        figure
        for figure in judged.design.published
        if figure.column == column and (figure.quantity or first) == measure.name
    ]


def _columns_of(judged: JudgedStudy, measure: Quantity, column: str) -> list[Column]:
    """Return the table columns of one quantity in one column of the design: values, layers, ratio, published figure."""
    alone = len(judged.design.columns) == 1
    heading = f"{measure.title}{ARROWS[measure.better]}" if alone else judged.place(column)
    footer = (_gap(judged, column), _gain_of_baseline(judged, column)) if measure == judged.headlines[0] else ()
    columns = [replace(_values(judged, measure, column), heading=heading, footer=footer)]
    if judged.in_one_table and judged.is_tested(measure):
        unit = f" ({measure.unit})" if measure.unit else ""
        columns.append(Column(f"difference{unit}", lambda row: _in_results(judged, row, column, measure)))
    if alone:
        columns += [_values(judged, layer, column) for layer in judged.layers(measure)]
    if (reference := measure.relative_to) is not None:
        name = f"× {reference}" if alone else f"{heading}, × {reference}"  # noqa: RUF001
        columns.append(Column(name, lambda row: _ratio(judged, measure, row, reference, column)))
    if _published_of(judged, column, measure):
        columns.append(
            Column("published", lambda row: _as_published(published(judged, row, column, measure), measure.path))
        )
    return columns


def _values(judged: JudgedStudy, measure: Quantity, column: str) -> Column:
    digits = digits_of(judged.spread(row, column, measure) for row in judged.design.rows)

    def entry(row: str) -> TableCell:
        difference = judged.differences.get((row, column, measure))
        is_shown = difference is not None and difference.is_shown
        return _value(judged, row, column, measure, digits, "*" if is_shown else "")

    return Column(measure.title if measure in judged.headlines else f"layer {measure.layer}", entry)


def _value(judged: JudgedStudy, row: str, column: str, measure: Quantity, digits: int, mark: str = "") -> TableCell:
    n_finished = len(judged.cell(row, column).outcomes)
    if not n_finished:
        return TableCell(NOT_RUN)
    spread = judged.spread(row, column, measure)
    if spread.mean is None:
        return TableCell(UNKNOWN)
    if not math.isfinite(spread.mean):
        lost = sum(not math.isfinite(value) for value in spread.by_seed.values())
        return TableCell(f"diverged ({lost} of {spread.n})")
    path = measure.path
    text = shown(spread.mean, spread.mean, digits, path)
    if not judged.is_tested(measure):
        return TableCell(text, spread.mean)
    if spread.sd is not None:
        text += f" ± {shown(spread.sd, spread.mean, digits, path)}"
    n_expected = n_finished if len(judged.design.columns) == 1 else len(judged.design.seeds)  # as the seeds column says
    return TableCell(text + mark + (f" (n={spread.n})" if spread.n != n_expected else ""), spread.mean)


def _ratio(judged: JudgedStudy, measure: Quantity, row: str, reference: str, column: str) -> TableCell:
    ours, theirs = (judged.spread(name, column, measure).mean for name in (row, reference))
    if ours is None or not theirs or not math.isfinite(ours / theirs):
        return TableCell(UNKNOWN)
    return TableCell(f"{ours / theirs:.3f}", ours / theirs)


def _as_published(figure: Published | None, path: str) -> TableCell:
    """Write a published figure with all digits that the paper prints; papers print memory in MB."""
    if figure is None:
        return TableCell(UNKNOWN)
    size, unit = (1e6, " MB") if path.endswith("bytes") else (1, "")
    text = f"{figure.mean / size:,.10g}" + ("" if figure.sd is None else f" ± {figure.sd / size:,.10g}") + unit
    return TableCell(text + ("" if figure.n is None else f" (n={figure.n})"), figure.mean)


def _in_results(judged: JudgedStudy, row: str, column: str, measure: Quantity) -> TableCell:
    """Return the difference from the baseline with its interval."""
    if row == judged.design.baseline:
        return TableCell("baseline")
    difference = judged.differences[row, column, measure]
    if (interval := difference.shown) is None:
        return TableCell(UNKNOWN)
    return TableCell(signed(interval, measure.unit, named=False), interval.mean, kind=difference.verdict.outcome)


def _has_footer(judged: JudgedStudy, first: Quantity) -> bool:
    """Say whether a footer shows the control's gap; in one table, the control's row shows it."""
    return bool(judged.sensitivity) and first == judged.headlines[0] and not judged.in_one_table


def _has_gain(judged: JudgedStudy) -> bool:
    return any(
        outcome.summary.get("context_gain") is not None for cell in judged.record.cells for outcome in cell.outcomes
    )


def _skipped(judged: JudgedStudy, row: str) -> int:
    outcomes = (outcome for column in judged.design.columns for outcome in judged.cell(row, column).outcomes)
    return sum(outcome.summary.get("skipped_steps") or 0 for outcome in outcomes)


def _gap(judged: JudgedStudy, column: str) -> TableCell:
    gap = judged.sensitivity[column].interval if column in judged.sensitivity else None
    if gap is None or not math.isfinite(gap.mean):
        return TableCell(UNKNOWN)
    return TableCell(signed(gap), gap.mean)


def _gain_of_baseline(judged: JudgedStudy, column: str) -> TableCell:
    of_baseline = judged.spread(judged.design.baseline, column, CONTEXT_GAIN)
    gain = of_baseline.mean if column in judged.sensitivity else None
    return TableCell(UNKNOWN) if gain is None or not math.isfinite(gain) else TableCell(f"{gain:.3f}", gain)


def _footer(judged: JudgedStudy, columns: Sequence[Column]) -> tuple[Row, ...]:
    names = (f"control gap ({judged.record.loss_unit})", "context gain (nats)")
    return tuple(
        (TableCell(name), *(column.footer[number] if column.footer else TableCell("") for column in columns[1:]))
        for number, name in enumerate(names)
    )


def _difference(difference: JudgedDifference, is_control: bool) -> Row:
    verdict, interval, unit = difference.verdict, difference.shown, difference.measure.unit
    word = "control" if is_control else verdict.outcome
    outcome, n_pairs, unknown = TableCell(word, kind=word), TableCell(str(verdict.n), verdict.n), TableCell(UNKNOWN)
    if interval is None:
        return unknown, unknown, n_pairs, unknown, unknown, outcome, unknown
    return (
        TableCell(with_sign(interval.mean, interval, unit), interval.mean),
        TableCell(bounds(interval, unit) or UNKNOWN, interval.half_width),
        n_pairs,
        TableCell(shown_p(verdict.p) or UNKNOWN, verdict.p),
        TableCell(shown_p(verdict.adjusted_p) or UNKNOWN, verdict.adjusted_p),
        outcome,
        TableCell(difference.smallest or UNKNOWN, verdict.detectable),
    )


def _seeds(judged: JudgedStudy, row: str) -> str:
    counts = sorted({len(judged.cell(row, column).outcomes) for column in judged.design.columns})
    missing = any(judged.cell(row, column).missing for column in judged.design.columns)
    counted = "–".join(map(str, (counts[0], counts[-1])[: len(counts)]))  # noqa: RUF001
    return f"{counted} of {len(judged.design.seeds)}" if missing else counted


def _ranged(judged: JudgedStudy, row: str, field: str) -> TableCell:
    values = [o.summary.get(field) for column in judged.design.columns for o in judged.cell(row, column).outcomes]
    known = [value for value in values if value is not None]
    if not known:
        return TableCell(UNKNOWN)
    ends = dict.fromkeys(map(with_prefix, (min(known), max(known))))
    return TableCell("–".join(ends), max(known))  # noqa: RUF001


def _tokens(judged: JudgedStudy) -> set[int]:
    ended = [o.summary for cell in judged.record.cells for o in cell.outcomes if DIVERGED not in o.summary]
    return {summary["tokens"] for summary in ended if summary.get("tokens")}


def _caption(judged: JudgedStudy, family: tuple[Quantity, ...]) -> Iterable[str]:
    design, cells = judged.design, judged.record.cells
    n_seeds = len(design.seeds)
    single = n_seeds == 1
    spread = f"Mean ± standard deviation over {n_seeds} seeds."
    if design.looks:
        spread = (
            f"Mean ± standard deviation over the seeds of each row, which ends when it is decided, {n_seeds} at most."
        )
    yield ("One seed: no spread, no interval, no test." if single else spread) + _budget(judged)
    if design.looks:
        margin = "" if design.margin is None else f" Margin: {design.margin:g}."
        yield (
            f"* differs from '{design.baseline}', paired by seed, at a look that was planned before the first run "
            f"({', '.join(map(str, design.looks))} pairs). A false verdict has a chance of at most 5% "
            f"over all rows and looks.{margin}"
        )
    elif not single and design.rivals:
        yield f"* differs from '{design.baseline}' (paired by seed, p < 0.05 after Holm over the table)."
    if judged.in_one_table and design.rows != (design.baseline,):
        of_what = "interval, which holds over all looks" if design.looks else "t interval"
        yield (
            f"Difference: from '{design.baseline}', paired by seed, with its 95% {of_what}, "
            "not adjusted for the number of tests"
            + (f", in {judged.record.loss_unit} of validation loss." if family[0].is_loss else ".")
        )
    earlier = [words for cell in cells if (words := _best_before_the_end(judged, cell))]
    if family[0] == judged.headlines[0] and earlier:
        yield f"Numbers are of the last step. Validation was better before it: {', '.join(earlier)}."
    costs = [measure.title for measure in family if not judged.is_tested(measure)]
    if costs:
        yield f"Costs are means over seeds, shown and not tested: params, {', '.join(costs)}."
    if costs and any(outcome.summary.get("stacked") for outcome in judged.record.outcomes):
        yield "Seeds were trained together in one process: speed and memory are shares of it, and rank no mechanisms."
    if _has_footer(judged, family[0]):
        yield (
            f"Control gap: validation loss of the control '{design.control}' minus that of '{design.baseline}', paired "
            "by seed, with its 95% t interval."
        )
    if judged.sensitivity and family[0] == judged.headlines[0] and _has_gain(judged):
        of_baseline = f", of '{design.baseline}'" if len(design.columns) > 1 else ""
        yield f"Context gain: the loss at the first 16 positions minus that in the second half, in nats{of_baseline}."
    if any(measure.judges_quality for measure in family):
        gaps = judged.sensitivity.items()
        blind = [judged.place(column) for column, gap in gaps if gap.sensitive is False]
        if blind:
            where = f" in {', '.join(blind)}" if any(blind) else ""
            yield f"Not sensitive{where}: differences of quality are not judged there."
    if any(_published_of(judged, column, measure) for column in design.columns for measure in family):
        yield f"Published: as printed in {design.source}; never part of our means or tests."
    for cell in cells if not design.looks else ():
        if cell.missing and cell.outcomes:
            seeds = f"seed{'s' if len(cell.missing) > 1 else ''} {', '.join(map(str, cell.missing))}"
            yield f"Missing: {_name(judged, cell)} has no finished run of {seeds}."
    absent = [_name(judged, cell) for cell in cells if not cell.outcomes]
    if absent:
        yield f"Not run: {', '.join(absent)}."


def _best_before_the_end(judged: JudgedStudy, cell: Cell) -> str | None:
    """Say of how many runs of a cell an earlier step had the lowest validation loss, and which steps."""
    runs = [run for outcome in cell.outcomes if "best_step" in (run := outcome.summary) and "steps" in run]
    runs = [run for run in runs if run["best_step"] is not None and run["best_step"] < run["steps"]]
    if not runs:
        return None
    steps = "–".join(dict.fromkeys(f"{end(run['best_step'] for run in runs):,}" for end in (min, max)))  # noqa: RUF001
    best, last = mean(run["best_loss"] for run in runs), max(run["steps"] for run in runs)
    count = f"{len(runs)} of {len(cell.outcomes)} run{'s' * (len(cell.outcomes) > 1)}"
    return f"{_name(judged, cell)} ({count}: loss {best:.3f} at step {steps} of {last:,})"


def _budget(judged: JudgedStudy) -> str:
    budget, tokens = judged.design.budget, _tokens(judged)
    amount = f" ({with_prefix(tokens.pop())})" if len(tokens) == 1 and budget == "tokens" else ""
    return f" Budget: {BUDGETS[budget]}{amount}."


def _name(judged: JudgedStudy, cell: Cell) -> str:
    return f"'{cell.row}'" + (f" in {judged.place(cell.column)}" if cell.column else "")


def _slug(what: str, judged: JudgedStudy, family: tuple[Quantity, ...]) -> str:
    number = judged.families.index(family)
    return what if number == 0 else f"{what}-{number + 1}"
