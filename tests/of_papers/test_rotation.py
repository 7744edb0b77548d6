"""Dot products are invariant under a common rotation of queries and keys; scores of phase activation are not."""

import pytest
import torch

from attractor.train.config import RECIPES
from papers.psiqrh.probes.rotation import change, rotation_of_run


@pytest.mark.parametrize(("attention", "invariant"), [("standard", True), ("phase", False), ("coupled-euler", False)])
def test_invariance_of_scores(attention: str, invariant: bool) -> None:
    """Criterion: with initial weights, a rotation changes phase scores by a large share of their size."""
    config = RECIPES["laptop"].replace(attention=attention)
    with torch.no_grad():
        measured = rotation_of_run(config.model.build(0).eval(), config)["rotation"]["change"]
    assert measured < 1e-5 if invariant else measured > 0.01


def test_a_phase_of_zero_is_invariant() -> None:
    attention = RECIPES["laptop"].replace(attention="phase").model.build(0).layers[0].attention
    q, k = torch.randn(2, 1, 4, 8, 16)
    with torch.no_grad():
        assert change(attention.couple, q, k) > 0.1
        attention.couple.phase.weight.zero_()
        assert change(attention.couple, q, k) < 1e-5
