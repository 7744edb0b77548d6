"""Documents of many rows: in WikiText each row is a line, and a line ` = Title = ` begins an article."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from attractor.corpus.records import LONGEST_TEXT, FlawError, Record, Source

TITLE = re.compile(r" = [^=].* = \n?")


class Articles:
    """A source whose rows are lines, with one record for each article. A flaw of a row is one of its article.

    Lines without any title, as in a file that is no such source, are cut into records that fit into memory.
    """

    def __init__(self, rows: Source) -> None:
        self.rows = rows
        self.name = rows.name
        self.files: Sequence[str] = rows.files
        self.sizes: Sequence[int] | None = rows.sizes

    @property
    def identity(self) -> dict[str, Any]:
        return self.rows.identity | {"articles": True}

    def records(self, file: int = 0, position: int = 0) -> Iterator[Record]:
        article: list[Record] = []
        size = 0
        for row in self.rows.records(file, position):
            said = row._replace(raw=self._line(row))
            begins = isinstance(said.raw, str) and TITLE.fullmatch(said.raw)
            if article and (begins or row.file != article[0].file or size > LONGEST_TEXT):
                yield _joined(article)
                article, size = [], 0
            article.append(said)
            size += len(said.raw) if isinstance(said.raw, str) else 0
        if article:
            yield _joined(article)

    def text(self, record: Record) -> str:
        if isinstance(record.raw, FlawError):
            raise record.raw
        return record.raw

    def _line(self, row: Record) -> str | FlawError:
        try:
            return self.rows.text(row)
        except FlawError as flaw:
            return flaw


def _joined(rows: list[Record]) -> Record:
    flaws = [row.raw for row in rows if isinstance(row.raw, FlawError)]
    return rows[-1]._replace(position=rows[0].position, raw=flaws[0] if flaws else "".join(row.raw for row in rows))
