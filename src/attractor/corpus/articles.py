"""Join the rows of WikiText into articles: every row is a line, and a line ` = Title = ` begins an article."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from attractor.corpus.records import LONGEST_TEXT, Record, Source
from attractor.tables import FlawError

TITLE = re.compile(r" = [^=].* = \n?")


class Articles:
    """A source with one record for every article of another source's lines. A flaw of a line is a flaw of its article.

    Lines without any title are cut into records that fit into memory.
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
            line = row._replace(raw=self._line(row))
            is_title = isinstance(line.raw, str) and TITLE.fullmatch(line.raw)
            if article and (is_title or row.file != article[0].file or size > LONGEST_TEXT):
                yield _joined(article)
                article, size = [], 0
            article.append(line)
            size += len(line.raw) if isinstance(line.raw, str) else 0
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
    flawed = next((row for row in rows if isinstance(row.raw, FlawError)), None)
    if flawed is not None:  # the article has the position of its flaw, so that a message names that line
        return flawed._replace(after=rows[-1].after, read=rows[-1].read)
    return rows[-1]._replace(position=rows[0].position, raw="".join(row.raw for row in rows))
