"""Draw the speeds in a record of `attractor bench --out`, with their spread, at the shortest length.

python benchmarks/draw_record.py RECORD.json FIGURE.svg
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.errors import InputError
from attractor.files import write_bytes
from attractor.report.canvas import GREY, INK, METADATA, PALETTE, as_file, blank, framed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Panel = Callable[["Axes"], None]
WIDTH, HEIGHT = 6.2, 4.2  # inches of a panel
ACROSS = 2


def main(record: str, figure: str) -> None:
    kind = Path(figure).suffix.removeprefix(".")
    if kind not in METADATA:
        raise InputError(f"figure must end in {', '.join('.' + kind for kind in METADATA)}, got '{figure}'; rename it")
    write_bytes(Path(figure), as_file(figure_of(json.loads(Path(record).read_text())), kind, "bench"))


def figure_of(record: Row) -> "Figure":
    drawn = list(panels(record))
    if not drawn:
        raise InputError("record must hold passes to draw, got none; bench with --rounds")
    n_down = -(-len(drawn) // ACROSS)
    figure = blank(WIDTH * min(ACROSS, len(drawn)), HEIGHT * n_down)
    grid = figure.subplots(n_down, min(ACROSS, len(drawn)), squeeze=False)
    for axes in grid.flat[len(drawn) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, drawn, strict=False):
        panel(framed(axes))
    return figure


def panels(record: Row) -> Iterator[Panel]:
    timed = [row for row in record.get("training", ()) if row["passes"] is not None]
    for precision in dict.fromkeys(row["precision"] for row in timed):
        rows = [row for row in timed if row["precision"] == precision]
        shortest = [row for row in rows if row["seq_len"] == min(row["seq_len"] for row in rows)]
        yield partial(_speeds, shortest, record["baseline"])


def _speeds(rows: Sequence[Row], baseline: str, axes: "Axes") -> None:
    """Draw the speed of forward and backward relative to the baseline: median and quartiles over rounds."""
    for place, row in enumerate(reversed(rows)):
        timing = row["passes"]["forward+backward"]
        axes.plot(timing["middle_half"], (place, place), color=PALETTE[0], linewidth=2.5, solid_capstyle="butt")
        axes.plot(timing["ratio"], place, color=INK, marker="o", markersize=4)
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)])
    first = rows[0]
    how = f"{first['batch_size']} x {first['seq_len']} tokens, {first['precision']}"
    axes.set_title(f"Forward and backward, {how}", fontsize=10)
    axes.set_xlabel(f"speed against {baseline}")


if __name__ == "__main__":
    main(*sys.argv[1:])
