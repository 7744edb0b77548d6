"""Fused attention under vmap: several models are computed as one longer batch.

    attention of n models over B sequences = attention over n B sequences                                   (1)

torch has batching rules for some of its fused kernels only; without one, vmap computes one model after another. Inside
`attention_under_vmap()` fused attention uses (1) on every device. All calls of it in there must be under vmap.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attractor.kernels.heads import models_first


class attention_under_vmap(TorchFunctionMode):  # noqa: N801 - a context manager, like torch.no_grad
    """A context in which fused attention is batched over models by (1)."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
    dropout_p: float = 0.0,
) -> Any:
    assert dropout_p == 0, "models that are trained together have no dropout (`stackable`)"
    return _Attention.apply(q, k, v, attn_mask, is_causal, scale, enable_gqa)


class _Attention(torch.autograd.Function):
    """An operator that has only a rule for vmap; its gradients are those of the operations that the rule calls."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        raise AssertionError("attention_under_vmap is for calls under vmap")

    @staticmethod
    def setup_context(ctx, inputs, output) -> None: ...  # type: ignore[no-untyped-def]

    @staticmethod
    def vmap(info, in_dims, q, k, v, mask, causal, scale, grouped) -> tuple[Tensor, int]:  # type: ignore[no-untyped-def]
        n_models = info.batch_size

        q, k, v = (models_first(x, dim, n_models) for x, dim in zip((q, k, v), in_dims[:3], strict=True))
        if mask is not None and mask.dim() > 2:  # a mask T S is the same for all sequences of all models
            mask = models_first(mask, in_dims[3], n_models)
            mask = mask.expand(n_models, q.shape[1], *mask.shape[2:]).flatten(0, 1)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        context = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
        )  # (1)
        return context.unflatten(0, (n_models, -1)), 0
