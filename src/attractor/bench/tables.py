"""The tables of a bench's record: passes, published overhead, stages, decoding, cost curves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import nan
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from attractor.bench.published_overhead import QUANTITIES, beside_table_10, table_11
from attractor.bench.record import data_sheet_flops
from attractor.bench.roofline import Ceilings, Work
from attractor.console_table import console_table
from attractor.numerals import in_bytes, in_time, with_prefix

Row = Mapping[str, Any]
PUBLISHED_AT = 512  # tokens of a sequence in CoupledQK's tables


def tables(sections: Row, about: Row) -> Iterator[Group | str]:
    """Yield the tables of the sections in `sections`, and lines of text, in reading order. `about` is the record that
    describes the machine and the request."""
    if "ceilings" in sections:
        yield ceilings_in_words(about)
    for rows in _grouped(sections, "training", "precision", "seq_len"):
        yield passes_table(rows, about)
        yield from left_out(rows)
        lengths = about["request"]["lengths"]
        if rows[0]["seq_len"] == (PUBLISHED_AT if PUBLISHED_AT in lengths else min(lengths)):
            yield from published_tables(rows, about["baseline"])
    for rows in _grouped(sections, "stages", "precision"):
        yield stages_table(rows)
        yield from left_out(rows)
        slow = [row["name"] for row in rows if row["seconds"] and not row["as_one"]]
        if slow and about["machine"]["device"] == "cuda":
            yield f"launched call by call from Python: {', '.join(dict.fromkeys(slow))}"
    for rows in _grouped(sections, "decoding", "precision", "batch_size"):
        yield decoding_table(rows, about["baseline"])
        yield from left_out(rows)
    for curves in sections.get("curves", ()):
        yield from growth_tables(curves)
        yield from left_out(curves["points"], lambda row: f"{row['name']}, {row['axis']} {row['at']}")


def _grouped(sections: Row, section: str, *by: str) -> Iterator[list[Row]]:
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in sections.get(section, ()):
        kinds.setdefault(tuple(row[name] for name in by), []).append(row)
    yield from kinds.values()


def left_out(rows: Sequence[Row], name: Callable[[Row], str] = lambda row: row["name"]) -> Iterator[str]:
    for row in rows:
        if row["left_out"] is not None:
            yield f"{name(row)}: {row['left_out']}"


def ceilings_in_words(about: Row) -> str:
    ceilings, machine = Ceilings(**about["ceilings"]), about["machine"]
    rates = ", ".join(f"{_rate(rate)} in {name}" for name, rate in ceilings.flops_per_second.items())
    known = data_sheet_flops(machine["name"])
    sheet = f"; data sheet: {_rate(known)} in bf16" if known else ""
    copies = f"copies {ceilings.bytes_per_second / 1e9:.3g} GB/s (read and written)"
    return f"{machine['name']}, {machine['threads']} threads: {copies}, multiplies {rates}{sheet}"


def _rate(flops: float) -> str:
    return f"{flops / 1e12:.3g} TFLOP/s"


def passes_table(rows: Sequence[Row], about: Row) -> Group:
    first, baseline = rows[0], about["baseline"]
    compiled = "compiled, " if first["compiled"] else ""
    batch = f"{first['batch_size']} x {first['seq_len']} tokens"
    passes = ["forward", "speed", "and backward", "speed", "middle half", "step", "speed"]
    columns = ["params", *passes, "memory", "", "MFU", *(["compiling"] if compiled else [])]
    fastest = about["ceilings"]["flops_per_second"][first["precision"]]
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


def published_tables(rows: Sequence[Row], baseline: str) -> Iterator[Group]:
    """Yield CoupledQK's tables 10 and 11 beside ours, if any of their mechanisms but standard was measured."""
    timed = {row["name"]: row for row in rows if row["passes"] is not None}
    if baseline != "standard" or baseline not in timed:
        return
    held = timed[baseline]["peak_memory_bytes"]
    measured = {
        name: {
            "forward": row["passes"]["forward"]["ratio"],
            "forward+backward": row["passes"]["forward+backward"]["ratio"],
            "memory": row["peak_memory_bytes"] / held if held else nan,
        }
        for name, row in timed.items()
    }
    compared = list(beside_table_10(measured))
    if sum(row.name is not None for row in compared) < 2:
        return
    headings = ["forward", "here", "and backward", "here", "memory", "here"]
    table = console_table(["", *headings])
    for row in compared:
        cells = []
        for quantity in QUANTITIES:
            here = f"{row.measured[quantity]:.3f}" if row.name else ""
            cells += [f"{row.published[quantity]:.2f}", here]
        table.add_row(row.name or f"{row.row} (not measured)", *cells)
    yield titled("CoupledQK, table 10: ratios to standard, published and measured here", table)
    counted = console_table(["", "published", "counted", "difference"])
    for title, (published, ours) in table_11().items():
        counted.add_row(title, f"{published:,}", f"{ours:,}", f"{ours - published:+,}")
    yield titled("CoupledQK, table 11: parameters of the small model", counted)


def stages_table(rows: Sequence[Row]) -> Group:
    columns = ["passes", "least bytes", "GFLOP", "FLOP/byte", "time", "of roofline"]
    table = console_table(["", *columns], padding=(0, 1, 0, 0))
    for row in (row for row in rows if row["left_out"] is None):
        table.add_row(
            row["name"],
            row["passes"],
            f"{row['bytes'] / 1e6:.3g} MB",
            f"{row['flops'] / 1e9:.3g}",
            f"{Work(row['bytes'], row['flops']).intensity:.3g}",
            f"{1e3 * row['median']:.3g} ms",
            f"{100 * row['fraction']:.0f}%",
        )
    return titled(f"stages, {rows[0]['precision']}: against the roofline measured here", table)


def decoding_table(rows: Sequence[Row], baseline: str) -> Group:
    first = rows[0]
    how = f"{first['batch_size']} at a time, {first['precision']}"
    table = console_table(["", "tok/s", "speed", "middle half"])
    for row in (row for row in rows if row["left_out"] is None):
        low, high = row["timing"]["middle_half"]
        speed = with_prefix(row["tokens_per_second"]), f"{row['timing']['ratio']:.3f}"
        table.add_row(row["name"], *speed, f"{low:.3f}-{high:.3f}")
    return titled(f"{first['n_tokens']} tokens decoded, {how}, against {baseline}", table)


def growth_tables(curves: Row) -> Iterator[Group]:
    titles = {
        "length": "length, one sequence: exponents (standard error)",
        "width": "width, heads of 64: exponents (standard error)",
        "steps": "steps n: what one more costs, as a share of n = 1 (standard error)",
    }
    for axis, title in titles.items():
        rows = [row for row in curves["growths"] if row["axis"] == axis]
        if rows:
            memory = "memory above weights" if axis == "length" else "memory"
            table = console_table(["", "seconds", memory, "FLOPs"])
            for row in rows:
                table.add_row(row["name"], *(_growth(row[of], axis) for of in ("seconds", "memory", "flops")))
            yield titled(f"{title}, {curves['precision']}", table)


def _growth(line: Row | None, axis: str) -> str:
    if line is None:
        return ""
    first = line["at_zero"] + line["slope"] if axis == "steps" else 1.0
    error = "" if line["error"] is None else f" ({_share(line['error'], first)})"
    return f"{_share(line['slope'], first)}{error}"


def _share(part: float, whole: float) -> str:
    """Return a ratio; the whole is 0 for a model so small that it takes less memory than the imports did."""
    return f"{part / whole:.3f}" if whole else "n/a"


def titled(title: str, table: Table) -> Group:
    """Print the title on its own line, since rich would break it to the width of the table."""
    return Group(Text(f"\n{title}"), table)
