"""Write a study as one self-contained HTML file: verdict, tables, figures, configuration and raw numbers.

The page is complete without its script, which only adds zoom to the drawings. The policy in its head forbids every
request and every other script.
"""

import base64
import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from attractor.claims.further_seeds import in_ranges
from attractor.claims.verdicts import corpus_of
from attractor.console import with_prefix
from attractor.files import plain
from attractor.report.attention_maps import Heatmaps, heatmaps, rival_of
from attractor.report.canvas import INK, styles
from attractor.report.charts import Chart, charts
from attractor.report.judged_study import JudgedStudy
from attractor.report.legs import verdict_of
from attractor.report.page import fill, policy, show, verbatim
from attractor.report.study_figure import Picture
from attractor.report.study_table import tables
from attractor.runs.configuration import Presets, config_differences, dotted_fields, named
from attractor.runs.quantity import MEAN
from attractor.runs.study_record import BUDGETS
from attractor.verdict.words import UNKNOWN

Place = tuple[str, str]  # a row and a column
NOT_COMPARED = ("label", "seed", "data", "start_weights")  # fields of a run that are no settings of the study


def render(judged: JudgedStudy, pictures: Sequence[Picture], presets: Presets | None = None) -> str:
    design, record = judged.design, judged.record
    script = verbatim("study_page.js")
    verdict = verdict_of(judged)
    maps = heatmaps(judged)
    different, shared = _configuration(judged, presets or {})
    numbered = list(enumerate(pictures, 1))
    figures = [
        (folded, _measured_once(judged, folded), [entry for entry in numbered if entry[1].folded == folded])
        for folded in (False, True)
    ]
    source = re.sub("^no table[^:]*:? ?", "", design.source)
    return fill(
        "study_page.html.j2",
        policy=policy(script, "img-src data:"),
        style=verbatim("page.css", "study_page.css"),
        script=script,
        design=design,
        kicker=" · ".join(filter(None, (source, f"study {design.name}", f"scale {design.scale}"))),
        facts=_facts(judged),
        verdict=verdict,
        rivals=[line for line in verdict if line.subject],
        judged_in=judged.judged_in,
        tables=tables(judged),
        figures=[group for group in figures if any(group[1:])],
        different=different,
        shared=shared,
        environments=record.environments,
        csv=_as_address("text/csv", _values(judged)),
        record=_as_address("application/json", record.to_text()),
        has_maps=bool(maps),
        data=_embedded(_data(judged, maps)),
    )


def _facts(judged: JudgedStudy) -> dict[str, str]:
    """Return the facts to read before the verdict: data, size, length and date of the runs."""
    design, record = judged.design, judged.record
    n_runs = len(design.rows) * len(design.columns) * len(design.seeds)
    configs = [cell.config for cell in record.cells]
    is_text = any((config.get("task") or {}).get("corpus") for config in configs)
    facts = {
        "corpus" if is_text else "task": corpus_of(record),
        "model": ", ".join(filter(None, (_range(_summaries(judged, "n_parameters"), "parameters"), _shape(configs)))),
        "training": ", ".join(
            filter(None, (_range(_summaries(judged, field), field) for field in ("steps", "tokens")))
        ),
        "runs": f"{record.finished} of {n_runs} finished",
        "seeds": ", ".join(in_ranges(design.seeds)),
        "baseline": design.baseline,
        "control": design.control or "",
        "budget": BUDGETS[design.budget],
        "claims": ", ".join(design.claims),
        "date": " to ".join(dict.fromkeys(time[:10] for time in record.environments.get("time", ()))),
    }
    return {name: value for name, value in facts.items() if value}


def _measured_once(judged: JudgedStudy, folded: bool) -> dict[str, str]:
    """Return what would be panels of single points as numbers: the means of the rows, by title and place."""
    named = {}
    for chart in charts(judged):
        for column, curves in chart.numbers.items() if chart.folded == folded and not chart.of_layers else ():
            places = " or ".join(dict.fromkeys(with_prefix(curve[0][0]) for curve in curves.values()))
            title = ", ".join(filter(None, (chart.title, column)))
            means = [f"{row} {curve[0][1]:.4g}" for row, curve in curves.items()]
            named[f"{title} at {places} {chart.x_label}"] = ", ".join(means)
    return named


def _summaries(judged: JudgedStudy, field: str) -> list[int]:
    return [o.summary[field] for cell in judged.record.cells for o in cell.outcomes if o.summary.get(field)]


def _range(counts: Sequence[int], noun: str) -> str:
    """Return `819k tokens`, or `111k to 135k parameters` where runs differ."""
    ends = dict.fromkeys(map(with_prefix, (min(counts), max(counts)))) if counts else {}
    return f"{' to '.join(ends)} {noun}" if ends else ""


def _shape(configs: Sequence[Mapping[str, Any]]) -> str:
    """Return the depth and the width of the models, with every value that occurs."""
    sizes = []
    for field, noun in (("n_layers", "layer"), ("n_slow", "slow block"), ("n_iterations", "iteration")):
        counts = _values_of(configs, field)
        if counts:
            sizes.append(f"{' or '.join(counts)} {noun}{'' if counts == ['1'] else 's'}")
    widths = _values_of(configs, "d_model")
    return ", ".join([*sizes, *([f"width {' or '.join(widths)}"] if widths else [])])


def _values_of(configs: Sequence[Mapping[str, Any]], field: str) -> list[str]:
    values = {value for config in configs if (value := (config.get("model") or {}).get(field)) is not None}
    return list(map(str, sorted(values)))


def _configuration(judged: JudgedStudy, presets: Presets) -> tuple[dict[str, list[tuple[str, str]]], dict[str, str]]:
    """Return the fields in which cells differ, each value with the cells that have it, and the fields that all share.

    A mechanism is compared as one value: the name of its preset, with the fields that were changed.
    """
    fields = {
        (cell.row, judged.place(cell.column)): {
            name: show(value)
            for name, value in dotted_fields(named(cell.config, presets)).items()
            if name not in NOT_COMPARED and not name.endswith("seed")
        }
        for cell in judged.record.cells
        if cell.config
    }
    different = config_differences({" · ".join(place): of_cell for place, of_cell in fields.items()})
    first = next(iter(fields.values()), {})
    return (
        {name: _places({place: of_cell.get(name, UNKNOWN) for place, of_cell in fields.items()}) for name in different},
        {name: value for name, value in first.items() if name not in different},
    )


def _places(values: Mapping[Place, str]) -> list[tuple[str, str]]:
    """Return the values of a field, each with the cells that have it: rows or columns where these alone decide."""
    for axis in (0, 1):
        by_label: dict[str, set[str]] = {}
        for place, value in values.items():
            by_label.setdefault(place[axis], set()).add(value)
        if all(len(of_label) == 1 for of_label in by_label.values()):
            return _grouped({label: of_label.pop() for label, of_label in by_label.items()})
    return _grouped({" · ".join(filter(None, place)): value for place, value in values.items()})


def _grouped(values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each value with the labels that have it; the value of most stands last, with all other labels."""
    labels: dict[str, list[str]] = {}
    for label, value in values.items():
        labels.setdefault(value, []).append(label)
    commonest = max(labels, key=lambda value: len(labels[value]))
    if len(labels[commonest]) > max(3, len(values) / 2):
        del labels[commonest]
        return [*((value, ", ".join(of_value)) for value, of_value in labels.items()), (commonest, "all others")]
    return [(value, ", ".join(of_value)) for value, of_value in labels.items()]


def _values(judged: JudgedStudy) -> str:
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["row", "column", "seed", "run", "quantity", "value"])
    for cell in judged.record.cells:
        for outcome in cell.outcomes:
            for headline in judged.headlines:
                value = headline.value(outcome) if headline.layer == MEAN else headline.number(outcome)
                values = value if isinstance(value, list | tuple) else [value]
                for layer, number in enumerate(values):
                    name = headline.name + (f", layer {layer}" if headline.layer == MEAN else "")
                    table.writerow([cell.row, cell.column, outcome.seed, outcome.key, name, plain(number)])
    return file.getvalue()


def _as_address(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def _embedded(value: Any) -> Markup:
    """Return JSON that cannot end its script element early, as `</` in a label would."""
    return Markup(json.dumps(plain(value), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"))


def _data(judged: JudgedStudy, maps: list[Heatmaps]) -> dict[str, Any]:
    """Return the data that the script draws."""
    design = judged.design
    rival = rival_of(judged, maps)
    looks = styles(design.rows, design.baseline, design.control)
    return {
        "looks": {row: _look(looks[row]) for row in design.rows},
        "charts": [_chart(chart) for chart in charts(judged) if chart.panels],
        "maps": [_packed(of_row) for of_row in maps],
        "rival": 1 if rival is None else maps.index(rival),  # drawn beside the baseline, which is the first
    }


def _look(look: Mapping[str, Any]) -> dict[str, str]:
    dash = look["linestyle"]
    pattern = "none" if dash == "solid" else " ".join(f"{2 * length:g}" for length in dash[1])
    return {"color": "currentColor" if look["color"] == INK else look["color"], "dash": pattern}


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "name": chart.name,
        "x_label": chart.x_label,
        "x_unit": f"({chart.x_label})" if chart.of_layers else chart.x_label,
        "y_label": chart.y_label,
        "whole": chart.of_layers,
        "factors": chart.in_factors,
        "panels": [
            {
                "title": column,
                "frame": chart.frames[column],
                "lines": [{"row": row, "points": curve} for row, curve in curves.items()],
            }
            for column, curves in chart.panels.items()
        ],
    }


def _packed(maps: Heatmaps) -> dict[str, Any]:
    """Pack each weight into a byte, as a share of the largest weight of its map, which is as fine as a screen shows."""
    n_queries, n_keys = maps.weights.shape[-2:]
    largest = maps.weights.max((-2, -1))
    shares = maps.weights / largest.clip(1e-12)[..., None, None]
    return {
        "row": maps.row,
        "layers": maps.layers,
        "heads": maps.heads,
        "tokens": maps.tokens,
        "is_causal": maps.is_causal,
        "n_queries": n_queries,
        "n_keys": n_keys,
        "largest": [float(value) for value in largest.flat],
        "bytes": base64.b64encode((255 * shares).round().astype("uint8").tobytes()).decode(),
    }
