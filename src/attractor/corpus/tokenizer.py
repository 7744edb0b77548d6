"""Bytes as tokens: nothing to train, nothing to download, and any text or file can be written and read back."""

from collections.abc import Iterable

import numpy as np

from attractor.errors import InputError

N_BYTES = 256
END_OF_TEXT = 256
PAD = 257
SPECIALS = {END_OF_TEXT: "<|endoftext|>", PAD: "<|pad|>"}


class ByteTokenizer:
    """Token i < 256 is the byte i; the specials follow. Text that spells a special's name stays plain bytes."""

    # 258 ids are in use. The embedding has 320 rows, a multiple of 64, because matrix kernels are tuned for such sizes.
    vocab_size = 320

    def encode(self, text: str | bytes) -> np.ndarray:
        """The bytes of the text (UTF-8 for a str) as uint16, the smallest type that also holds the specials."""
        raw = text.encode() if isinstance(text, str) else text
        return np.frombuffer(raw, dtype=np.uint8).astype(np.uint16)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids. A model may sample bytes that are not UTF-8: those become U+FFFD."""
        return b"".join(_spelling(int(i)) for i in ids).decode(errors="replace")


def _spelling(token: int) -> bytes:
    if 0 <= token < N_BYTES:
        return bytes([token])
    if token in SPECIALS:
        return SPECIALS[token].encode()
    last = N_BYTES + len(SPECIALS) - 1
    raise InputError(f"token id must be between 0 and {last}, but is {token}; decode ids made by this tokenizer")
