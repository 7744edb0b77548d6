"""Define what a source of documents provides: records in order, and the text of a record.

A source is an ordered list of files. Reading can begin at the position after any record, so that a reader can resume
where another stopped. The text of a record is extracted separately by `text`, because that takes longer and can be done
by many threads.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from attractor.corpus.split import character_start
from attractor.errors import InputError
from attractor.tables import FlawError, json_object

EARLIEST_VERDICT = 1000  # records; the share of unreadable ones among fewer is not judged
LONGEST_TEXT = 4 << 20
"""A text with more bytes is cut into several documents, after a line break if possible, because tokenizers need about a
hundred times the memory of a text."""


class Record(NamedTuple):
    """A document as it is stored in its file.

    `position` and `after` are byte offsets or row numbers; `read` is the share of the file up to the end of the record.
    """

    file: int
    position: int
    after: int
    read: float
    raw: Any


class Source(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def files(self) -> Sequence[str]:
        """The names of the files, to which the positions of records refer."""

    @property
    def sizes(self) -> Sequence[int] | None:
        """The sizes of the files in bytes; None where they are not on this machine."""

    @property
    def identity(self) -> dict[str, Any]:
        """Values that are equal for equal documents."""

    def records(self, file: int = 0, position: int = 0) -> Iterator[Record]:
        """Yield all records from that position on."""

    def text(self, record: Record) -> str:
        """Return the text of the record, or raise a FlawError."""


HALF_A_PAIR = re.compile("[\ud800-\udfff]")
CONVERT = "convert the file, as by: iconv -f latin-1 -t utf-8 FILE > NEW"


def remedy(flaw: str) -> str:
    """Return what to do about records with such a flaw."""
    return CONVERT if "not UTF-8" in flaw else "mend or remove them"


def refuse_many_flaws(n_flaws: int, n_records: int, max_bad: float, first: str) -> None:
    """Refuse a source if more than the share `max_bad` of its records cannot be read; `first` names the first one."""
    if n_flaws > max_bad * n_records:
        raise InputError(
            f"malformed records must be at most {max_bad:.3g} of all (max_bad), but {n_flaws:,} of {n_records:,} are, "
            f"the first is {first}; {remedy(first)}"
        )


def parse_text(raw: bytes, columns: Sequence[str]) -> str:
    if b"\0" in raw:
        raise FlawError(f"no text but binary data, with a NUL byte at {raw.index(0)}")
    return decoded(raw)


def parse_line(raw: bytes, columns: Sequence[str]) -> str:
    row = json_object(raw)
    for column in columns:
        # JSON may escape half of a surrogate pair, which is no character, even though the file itself is UTF-8.
        if isinstance(text := row.get(column), str) and (half := HALF_A_PAIR.search(text)):
            raise FlawError(f"half a surrogate pair at character {half.start()} of column '{column}'")
    return parse_row(row, columns)


def parse_row(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Join the columns that have a text, with a blank line between them."""
    texts = []
    for column in columns:
        if column not in row:
            raise FlawError(f"no column '{column}'")
        value = row[column]
        if isinstance(value, bytes):
            value = decoded(value)
        if value is not None and not isinstance(value, str):
            raise FlawError(f"column '{column}' holds no text but {type(value).__name__}")
        if value:
            texts.append(value)
    text = "\n\n".join(texts)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FlawError(f"not UTF-8 at character {error.start}") from error
    return text


def decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise FlawError(f"not UTF-8 at byte {error.start}") from error


def cut_point(text: bytes | bytearray, begin: int) -> int:
    """Return where a text that is too long is cut: after the last line break or space that fits, if there is one."""
    end = begin + LONGEST_TEXT
    for separator in (b"\n", b" "):
        cut = text.rfind(separator, begin + LONGEST_TEXT // 2, end) + 1
        if cut:
            return cut
    return character_start(text, end)


def parts(text: str) -> Iterator[bytes]:
    """Yield the text, or its parts where it is too long."""
    raw = text.encode()
    begin = 0
    while len(raw) - begin > LONGEST_TEXT:
        cut = cut_point(raw, begin)
        yield raw[begin:cut]
        begin = cut
    yield raw[begin:]
