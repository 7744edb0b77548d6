"""Prepare a record for publication: it must not name private folders."""

import shlex
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from attractor.runs.configuration import dotted_fields
from attractor.runs.study_record import Cell, StudyRecord


def without_private_folders(record: StudyRecord, flags: Collection[str]) -> StudyRecord:
    """Return the record without the folders of absolute paths. `flags` are options that take no value."""
    kept: list[str] = []
    for word in shlex.split(record.design.command):
        option, _, value = word.partition("=")
        if not any(Path(part).is_absolute() for part in (value or option).split(",")):
            kept.append(word)
        elif not value and kept and kept[-1].startswith("--") and kept[-1] not in flags:
            kept.pop()  # the option whose value the path is
    cells = tuple(map(_without_private_folders, record.cells))
    legs = {leg: without_private_folders(of_leg, flags) for leg, of_leg in record.legs.items()}
    return replace(record, design=replace(record.design, command=shlex.join(kept)), cells=cells, legs=legs)


def _without_private_folders(cell: Cell) -> Cell:
    """Return the cell with the names of files in place of their absolute paths, which a field may hold as a list with
    commas, and which the summaries repeat."""
    texts = [value for value in dotted_fields(cell.config).values() if isinstance(value, str)]
    parts = {part.strip() for text in texts for part in text.split(",")}
    paths = sorted((part for part in parts if Path(part).is_absolute()), key=len, reverse=True)

    def shortened(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shortened(content) for name, content in value.items()}
        if isinstance(value, str):
            for path in paths:
                value = value.replace(path, Path(path).name)
        return value

    outcomes = tuple(replace(outcome, summary=shortened(outcome.summary)) for outcome in cell.outcomes)
    return replace(cell, config=shortened(cell.config), outcomes=outcomes)
