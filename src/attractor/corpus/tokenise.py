"""Tokenise records in blocks, by many threads, and return them in the order in which they were read.

One thread reads and writes, and as many threads as there are cores tokenise. Threads suffice because tokenizers, hashes
and numpy release the interpreter's lock, and they end with the process if it is killed. The tokens of a block depend on
its records alone, so the result does not depend on the number of threads.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from attractor.corpus.duplicates import key
from attractor.corpus.records import Record, Source, parts
from attractor.corpus.shards import SIDES, id_type
from attractor.corpus.split import Split
from attractor.corpus.tokenizer import Tokenizer
from attractor.corpus.unfinished import DOCUMENT, TokenBlock
from attractor.tables import FlawError

BLOCK_BYTES = 1 << 20
BLOCK_RECORDS = 2000


@dataclass
class Tokenised:
    """A block of records and its tokens."""

    records: list[Record]
    train: TokenBlock
    valid: TokenBlock
    n_empty: int
    flaws: list[tuple[Record, str]]

    def side(self, side: str) -> TokenBlock:
        return self.valid if side == "valid" else self.train


def tokenise(records: list[Record], source: Source, tokenizer: Tokenizer, split: Split) -> Tokenised:
    """Tokenise a block of records. The result depends on the records alone, so any thread may compute it."""
    texts: dict[str, list[bytes]] = {side: [] for side in SIDES}
    places: dict[str, list[tuple[int, int]]] = {side: [] for side in SIDES}
    n_empty = 0
    flaws = []
    for record in records:
        try:
            text = source.text(record)
        except FlawError as flaw:
            flaws.append((record, str(flaw)))
            continue
        if not text.encode().strip():
            n_empty += 1
            continue
        for part in parts(text):
            for is_valid, document in split.sides(part):
                if document.strip():
                    texts[SIDES[is_valid]].append(document)
                    places[SIDES[is_valid]].append((record.file, record.position))
    train, valid = (_token_block(texts[side], places[side], tokenizer) for side in SIDES)
    return Tokenised(records, train, valid, n_empty, flaws)


def _token_block(texts: list[bytes], places: list[tuple[int, int]], tokenizer: Tokenizer) -> TokenBlock:
    end = np.array([tokenizer.end_of_text], dtype=id_type(tokenizer.vocab_size))
    documents = np.zeros(len(texts), dtype=DOCUMENT)
    if not texts:
        return TokenBlock(end[:0], documents, 0)
    encoded = tokenizer.encode_batch([text.decode() for text in texts])
    documents["key"] = [key(text) for text in texts]
    documents["file"], documents["position"] = np.array(places).T
    documents["n_tokens"] = [len(ids) + 1 for ids in encoded]
    tokens = np.concatenate([piece for ids in encoded for piece in (ids, end)])
    return TokenBlock(tokens, documents, sum(map(len, texts)))


def blocks(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield blocks of about a megabyte, as far as the sizes of records are known."""
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
    """Apply the function to every block by many threads, a few blocks ahead, and yield the results in order."""
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
