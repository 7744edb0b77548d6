"""The comparison as one HTML file that needs nothing else: no script, no network, no second file."""

import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from attractor.evidence.configuration import config_differences, dotted_fields
from attractor.files import write_text
from attractor.report.comparison import Comparison
from attractor.report.figure import differences, loss_curves
from attractor.report.table import UNKNOWN, caption, cells

ROOM = Path(__file__).parent


def write_page(comparison: Comparison, path: str | Path, command: str) -> None:
    """Write the report to `path`; `command` is what a reader types to have the same numbers."""
    write_text(Path(path), render(comparison, command))


def render(comparison: Comparison, command: str) -> str:
    headings, rows = cells(comparison)
    instrument, *judgements = comparison.verdict()
    return fill(
        "page.html.j2",
        style=verbatim("page.css"),
        comparison=comparison,
        instrument=instrument,
        judgements=[(comparison.outcome(row), line) for row, line in zip(comparison.rivals, judgements, strict=True)],
        headings=headings,
        rows=rows,
        caption=caption(comparison),
        loss_curves=loss_curves(comparison),
        differences=differences(comparison),
        command=command,
        **_configurations(comparison),
        machines=_machines(comparison),
    )


def fill(template: str, **values: Any) -> str:
    """A template of this room with its values, which are escaped unless they are markup."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string((ROOM / template).read_text(encoding="utf-8")).render(**values)


def verbatim(*names: str) -> Markup:
    """Files of this room as they are: styles and scripts, which nobody else writes."""
    return Markup("\n".join((ROOM / name).read_text(encoding="utf-8") for name in names))


def _configurations(comparison: Comparison) -> dict[str, Any]:
    """What differs between labels, field by field, and what they share. Seeds are no part of the question."""
    configs = {row.label: row.runs[0].config for row in comparison.rows if row.runs}
    flat = {label: dotted_fields(config) for label, config in configs.items()}
    asked = {
        label: {name: value for name, value in fields.items() if is_setting(name)} for label, fields in flat.items()
    }
    different = config_differences(asked)
    first = next(iter(asked.values()))
    return {
        "labels": list(asked),
        "different": {
            name: [show(by_label[label]) if label in by_label else UNKNOWN for label in asked]
            for name, by_label in different.items()
        },
        "shared": {name: show(value) for name, value in first.items() if name not in different},
    }


def is_setting(name: str) -> bool:
    return name != "label" and not name.endswith("seed")


def _machines(comparison: Comparison) -> dict[str, str]:
    """The environments of all runs in one: each field with every value it had, times from the first to the last."""
    seen: dict[str, set[str]] = {}
    for row in comparison.rows:
        for run in row.runs:
            for name, value in dotted_fields(run.environment).items():
                if value is not None:
                    seen.setdefault(name, set()).add(show(value))
    times = sorted(seen.pop("time", ()))
    span = {"time": " to ".join(dict.fromkeys((times[0], times[-1])))} if times else {}
    return {name: ", ".join(sorted(values)) for name, values in seen.items()} | span


def show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
