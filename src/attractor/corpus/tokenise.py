"""Records in, tokens out: in blocks, by many threads, in the order in which they were read.

One thread reads and writes; as many threads as there are cores tokenise. Threads suffice because tokenizers, hashes and
numpy do their work outside the interpreter's lock, and nothing is left behind when the process is killed. What a block
becomes depends on its records alone, so the result does not depend on how many threads there are.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from attractor.corpus.duplicates import sketch
from attractor.corpus.records import FlawError, Record, Source, parts
from attractor.corpus.shards import SIDES, id_type
from attractor.corpus.split import Split
from attractor.corpus.tokenizer import Tokenizer
from attractor.corpus.work import DOCUMENT, Part

BLOCK_BYTES = 1 << 20
BLOCK_RECORDS = 2000


@dataclass
class Tokenised:
    """A block of records, in tokens."""

    records: list[Record]
    train: Part
    valid: Part
    n_empty: int
    flaws: list[tuple[Record, str]]

    def side(self, side: str) -> Part:
        return self.valid if side == "valid" else self.train


def tokenise(records: list[Record], source: Source, tokenizer: Tokenizer, split: Split) -> Tokenised:
    """A function of the records alone: any thread may do it."""
    texts: dict[str, list[bytes]] = {side: [] for side in SIDES}
    places: dict[str, list[tuple[int, int]]] = {side: [] for side in SIDES}
    n_empty = 0
    flaws = []
    for record in records:
        try:
            said = source.text(record)
        except FlawError as flaw:
            flaws.append((record, str(flaw)))
            continue
        if not said.encode().strip():
            n_empty += 1
            continue
        for part in parts(said):
            for is_valid, text in split.sides(part):
                if text.strip():
                    texts[SIDES[is_valid]].append(text)
                    places[SIDES[is_valid]].append((record.file, record.position))
    train, valid = (_part(texts[side], places[side], tokenizer) for side in SIDES)
    return Tokenised(records, train, valid, n_empty, flaws)


def _part(texts: list[bytes], places: list[tuple[int, int]], tokenizer: Tokenizer) -> Part:
    end = np.array([tokenizer.end_of_text], dtype=id_type(tokenizer.vocab_size))
    documents = np.zeros(len(texts), dtype=DOCUMENT)
    if not texts:
        return Part(end[:0], documents, np.empty(0, dtype=np.uint64), 0)
    encoded = tokenizer.encode_batch([text.decode() for text in texts])
    documents["key"], documents["n_hashes"], hashes = sketch(texts)
    documents["file"], documents["position"] = np.array(places).T
    documents["n_tokens"] = [len(ids) + 1 for ids in encoded]
    tokens = np.concatenate([piece for ids in encoded for piece in (ids, end)])
    return Part(tokens, documents, hashes, sum(map(len, texts)))


def blocks(records: Iterable[Record]) -> Iterator[list[Record]]:
    """About a megabyte at a time, as far as the records' sizes show."""
    block: list[Record] = []
    size = 0
    for record in records:
        block.append(record)
        size += _size(record.raw)
        if size >= BLOCK_BYTES or len(block) >= BLOCK_RECORDS:
            yield block
            block, size = [], 0
    if block:
        yield block


def _size(raw: Any) -> int:
    if isinstance(raw, dict):
        return sum(map(_size, raw.values()))
    return len(raw) if isinstance(raw, str | bytes) else 0


def in_order(
    function: Callable[[list[Record]], Tokenised], blocks: Iterable[list[Record]], n_threads: int
) -> Iterator[Tokenised]:
    """The function of each block, by many threads, a few blocks ahead."""
    waiting: deque[Future[Tokenised]] = deque()
    with ThreadPoolExecutor(n_threads) as pool:
        try:
            for block in blocks:
                waiting.append(pool.submit(function, block))
                if len(waiting) > 2 * n_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
