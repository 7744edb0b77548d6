"""Define the interface of tokenizers and the byte tokenizer, which needs neither training nor a download.

Byte-pair encodings are in `bpe.py`, because they need further packages. The name of a special token within a text
is plain text, unless a byte-pair encoding is made with `special_tokens`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from attractor.corpus import bpe
from attractor.corpus.data_paths import locate, searched_places
from attractor.errors import InputError, unknown

N_BYTES = 256
END_OF_TEXT = 256
PAD = 257
SPECIALS = {END_OF_TEXT: "<|endoftext|>", PAD: "<|pad|>"}
TRAINED = re.compile(r"bpe:(\d+)")


class Tokenizer(Protocol):
    """The interface of tokenizers. A prepared corpus carries the definition of its tokenizer."""

    name: str
    vocab_size: int  # the number of rows that an embedding needs: at least one more than the largest id
    n_spelled: int  # the number of ids in use; larger ids have no text and only pad the vocabulary
    end_of_text: int  # the id that follows every document
    pad: int  # the id that pads a batch; the end of text where the vocabulary has no padding token
    definition: bytes  # JSON from which `restore` recreates this tokenizer on any machine
    fingerprint: str  # the SHA-256 of the definition

    def encode(self, text: str | bytes) -> np.ndarray:
        """Return ids in the smallest unsigned integer type that holds the vocabulary."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]: ...

    def decode(self, ids: Iterable[int]) -> str: ...


class ByteTokenizer:
    """Token i < 256 is the byte i; the special tokens follow."""

    # 258 ids are in use. The embedding has 320 rows, a multiple of 64, because matrix kernels are tuned for such sizes.
    vocab_size = 320
    n_spelled = N_BYTES + len(SPECIALS)
    name = "bytes"
    end_of_text = END_OF_TEXT
    pad = PAD
    definition = json.dumps({"type": "bytes", "specials": SPECIALS}).encode()
    fingerprint = hashlib.sha256(definition).hexdigest()

    def encode(self, text: str | bytes) -> np.ndarray:
        """Return the bytes of the text (UTF-8 for a str) as uint16, the smallest type that holds all tokens."""
        raw = text.encode() if isinstance(text, str) else text
        return np.frombuffer(raw, dtype=np.uint8).astype(np.uint16)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids. Bytes that are not UTF-8, which a model may sample, become U+FFFD."""
        return b"".join(_spelling(int(i)) for i in ids).decode(errors="replace")


def load_tokenizer(name_or_path: str) -> Tokenizer:
    """Load an existing tokenizer: 'bytes', 'gpt2', or the path of a tokenizer.json or of a folder.

    The folder has a tokenizer.json, as runs and prepared corpora have, or GPT-2's pair: encoder.json or vocab.json with
    vocab.bpe or merges.txt."""
    if name_or_path == ByteTokenizer.name:
        return ByteTokenizer()
    if TRAINED.fullmatch(name_or_path):
        raise InputError(
            f"tokenizer '{name_or_path}' must first be trained on a corpus; "
            f"'attractor data prepare SOURCE --tokenizer {name_or_path} --out FOLDER' does so, and FOLDER holds it"
        )
    path = locate(name_or_path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.is_file() and file.read_bytes() == ByteTokenizer.definition:
        return ByteTokenizer()
    if path.exists():
        return bpe.from_path(path)
    if name_or_path == bpe.GPT2:
        return bpe.from_path(bpe.gpt2_folder(), bpe.GPT2)
    if re.fullmatch(r"[\w:-]+", name_or_path):
        raise unknown(
            "tokenizer", name_or_path, (ByteTokenizer.name, bpe.GPT2, "bpe:8192"), see="or a tokenizer.json's path"
        )
    raise InputError(
        f"tokenizer must be a name or a path, but '{name_or_path}' does not exist; {searched_places(name_or_path)}"
    )


def restore(definition: bytes, name: str) -> Tokenizer:
    """Recreate the tokenizer of a stored definition."""
    return ByteTokenizer() if definition == ByteTokenizer.definition else bpe.BytePairs(definition, name)


def special_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the special tokens, which are no text."""
    if isinstance(tokenizer, ByteTokenizer):
        return sorted(SPECIALS)
    return [token["id"] for token in json.loads(tokenizer.definition)["added_tokens"] if token["special"]]


def _spelling(token: int) -> bytes:
    if 0 <= token < N_BYTES:
        return bytes([token])
    if token in SPECIALS:
        return SPECIALS[token].encode()
    last = ByteTokenizer.n_spelled - 1
    raise InputError(f"token id must be between 0 and {last}, but is {token}; decode ids made by this tokenizer")
