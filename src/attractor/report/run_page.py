"""One run as one HTML file: what it is, how it ended, its curves, evaluations, samples and configuration.

The page is made from the run's folder alone, finished or not. It needs no script, no network and no second file, and
it names data and other runs without the folders that they lie in.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path, PureWindowsPath
from typing import Any

from markupsafe import Markup

from attractor.console import in_bytes, in_time
from attractor.errors import InputError
from attractor.files import write_text
from attractor.report.canvas import GREY, INK, PALETTE, as_svg, blank, framed
from attractor.report.charts import TITLES, is_wide
from attractor.report.page import fill, show, verbatim
from attractor.runs.configuration import dotted_fields
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import stored_loss_unit

Record = Mapping[str, Any]
Lines = dict[str, list[tuple[int, float]]]  # steps and values, by label
MARKS = {"loss_spikes": ("loss spike", "v"), "skipped_steps": ("skipped step", "x")}  # counted in every logged line
MARKED = ("loss", "grad_norm")  # the charts that show where spikes and skipped steps were
FROM_ZERO = ("lr", "tokens_per_second")
ABOVE = ("step", "steps", "tokens", "n_parameters", "threads", *MARKS)  # numbers that stand elsewhere on the page
MOST_MARKERS, MOST_NAMED = 40, 20  # points that are drawn singly; steps that are listed
MOST_KEPT = 4_000  # records of a kind, since a page of millions could neither be made nor looked at


class Thinned:
    """Numbered records, thinned while they are read: of a long run every 2nd, 4th, 8th, ... is kept, and the last."""

    def __init__(self) -> None:
        self.n, self.every = 0, 1
        self._kept: list[tuple[int, Record]] = []
        self._last: tuple[int, Record] | None = None

    def add(self, number: int, record: Record) -> None:
        self._last = number, record
        if self.n % self.every == 0:
            self._kept.append(self._last)
        self.n += 1
        if len(self._kept) > MOST_KEPT:
            self.every, self._kept = 2 * self.every, self._kept[::2]

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        yield from self._kept
        if self._last is not None and self._last is not self._kept[-1]:
            yield self._last


def write_run_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page of the run in `folder` into `out`, by default the run's own folder, and return its path."""
    try:
        text = render(RunFolder.open(folder))
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:  # a damaged file may hold any JSON
        raise InputError(
            f"'{folder}' must hold what a run writes, and its page cannot be drawn ({type(error).__name__}: {error}); "
            "restore its files from a copy"
        ) from error
    page = (out or folder) / "report.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, text)
    return page


def render(run: RunFolder, **live: Any) -> str:
    """Return the page as text: the same bytes for the same run, wherever its folder lies.

    A live page has the script, the policy and the style in `live`, and a link to the list of all runs.
    """
    records, evaluated, summary = Thinned(), Thinned(), run.summary() or {}
    marks: dict[str, list[int]] = {name: [] for name in MARKS}
    latest, logged = dict.fromkeys(MARKS, 0), dict[str, Any]()
    for number, record in enumerate(run.records()):
        (evaluated if "valid_loss" in record else records).add(number, record)
        logged = record if "loss" in record else logged
        for name in MARKS:  # every skipped step and every spike is logged at its own step
            if record.get(name, latest[name]) > latest[name]:
                marks[name].append(record["step"])
            latest[name] = record.get(name, latest[name])
    # A step that was evaluated twice keeps its later evaluation.
    evaluations = list({record["step"]: record for _, record in evaluated}.values())
    evaluation: Record = evaluations[-1] if evaluations else {}
    drawn = [record for _, record in sorted((*records, *evaluated), key=itemgetter(0))]
    config: dict[str, Any] = {}
    data = summary.get("data", "")
    for name, value in dotted_fields(run.config).items():
        may_be_a_path = isinstance(value, str) and name != "label"
        config[name] = _without_folders(value) if may_be_a_path else value
        data = data if config[name] == value else data.replace(value, config[name])
    thinned = (("drawn", records), ("of evaluations", evaluated))
    charts = _lines_by_chart(drawn, evaluations, summary)
    return fill(
        "run_page.html.j2",
        label=show(run.config.get("label", "run")),
        data=data,
        facts=_facts(run, config, drawn, summary, run.state if live else "unfinished")
        | {f"lines {what}": f"every {lines.every:,}th of {lines.n:,}" for what, lines in thinned if lines.every > 1},
        numbers=_numbers({**evaluation, **logged, **summary.get("measures", {}), **summary}, marks),
        charts=[_chart(name, lines, marks if name in MARKED else {}) for name, lines in charts.items() if lines],
        headings=list(dict.fromkeys(name for record in evaluations for name in record)),
        evaluations=[{name: _in_digits(value) for name, value in record.items()} for record in evaluations],
        # A model may sample control characters, which no page may hold.
        samples=[
            sample | {"text": re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "\ufffd", sample["text"])} for sample in run.samples
        ],
        config={name: show(value) for name, value in config.items()},
        environment={name: show(value) for name, value in dotted_fields(run.environment).items()},
        **{"style": verbatim("page.css", "study_page.css")} | live,
    )


def _without_folders(paths: str) -> str:
    """Return the name of a file, or the names of a list with commas."""
    return ",".join(PureWindowsPath(path).name or path for path in paths.split(","))


def _facts(
    run: RunFolder, config: Record, records: Sequence[Record], summary: Record, unfinished: str
) -> dict[str, str]:
    step, tokens = max(((record["step"], record["tokens"]) for record in records), default=(0, 0))
    step, tokens = summary.get("steps", step), summary.get("tokens", tokens)
    environment = {name: _one_or_several(value) for name, value in run.environment.items()}
    changed = ", with changes" if "True" in environment.get("dirty", "") else ""
    task = [value for name, value in config.items() if name.startswith("task.") and isinstance(value, str)]
    processor = [environment[name] for name in ("processor", "platform") if name in environment]
    facts = {
        "state": run.state if run.finished else f"{unfinished}, last logged at step {step:,}",
        "task": " · ".join(dict.fromkeys(task)),
        "parameters": _in_digits(summary.get("n_parameters", "")),
        "steps": f"{step:,} of {_in_digits(config.get('n_steps', '?'))}",
        "tokens": _in_digits(tokens),
        "losses in": stored_loss_unit(summary, run.config) if summary else "",
        "seed": _in_digits(config.get("seed", "")),
        "date": environment.get("time", "")[:10],
        "machine": " · ".join([*environment.get("gpus", []), *processor]),
        "device": f"{summary['device']}, threads: {summary['threads']}" if "threads" in summary else "",
        "commit": environment.get("commit", "")[:12] + changed,
    }
    return {name: value for name, value in facts.items() if value}


def _one_or_several(value: Any) -> str:
    """Return a fact of the environment as text. A run from a record has a list: the values of all its runs."""
    values = value if isinstance(value, list) else [value]
    return ", ".join(str(entry) for entry in values if entry is not None)


def _numbers(last: Record, marks: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Name the last numbers of the run with their units, and the steps that were spikes or were skipped."""
    scalar = {name: value for name, value in last.items() if isinstance(value, int | float | None)}
    numbers = {_title(name): _with_unit(name, value) for name, value in scalar.items() if name not in ABOVE}
    for name, steps in marks.items():
        listed = ", ".join(map(_in_digits, steps[:MOST_NAMED])) + (", ..." if len(steps) > MOST_NAMED else "")
        numbers[_title(name)] = f"{len(steps)}" + (f", at {listed}" if steps else "")
    return numbers


def _lines_by_chart(records: Sequence[Record], evaluations: Sequence[Record], summary: Record) -> dict[str, Lines]:
    """Collect the lines of each chart. Evaluated numbers of one kind share a chart, with the training loss."""
    names = dict.fromkeys(name for record in records for name in record if name not in ("step", "tokens", *MARKS))
    evaluated = {name for record in evaluations for name in record} | {"loss"}
    charts: dict[str, Lines] = {}
    for name in sorted(names, key=lambda name: name not in evaluated):
        lines = _lines(records, name)
        if name in evaluated:
            charts.setdefault(_kind(name), {}).update({_words(name): points for points in lines.values()})
        else:
            charts[name] = lines
    for name, looks in summary.get("trajectories", {}).items():  # of a run whose metrics are not at hand
        charts.setdefault(name, {"": [(step, value) for step, value in looks]})
    return charts


def _lines(records: Sequence[Record], name: str) -> Lines:
    """Follow a number over the steps: a list entry by entry, and of the heads of a layer the largest.

    The file holds null for a value that was not finite; such a point is left out.
    """
    lines: Lines = {}
    for record in records:
        value = record.get(name)
        entries = {"": value}
        if isinstance(value, list) and value:
            entry = "round" if name == "residual" else "layer" if isinstance(value[0], list) else "call"
            entries = {f"{entry} {i}": part for i, part in enumerate(value)}
        for label, part in entries.items():
            numbers = [number for number in (part if isinstance(part, list) else [part]) if number is not None]
            if numbers:
                number = numbers[-1] if name == "residual" else max(numbers)
                lines.setdefault(label, []).append((record["step"], number))
    return lines


def _chart(name: str, lines: Lines, marks: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Draw the lines, and return the drawing with its title and the value at which each line ends.

    Of many lines the one that ends highest and the one that ends lowest are coloured and named. Lines of a single point
    are no drawing, but their values.
    """
    title, unit = TITLES.get(name, (_words(name).capitalize(), ""))
    by_height = sorted(lines, key=lambda label: lines[label][-1][1])
    named = list(lines) if len(lines) <= len(PALETTE) else [by_height[-1], by_height[0]]
    ends = ", ".join(f"{label if len(lines) > 1 else ''} {_in_digits(lines[label][-1][1])}".strip() for label in named)
    if all(len(points) == 1 for points in lines.values()):
        return {"title": title, "ends": f"{ends} {unit}".strip(), "svg": ""}
    figure = blank(4.0, 2.6)
    axes = framed(figure.add_subplot())
    for label in sorted(lines, key=lambda label: label in named):
        look: dict[str, Any] = {"color": GREY}
        if label in named:
            look = {"color": PALETTE[named.index(label)], "label": label}
        marker = "o" if len(lines[label]) <= MOST_MARKERS else None
        axes.plot(*zip(*lines[label], strict=True), linewidth=1.2, marker=marker, markersize=3, **look)
    for mark, steps in marks.items():
        if steps:  # at the foot of the chart, whatever its scale
            label, marker = MARKS[mark]
            look = {"color": INK, "linestyle": "none", "marker": marker, "markersize": 5, "label": label}
            axes.plot(steps, [0.03] * len(steps), transform=axes.get_xaxis_transform(), **look)
    values = [value for points in lines.values() for _, value in points]
    if name in FROM_ZERO:
        axes.set_ylim(bottom=0)
    elif is_wide(min(values), max(values)):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    axes.set(xlabel="steps", ylabel=unit, xlim=(0, None))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=4, integer=True)
    _, labels = axes.get_legend_handles_labels()
    if len(labels) > 1 or any(marks.values()):
        columns = 3 if max(map(len, labels)) < 15 else 2
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK, fontsize=9)
    drawing = as_svg(figure, re.sub(r"\W", "-", f"chart-{name}"), f"{title} by step")  # ids hold no quotation marks
    return {"title": title, "ends": ends, "svg": Markup(drawing)}


def _title(name: str) -> str:
    return TITLES[name][0].lower() if name in TITLES and name != "loss" else _words(name)


def _with_unit(name: str, value: Any) -> str:
    if value is None:
        return _in_digits(value)
    if name.endswith(("_bytes", "_seconds")):
        return in_bytes(value) if name.endswith("_bytes") else in_time(value)
    return f"{_in_digits(value)} {TITLES.get(_kind(name), ('', ''))[1]}".strip()


def _kind(name: str) -> str:
    """Return what a number is, whatever it was measured on: `ood_cell_accuracy` is an accuracy."""
    return name if name in TITLES else name.rpartition("_")[2]


def _words(name: str) -> str:
    if name == "loss":
        return "training loss"
    return name.removesuffix("_bytes").replace("_seconds", " time").replace("valid_", "validation ").replace("_", " ")


def _in_digits(value: Any) -> str:
    """Write a value for a reader. A file holds null for what was not finite and for what does not apply."""
    if isinstance(value, str | None):
        return "–" if value is None else value  # noqa: RUF001  (an en dash is the sign for "none")
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"
