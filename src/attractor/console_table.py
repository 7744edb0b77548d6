"""The console table that all commands share: a line below the headings, labels on the left, numbers on the right."""

from collections.abc import Collection, Sequence

from rich import box
from rich.table import Table
from rich.text import Text


def console_table(
    headings: Sequence[str],
    left: Collection[str] | None = None,
    padding: tuple[int, ...] = (0, 1),
    no_wrap: bool = False,
) -> Table:
    """Return an empty table. `left` names the columns that are aligned to the left; the default is the first one."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding)  # type: ignore[arg-type]
    for place, heading in enumerate(headings):
        is_left = place == 0 if left is None else heading in left
        table.add_column(Text(heading), justify="left" if is_left else "right", overflow="fold", no_wrap=no_wrap)
    return table
