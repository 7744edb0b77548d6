"""Store a prepared corpus on disk: tokens in shards that are mapped into memory, and the files needed to read them.

manifest.json            a description, and the size and checksum of every other file; written last
tokenizer.json           the tokenizer's definition
train-00000.tokens ...   little-endian ids, document after document, each followed by the end of text
train.starts             the position of each document's first token, little-endian, 8 bytes each
valid-00000.tokens ...   the same for the documents held out
valid.starts
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np

from attractor.corpus.tokenizer import Tokenizer, restore
from attractor.errors import InputError, require
from attractor.files import cache_folder, remove_leftovers, temporary_path, write_json
from attractor.files.seals import CHANGED, RunningHash, changed

FORMAT = "attractor-corpus"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SPECIAL_TOKENS = "special_tokens"  # in a manifest: names of special tokens in the texts were read as these tokens
WORK = "unfinished"  # the folder of an unfinished preparation
PLAN = "plan.json"  # its options, within that folder, by which it is recognised as a preparation
SIDES = ("train", "valid")
COUNTS = ("documents", "tokens", "bytes_read")  # of each side, in a manifest
START_TYPE = np.dtype("<u8")
ID_TYPES = ("<u2", "<u4")
PLAIN_NAME = re.compile(r"(train|valid)(-[0-9]{5,}\.tokens|\.starts)")
BLOCK = 1 << 22
BEGINNING = 1024  # bytes of a manifest within which it names its format


class Tokens:
    """The tokens of all shards of one side, as a single array that reads only the requested entries."""

    def __init__(self, shards: Sequence[np.ndarray], starts: np.ndarray) -> None:
        self.shards = shards
        self._bounds = np.cumsum([0, *map(len, shards)]).tolist()  # where each shard begins, and the end
        self.starts = starts
        self.dtype = shards[0].dtype

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        """Return tokens as an array does, for a slice without step or for an index array of numbers from 0 on."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise IndexError(f"tokens are read in their order, but the step is {step}")
            return self._between(start, stop)
        index = np.asarray(index)
        if index.size and not 0 <= index.min() <= index.max() < len(self):
            raise IndexError(
                f"tokens are numbered from 0 to {len(self) - 1}, but {index.min()} or {index.max()} is not"
            )
        if len(self.shards) == 1:
            return self.shards[0][index]
        tokens = np.empty(index.shape, dtype=self.dtype)
        shard_of = np.searchsorted(self._bounds, index, side="right") - 1
        for number in np.unique(shard_of):
            here = shard_of == number
            tokens[here] = self.shards[number][index[here] - self._bounds[number]]
        return tokens

    def documents(self) -> Iterator[np.ndarray]:
        """Yield each document with its end of text."""
        bounds = [*self.starts.tolist(), len(self)]
        return (self._between(start, stop) for start, stop in pairwise(bounds))

    def _between(self, start: int, stop: int) -> np.ndarray:
        """Return a slice: without a copy where it lies within one shard."""
        places = zip(self.shards, self._bounds, strict=False)
        slices = (shard[max(start - first, 0) : max(stop - first, 0)] for shard, first in places)
        pieces = [piece for piece in slices if len(piece)]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, dtype=self.dtype), *pieces])


@dataclass(frozen=True)
class PreparedCorpus:
    """A corpus that `attractor data prepare` wrote."""

    folder: Path
    manifest: dict[str, Any]
    tokenizer: Tokenizer
    train: Tokens
    valid: Tokens

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open a corpus, and check the size of every file and the tokenizer.

        At the first use of the files, `verify` reads all of them."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        for entry in _files(manifest):
            _check_size(folder, entry)
        definition = (folder / TOKENIZER).read_bytes()
        expected = manifest["tokenizer"]
        if hashlib.sha256(definition).hexdigest() != expected["sha256"]:
            raise InputError(
                f"shards must be of the {TOKENIZER} beside them, but those in '{folder}' were written with another "
                f"({expected['name']}); put that one back, or prepare the corpus again"
            )
        tokenizer = restore(definition, expected["name"])
        corpus = cls(folder, manifest, tokenizer, *(_side(folder, manifest, side) for side in SIDES))
        files = [folder / MANIFEST, *(folder / entry["file"] for entry in _files(manifest))]
        note = _verification_note(files)
        if not note.is_file():
            corpus.verify()
            with suppress(OSError):  # without a place for the note, the next use verifies again
                note.parent.mkdir(parents=True, exist_ok=True)
                remove_leftovers(note.parent)
                write_json(note, {"folder": str(folder.resolve())})
        return corpus

    @property
    def has_special_tokens(self) -> bool:
        """Whether the names of special tokens in its texts stand for these tokens."""
        return bool(self.manifest["tokenizer"].get(SPECIAL_TOKENS))

    @property
    def name(self) -> str:
        return str(self.manifest["source"]["name"])

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["tokenizer"]["vocab_size"])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the checksums in the manifest, of the tokenizer and of the tokens of both sides."""
        sums = [self.manifest["tokenizer"]["sha256"], *(entry["sha256"] for entry in _files(self.manifest))]
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()

    def verify(self) -> None:
        """Read all files, and refuse wrong checksums, ids outside the vocabulary, and starts out of order."""
        for name in changed(self.folder, {entry["file"]: entry["sha256"] for entry in _files(self.manifest)}):
            raise InputError(f"'{self.folder / name}' {CHANGED}; copy it again, or prepare the corpus anew")
        for name, side in zip(SIDES, (self.train, self.valid), strict=True):
            starts = side.starts
            if not (len(starts) and starts[0] == 0 and starts[-1] < len(side) and (starts[1:] >= starts[:-1]).all()):
                rule = f"starts of documents must begin at 0 and grow below {len(side):,}"
                raise _damaged(rule, f"those of '{self.folder / f'{name}.starts'}' do not")
            for shard in side.shards:
                largest = max(int(shard[i : i + BLOCK].max()) for i in range(0, len(shard), BLOCK))
                if largest >= self.vocab_size:
                    rule = f"token id must be below the vocabulary of {self.vocab_size}"
                    raise _damaged(rule, f"'{self.folder}' has {largest}")


def _verification_note(files: Sequence[Path]) -> Path:
    """Return the file whose presence says that a corpus was verified and that sizes and times are still the same.

    It is in the user's cache and never beside the files, so a corpus that was copied or comes from somebody else is
    verified again."""
    known = [(str(file.resolve()), (stat := file.stat()).st_size, stat.st_mtime_ns, stat.st_ctime_ns) for file in files]
    return cache_folder() / "verified" / f"{hashlib.sha256(json.dumps(known).encode()).hexdigest()}.json"


def id_type(vocab_size: int) -> np.dtype:
    """Return the type of ids, little-endian on all machines, so that shards can be copied between them."""
    return np.dtype(ID_TYPES[vocab_size > 2**16])


def is_prepared(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a prepared corpus, finished or under way, rather than texts.

    A manifest.json may belong to texts. That of a corpus names its format first; a damaged one has the shards beside
    it."""
    folder = Path(folder)
    if (folder / WORK / PLAN).is_file():
        return True
    if not (folder / MANIFEST).is_file():
        return False
    with (folder / MANIFEST).open("rb") as file:
        return FORMAT.encode() in file.read(BEGINNING) or (folder / "train.starts").is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise InputError(f"prepared corpus must be a folder, but '{folder}' is none; check it")
    if not (folder / MANIFEST).is_file():
        raise InputError(
            f"prepared corpus must have a {MANIFEST}, but '{folder}' has none; "
            f"run 'attractor data prepare SOURCE --out {folder}' to its end"
        )
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        format_and_version = (manifest["format"], manifest["version"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged("manifest must be one of a prepared corpus", f"'{folder / MANIFEST}' is not") from error
    if format_and_version != (FORMAT, FORMAT_VERSION):
        rule = f"prepared corpus must have version {FORMAT_VERSION} of its format"
        raise _damaged(rule, f"'{folder}' has {format_and_version[1]}")
    missing = [key for key in ("source", "tokenizer", "dtype", *SIDES, "plan") if key not in manifest]
    if missing:
        raise _damaged("manifest must be whole", f"'{folder / MANIFEST}' has no '{missing[0]}'")
    _require_plain(folder, manifest)
    return manifest


def _require_plain(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse a manifest that names files outside its folder, or another type than whole numbers of known width.

    A manifest may come from anybody, and numpy would read an array of pointers if the type says so."""
    try:
        sizes = [(entry["file"], entry["size"], entry["sha256"]) for entry in _files(manifest)]
        if not all(manifest[side]["shards"] for side in SIDES):
            raise _damaged("each side must have a shard", f"'{folder / MANIFEST}' has a side without any")
        vocab_size = manifest["tokenizer"]["vocab_size"]
        texts = {
            "name of the source": manifest["source"]["name"],
            "name of the tokenizer": manifest["tokenizer"]["name"],
            "sha256 of the tokenizer": manifest["tokenizer"]["sha256"],
        }
        counts = {f"{key} of {side}": manifest[side][key] for side in SIDES for key in COUNTS}
    except (KeyError, TypeError) as error:
        rule = "manifest must have file, size and sha256 of every shard, and describe its source and tokenizer"
        raise _damaged(rule, f"'{folder / MANIFEST}' does not") from error
    dtype, anew = manifest["dtype"], f"prepare the corpus in '{folder}' anew"
    require(dtype in ID_TYPES, "dtype", " or ".join(ID_TYPES), dtype, anew)
    for field, value in {"vocab_size": vocab_size, **counts}.items():
        require(isinstance(value, int), field, "a whole number", value, anew)
    for field, value in texts.items():
        require(isinstance(value, str), field, "a text", value, anew)
    for name, size, checksum in sizes:
        is_plain = isinstance(name, str) and PLAIN_NAME.fullmatch(name) is not None
        require(is_plain, "file", "a plain name as train-00000.tokens", name, anew)
        width = START_TYPE.itemsize if name.endswith(".starts") else np.dtype(dtype).itemsize
        is_whole = isinstance(size, int) and size > 0 and size % width == 0 and isinstance(checksum, str)
        require(is_whole, f"size of {name}", f"a positive multiple of {width} bytes", size, anew)


def _damaged(rule: str, fact: str) -> InputError:
    return InputError(f"{rule}, but {fact}; prepare the corpus anew")


def write_side(
    folder: Path, side: str, tokens: Iterable[np.ndarray], starts: np.ndarray, shard_tokens: int
) -> dict[str, Any]:
    """Write one side in shards of `shard_tokens` tokens, and return its entries for the manifest."""
    shards = [
        write_file(folder / f"{side}-{number:05}.tokens", (piece for _, piece in pieces))
        for number, pieces in groupby(_by_shard(tokens, shard_tokens), key=itemgetter(0))
    ]
    return {"shards": shards, "starts": write_file(folder / f"{side}.starts", [starts.astype(START_TYPE)])}


def write_file(path: Path, arrays: Iterable[np.ndarray]) -> dict[str, Any]:
    """Write a file under a temporary name, rename it once it is on disk, and return its entry for the manifest."""
    temporary = temporary_path(path)
    written = RunningHash()
    try:
        with temporary.open("wb") as file:
            for array in arrays:
                raw = array.tobytes()
                written.add(raw)
                file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return {"file": path.name, "size": written.n_bytes, "sha256": written.checksum}


def _by_shard(blocks: Iterable[np.ndarray], shard_tokens: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the blocks, cut where a shard ends, each with the number of its shard."""
    written = 0
    for block in blocks:
        while len(block):
            number, place = divmod(written, shard_tokens)
            piece = block[: shard_tokens - place]
            yield number, piece
            written += len(piece)
            block = block[len(piece) :]


def _side(folder: Path, manifest: dict[str, Any], side: str) -> Tokens:
    dtype = np.dtype(manifest["dtype"])
    shards = [np.memmap(folder / shard["file"], dtype=dtype, mode="r") for shard in manifest[side]["shards"]]
    return Tokens(shards, np.memmap(folder / manifest[side]["starts"]["file"], dtype=START_TYPE, mode="r"))


def _files(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for side in SIDES for entry in (*manifest[side]["shards"], manifest[side]["starts"])]


def _check_size(folder: Path, entry: dict[str, Any]) -> None:
    path = folder / entry["file"]
    size = path.stat().st_size if path.is_file() else None
    if size != entry["size"]:
        state = "is missing" if size is None else f"has {size:,}"
        raise InputError(
            f"file must have {entry['size']:,} bytes, but '{path}' {state}; copy it again, or prepare the corpus anew"
        )
