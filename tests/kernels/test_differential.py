"""Every implementation of differential attention equals the reference, and all inputs have one."""

import pytest
import torch
from torch import Tensor

from attractor.kernels import differential
from attractor.kernels.differential import (
    IMPLEMENTATIONS,
    choose_implementation,
    differential_attention,
    differential_attention_of_pairs,
    differential_attention_reference,
    maps_of_pairs,
)

SCALE = 0.6
WIDTHS = {"halves": (3, 6), "whole": (6, 6), "narrow values": (6, 4)}


def case(score: int, value: int, heads: int = 4, kv_heads: int = 2, length: int = 11) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 2 * heads, length, score), (2, 2 * kv_heads, length, score), (2, kv_heads, length, value)]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    by = torch.rand(2, heads, length, 1, generator=generator, dtype=torch.float64)
    return [x.requires_grad_() for x in (*drawn, by)]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_implementation_equals_the_reference(name: str, widths: str, kv_heads: int) -> None:
    inputs = case(*WIDTHS[widths], kv_heads=kv_heads)
    expected, found = (f(*inputs, SCALE) for f in (differential_attention_reference, IMPLEMENTATIONS[name]))
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.square().sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), inputs), wanted)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_pairs_of_heads_equal_the_same_heads_in_the_order_of_maps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differential, "choose_implementation", lambda *shape: name)
    q, k, v, by = case(6, 6)
    k = k[:, :2].detach().requires_grad_()
    expected = differential_attention_reference(*maps_of_pairs(q, k), v, by, SCALE)
    found = differential_attention_of_pairs(q, k, v, by, SCALE)
    torch.testing.assert_close(found, expected)
    inputs = (q, k, v, by)
    wanted = torch.autograd.grad(expected.square().sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), inputs), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_every_input_gets_an_implementation(dtype: torch.dtype) -> None:
    for device in ("cpu", "cuda", "meta", "mps"):
        for length in (0, 1, 128, 512, 4096):
            for score, value in ((32, 64), (64, 64), (64, 32)):
                assert choose_implementation(device, dtype, length, score, value) in IMPLEMENTATIONS


def test_transforms_of_functions_use_an_implementation_that_supports_them() -> None:
    """Criterion: per-sample gradients are those of each sample alone, where fused attention would have been chosen
    otherwise."""
    inputs = [x.detach().float() for x in case(6, 6)]
    assert choose_implementation("cpu", torch.float32, 11, 6, 6) == "side-by-side"

    def loss(q: Tensor, *rest: Tensor) -> Tensor:
        return differential_attention(q[None], *(x[None] for x in rest), SCALE).square().sum()

    together = torch.func.vmap(torch.func.grad(loss))(*inputs)
    for sample in range(2):
        alone = torch.func.grad(loss)(*(x[sample] for x in inputs))
        torch.testing.assert_close(together[sample], alone)
