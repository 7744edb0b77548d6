"""Test which of two models predicts the same texts better, document by document.

    d_i = nats of model A / bytes - nats of model B / bytes,   for document i                               (1)

The difficulty of a document is the same for both models and cancels. The mean of d is tested by Student's paired test.
All documents have the same weight, whatever their length. The test speaks of documents like these: the parts of one
book say nothing about other books.
"""

import math
from dataclasses import dataclass
from itertools import zip_longest

from attractor.claims.verdicts import bounds
from attractor.errors import InputError
from attractor.evaluate.texts.texts import TextScore
from attractor.verdict.t_tests import Difference, paired_t_test

FEWEST = 6  # with 5 documents, even equal signs of all have a chance of 2 / 2^5 > 5%
LEVEL = 0.95


@dataclass(frozen=True)
class Paired:
    of: str
    against: str
    difference: Difference  # nats per byte; negative if `of` is better

    @property
    def verdict(self) -> str:
        interval, n = self.difference.interval, self.difference.n
        if not math.isfinite(interval.mean):
            return (
                f"no verdict on {self.of} and {self.against}: a document has no finite loss; evaluate with --dtype fp32"
            )
        between = f"over {n} documents"
        size = f"{abs(interval.mean):.{interval.decimals}f}"
        if interval.excludes_zero:
            better, worse = (self.of, self.against) if interval.mean < 0 else (self.against, self.of)
            return f"{better} is better than {worse} by {size} nats per byte {between} ({self._stated})"
        half = interval.half_width
        if not half:
            return f"{self.of} and {self.against} predict every document alike, {between}"
        detectable = f"one of {half:.{interval.decimals}f} would have shown"
        return f"no difference shown between {self.of} and {self.against} {between} ({self._stated}); {detectable}"

    @property
    def _stated(self) -> str:
        interval, p = self.difference.interval, self.difference.p
        chance = "" if p is None else ", p < 0.0001" if p < 1e-4 else f", p = {p:.2g}"
        return f"{interval.mean:+.{interval.decimals}f} {bounds(interval)}{chance}"


def paired(of: TextScore, against: TextScore) -> Paired:
    names = [document.name for document in of.documents]
    theirs = [document.name for document in against.documents]
    if names != theirs:
        ours, other = next(pair for pair in zip_longest(names, theirs) if pair[0] != pair[1])
        raise InputError(
            f"scores must be of the same documents in the same order, got '{ours}' and '{other}'; score both models on "
            "one text"
        )
    require_enough(len(names))
    differences = [
        ours.nats_per_byte - theirs.nats_per_byte for ours, theirs in zip(of.documents, against.documents, strict=True)
    ]
    return Paired(of.model, against.model, paired_t_test(differences, LEVEL))  # (1)


def require_enough(n_documents: int) -> None:
    if n_documents < FEWEST:
        raise InputError(
            f"documents must be at least {FEWEST} for a test of pairs, got {n_documents}; give a folder of files, or a "
            ".txt file with a line <|endoftext|> between documents"
        )
