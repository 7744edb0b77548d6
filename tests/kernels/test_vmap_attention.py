"""Attention of several models under vmap equals that of each model alone, gradients included, by the fused kernel."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from attractor.kernels.vmap_attention import attention_under_vmap

N, B, H, T, K = 3, 2, 4, 5, 8


def masks() -> dict[str, tuple[Tensor | None, int | None]]:
    """Return masks by what they depend on, each with the dimension of its models."""
    allowed = torch.rand(N, B, 1, T, T, generator=torch.Generator().manual_seed(1)) < 0.5
    allowed = allowed | torch.eye(T, dtype=torch.bool)
    return {
        "none": (None, None),
        "all": (allowed[0, 0, 0], None),
        "sequence": (allowed[0], None),
        "model and sequence": (allowed, 0),
        "model": (allowed[:, :1], 0),
    }


@pytest.mark.parametrize("kv_heads", [H, 1])
@pytest.mark.parametrize("name", masks())
def test_models_side_by_side_attend_as_each_alone(name: str, kv_heads: int) -> None:
    mask, dim = masks()[name]
    generator = torch.Generator().manual_seed(0)
    shapes = ((N, B, H, T, K), (B, N, kv_heads, T, K), (B, kv_heads, T, K))  # models: dimension 0 of q, 1 of k
    q, k, v = (torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes)

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        options = {"is_causal": mask is None, "scale": 0.3, "enable_gqa": kv_heads != H}
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)

    with attention_under_vmap():
        together = vmap(attend, in_dims=(0, 1, None, dim))(q, k, v, mask)
    alone = torch.stack([attend(q[i], k[:, i], v, mask if dim is None or mask is None else mask[i]) for i in range(N)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-5)
    for found, expected in zip(
        torch.autograd.grad(together.square().sum(), (q, k, v)),
        torch.autograd.grad(alone.square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_outside_of_vmap_it_is_refused() -> None:
    x = torch.randn(B, H, T, K)
    with attention_under_vmap(), pytest.raises(AssertionError, match="under vmap"):
        F.scaled_dot_product_attention(x, x, x, attn_mask=None, is_causal=True, scale=1.0, enable_gqa=False)
