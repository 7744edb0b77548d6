"""Effects of papers on language models in nats per byte, which do not depend on a tokenizer.

A paper that prints perplexities of GPT-2's tokens claims

    effect = log(perplexity of one row / that of the other) / bytes per token of GPT-2's tokenizer            (1)

with the bytes per token measured on text of the kind that the paper trained on. Where a paper prints no effect, the
margin of its claims is MATTERS.
"""

from collections.abc import Sequence
from math import log

from attractor.claims.claim import Figures, pair
from attractor.claims.comparisons import Pair

BYTES_PER_TOKEN = {  # of GPT-2's tokenizer, on 20 to 30 MB of each kind of text (LOG.md, 2026-11-22)
    "encyclopedic": 4.56,
    "medical": 4.14,
    "heterogeneous": 4.22,
}
# In nats/byte: two per cent of GPT-2's perplexity, the least gain for which anybody would change an architecture.
MATTERS = 0.02 / BYTES_PER_TOKEN["encyclopedic"]


def by_perplexity(
    table: Figures, of: Sequence[str], against: Sequence[str], column: str = "", text: str = "encyclopedic"
) -> tuple[Pair, ...]:
    """Return every row of `of` against every row of `against`, with the published effect in nats per byte (1)."""
    return tuple(
        pair(a, b, log(table[a][0] / table[b][0]) / BYTES_PER_TOKEN[text], column) for a in of for b in against
    )


def better(of: str, *against: str) -> tuple[Pair, ...]:
    """Return comparisons that are claimed without a figure: `of` is better by MATTERS."""
    return tuple(Pair(of, other, -MATTERS, MATTERS) for other in against)
