"""The difference of two causal attentions over the same values: reference, implementations, and the choice of one.

    C = (A_1 - lambda A_2) V,   A_i = softmax(scale Q_i K_i' + causal)                                      (1)

two-calls     torch's fused attention for each map; V is read twice, and narrower queries and keys are padded to its
              width, as fused kernels require
side-by-side  one call with the maps as twice as many heads; V is copied, unless the maps are pairs of heads that share
              their keys
blocks        both maps of one block of queries at a time, recomputed in the backward pass, for CPUs

q: B 2H T K, all first maps, then all second; k: B 2J T K; v: B J T V, J divides H; `by` is lambda, broadcastable to
B H T 1. Every implementation has the signature of the reference. `blocks` can be differentiated twice; the others, like
all fused attention of torch, only under `sdpa_kernel(SDPBackend.MATH)`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.kernels.differential_blocks import differential_attention_in_blocks
from attractor.kernels.fallback import functorch_active


def differential_attention_reference(q: Tensor, k: Tensor, v: Tensor, by: Tensor, scale: float) -> Tensor:
    """Compute (1) as written."""
    length = q.shape[2]
    grouped = q.unflatten(1, (k.shape[1], -1))
    logits = (grouped @ k.unsqueeze(2).mT).flatten(1, 2) * scale
    behind = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    first, second = logits.masked_fill(behind, float("-inf")).softmax(-1).chunk(2, dim=1)
    difference = (first - by * second).to(v.dtype)
    return (difference.unflatten(1, (v.shape[1], -1)) @ v.unsqueeze(2)).flatten(1, 2)


def two_calls(q: Tensor, k: Tensor, v: Tensor, by: Tensor, scale: float) -> Tensor:
    first, second = (
        _causal_attention(q_i, k_i, v, scale) for q_i, k_i in zip(q.chunk(2, dim=1), k.chunk(2, dim=1), strict=True)
    )
    return first - by.to(first.dtype) * second


def side_by_side(q: Tensor, k: Tensor, v: Tensor, by: Tensor, scale: float) -> Tensor:
    first, second = _causal_attention(q, k, torch.cat([v, v], dim=1), scale).chunk(2, dim=1)
    return first - by.to(first.dtype) * second


Implementation = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
IMPLEMENTATIONS: dict[str, Implementation] = {
    "two-calls": two_calls,
    "side-by-side": side_by_side,
    "blocks": differential_attention_in_blocks,
}


@dataclass(frozen=True)
class DispatchRule:
    """The inputs for which an implementation is the fastest; a field at its default admits any value."""

    implementation: str
    device: str | None = None
    padded: bool | None = None  # whether values are wider than queries, as they are for halved heads
    dtype: torch.dtype | None = None
    length: range = range(2**31)
    value: range = range(2**31)  # width of the values

    def holds(self, device: str, dtype: torch.dtype, length: int, score: int, value: int) -> bool:
        named = self.device in (None, device) and self.dtype in (None, dtype) and self.padded in (None, value > score)
        # Not `length in self.length`, which a compiler with dynamic lengths cannot trace.
        lengths = self.length.start <= length < self.length.stop
        return named and lengths and self.value.start <= value < self.value.stop


# The first rule that holds decides. Those for CPUs are measured (LOG.md, 2026-11-21, has the blocks), that for GPUs is
# *not measured*.
DISPATCH_RULES = (
    DispatchRule("side-by-side", device="cuda", padded=False),
    DispatchRule("two-calls", device="cpu", padded=True, dtype=torch.float32, length=range(385), value=range(33)),
    DispatchRule("side-by-side", device="cpu", padded=False, dtype=torch.float32, length=range(385)),
    DispatchRule("two-calls", device="cpu", padded=False, length=range(2048, 2**31)),
    DispatchRule("blocks", device="cpu"),
    DispatchRule("blocks", device="meta"),  # shapes are counted, not computed
    DispatchRule("two-calls"),
)


def choose_implementation(device: str, dtype: torch.dtype, length: int, score: int, value: int) -> str:
    """Return the name of the fastest implementation for these sizes."""
    return next(rule.implementation for rule in DISPATCH_RULES if rule.holds(device, dtype, length, score, value))


def differential_attention(q: Tensor, k: Tensor, v: Tensor, by: Tensor, scale: float) -> Tensor:
    """Compute (1) by the fastest implementation."""
    return IMPLEMENTATIONS[_implementation_for(q, k, v)](q, k, v, by, scale)


def differential_attention_of_pairs(q: Tensor, k: Tensor, v: Tensor, by: Tensor, scale: float) -> Tensor:
    """Compute (1) where query heads 2h and 2h + 1 are the maps of head h and read the same key head: k is B J T K.

    Heads are reordered only if the implementation needs it.
    """
    name = _implementation_for(q, k, v)
    if name == "side-by-side":
        context = _causal_attention(q, k, v, scale)
        return context[:, 0::2] - by.to(context.dtype) * context[:, 1::2]
    return IMPLEMENTATIONS[name](*maps_of_pairs(q, k), v, by, scale)


def maps_of_pairs(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Reorder pairs of heads to all first maps, then all second maps."""
    return torch.cat([q[:, 0::2], q[:, 1::2]], dim=1), torch.cat([k, k], dim=1)


def _implementation_for(q: Tensor, k: Tensor, v: Tensor) -> str:
    device = v.device.type
    if functorch_active():  # only these two implementations have batching rules
        return "blocks" if device in ("cpu", "meta") else "two-calls"
    return choose_implementation(device, v.dtype, v.shape[2], q.shape[-1], v.shape[-1])


def _causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Return causal attention by torch's fused kernels, which take one width for all; padding adds only zeros."""
    missing = v.shape[-1] - q.shape[-1]
    if missing > 0:
        q, k = F.pad(q, (0, missing)), F.pad(k, (0, missing))
    values = F.pad(v, (0, -missing)) if missing < 0 else v
    context = F.scaled_dot_product_attention(
        q, k, values, attn_mask=None, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return context[..., : v.shape[-1]]
