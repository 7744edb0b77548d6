"""Judge which of two models predicts the same texts better, document by document.

    d_i = nats of model A / bytes - nats of model B / bytes,   for document i                               (1)

The difficulty of a document is the same for both models and cancels. All documents have the same weight, whatever their
length. The verdict speaks of documents like these: the parts of one book say nothing about other books.
"""

import math
from itertools import zip_longest

from attractor.errors import InputError
from attractor.evaluate.texts.texts import TextScore
from attractor.verdict.family import Comparison, judge_family
from attractor.verdict.outcome import Verdict

FEWEST = 6  # with 5 documents, even equal signs of all have a chance of 2 / 2^5 > 5%
UNIT = "nats per byte"


def paired(of: TextScore, against: TextScore) -> Verdict:
    """Return the verdict on the first model; its difference is negative if that model is better."""
    documents = list(zip_longest(of.documents, against.documents))
    for ours, theirs in documents:
        if ours is None or theirs is None or ours.name != theirs.name:
            names = [None if document is None else document.name for document in (ours, theirs)]
            raise InputError(
                f"scores must be of the same documents in the same order, got '{names[0]}' and '{names[1]}'; score "
                "both models on one text"
            )
    require_enough(len(documents))
    differences = [ours.nats_per_byte - theirs.nats_per_byte for ours, theirs in documents]  # (1)
    finite = all(map(math.isfinite, differences))
    obstacle = "" if finite else "A document has no finite loss; evaluate with --precision fp32."
    row = f"{of.model} against {against.model}"
    return judge_family({row: Comparison(row, differences, obstacle=obstacle, pair_of="document")})[row]


def in_words(verdict: Verdict) -> str:
    difference = f", {verdict.interval} {UNIT}" if verdict.interval else ""
    return f"{verdict.row}: {verdict.outcome}{difference}. {verdict.sentence}"


def require_enough(n_documents: int) -> None:
    if n_documents < FEWEST:
        raise InputError(
            f"documents must be at least {FEWEST} for a test of pairs, got {n_documents}; give a folder of files, or a "
            ".txt file with a line <|endoftext|> between documents"
        )
