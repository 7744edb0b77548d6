"""Compute log-likelihoods of the last tokens of sequences, in batches of similar lengths.

    log p(x_{n-m+1} .. x_n | x_1 .. x_{n-m}) = sum over the last m tokens of log softmax(logits)[x_i]        (1)

Shorter sequences are padded at the end. No mask is needed, since a causal model does not look ahead. So a sum does not
depend on the other sequences of its batch, except for rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.console import Advance, no_advance
from attractor.errors import require
from attractor.evaluate.causal import Causal

LOGITS = 1 << 27  # logits that a batch may hold, 512 MB in fp32
MOST_ROWS = 64
POSITIONS = 256  # positions whose logits are converted to fp32 at a time


@dataclass(frozen=True, eq=False)
class Span:
    tokens: np.ndarray
    n_scored: int  # the last n_scored tokens are scored; at least the first token is context

    def __post_init__(self) -> None:
        assert 0 <= self.n_scored < len(self.tokens)


@dataclass(frozen=True)
class Likelihood:
    log: float  # nats
    greedy: bool  # True if every token was the most likely one


@torch.no_grad()
def likelihoods(
    causal: Causal, spans: Sequence[Span], batch_size: int | None = None, advance: Advance = no_advance
) -> list[Likelihood]:
    """Return (1) of each span, in the order of the spans."""
    require(batch_size is None or batch_size >= 1, "batch_size", "at least 1", batch_size)
    by_index: dict[int, Likelihood] = {}
    for batch in _batches(spans, causal.vocab_size, batch_size):
        rows = [torch.from_numpy(spans[i].tokens[:-1].astype(np.int64)) for i in batch]
        inputs = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(causal.device)
        logits = causal.logits(inputs)
        for i, row in zip(batch, logits, strict=True):
            by_index[i] = _likelihood(row, spans[i])
        advance(sum(spans[i].n_scored for i in batch))
    return [by_index[i] for i in range(len(spans))]


def _likelihood(logits: Tensor, span: Span) -> Likelihood:
    """Return (1) from the logits of a padded row."""
    last = len(span.tokens) - 1
    targets = torch.from_numpy(span.tokens[last + 1 - span.n_scored :].astype(np.int64)).to(logits.device)
    ends = logits[last - span.n_scored : last]
    log, greedy = 0.0, True
    for part, wanted in zip(ends.split(POSITIONS), targets.split(POSITIONS), strict=True):
        log -= float(F.cross_entropy(part.float(), wanted, reduction="none").double().sum())
        greedy = greedy and bool((part.argmax(-1) == wanted).all())
    return Likelihood(log, greedy)


def _batches(spans: Sequence[Span], vocab_size: int, batch_size: int | None) -> Iterator[list[int]]:
    """Yield batches of indices of spans. The longest come first, so that a lack of memory shows at once."""
    order = sorted(range(len(spans)), key=lambda i: -len(spans[i].tokens))
    while order:
        n_logits = len(spans[order[0]].tokens) * vocab_size
        n_rows = batch_size or min(MOST_ROWS, max(1, LOGITS // n_logits))
        yield order[:n_rows]
        order = order[n_rows:]
