"""Find the column of a table that holds the text, where no option names it."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from attractor.corpus.readers import ARROWS, LINES, format_of, read_lines, read_table, string_columns
from attractor.errors import InputError
from attractor.tables import FlawError, json_object

USUAL = "text"
N_ROWS = 100  # rows that are inspected where the file does not state the types of its columns


def columns_from(option: str | None) -> tuple[str, ...] | None:
    """Return the columns that an option names; several are separated as in title,abstract."""
    if option is None:
        return None
    columns = tuple(name.strip() for name in option.split(","))
    if not all(columns):
        raise InputError(f"column must be one name or several, as title,abstract, got '{option}'; name one")
    return columns


def text_column(path: Path) -> str:
    """Return the column `text` of a table, or else its only column of strings."""
    holds_text = columns_at(path)
    strings = [name for name, is_string in holds_text.items() if is_string]
    if USUAL in holds_text or not holds_text:
        return USUAL
    if len(strings) == 1:
        return strings[0]
    raise InputError(
        f"column must be named, since none is called '{USUAL}' and there is not exactly one column of strings; "
        f"'{path}' has {', '.join(holds_text)}; give --column NAME"
    )


def columns_at(path: Path) -> dict[str, bool]:
    """Return every column of a table, and whether it seems to hold strings."""
    kind = format_of(path.name)
    if kind in ARROWS:
        return string_columns(path)
    rows = [raw for *_, raw in islice(read_lines(path, 0, ()) if kind is LINES else read_table(path, 0, ()), N_ROWS)]
    objects = [row for raw in rows if (row := as_object(raw)) is not None]
    names = dict.fromkeys(name for row in objects for name in row)
    return {name: _are_strings([row.get(name) for row in objects], kind is LINES) for name in names}


def as_object(raw: Any) -> dict[str, Any] | None:
    try:
        return json_object(raw) if isinstance(raw, bytes) else raw if isinstance(raw, dict) else None
    except FlawError:
        return None


def _are_strings(values: Sequence[Any], typed: bool) -> bool:
    """Whether a column holds strings. In a table without types, all cells but numbers count as strings."""
    filled = [value for value in values if value not in (None, "")]
    return bool(filled) and all(isinstance(value, str) and (typed or not _is_number(value)) for value in filled)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
