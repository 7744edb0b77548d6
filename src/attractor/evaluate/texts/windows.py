"""Score texts that are longer than the context: windows overlap, and each token is predicted once.

Window i begins at token i * stride and holds `window` tokens; it predicts those that no earlier window predicts:

    i = 0: all its tokens;    i > 0: the last `stride`, each from at least window - stride tokens of context (1)

stride = window gives adjacent windows, and stride = 1 the most context. The last window may be shorter.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attractor.errors import require
from attractor.evaluate.causal import Causal
from attractor.evaluate.texts.likelihood import Span

LONGEST_BY_DEFAULT = 2048  # time and memory grow with the window, so a longer one must be requested


class Window(NamedTuple):
    begin: int  # of the input tokens
    end: int
    n_scored: int  # the last n_scored predictions count


def windows(n_tokens: int, window: int, stride: int) -> Iterator[Window]:
    """Yield the windows over n input tokens, each of which predicts the next token."""
    done = 0
    for begin in range(0, n_tokens, stride):
        end = min(begin + window, n_tokens)
        yield Window(begin, end, end - done)  # (1)
        done = end
        if end == n_tokens:
            return


def spans_of(tokens: np.ndarray, window: int, stride: int) -> list[Span]:
    """Return the windows of a sequence as spans; the first token of the sequence is not predicted."""
    return [Span(tokens[w.begin : w.end + 1], w.n_scored) for w in windows(len(tokens) - 1, window, stride)]


def window_of(causal: Causal, requested: int | None) -> int:
    """Return the requested window, or by default the length that the model was trained on."""
    longest = causal.max_length
    if requested is None:
        return min(length for length in (causal.trained_length, longest, LONGEST_BY_DEFAULT) if length is not None)
    require(requested >= 1, "window", "at least 1", requested)
    rule = f"at most {longest}, the longest that '{causal.name}' takes"
    require(longest is None or requested <= longest, "window", rule, requested)
    return requested


def stride_of(window: int, requested: int | None) -> int:
    if requested is None:
        return max(1, window // 2)
    require(1 <= requested <= window, "stride", f"between 1 and window={window}", requested)
    return requested
