"""The difference of two causal attentions on a CPU, computed in blocks of queries.

    C = (A_1 - lambda A_2) V,   A_i = softmax(scale Q_i K_i' + causal)                                      (1)

The maps of a block of queries are computed, subtracted, and multiplied by V once. The backward pass recomputes them, so
nothing of size T x T is saved:

    gA = gC V',   gV = A' gC,   gS_i = A_i (gA - rowsum(A_i gA)),   A = A_1 - lambda A_2                    (2)

The gradients of Q_2 and K_2 have the further factor -lambda. A block's maps fit the processor's cache, and have no keys
after its last query. Shapes are those of `differential.py`.
"""

import torch
from torch import Tensor

from attractor.kernels.heads import grouped, models_first

ROWS = 128  # queries in a block
NUMBERS = 2**20  # numbers in the maps of a block: 4 MB


def differential_attention_in_blocks(q: Tensor, k: Tensor, v: Tensor, subtraction: Tensor, scale: float) -> Tensor:
    """Compute (1) in blocks, with maps in fp32 or wider."""
    subtraction = subtraction.expand(q.shape[0], q.shape[1] // 2, q.shape[2], 1)
    return DifferentialAttention.apply(q, k, v, subtraction, scale)


class DifferentialAttention(torch.autograd.Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, subtraction: Tensor, scale: float) -> Tensor:
        context = _positions_first(v.new_empty, q.shape[0], q.shape[1] // 2, q.shape[2], v.shape[-1])
        for batch, rows, seen in _blocks(q):
            first, second = _maps(q[batch, :, rows], k[batch, :, seen], scale)
            difference = torch.addcmul(first, subtraction[batch, :, rows], second, value=-1).to(v.dtype)
            context[batch, :, rows] = (grouped(difference, v) @ v[batch, :, seen]).view_as(context[batch, :, rows])
        return context

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        *tensors, ctx.scale = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def vmap(info, in_dims, *inputs) -> tuple[Tensor, int]:  # type: ignore[no-untyped-def]
        """Batch several models as one longer batch, since torch's own rule cannot batch the writes into a buffer."""
        *tensors, scale = inputs
        n_models = info.batch_size
        stacked = (models_first(x, dim, n_models) for x, dim in zip(tensors, in_dims[:-1], strict=True))
        context = DifferentialAttention.apply(*(x.flatten(0, 1) for x in stacked), scale)
        return context.unflatten(0, (n_models, -1)), 0

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        q, k, v, subtraction = ctx.saved_tensors
        # The in-place sums over blocks cannot be differentiated again.
        gradients = _block_gradients if torch.is_grad_enabled() else _gradients
        return *gradients(q, k, v, subtraction, ctx.scale, grad), None


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, subtraction: Tensor, scale: float, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute (2) block by block; the gradients of keys and values add up in fp32 or wider."""
    wide = torch.promote_types(q.dtype, torch.float32)
    grad_q = _positions_first(q.new_empty, *q.shape)
    grad_k, grad_v = (torch.zeros_like(x, dtype=wide) for x in (k, v))
    grad_subtraction = torch.empty_like(subtraction)
    for batch, rows, seen in _blocks(q):
        of_keys, of_queries = (batch, slice(None), seen), (batch, slice(None), rows)
        block = (q[of_queries], k[of_keys], v[of_keys], subtraction[of_queries])
        block_q, block_k, block_v, block_subtraction = _block_gradients(*block, scale, grad[of_queries])
        grad_q[of_queries], grad_subtraction[of_queries] = block_q, block_subtraction
        grad_k[of_keys] += block_k
        grad_v[of_keys] += block_v
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), grad_subtraction


def _block_gradients(
    q: Tensor, k: Tensor, v: Tensor, subtraction: Tensor, scale: float, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute (2) for one block. lambda and the scale multiply the smaller factor of each product, not a map."""
    maps = _maps(q, k, scale)
    difference = torch.addcmul(maps[0], subtraction, maps[1], value=-1).to(v.dtype)
    grad_context = grouped(grad, v)
    grad_v = grouped(difference, v).mT @ grad_context
    grad_map = (grad_context @ v.mT).view(difference.shape).to(maps[0].dtype)
    grad_q, grad_k = [], []
    factors: tuple[Tensor | float, ...] = (scale, -scale * subtraction)
    for query, key, weights, factor in zip(q.chunk(2, dim=1), k.chunk(2, dim=1), maps, factors, strict=True):
        grad_logits = torch._softmax_backward_data(grad_map, weights, -1, weights.dtype).to(q.dtype)
        grad_q.append(((grouped(grad_logits, key) @ key).view(query.shape) * factor).to(q.dtype))
        grad_k.append(grouped(grad_logits, key).mT @ grouped((query * factor).to(q.dtype), key))
    grad_subtraction = -(maps[1] * grad_map).sum(-1, keepdim=True)
    return torch.cat(grad_q, dim=1), torch.cat(grad_k, dim=1), grad_v, grad_subtraction.to(subtraction.dtype)


def _maps(q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return both maps of a block of queries, whose positions are the last of the keys."""
    logits = (grouped(q, k) @ k.mT).view(*q.shape[:3], k.shape[2])
    logits = logits.to(torch.promote_types(q.dtype, torch.float32)) * scale
    length = q.shape[2]
    behind = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    if length == k.shape[2]:
        logits = logits.masked_fill(behind, float("-inf"))
    else:
        logits[..., -length:].masked_fill_(behind, float("-inf"))
    first, second = logits.softmax(-1).chunk(2, dim=1)
    return first, second


def _blocks(q: Tensor) -> list[tuple[slice, slice, slice]]:
    """Return slices of the batch, of the queries, and of the keys that these may attend to.

    Meta tensors are one block, so that operations counted on them include all pairs.
    """
    n_batch, n_maps, length, _ = q.shape
    rows = length if q.is_meta else ROWS
    n_together = n_batch if q.is_meta else max(1, NUMBERS // max(1, n_maps * min(rows, length) * length))
    return [
        (slice(b, b + n_together), slice(t, min(t + rows, length)), slice(min(t + rows, length)))
        for b in range(0, n_batch, n_together)
        for t in range(0, length, rows)
    ]


def _positions_first(empty, batch: int, heads: int, length: int, width: int) -> Tensor:  # type: ignore[no-untyped-def]
    """Allocate B H T ., in memory B T H ., as projections read and write it."""
    return empty(batch, length, heads, width).transpose(1, 2)
