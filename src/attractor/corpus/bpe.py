"""Byte-pair encodings (Sennrich et al., arXiv 1508.07909) on bytes, as GPT-2 has them: any text, no unknown token.

Every one is held as the JSON of the `tokenizers` library, whichever files it came from, so that a folder of tokens can
carry it. Encoding goes through `tiktoken` where that is installed and provably gives the same ids, because it is
several times as fast. The proof rests on what both do, merging the pair of lowest rank first, and where they differ:
tiktoken merges two neighbours whenever their union is a token, the other only where that pair is a merge. Let l, r be
neighbours whose union t is a token. Nothing around them has touched their bytes, so the bytes of t alone would have
come to the state [l, r], too. If they are known to end as [t], then (l, r) is t's own merge, and both do the same.
`_gives_itself` therefore checks every token once.
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
from attractor.corpus.optional import needed
from attractor.errors import InputError

GPT2 = "gpt2"
GPT2_REPOSITORY = "openai-community/gpt2"
GPT2_FOLDER = "ATTRACTOR_GPT2"  # an environment variable: where the pair lies on a machine without network
SMALLEST = 257  # every byte and the end of text
LARGEST = 1 << 20  # the library sets memory aside for as many at once
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<\uff5cend▁of▁sentence\uff5c>", "[SEP]")
PADS = ("<|pad|>", "<pad>", "[PAD]")

# GPT-2's words: contractions, letters, digits and other signs with a space before them, and spaces. The signs `++` say
# that a run of letters is never given back in part; without them a run of a million exhausts the matcher's stack.
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
    """A tokenizer made from the JSON of the `tokenizers` library."""

    def __init__(self, definition: bytes, name: str) -> None:
        library = needed("tokenizers")
        try:
            self._rust = library.Tokenizer.from_str(definition.decode())
        except Exception as error:  # the library raises bare Exceptions
            raise InputError(
                f"tokenizer must be JSON of the tokenizers library, but '{name}' is not ({error}); give its "
                "tokenizer.json"
            ) from error
        self.name = name
        self._rust.no_padding()
        self._rust.no_truncation()
        known = self._rust.get_vocab()
        end = next((known[spelling] for spelling in ENDS if spelling in known), None)
        if end is None:  # documents need an end: it gets the next free id
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
        self._rust.encode_special_tokens = True  # a text that spells a special's name means the text

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
        """tiktoken's encoder of the same ids, or None."""
        try:
            import tiktoken
        except ImportError:
            return None
        ranks = _ranks(json.loads(self.definition))
        if ranks is None or not _gives_itself(json.loads(self.definition)):
            return None
        return tiktoken.Encoding(self.name, pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})


def from_path(path: Path, name: str = "") -> BytePairs:
    """From a tokenizer.json, or a folder with one or with a GPT-2 pair."""
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
    return BytePairs(path.read_bytes(), name or (path.parent.name if path.stem == "tokenizer" else path.stem))


def from_pair(vocabulary: Path, merges: Path, name: str) -> BytePairs:
    """GPT-2's form: a JSON object of spellings and ids, and a text file with one merge a line."""
    library = needed("tokenizers")
    try:
        model = library.models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises bare Exceptions
        raise InputError(
            f"tokenizer pair must be a vocabulary and its merges, but '{vocabulary}' and '{merges}' are not ({error}); "
            "fetch them again"
        ) from error
    made = _byte_level(model)
    made.add_special_tokens([ENDS[0]])
    return BytePairs(made.to_str().encode(), name)


def train(texts: Iterator[str], vocab_size: int) -> BytePairs:
    """A byte-pair encoding of these texts: 256 bytes, the end of text, and merges by frequency."""
    library = needed("tokenizers")
    check_size(vocab_size)
    made = _byte_level(library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[ENDS[0]],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return BytePairs(made.to_str().encode(), f"bpe:{vocab_size}")


def check_size(vocab_size: int) -> None:
    if not SMALLEST <= vocab_size <= LARGEST:
        raise InputError(
            f"tokenizer must have from {SMALLEST} tokens, every byte and the end of text, to {LARGEST:,}, got "
            f"'bpe:{vocab_size}'; ask for another number"
        )


def gpt2_folder() -> Path:
    """Where GPT-2's pair is: the folder that the environment names, the Hub's cache, or a download."""
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
    library = needed("tokenizers")
    made = library.Tokenizer(model)
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    return made


def _ranks(definition: dict[str, Any]) -> dict[bytes, int] | None:
    """Every token's bytes with its id, where ids grow with the order of merges; None for any other tokenizer."""
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
    return {bytes(alphabet[sign] for sign in spelling): vocabulary[spelling] for spelling in spellings}


def _gives_itself(definition: dict[str, Any]) -> bool:
    """Whether the merges make every token out of its own bytes."""
    specials = {token["content"] for token in definition["added_tokens"]}
    model = needed("tokenizers").Tokenizer.from_str(
        json.dumps(definition | {"pre_tokenizer": None, "added_tokens": [], "post_processor": None})
    )
    vocabulary = {spelling: i for spelling, i in definition["model"]["vocab"].items() if spelling not in specials}
    encodings = model.encode_batch_fast(list(vocabulary), add_special_tokens=False)
    return all(encoding.ids == [i] for encoding, i in zip(encodings, vocabulary.values(), strict=True))


def _alphabet() -> dict[str, int]:
    """GPT-2's sign for each byte: itself where it prints, and the signs from U+0100 on for the rest, in order."""
    printed = [byte for byte in range(256) if re.match(r"[!-~¡-¬®-ÿ]", chr(byte))]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}
