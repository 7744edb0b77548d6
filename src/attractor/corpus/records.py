"""What a source of documents gives: records in order, and what each of them says.

A source is an ordered list of files, each read from its beginning or from the position after any record, so that a
reader can go on where another stopped. What a record says is only found out by `text`, apart from reading, because that
takes longer and can be done by many threads.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from attractor.corpus.split import character_start

LONGEST_TEXT = 4 << 20
"""A text with more bytes is cut, after a line break where there is one, into documents of their own: tokenizers need
about a hundred times the memory of what they read at once."""


class FlawError(ValueError):
    """A record that cannot be read, in a few words."""


class Record(NamedTuple):
    """One document as it stands in its file. Positions are byte offsets or row numbers; `read` is the share of the
    file up to the end of this record."""

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
        """Names that record positions refer to."""

    @property
    def sizes(self) -> Sequence[int] | None:
        """Their sizes in bytes; None where they are not on this machine."""

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for the same documents."""

    def records(self, file: int = 0, position: int = 0) -> Iterator[Record]:
        """All records from that place on."""

    def text(self, record: Record) -> str:
        """What the record says, or a FlawError."""


CONVERT = "convert the file, as by: iconv -f latin-1 -t utf-8 FILE > NEW"


def remedy(flaw: str) -> str:
    """What to do about records of which the first has this flaw."""
    return CONVERT if "not UTF-8" in flaw else "mend or remove them"


def parse_text(raw: bytes, columns: Sequence[str]) -> str:
    if b"\0" in raw:
        raise FlawError(f"no text but binary data, with a NUL byte at {raw.index(0)}")
    return decoded(raw)


def parse_line(raw: bytes, columns: Sequence[str]) -> str:
    try:
        row = json.loads(raw)
    except UnicodeDecodeError as error:
        raise FlawError(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise FlawError(f"not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise FlawError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise FlawError("not a JSON object")
    return parse_row(row, columns)


def parse_row(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """The columns that have a text, with a blank line between them."""
    found = []
    for column in columns:
        if column not in row:
            raise FlawError(f"no column '{column}'")
        value = row[column]
        if isinstance(value, bytes):
            value = decoded(value)
        if value is not None and not isinstance(value, str):
            raise FlawError(f"column '{column}' holds no text but {type(value).__name__}")
        if value:
            found.append(value)
    text = "\n\n".join(found)
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
    """Where a text that is too long is cut: after the last line break or space that still fits, if there is one."""
    end = begin + LONGEST_TEXT
    for sign in (b"\n", b" "):
        found = text.rfind(sign, begin + LONGEST_TEXT // 2, end) + 1
        if found:
            return found
    return character_start(text, end)


def parts(text: str) -> Iterator[bytes]:
    """The text, or its parts where it is too long."""
    raw = text.encode()
    begin = 0
    while len(raw) - begin > LONGEST_TEXT:
        cut = cut_point(raw, begin)
        yield raw[begin:cut]
        begin = cut
    yield raw[begin:]
