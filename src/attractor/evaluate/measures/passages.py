"""Draw passages of a text as tokens, at places that do not depend on the tokenizer, so models can be compared.

The text is cut into one stretch for each passage. The seed draws the start of a passage within its stretch, moved to
the start of a line if one is near. So the passages are spread over the text and do not overlap.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from attractor.corpus.columns import columns_from
from attractor.corpus.compression import is_compressed, plain_name
from attractor.corpus.data_paths import locate
from attractor.corpus.documents import CORPORA, SEPARATOR_LINE
from attractor.corpus.in_memory import checked_blocks
from attractor.corpus.readers import TEXT, format_of
from attractor.corpus.shards import is_prepared
from attractor.corpus.sources import documents, open_source, refuse_unused_options
from attractor.errors import InputError

LONGEST = 2**26  # characters of a text that are read; a passage has a few hundred
LONGEST_TOKEN = 16  # characters per token, at most on average
NEAR = 400  # characters in which the start of a line is searched
BETWEEN = "\n\n"  # separates documents
SEPARATOR = re.compile(SEPARATOR_LINE.pattern.decode(), re.MULTILINE)


def text_of(name: str, column: str | None = None) -> str:
    """Return the text of a UTF-8 file, or the documents of a corpus joined; a very long text is cut at LONGEST."""
    if name not in CORPORA:
        path = locate(name)
        if path.is_file() and format_of(path.name) in (None, TEXT) and not is_compressed(path.name):
            if column is not None:
                raise InputError(f"column must be left out with plain text, got '{column}' for '{name}'; leave it out")
            text = _beginning_of(path)
            return SEPARATOR.sub(BETWEEN, text) if plain_name(path.name).lower().endswith(".txt") else text
        if is_prepared(path):
            raise InputError(
                f"on must be text, but '{name}' is a corpus of one tokenizer's tokens; give the text that it is made of"
            )
        name = str(path) if path.exists() else name
    source = open_source(name, columns_from(column))
    refuse_unused_options(source, columns_from(column))
    texts = (text.decode(errors="replace") for _, text in documents(source))
    return "".join(_beginning(chain.from_iterable((text, BETWEEN) for text in texts)))


def passages(
    text: str, encode: Callable[[str], Sequence[int]], n_samples: int, length: int, start: int | None, seed: int
) -> Int[Tensor, "N T"]:
    """Return passages of `length` tokens; the first token of each is the model's start token, if it has one."""
    leading = [] if start is None else [start]
    n_of_text = length - len(leading)
    reach = length * LONGEST_TOKEN  # also with a start token, so that all models read the same places
    rng = np.random.default_rng(seed)
    bounds = [len(text) * number // n_samples for number in range(n_samples + 1)]
    drawn = []
    for begin, end in pairwise(bounds):
        stretch = text[begin:end]
        at = _line_near(stretch, int(rng.integers(0, max(len(stretch) - reach, 0) + 1)))
        tokens = encode(stretch[at : at + reach])[:n_of_text] if at else []
        if len(tokens) < n_of_text:
            tokens = encode(stretch[:reach])[:n_of_text]
        if len(tokens) < n_of_text:
            raise InputError(
                f"on must have {n_samples} passages of {length} tokens, one in each {len(stretch):,} characters, got "
                f"one of {len(leading) + len(tokens)}; give a longer text, a smaller --length or --n-samples"
            )
        drawn.append(leading + list(tokens))
    return torch.tensor(drawn)


def _beginning_of(path: Path) -> str:
    content = io.BytesIO()
    for block in checked_blocks(path):
        content.write(block)
        if content.tell() >= 4 * LONGEST:  # a character has at most four bytes
            break
    content.seek(0)
    return io.TextIOWrapper(content, encoding="utf-8-sig", errors="ignore", newline="").read(LONGEST)


def _line_near(stretch: str, at: int) -> int:
    line = stretch.rfind("\n", max(at - NEAR, 0), at)
    return at if line < 0 else line + 1


def _beginning(texts: Iterator[str]) -> Iterator[str]:
    n_left = LONGEST
    for text in texts:
        yield text[:n_left]
        n_left -= len(text)
        if n_left <= 0:
            return
