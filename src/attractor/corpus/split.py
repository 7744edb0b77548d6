"""Split a corpus into training and validation by whole documents, chosen by a hash of their content.

Equal texts are on the same side, adding documents moves no others, and the split does not depend on a seed.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from attractor.errors import require

VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Split:
    """Documents whose place is at most `boundary` are for validation. A corpus of a single text holds out its tail."""

    boundary: float
    single: bool = False
    # For a single text that is read in parts: the place of each part, and the share of the part that is held out.
    shares: Mapping[float, float] = field(default_factory=dict)

    def sides(self, text: bytes) -> list[tuple[bool, bytes]]:
        """Return the text and whether it is held out, or its two parts if the corpus has no other text."""
        if not self.single:
            return [(place(text) <= self.boundary, text)]
        cut = cut_tail(text, self.shares.get(place(text), 0.0) if self.shares else self.boundary)
        return [(False, text[:cut]), (True, text[cut:])]


def split_of(places: Iterable[float], share: float = VALIDATION_SHARE) -> Split:
    """Return the split of a corpus whose texts have these places.

    If `share` would leave a side empty, the text nearest the boundary changes sides. A single text is cut in two."""
    ordered = sorted(set(places))
    if len(ordered) == 1:
        return Split(share, single=True)
    return Split(min(max(share, ordered[0]), ordered[-2]))


def split_of_parts(parts: Sequence[tuple[float, int]], share: float) -> Split:
    """Return the split of a single text, given the place and the number of bytes of each of its parts in order."""
    if len(dict(parts)) == 1:
        return Split(share, single=True)
    left = share * sum(n_bytes for _, n_bytes in parts)
    shares: dict[float, float] = {}
    for at, n_bytes in reversed(parts):
        shares.setdefault(at, min(left / n_bytes, 1.0))  # of equal parts, the last decides
        left = max(left - n_bytes, 0.0)
    return Split(share, single=True, shares=shares)


def check_share(share: float) -> None:
    require(0 < share <= 0.5, "valid_share", "above 0 and at most 0.5", share, "give 0.1 for a tenth")


def place(text: bytes) -> float:
    """Return a hash of the text between 0 and 1, uniformly distributed over texts."""
    return int.from_bytes(hashlib.sha256(text).digest()[:6]) / 2**48


def cut_tail(text: bytes, share: float = VALIDATION_SHARE) -> int:
    """Return where the last `share` of a text begins: after a nearby line break if any, never inside a character."""
    cut = round(len(text) * (1 - share))
    line = text.rfind(b"\n", max(0, round(len(text) * (1 - 2 * share))), cut) + 1
    return line or character_start(text, cut)


def character_start(text: bytes | bytearray, at: int) -> int:
    """Return the first position from `at` on where a UTF-8 character begins or the text ends."""
    while at < len(text) and text[at] & 0xC0 == 0x80:
        at += 1
    return at
