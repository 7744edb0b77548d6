"""The choice of a test's cases for the fast tests; the others are marked slow."""

from collections.abc import Iterable
from typing import Any

import pytest

from attractor.attention import PRESETS
from attractor.attention.config import STAGES


def representatives() -> set[str]:
    """Return presets that together have every class of every stage; each adds a class that the earlier ones lack."""
    names: set[str] = set()
    covered: set[type] = set()
    for name, config in PRESETS.items():
        classes = {type(getattr(config, stage)) for stage in STAGES}
        if not classes <= covered:
            names.add(name)
            covered |= classes
    return names


REPRESENTATIVES = representatives()


def tiered(names: Iterable[str]) -> list[Any]:
    """Return the names as parameters of a test; presets that are not representatives are marked slow."""
    slow = PRESETS.keys() - REPRESENTATIVES
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


def fast_alone(names: Iterable[Any], *fast: Any) -> list[Any]:
    """Return the cases as parameters of a test; all but the given ones are marked slow."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]
