"""LayerNorm in half precision on a CPU has the gradients of fp32."""

import pytest
import torch
from torch import Tensor, nn

from attractor.attention.norm import LayerNorm

ROWS = 8192


def gradients(norm: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    norm(x).backward(grad)
    return {name: parameter.grad for name, parameter in norm.named_parameters()}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [True, False])
def test_gradients_over_many_positions_are_those_of_fp32(bias: bool, half: torch.dtype, autocast: bool) -> None:
    """Torch's own, which sums them in half precision, is wrong by 5% and more."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 16, generator=draw).to(half)
    grad = (0.001 + 0.01 * torch.randn(ROWS, 16, generator=draw)).to(half)
    wanted = gradients(LayerNorm(16, bias=bias), x.float(), grad.float())
    norm = LayerNorm(16, bias=bias)
    norm.to(torch.float32 if autocast else half)
    with torch.autocast("cpu", half, enabled=autocast):
        assert norm(x).dtype == half
        given = gradients(norm, x, grad)
    for name, gradient in wanted.items():
        torch.testing.assert_close(given[name].float(), gradient, rtol=0.01, atol=0.01 * float(gradient.abs().max()))


def test_the_output_equals_that_of_torch() -> None:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    ours, theirs = LayerNorm(32), nn.LayerNorm(32)
    assert torch.equal(ours(x), theirs(x))
    torch.testing.assert_close(ours(x.bfloat16()), theirs.bfloat16()(x.bfloat16()))
