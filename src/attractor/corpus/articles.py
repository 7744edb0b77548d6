"""Documents of many rows: in WikiText each row is a line, and a line ` = Title = ` begins an article."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from attractor.corpus.records import FlawError, Record, Source

TITLE = re.compile(r" = [^=].* = \n?")


class Articles:
    """A source whose rows are lines, with one record for each article."""

    def __init__(self, rows: Source) -> None:
        self.rows = rows
        self.name = rows.name
        self.files: Sequence[str] = rows.files
        self.sizes: Sequence[int] | None = rows.sizes

    @property
    def identity(self) -> dict[str, Any]:
        return self.rows.identity | {"articles": True}

    def records(self, file: int = 0, position: int = 0) -> Iterator[Record]:
        first = last = None
        lines: list[str] = []
        for row in self.rows.records(file, position):
            try:
                line = self.rows.text(row)
            except FlawError as flaw:
                yield row._replace(raw=flaw)
                continue
            if first is not None and last is not None and (TITLE.fullmatch(line) or row.file != first.file):
                yield last._replace(position=first.position, raw="".join(lines))
                first, lines = None, []
            first, last = first or row, row
            lines.append(line)
        if first is not None and last is not None:
            yield last._replace(position=first.position, raw="".join(lines))

    def text(self, record: Record) -> str:
        if isinstance(record.raw, FlawError):
            raise record.raw
        return record.raw
