"""Correct many tests at once: Holm's method keeps the chance of even one false finding in a table below the level.

With m p values in rising order, the k-th of them, from 0, becomes

    max over j <= k of min(1, (m - j) p_j)                                                                  (1)

whatever the dependence between the tests (Holm 1979). It is never weaker than Bonferroni's m p.
"""

from collections.abc import Mapping
from typing import TypeVar

from attractor.errors import InputError

Key = TypeVar("Key")


def holm(p_values: Mapping[Key, float | None], n_tests: int = 0) -> dict[Key, float | None]:
    """Return adjusted p values, to be compared with the level itself. A missing p value (None) is not counted.

    `n_tests` counts tests whose p values are not here, too, such as those of ideas that were tried and not kept: if it
    is larger than the number of p values, it is m, as if the missing ones were all 1.
    """
    known = {key: p for key, p in p_values.items() if p is not None}
    wrong = next((key for key, p in known.items() if not 0 <= p <= 1), None)
    if wrong is not None:
        raise InputError(f"a p value lies between 0 and 1: that of '{wrong}' is {known[wrong]}; give None if unknown")
    adjusted: dict[Key, float] = {}
    largest = 0.0
    m = max(len(known), n_tests)
    for rank, key in enumerate(sorted(known, key=lambda key: known[key])):
        largest = max(largest, min(1.0, (m - rank) * known[key]))  # (1)
        adjusted[key] = largest
    return {key: adjusted.get(key) for key in p_values}
