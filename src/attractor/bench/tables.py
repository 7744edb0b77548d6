"""The tables of a bench's record: passes and decoding."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from attractor.bench.record import data_sheet_flops
from attractor.console import console_table, in_bytes, in_time, with_prefix

Row = Mapping[str, Any]


def tables(sections: Row, about: Row) -> Iterator[Group | str]:
    """Yield the tables of the sections in `sections`, and lines of text, in reading order. `about` is the record that
    describes the machine and the request."""
    if "matrix_rates" in sections:
        yield machine_in_words(about)
    for rows in _grouped(sections, "training", "precision", "seq_len"):
        yield passes_table(rows, about)
        yield from left_out(rows)
    for rows in _grouped(sections, "decoding", "precision", "batch_size"):
        yield decoding_table(rows, about["baseline"])
        yield from left_out(rows)


def _grouped(sections: Row, section: str, *by: str) -> Iterator[list[Row]]:
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in sections.get(section, ()):
        kinds.setdefault(tuple(row[name] for name in by), []).append(row)
    yield from kinds.values()


def left_out(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row["left_out"] is not None:
            yield f"{row['name']}: {row['left_out']}"


def machine_in_words(about: Row) -> str:
    machine = about["machine"]
    rates = ", ".join(f"{_rate(rate)} in {name}" for name, rate in about["matrix_rates"].items())
    known = data_sheet_flops(machine["name"])
    sheet = f"; data sheet: {_rate(known)} in bf16" if known else ""
    return f"{machine['name']}, {machine['threads']} threads: matrices are multiplied at {rates}{sheet}"


def _rate(flops: float) -> str:
    return f"{flops / 1e12:.3g} TFLOP/s"


def passes_table(rows: Sequence[Row], about: Row) -> Group:
    first, baseline = rows[0], about["baseline"]
    compiled = "compiled, " if first["compiled"] else ""
    batch = f"{first['batch_size']} x {first['seq_len']} tokens"
    passes = ["forward", "speed", "and backward", "speed", "middle half", "step", "speed"]
    columns = ["params", *passes, "memory", "", "MFU", *(["compiling"] if compiled else [])]
    fastest = about["matrix_rates"][first["precision"]]
    title = f"{batch}, {compiled}{first['precision']}: tokens a second, and speed against {baseline}"
    table = console_table(["", *columns], padding=(0, 1, 0, 0))
    n_tokens = first["batch_size"] * first["seq_len"]
    timed = [row for row in rows if row["passes"] is not None]
    held = next((row["peak_memory_bytes"] for row in timed if row["name"] == baseline), 0)
    for row in timed:
        forward, both, step = row["passes"].values()
        low, high = both["middle_half"]
        cells = [with_prefix(row["n_parameters"])]
        for timing in (forward, both, step):
            cells += [with_prefix(n_tokens / timing["median"]), f"{timing['ratio']:.3f}"]
        cells.insert(5, f"{low:.3f}-{high:.3f}")
        cells += [in_bytes(row["peak_memory_bytes"]), _share(row["peak_memory_bytes"], held)]
        cells += [f"{row['step_flops'] / step['median'] / fastest:.0%}"]
        cells += [in_time(row["compile_seconds"])] if compiled else []
        table.add_row(row["name"], *cells)
    return titled(title, table)


def decoding_table(rows: Sequence[Row], baseline: str) -> Group:
    first = rows[0]
    how = f"{first['batch_size']} at a time, {first['precision']}"
    table = console_table(["", "tok/s", "speed", "middle half"])
    for row in (row for row in rows if row["left_out"] is None):
        low, high = row["timing"]["middle_half"]
        speed = with_prefix(row["tokens_per_second"]), f"{row['timing']['ratio']:.3f}"
        table.add_row(row["name"], *speed, f"{low:.3f}-{high:.3f}")
    return titled(f"{first['n_tokens']} tokens decoded, {how}, against {baseline}", table)


def _share(part: float, whole: float) -> str:
    """Return a ratio; the whole is 0 for a model so small that it takes less memory than the imports did."""
    return f"{part / whole:.3f}" if whole else "n/a"


def titled(title: str, table: Table) -> Group:
    """Print the title on its own line, since rich would break it to the width of the table."""
    return Group(Text(f"\n{title}"), table)
