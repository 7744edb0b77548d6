"""The log-sum-exp of every row of attention logits, computed without holding all logits.

    L = scale Q K',   with a soft-cap c: L <- c tanh(L / c);   z_t = log sum over allowed s of exp L_ts     (1)
    dz_t / dL_ts = exp(L_ts - z_t),   with a soft-cap times 1 - (L_ts / c)^2                                (2)

Logits are computed for one block of queries at a time, and again in the backward pass. With `causal`, the square lower
triangle, a block has only the keys up to its last query. A row that may attend to nothing has z = 0 and no gradient.
q: B H T K; k: B J S K, J divides H; `allowed`: True = may attend, T S or B 1 T S.
"""

import torch
from torch import Tensor

from attractor.kernels.heads import grouped, models_first

NUMBERS = 2**26  # logits held at once: 256 MB
ON_CPU = 2**20  # likewise on a CPU: 4 MB, which a cache holds


def attention_logsumexp_reference(
    q: Tensor, k: Tensor, allowed: Tensor | None, causal: bool, scale: float, softcap: float | None
) -> Tensor:
    """Compute (1) as written."""
    logits = (q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT) * scale
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    if causal:
        allowed = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if allowed is None:
        return logits.logsumexp(-1)
    allowed = allowed.expand(logits.shape)
    some = allowed.any(-1)
    return logits.masked_fill(~allowed & some.unsqueeze(-1), float("-inf")).logsumexp(-1) * some


def attention_logsumexp(
    q: Tensor, k: Tensor, allowed: Tensor | None, causal: bool, scale: float, softcap: float | None
) -> Tensor:
    """Compute (1) in blocks: B H T, in fp32 or wider."""
    return AttentionLogSumExp.apply(q, k, allowed, causal, scale, softcap)


class AttentionLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        q: Tensor, k: Tensor, allowed: Tensor | None, causal: bool, scale: float, softcap: float | None
    ) -> Tensor:
        options = (causal, scale, softcap)
        blocks = [
            _logsumexp(_logits(q[:, :, rows], k[:, :, seen], _rows_of(allowed, rows), *options))
            for rows, seen in _blocks(q, k, causal)
        ]
        return torch.cat(blocks, dim=-1)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        q, k, allowed, *ctx.options = inputs
        ctx.save_for_backward(q, k, allowed, output)

    @staticmethod
    def vmap(info, in_dims, q, k, allowed, *options) -> tuple[Tensor, int]:  # type: ignore[no-untyped-def]
        """Batch several models as one longer batch."""
        n_models = info.batch_size
        q, k = (models_first(x, dim, n_models) for x, dim in zip((q, k), in_dims[:2], strict=True))
        if in_dims[2] is not None or (allowed is not None and allowed.dim() == 4):
            allowed = models_first(allowed, in_dims[2], n_models)
            square = allowed.shape[-2:]
            allowed = allowed.reshape(n_models, -1, 1, *square).expand(-1, q.shape[1], -1, -1, -1).flatten(0, 1)
        z = AttentionLogSumExp.apply(q.flatten(0, 1), k.flatten(0, 1), allowed, *options)
        return z.unflatten(0, (n_models, -1)), 0

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        q, k, allowed, z = ctx.saved_tensors
        causal, scale, softcap = ctx.options
        grad_q, grad_k = [], torch.zeros_like(k, dtype=z.dtype)
        for rows, seen in _blocks(q, k, causal):
            query, key = q[:, :, rows], k[:, :, seen]
            logits = _logits(query, key, _rows_of(allowed, rows), causal, scale, softcap)
            weights = (logits - z[:, :, rows].unsqueeze(-1)).exp() * grad[:, :, rows].unsqueeze(-1)  # (2)
            if softcap is not None:
                weights = weights * (1 - (logits.clamp(min=-softcap) / softcap).square())
            weights = grouped((weights * scale).to(q.dtype), key)
            grad_q.append((weights @ key).view(query.shape))
            grad_k[:, :, seen] += weights.mT @ grouped(query, key)
        return torch.cat(grad_q, dim=2), grad_k.to(k.dtype), None, None, None, None


def _logits(q: Tensor, k: Tensor, allowed: Tensor | None, causal: bool, scale: float, softcap: float | None) -> Tensor:
    """Return the logits of a block, with -inf where the mask forbids attention."""
    logits = (grouped(q, k) @ k.mT).view(*q.shape[:3], k.shape[2])
    logits = logits.to(torch.promote_types(q.dtype, torch.float32)) * scale
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    if causal:
        rows, seen = logits.shape[-2:]
        allowed = torch.ones(rows, seen, dtype=torch.bool, device=q.device).tril(seen - rows)
    return logits if allowed is None else logits.masked_fill(~allowed, float("-inf"))


def _logsumexp(logits: Tensor) -> Tensor:
    z = logits.logsumexp(-1)
    return z.masked_fill(z == float("-inf"), 0.0)


def _blocks(q: Tensor, k: Tensor, causal: bool) -> list[tuple[slice, slice]]:
    """Return slices of the queries, and of the keys that these may attend to."""
    held = ON_CPU if q.device.type == "cpu" else NUMBERS
    n_rows = max(1, held // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    starts = range(0, max(1, q.shape[2]), n_rows)  # without queries, one block without rows
    return [(slice(t, t + n_rows), slice(min(t + n_rows, q.shape[2]) if causal else None)) for t in starts]


def _rows_of(allowed: Tensor | None, rows: slice) -> Tensor | None:
    return None if allowed is None else allowed[..., rows, :]
