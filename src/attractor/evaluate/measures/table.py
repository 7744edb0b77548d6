"""The table of a model's measures: a row for each layer, and means with half of their 95% interval."""

from collections.abc import Iterator, Mapping
from math import floor, log10
from typing import Any

from rich.table import Table
from rich.text import Text

from attractor.console import console_table
from attractor.evaluate.measures.record import END
from attractor.verdict.words import UNKNOWN

COLUMNS = {
    "entropy_after_first": "entropy",
    "normalised_entropy": "/ log n",
    "effective_rank": "rank",
    "sink_mass": "sink",
    "logit_std": "logit sd",
    "logit_max": "largest",
    "jacobian_norm": "|J|",
    "stream_norm": "|h|",
}


def table_of(record: Mapping[str, Any]) -> Table:
    """Return the measures that fit into a terminal; the page and the record have all of them."""
    shown = [name for name in COLUMNS if name in record["by_layer"]]
    table = console_table(["layer", *(COLUMNS[name] for name in shown)])
    for row in rows(record, shown):
        table.add_row(*map(Text, row), style="bold" if row[0] == "all" else "")
    return table


def rows(record: Mapping[str, Any], names: list[str]) -> Iterator[list[str]]:
    """Yield a row for each layer, one for the end of the stream, and one with the means over layers."""
    for number, layer in enumerate([*map(str, record["layers"]), END]):
        by_layer = (record["by_layer"][name] for name in names)
        yield [layer, *(with_interval(values[number] if number < len(values) else None) for values in by_layer)]
    yield ["all", *(with_interval(record["over_layers"][name]) for name in names)]


def exponents_line(record: Mapping[str, Any]) -> str:
    exponents = map(with_interval, record["exponents"]["by_rank"])
    return f"exponents over depth, per layer: {', '.join(exponents)}"


def with_interval(interval: Mapping[str, float | None] | None) -> str:
    """Write an interval as `1.23 ±0.06`, with three digits, and at most three decimals, so that a row fits a line.

    A single passage has a mean alone.
    """
    if interval is None:
        return UNKNOWN
    mean, low, high = interval["mean"], interval["low"], interval["high"]
    assert mean is not None
    digits = min(max(2 - floor(log10(abs(mean))), 0), 3) if mean else 2
    return f"{mean:.{digits}f}" + ("" if low is None or high is None else f" ±{(high - low) / 2:.{digits}f}")
