"""Prepare a corpus: read a source of documents, split and tokenise it, look for duplicates, and write shards.

A budget of training tokens is met exactly: the document that exceeds it is cut, and reading ends there.
"""

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attractor.corpus import bpe
from attractor.corpus.duplicates import find
from attractor.corpus.records import EARLIEST_VERDICT, LONGEST_TEXT, Record, Source, parts, refuse_many_flaws, remedy
from attractor.corpus.shards import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    PLAN,
    SIDES,
    SPECIAL_TOKENS,
    TOKENIZER,
    WORK,
    PreparedCorpus,
    id_type,
    is_prepared,
    read_manifest,
    write_side,
)
from attractor.corpus.sources import (
    continues,
    modification_times,
    open_source,
    place_name,
    record_name,
    refuse_unused_options,
)
from attractor.corpus.split import VALIDATION_SHARE, Split, check_share, place, split_of, split_of_parts
from attractor.corpus.tokenise import Tokenised, blocks, in_order, n_cores, tokenise
from attractor.corpus.tokenizer import TRAINED, Tokenizer, load_tokenizer, restore
from attractor.corpus.unfinished import LOCK, N_SAMPLES, TokenBlock, UnfinishedCorpus, locked
from attractor.errors import InputError, require
from attractor.files import remove_leftovers, write_bytes, write_json, write_text
from attractor.tables import FlawError

COMMIT_SECONDS = 5.0
TIMES = "source.times"  # in the work folder: when each file of the source was last written
PEEKED_RECORDS = 1000
PEEKED_BYTES = 64 << 20
TRAINING_BYTES = 64 << 20
"""The amount of training text from which a tokenizer is trained."""

BYTES_PER_TOKEN = 4
MULTIPLES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


class Progress(NamedTuple):
    """The progress of a stage; `share` is the finished part, or 0 where the total is unknown."""

    stage: str
    share: float
    n_tokens: int
    n_documents: int


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Preparation:
    """The options of a preparation. All but `workers` and `max_bad` determine the result, bit for bit."""

    source: str
    out: Path
    tokenizer: str = "bytes"
    columns: tuple[str, ...] | None = None  # of tables; None takes `text`, or else the only column of strings
    split: str = "train"
    articles: bool = False
    max_tokens: int | None = None
    valid_share: float = VALIDATION_SHARE
    drop_duplicates: bool = False
    special_tokens: bool = False  # names of special tokens within a text are read as these tokens
    max_bad: float = 0.01
    shard_tokens: int = 1 << 27
    workers: int | None = None

    def check(self) -> None:
        check_share(self.valid_share)
        next_steps = {
            "max_tokens": "give for example 100M",
            "shard_tokens": "leave it out",
            "workers": "leave it out to use every core",
        }
        for name, next_step in next_steps.items():
            value = getattr(self, name)
            require(value is None or value >= 1, name, "at least 1", value, next_step)
        require(0 <= self.max_bad <= 1, "max_bad", "between 0 and 1", self.max_bad, "0.01 allows one record in 100")


def count_of(text: str, field: str = "max_tokens") -> int:
    """Read a large number such as 250000, 250k, 100M or 1.5G."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", text)
    if not match:
        raise InputError(f"{field} must be a number with k, M or G behind it or nothing, got '{text}'; give 100M")
    return round(float(match[1]) * MULTIPLES[match[2]])


def prepare(wanted: Preparation, on_progress: OnProgress = lambda progress: None) -> PreparedCorpus:
    """Prepare the corpus, or resume an interrupted preparation; a finished corpus is opened as it is."""
    wanted.check()
    trained = TRAINED.fullmatch(wanted.tokenizer)
    if trained:
        bpe.check_size(int(trained[1]))
    source = open_source(wanted.source, wanted.columns, wanted.split, wanted.articles)
    given = None if trained else load_tokenizer(wanted.tokenizer)
    if wanted.special_tokens:
        given = _reading_special_tokens(given, wanted.tokenizer)
    plan = {
        "source": source.identity,
        "tokenizer": given.fingerprint if given else wanted.tokenizer,
        "max_tokens": wanted.max_tokens,
        "valid_share": wanted.valid_share,
        "drop_duplicates": wanted.drop_duplicates,
        "shard_tokens": wanted.shard_tokens,
        **({SPECIAL_TOKENS: True} if wanted.special_tokens else {}),
    }
    refuse_unused_options(source, wanted.columns, wanted.split)
    folder = wanted.out / WORK
    _check_place(wanted.out, plan)
    if (wanted.out / MANIFEST).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        return PreparedCorpus.open(wanted.out)
    with locked(folder):
        remove_leftovers(wanted.out)
        write_json(folder / PLAN, plan)
        _check_unchanged(source, wanted.out)
        split = _split(source, wanted.valid_share, wanted.max_tokens)
        tokenizer = given or _trained(source, split, folder / TOKENIZER, wanted, on_progress)
        work = UnfinishedCorpus(folder, id_type(tokenizer.vocab_size))
        try:
            if not work.counts.finished:
                _tokenise_all(source, tokenizer, split, work, wanted, on_progress)
            _finish(source, tokenizer, split, work, plan, wanted, on_progress)
        finally:
            work.close()
        shutil.rmtree(folder, ignore_errors=True)  # a second process may have removed it since the manifest is there
    return PreparedCorpus.open(wanted.out)


def _reading_special_tokens(tokenizer: Tokenizer | None, name: str) -> Tokenizer:
    if not isinstance(tokenizer, bpe.BytePairs):
        rule = "left out with a tokenizer that has no special tokens for texts"
        raise InputError(f"special_tokens must be {rule}, got True with '{name}'; give the tokenizer.json of a model")
    return bpe.BytePairs(tokenizer.definition, tokenizer.name, special_tokens=True)


def _check_place(out: Path, plan: dict[str, Any]) -> None:
    """Refuse a folder that is neither empty nor begun by the same plan."""
    if out.exists() and not out.is_dir():
        raise InputError(f"out must be a folder, but '{out}' is a file; choose another")
    if not is_prepared(out):
        if out.is_dir() and not _is_fresh(out):
            raise InputError(f"out must be a new folder, but '{out}' holds other files; choose another")
        return
    try:
        is_finished = (out / MANIFEST).is_file()
        stored = read_manifest(out)["plan"] if is_finished else json.loads((out / WORK / PLAN).read_bytes())
        if not isinstance(stored["source"], dict):
            raise TypeError("a plan describes its source")
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"plan must be whole, but that of '{out}' is not; remove '{out}' and begin anew") from error
    asked = json.loads(json.dumps(plan))
    for key in (*asked, *(stored.keys() - asked.keys())):
        there, here = (part.get(key, False) for part in (stored, asked))  # a flag that is off is not stored
        if there != here:
            values = "" if isinstance(here, dict) else f" ({there} there, {here} here)"
            raise InputError(
                f"out must be a new folder or hold this corpus, but '{out}' holds a corpus prepared with another "
                f"{key}{values}; choose another folder, or remove that one"
            )


def _is_fresh(out: Path) -> bool:
    """Whether the folder is empty, or holds only what a preparation leaves that is killed before it writes its plan.

    Everything else belongs to the user, including a folder of the same name, since the work folder is removed at the
    end."""
    work = out / WORK
    inside = work.iterdir() if work.is_dir() else ()
    return {below.name for below in out.iterdir()} <= {WORK} and all(
        below.name == LOCK or below.name.startswith(f".{PLAN}.") for below in inside
    )


def _check_unchanged(source: Source, out: Path) -> None:
    """Remember when each file of the source was last written, and refuse to go on once a file has another time."""
    times = np.array(modification_times(source), dtype="<i8")
    if not (out / WORK / TIMES).is_file():
        write_bytes(out / WORK / TIMES, times.tobytes())
    stored = np.fromfile(out / WORK / TIMES, dtype="<i8")
    changed = next((name for name, then, now in zip(source.files, stored, times, strict=False) if then != now), None)
    if changed is not None:
        raise InputError(
            f"source must be as it was when this preparation began, but '{changed}' has changed; remove '{out}' and "
            "begin anew"
        )


def _split(source: Source, share: float, max_tokens: int | None) -> Split:
    """Return the split at `share`.

    A corpus so small that chance could leave a side empty is read as a whole first, and so is a single text. A text
    that a budget of tokens may end early is split like several texts, because its tail may never be read."""
    pieces: list[tuple[float, int]] = []
    n_bytes = 0
    is_one_text = False
    before: Record | None = None
    first = ""
    for n_records, record in enumerate(source.records(), start=1):
        try:
            texts = list(parts(source.text(record)))
        except FlawError as flaw:
            texts = []
            first = first or f"{record_name(source, record)}: {flaw}"
        n_bytes += sum(map(len, texts))
        if with_text := [(place(text), len(text)) for text in texts if text.strip()]:
            is_one_text = before is None or (is_one_text and continues(source, before, record))
            is_one_text &= max_tokens is None or n_bytes <= max_tokens
            before = record
            pieces += with_text
        if is_one_text:
            continue
        if n_records >= PEEKED_RECORDS:
            return Split(share)
        if n_bytes > PEEKED_BYTES and pieces and min(pieces)[0] <= share < max(pieces)[0]:
            return Split(share)
    places = [at for at, _ in pieces]
    if not places:
        reason = f"none that can be read, {first}; {remedy(first)}" if first else "none; give another"
        raise InputError(f"source must contain text, but '{source.name}' has {reason}")
    return split_of_parts(pieces, share) if is_one_text else split_of(places, share)


def _trained(source: Source, split: Split, path: Path, wanted: Preparation, on_progress: OnProgress) -> Tokenizer:
    """Return a tokenizer trained on this corpus, stored at once so that a resumed preparation does not train again."""
    if not path.is_file():
        vocab_size = int(wanted.tokenizer.removeprefix("bpe:"))
        tokenizer = bpe.train(_training_sample(source, split, wanted, on_progress), vocab_size)
        write_text(path, tokenizer.definition.decode())
    return restore(path.read_bytes(), wanted.tokenizer)


def _training_sample(source: Source, split: Split, wanted: Preparation, on_progress: OnProgress) -> Iterator[str]:
    """Yield training texts of at most `TRAINING_BYTES`, chosen by a hash from all parts of the source.

    Where the size of the source is unknown, or a budget ends reading early, the first texts are taken. Of compressed
    files only the compressed size is known, so more texts are taken, and the end of a large source is not reached."""
    most = math.inf if wanted.max_tokens is None else wanted.max_tokens * BYTES_PER_TOKEN
    size = min(sum(source.sizes) if source.sizes else TRAINING_BYTES, most)
    rate = min(1.0, TRAINING_BYTES / max(size, 1))
    n_read = n_taken = n_documents = 0
    for record in source.records():
        try:
            texts = list(parts(source.text(record)))
        except FlawError:
            continue
        for text in texts:
            n_read += len(text)
            for is_valid, side in split.sides(text):
                # The prefix makes the choice independent of the split, which uses the hash of the text.
                chosen = split.single or place(b"sample" + side) < rate
                if not is_valid and chosen and side.strip():
                    n_taken += len(side)
                    n_documents += 1
                    yield side.decode()
        on_progress(Progress("training the tokenizer", min(n_read / max(size, 1), 1.0), 0, n_documents))
        if n_taken >= TRAINING_BYTES or n_read >= most:
            return


def _tokenise_all(
    source: Source,
    tokenizer: Tokenizer,
    split: Split,
    work: UnfinishedCorpus,
    wanted: Preparation,
    on_progress: OnProgress,
) -> None:
    counts = work.counts
    committed = time.monotonic()
    ends = None if source.sizes is None else np.cumsum(source.sizes, dtype=np.int64)

    def check() -> None:
        refuse_many_flaws(counts.n_malformed, counts.n_records, wanted.max_bad, next(iter(counts.malformed), ""))

    def tokenise_records(records: list[Record]) -> Tokenised:
        return tokenise(records, source, tokenizer, split)

    for done in in_order(tokenise_records, blocks(source.records(*counts.place)), wanted.workers or n_cores()):
        left = None if wanted.max_tokens is None else wanted.max_tokens - counts.n_tokens["train"]
        if left is not None and len(done.train.tokens) >= left:
            done = _within_budget(done, left, tokenise_records)
            counts.finished = True
        for side in SIDES:
            work.append(side, done.side(side))
        last = done.records[-1]
        counts.place = (last.file, last.after)
        counts.n_records += len(done.records)
        counts.n_empty += done.n_empty
        counts.n_malformed += len(done.flaws)
        samples = done.flaws[: N_SAMPLES - len(counts.malformed)]
        counts.malformed += [f"{record_name(source, record)}: {flaw}" for record, flaw in samples]
        if counts.n_records >= EARLIEST_VERDICT:
            check()
        if time.monotonic() - committed > COMMIT_SECONDS:
            work.commit()
            committed = time.monotonic()
        n_tokens = counts.n_tokens["train"]
        share = max(_share_read(source, ends, last), n_tokens / wanted.max_tokens if wanted.max_tokens else 0.0)
        on_progress(Progress("tokenising", share, sum(counts.n_tokens.values()), sum(counts.n_documents.values())))
        if counts.finished:
            break
    check()
    for side in SIDES:
        if not counts.n_documents[side]:
            raise InputError(
                f"both sides must have a document, but of {counts.n_records} records none is for {side}; give more "
                "text, a larger max_tokens or another valid_share, and another folder"
            )
    counts.finished = True
    work.commit()


def _within_budget(done: Tokenised, left: int, tokenise_records: Callable[[list[Record]], Tokenised]) -> Tokenised:
    """Return the block up to the document that reaches the budget, which is cut there."""
    ends = np.cumsum(done.train.documents["n_tokens"], dtype=np.int64)
    last = int(np.searchsorted(ends, left))
    file, position = (int(done.train.documents[name][last]) for name in ("file", "position"))
    behind = next(i for i, r in enumerate(done.records, start=1) if (r.file, r.position) == (file, position))
    done = tokenise_records(done.records[:behind])
    train = done.train
    documents = train.documents[: last + 1].copy()
    documents["n_tokens"][last] -= int(ends[last]) - left
    done.train = TokenBlock(train.tokens[:left], documents, train.n_bytes)
    return done


def _share_read(source: Source, ends: np.ndarray | None, last: Record) -> float:
    """Return the share of the source up to the end of a record; `ends` are the sums of the sizes of its files."""
    if source.sizes is None or ends is None:
        return (last.file + last.read) / len(source.files)
    return float(ends[last.file] - (1 - last.read) * source.sizes[last.file]) / max(int(ends[-1]), 1)


def _finish(
    source: Source,
    tokenizer: Tokenizer,
    split: Split,
    work: UnfinishedCorpus,
    plan: dict[str, Any],
    wanted: Preparation,
    on_progress: OnProgress,
) -> None:
    counts = work.counts
    n_tokens, n_documents = sum(counts.n_tokens.values()), sum(counts.n_documents.values())
    on_progress(Progress("looking for duplicates", 1.0, n_tokens, n_documents))
    train, valid = (work.side(side) for side in SIDES)
    duplicates, twins = find(train.documents["key"], valid.documents["key"])
    kept = np.ones(len(train.documents), dtype=bool)
    if wanted.drop_duplicates:
        kept[duplicates] = False
    if not kept.any():
        raise InputError(
            f"training must keep a document, but all {len(kept)} are duplicates of validation; leave out "
            "drop_duplicates, and choose another folder"
        )
    on_progress(Progress("writing shards", 1.0, n_tokens, n_documents))
    manifest = _description(source, tokenizer, split, work, wanted)
    manifest["duplicates"] = _report(train.documents[duplicates], valid.documents[twins], source, wanted)
    for name, side, keep in (("train", train, kept), ("valid", valid, np.ones(len(valid.documents), dtype=bool))):
        lengths = side.documents["n_tokens"][keep].astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        manifest[name] = {
            "documents": len(lengths),
            "tokens": int(lengths.sum()),
            "bytes_read": counts.n_bytes[name],
            **write_side(wanted.out, name, side.tokens(keep), starts, wanted.shard_tokens),
        }
    manifest["plan"] = plan
    write_text(wanted.out / TOKENIZER, tokenizer.definition.decode())
    write_json(wanted.out / MANIFEST, manifest)


def _description(
    source: Source,
    tokenizer: Tokenizer,
    split: Split,
    work: UnfinishedCorpus,
    wanted: Preparation,
) -> dict[str, Any]:
    """Return what the manifest says of the corpus, apart from its shards."""
    counts = work.counts
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "source": source.identity,
        "skipped_files": list(getattr(source, "skipped", ())),
        "tokenizer": {
            "name": tokenizer.name,
            "sha256": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "end_of_text": tokenizer.end_of_text,
            "pad": tokenizer.pad,
            **({SPECIAL_TOKENS: True} if wanted.special_tokens else {}),
        },
        "dtype": work.dtype.str,
        "split_rule": {
            "rule": "the first 48 bits of the SHA-256 of a document's text, divided by 2**48, are at most the boundary"
            if not split.single
            else "the one text is cut where its last part begins, after a line break if there is one near",
            "valid_share": wanted.valid_share,
            "boundary": split.boundary,
        },
        "longest_text": LONGEST_TEXT,
        "records": counts.n_records,
        "empty": counts.n_empty,
        "malformed": {"count": counts.n_malformed, "samples": counts.malformed},
    }


def _report(train: np.ndarray, valid: np.ndarray, source: Source, wanted: Preparation) -> dict[str, Any]:
    """Return the number of duplicates in training, given with their twins in validation, and the first few places."""

    def places(documents: np.ndarray) -> list[str]:
        return [
            place_name(source, int(document["file"]), int(document["position"])) for document in documents[:N_SAMPLES]
        ]

    pairs = zip(places(train), places(valid), strict=True)
    return {
        "rule": "the same words, whatever separates them",
        "exact": len(train),
        "valid_documents": len(np.unique(valid)),
        "train_tokens": int(train["n_tokens"].sum()),
        "dropped": wanted.drop_duplicates,
        "exact_samples": [{"train": of_train, "valid": of_valid} for of_train, of_valid in pairs],
    }
