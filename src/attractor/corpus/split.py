"""What is held out for validation: whole documents, chosen by a hash of their content.

Equal texts stand on the same side, adding documents moves no others, and no seed can change what is held out.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from attractor.errors import InputError

VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Split:
    """Documents whose place is at most `boundary` are for validation. A corpus of one text gives its own tail."""

    boundary: float
    single: bool = False

    def sides(self, text: bytes) -> list[tuple[bool, bytes]]:
        """The text, and whether it is held out; two parts of it where it is all there is."""
        if not self.single:
            return [(place(text) <= self.boundary, text)]
        cut = cut_tail(text, self.boundary)
        return [(False, text[:cut]), (True, text[cut:])]


def split_of(places: Iterable[float], share: float = VALIDATION_SHARE) -> Split:
    """The split of a corpus whose texts have these places: if `share` would leave a side empty, the text nearest the
    boundary changes over; one text alone is cut in two."""
    ordered = sorted(set(places))
    if len(ordered) == 1:
        return Split(share, single=True)
    return Split(min(max(share, ordered[0]), ordered[-2]))


def check_share(share: float) -> None:
    if not 0 < share <= 0.5:
        raise InputError(f"valid_share must be above 0 and at most 0.5, got {share}; give 0.1 for a tenth")


def place(text: bytes) -> float:
    """A number between 0 and 1, spread evenly over texts, that depends on the content alone."""
    return int.from_bytes(hashlib.sha256(text).digest()[:6]) / 2**48


def cut_tail(text: bytes, share: float = VALIDATION_SHARE) -> int:
    """Where the last `share` of a text begins: after a line break if there is one near, never inside a character."""
    cut = round(len(text) * (1 - share))
    line = text.rfind(b"\n", round(len(text) * (1 - 2 * share)), cut) + 1
    return line or character_start(text, cut)


def character_start(text: bytes | bytearray, at: int) -> int:
    """The first place from `at` on where a UTF-8 character begins, or the text ends."""
    while at < len(text) and text[at] & 0xC0 == 0x80:
        at += 1
    return at
