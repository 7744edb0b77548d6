"""Norms and exponents of layers equal those of dense Jacobians under any memory limit, and bad input is refused
early."""

from collections.abc import Callable

import pytest
import torch

from attractor.analysis import jacobian
from attractor.errors import InputError
from attractor.evaluate.measures import Plan, measured
from attractor.evaluate.measures.jacobians import Jacobians
from attractor.evaluate.measures.sample import layers_of
from attractor.models import ItrSAConfig, TransformerConfig
from attractor.models.maps import LayerMaps

SIZES = {"vocab_size": 11, "d_model": 8, "n_heads": 2, "max_seq_len": 8}
MODEL = TransformerConfig(**SIZES, n_layers=3, d_ff=16, positions="rope").build(seed=0).eval().double()
TOKENS = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(0))
MAPS = layers_of(MODEL, TOKENS[:1])
DENSE = [jacobian(step, state) for step, state in zip(MAPS.steps, MAPS.states, strict=False)]


def test_norms_are_those_of_the_dense_jacobians() -> None:
    jacobians = Jacobians.within(10**9, MAPS, k=1)
    for layer, dense in enumerate(DENSE):
        torch.testing.assert_close(jacobians.norm(layer).norm, torch.linalg.matrix_norm(dense, 2), rtol=0.01, atol=0)


def test_exponents_are_those_of_the_product_over_depth() -> None:
    """Criterion: exponents are the logarithms of the dense product's singular values per layer, to 2e-3."""
    product = DENSE[2] @ DENSE[1] @ DENSE[0]
    found = Jacobians.within(10**9, MAPS, k=3).exponents(3)
    expected = torch.linalg.svdvals(product)[:3].log() / 3
    torch.testing.assert_close(found.exponents, expected, rtol=0, atol=2e-3)


def test_the_memory_limit_changes_no_number() -> None:
    plenty = Jacobians.within(10**9, MAPS, k=2)
    least = Jacobians(MAPS, 1)  # this limit allows one direction at a time
    torch.testing.assert_close(plenty.norm(1).norm, least.norm(1).norm)
    torch.testing.assert_close(plenty.exponents(2).exponents, least.exponents(2).exponents)


def test_a_recurrent_model_repeats_its_map_once_per_iteration() -> None:
    model = ItrSAConfig(**SIZES, causal=True, n_iterations=4).build(seed=0)
    (sample,) = measured(model.eval(), TOKENS[:1], Plan(n_samples=1, length=5, k=1))
    assert sample.layers == [0, 1, 2, 3]
    assert len(sample.jacobian_norm) == 4
    assert len(sample.exponents) == 1


HALF = LayerMaps(MAPS.steps, tuple(state.bfloat16() for state in MAPS.states))


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: Jacobians.within(10**9, MAPS, 41), "k must be at most 40, .* of 5 positions of 8 numbers, got 41"),
        (lambda: Jacobians.within(1000, MAPS, 1), "memory must be .* at this length, got 1e-06; give more, a small"),
        (lambda: Jacobians.within(10**9, HALF, 1), "dtype must be fp32 or fp64 for Jacobians, got bfloat16"),
        (lambda: Plan(n_samples=0), "n_samples must be at least 1"),
        (lambda: Plan(length=1), "length must be at least 2"),
        (lambda: Plan(k=-1), "k must be at least 0"),
        (lambda: Plan(memory=0.0), "memory must be a positive number of GB"),
        (lambda: Plan(layers=(1, 1)), "layers must be named once each"),
        (lambda: next(measured(MODEL, TOKENS[:1], Plan(1, 5, layers=(3,)))), "layers must be from 0 to 2, got 3"),
    ],
)
def test_impossible_requests_are_refused_before_any_work(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attempt()


def test_layers_are_selected() -> None:
    (sample,) = measured(MODEL, TOKENS[:1], Plan(n_samples=1, length=5, layers=(2, 0), k=0))
    (whole,) = measured(MODEL, TOKENS[:1], Plan(n_samples=1, length=5, k=0))
    assert sample.layers == [0, 2]
    assert sample.jacobian_norm == [whole.jacobian_norm[0], whole.jacobian_norm[2]]
    assert sample.heads["entropy"] == [whole.heads["entropy"][0], whole.heads["entropy"][2]]
    assert sample.stream["stream_norm"] == [whole.stream["stream_norm"][i] for i in (0, 2, 3)]
