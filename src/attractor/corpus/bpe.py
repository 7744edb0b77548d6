"""Byte-pair encodings (Sennrich et al., 2015, arXiv 1508.07909) on bytes, as in GPT-2: any text, no unknown token.

A tokenizer is stored as the JSON of the `tokenizers` library, whichever files it came from, so that a folder of tokens
can carry it. Where `tiktoken` is installed and provably gives the same ids, it encodes, several times as fast.

The proof: both libraries merge the pair of lowest rank first. tiktoken merges two neighbours whenever their union is a
token, `tokenizers` only where the pair is a merge. Let l, r be neighbours whose union t is a token. No merge has
crossed their outer ends, so the bytes of t alone would reach the state [l, r] as well. If the bytes of t are known to
end as [t], then (l, r) is the merge of t, and both libraries do the same. `_encodes_its_tokens` checks this for every
token.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from attractor.corpus.network import OFFLINE, reachable
from attractor.errors import InputError, require_package

GPT2 = "gpt2"
GPT2_REPOSITORY = "openai-community/gpt2"
GPT2_FOLDER = "ATTRACTOR_GPT2"  # environment variable: the folder of GPT-2's files on a machine without network
SMALLEST = 257  # every byte and the end of text
LARGEST = 1 << 20  # the library allocates memory for the whole vocabulary at once
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<\uff5cend▁of▁sentence\uff5c>", "[SEP]")
ENDS_OF_TURNS = ("<EOS_TOKEN>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|END_OF_TURN_TOKEN|>")
PADS = ("<|pad|>", "<pad>", "[PAD]")

# GPT-2's words: contractions; letters, digits and other characters with a space before them; and spaces. The possessive
# `++` prevents backtracking, in which a run of a million letters would exhaust the matcher's stack.
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s+"
PLAIN_MODEL = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": (None, False),
}


class BytePairs:
    """A tokenizer defined by the JSON of the `tokenizers` library.

    With `special_tokens`, the name of a special token within a text is read as that token, as chats need it."""

    def __init__(self, definition: bytes, name: str, special_tokens: bool = False) -> None:
        library = require_package("tokenizers")
        try:
            self._rust = library.Tokenizer.from_str(definition.decode())
        except Exception as error:  # the library raises bare Exceptions
            raise InputError(
                f"tokenizer must be JSON of the tokenizers library, but '{name}' is not ({error}); give its "
                "tokenizer.json"
            ) from error
        self.name = name
        self.special_tokens = special_tokens
        self._rust.no_padding()
        self._rust.no_truncation()
        known = self._rust.get_vocab()
        end = next((known[spelling] for spelling in (*ENDS, *ENDS_OF_TURNS) if spelling in known), None)
        if end is None:  # documents need an end of text, which gets the next free id
            self._rust.add_special_tokens([ENDS[0]])
            known = self._rust.get_vocab()
            end = known[ENDS[0]]
        self.end_of_text: int = end
        self.pad: int = next((known[spelling] for spelling in PADS if spelling in known), end)
        self.vocab_size: int = max(known.values()) + 1
        self.n_spelled = self.vocab_size
        self.definition: bytes = self._rust.to_str().encode()
        self.fingerprint = hashlib.sha256(self.definition).hexdigest()
        self._type = np.min_scalar_type(self.vocab_size - 1)
        self._rust.encode_special_tokens = not special_tokens

    def encode(self, text: str | bytes) -> np.ndarray:
        return self.encode_batch([text if isinstance(text, str) else text.decode()])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self._tiktoken is not None:
            ids = [self._tiktoken.encode_to_numpy(text, disallowed_special=()) for text in texts]
            return [array.astype(self._type) for array in ids]
        encodings = self._rust.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self._type) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        checked = [int(i) for i in ids]
        for token in checked:
            if not 0 <= token < self.vocab_size:
                raise InputError(
                    f"token id must be between 0 and {self.vocab_size - 1}, but is {token}; decode ids made by this "
                    "tokenizer"
                )
        return self._rust.decode(checked, skip_special_tokens=False)

    @cached_property
    def _tiktoken(self) -> Any:
        """tiktoken's encoder if it gives the same ids, or None."""
        if self.special_tokens:
            return None
        try:
            import tiktoken
        except ImportError:
            return None
        ranks = _ranks(json.loads(self.definition))
        if ranks is None or not _encodes_its_tokens(json.loads(self.definition)):
            return None
        return tiktoken.Encoding(self.name, pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})


def from_path(path: Path, name: str = "") -> BytePairs:
    """Read a tokenizer.json, or a folder with one or with GPT-2's pair of files."""
    if path.is_dir():
        for vocabulary, merges in PAIRS:
            if (path / vocabulary).is_file() and (path / merges).is_file():
                return from_pair(path / vocabulary, path / merges, name or path.name)
        if not (path / "tokenizer.json").is_file():
            raise InputError(
                f"tokenizer folder must hold tokenizer.json, vocab.json with merges.txt, or encoder.json with "
                f"vocab.bpe, but '{path}' has none of them; give another"
            )
        path = path / "tokenizer.json"
    return BytePairs(path.read_bytes(), name or (path.resolve().parent.name if path.stem == "tokenizer" else path.stem))


def from_pair(vocabulary: Path, merges: Path, name: str) -> BytePairs:
    """Read GPT-2's pair of files: a JSON object of tokens and ids, and a text file with one merge per line."""
    library = require_package("tokenizers")
    try:
        model = library.models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises bare Exceptions
        raise InputError(
            f"tokenizer pair must be a vocabulary and its merges, but '{vocabulary}' and '{merges}' are not ({error}); "
            "fetch them again"
        ) from error
    tokenizer = _byte_level(model)
    tokenizer.add_special_tokens([ENDS[0]])
    return BytePairs(tokenizer.to_str().encode(), name)


def train(texts: Iterator[str], vocab_size: int) -> BytePairs:
    """Train a byte-pair encoding on these texts: 256 bytes, the end of text, and merges by frequency."""
    library = require_package("tokenizers")
    check_size(vocab_size)
    tokenizer = _byte_level(library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[ENDS[0]],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return BytePairs(tokenizer.to_str().encode(), f"bpe:{vocab_size}")


def check_size(vocab_size: int) -> None:
    if not SMALLEST <= vocab_size <= LARGEST:
        raise InputError(
            f"tokenizer must have from {SMALLEST} tokens, every byte and the end of text, to {LARGEST:,}, got "
            f"'bpe:{vocab_size}'; ask for another number"
        )


def gpt2_folder() -> Path:
    """Return the folder of GPT-2's pair: the one that the environment names, the Hub's cache, or a download."""
    named = os.environ.get(GPT2_FOLDER)
    if named:
        return Path(named)
    remedy = (
        f"fetch encoder.json and vocab.bpe (or vocab.json and merges.txt of '{GPT2_REPOSITORY}') elsewhere, and give "
        f"their folder as --tokenizer PATH or in the environment variable {GPT2_FOLDER}"
    )
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(f"tokenizer 'gpt2' must be found on disk, and is not; {remedy}") from None
    cached = [huggingface_hub.try_to_load_from_cache(GPT2_REPOSITORY, name) for name in PAIRS[0]]
    if not all(isinstance(path, str) for path in cached):
        if not reachable():
            raise InputError(f"tokenizer 'gpt2' must be downloaded, but {OFFLINE}; {remedy}")
        cached = [huggingface_hub.hf_hub_download(GPT2_REPOSITORY, name) for name in PAIRS[0]]
    return Path(str(cached[0])).parent


def _byte_level(model: Any) -> Any:
    library = require_package("tokenizers")
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _ranks(definition: dict[str, Any]) -> dict[bytes, int] | None:
    """Return the id of every token by its bytes if ids follow the order of merges, and None for other tokenizers."""
    model, before = definition["model"], definition["pre_tokenizer"] or {}
    plain = all(
        model.get(key) in expected if isinstance(expected, tuple) else model.get(key) == expected
        for key, expected in PLAIN_MODEL.items()
    )
    gpt2_words = before.get("type") == "ByteLevel" and not before["add_prefix_space"] and before["use_regex"]
    specials = {token["content"] for token in definition["added_tokens"] if token["special"]}
    if not plain or not gpt2_words or definition["normalizer"] or len(specials) < len(definition["added_tokens"]):
        return None
    alphabet = _alphabet()
    merged = ["".join(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
    spellings = [*alphabet, *merged]
    vocabulary = model["vocab"]
    if set(spellings) != vocabulary.keys() - specials or len(set(spellings)) < len(spellings):
        return None
    ids = [vocabulary[spelling] for spelling in merged]
    if ids != sorted(ids):
        return None
    return {bytes(alphabet[char] for char in spelling): vocabulary[spelling] for spelling in spellings}


def _encodes_its_tokens(definition: dict[str, Any]) -> bool:
    """Whether encoding the bytes of any token gives that token alone."""
    specials = {token["content"] for token in definition["added_tokens"]}
    model = require_package("tokenizers").Tokenizer.from_str(
        json.dumps(definition | {"pre_tokenizer": None, "added_tokens": [], "post_processor": None})
    )
    vocabulary = {spelling: i for spelling, i in definition["model"]["vocab"].items() if spelling not in specials}
    encodings = model.encode_batch_fast(list(vocabulary), add_special_tokens=False)
    return all(encoding.ids == [i] for encoding, i in zip(encodings, vocabulary.values(), strict=True))


def _alphabet() -> dict[str, int]:
    """Return the byte of each of GPT-2's characters: printable bytes stand for themselves, others from U+0100 on."""
    printed = [byte for byte in range(256) if re.match(r"[!-~¡-¬®-ÿ]", chr(byte))]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}
