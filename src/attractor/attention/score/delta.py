"""The gated delta rule (gated DeltaNet): a memory of constant size, of which each position corrects a part.

    S_t = a_t S_(t-1) + b_t k_t (v_t - a_t S_(t-1)' k_t)',   c_t = scale S_t' q_t,   |q_t| = |k_t| = 1        (1)
    out = norm(c_t),   RMSNorm with a weight for each coordinate of a head                                    (2)

S' k is the value that the memory holds for a key; b = 1 replaces it by v, where linear attention adds to it. (1) is
`recurrent_delta`, the definition; `kernels/delta.py` computes it in chunks.

A position that t may not attend to counts as absent for t: it neither writes nor lets the memory fade. Without a causal
mask, t reads the memory that all positions it may attend to have written, in their order. Padding and documents in a
row cost nothing (`Documents`); any other mask has a memory for each query, which is exact and slow. A compiled model,
which cannot look at values, takes every mask for one of documents.

The cache holds S, not keys, so it has one size at any length, cannot be cropped, and continues causal sequences alone.
c_t is a sum of values with weights that have signs and do not sum to one. The tap `weights` shows the shares
|A_ts| / sum_s |A_ts|, in passes without a cache. There are no softmax logits to observe or control, and positions need
no rotation.

Limits: b = 0 writes nothing; a = b = 1 answers k_t with v_t exactly.
Yang, Kautz and Hatamizadeh, Gated delta networks, 2024, arXiv 2412.06464. They gate the output by SiLU(W x). Their
norm has eps = 1e-5, which magnifies the small contexts of narrow heads (LOG.md, 2026-11-29): `norm_eps=1e-5` has it.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attractor.attention.cache import Cache
from attractor.attention.hooks import listening, tap
from attractor.attention.mask import Mask
from attractor.attention.norm import RMSNorm
from attractor.attention.score.decayed import shares
from attractor.attention.score.softmax import weigh
from attractor.attention.stage import HeadLayout, Scoring, Shape
from attractor.errors import InputError, require
from attractor.kernels.decay import sums_behind, survival
from attractor.kernels.delta import delta_attention, delta_attention_on_gpu, has_gpu_kernel, solve_writes
from attractor.kernels.fallback import functorch_active
from attractor.kernels.precision import without_autocast


@dataclass(frozen=True)
class Delta(Scoring):
    keeps_state = True
    rotates = False
    extra = 2

    norm_eps: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.norm_eps < math.inf, "norm_eps", "positive and finite", self.norm_eps)

    @property
    def over_pairs(self) -> bool:
        return False

    def build(self, shape: Shape, layout: HeadLayout, scale: float, dropout: float) -> nn.Module:
        return DeltaScore(layout, scale, dropout, self.norm_eps)


class DeltaScore(nn.Module):
    def __init__(self, layout: HeadLayout, scale: float, dropout: float, norm_eps: float) -> None:
        super().__init__()
        self.scale, self.dropout = scale, dropout
        self.norm = RMSNorm(layout.value, eps=norm_eps)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor, cache: Cache | None = None) -> Tensor:
        with without_autocast(q):
            wide = torch.promote_types(v.dtype, torch.float32)
            q, k = unit_length(q.to(wide)), unit_length(k.to(wide))
            v, log_decay, rate = v[..., :-2], v[..., -2].to(wide), v[..., -1].to(wide)
            context = self._context(q, k, v, log_decay, rate, mask, cache).to(v.dtype)
        return self.norm(context)  # (2)

    def _context(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, mask: Mask, cache: Cache | None
    ) -> Tensor:
        batch, _, n_queries, _ = q.shape
        if cache is None and (listening("weights") or (self.dropout and self.training)):
            weights = delta_weights(q, k, log_decay, rate, mask, self.scale)
            tap("weights", shares(weights))
            if self.dropout and self.training:
                return weigh(F.dropout(weights, self.dropout), v.to(weights.dtype))
        elif listening("weights"):
            raise InputError(
                "cache must be None while weights of the delta rule are observed, since it holds no keys to which they "
                "could belong; give the whole sequence in one pass"
            )
        state, memory = (cache.state[1:] if cache is not None else None) or (
            k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]),
            torch.zeros(batch, 2, dtype=torch.long, device=k.device),  # its first position, how many it holds
        )
        seen = None
        if mask.causal or (mask.allowed is None and n_queries == 1):
            memory = torch.cat([memory[:, :1], memory[:, 1:] + n_queries], dim=1)
        elif mask.allowed is None and cache is None:
            _, state = delta_attention(q, k, v, log_decay, rate, self.scale, state)
            return self.scale * (q @ state)
        elif (documents := Documents.of(mask, n_queries, memory)) is not None:
            log_decay, rate = documents.of_decay(log_decay), documents.of_rate(rate)
            seen, memory = documents.seen, documents.memory
        elif cache is None:
            return context_under_mask(q, k, v, log_decay, rate, mask, self.scale)
        else:
            raise InputError(
                "causal_mask must be that of padding and of documents in a row beside a cache of the delta rule, whose "
                "memory can leave out no other positions; leave the cache out"
            )
        on_gpu = has_gpu_kernel(v, log_decay_is_finite=mask.allowed is None)
        compute = delta_attention_on_gpu if on_gpu else delta_attention
        context, state = compute(q, k, v, log_decay, rate, self.scale, state)
        if cache is not None:
            cache.length += n_queries
            cache.state[1:] = [state, memory]
        return context if seen is None else context.masked_fill(~seen[:, None, :, None], 0.0)


def unit_length(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def recurrent_delta(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return c of (1) for unit q and k, and the last state. q, k: B H T K; v: B H T V; log_decay, rate: B H T."""
    contexts = []
    for t in range(q.shape[2]):
        state = written(state, k[:, :, t], v[:, :, t], log_decay[:, :, t], rate[:, :, t])
        contexts.append(scale * (state.mT @ q[:, :, t, :, None]).squeeze(-1))
    return torch.stack(contexts, dim=2), state


def written(state: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor) -> Tensor:
    """Return the state (... K V) after one position (... K, ... V)."""
    state = log_decay.exp()[..., None, None] * state
    error = v - (state.mT @ k.unsqueeze(-1)).squeeze(-1)
    return state + rate[..., None, None] * k.unsqueeze(-1) * error.unsqueeze(-2)


@dataclass(frozen=True)
class Documents:
    """A causal mask of padding and of documents in a row: each query sees what is there of its own document.

    Padding is a position that its own query does not see. A query that sees nothing leaves the memory as it is."""

    begins: Tensor  # B T, where the memory is new
    there: Tensor  # B T, whether the position is no padding
    seen: Tensor  # B T, whether the query sees anything
    memory: Tensor  # B 2, after the last position

    @classmethod
    def of(cls, mask: Mask, n_queries: int, memory: Tensor) -> "Documents | None":
        """Return None for any other mask. Where values cannot be read, as in a compiled model, there is no other."""
        if mask.allowed is None:
            return None
        n_keys = mask.allowed.shape[-1]
        allowed = mask.allowed.expand(memory.shape[0], 1, n_queries, n_keys).squeeze(1)
        key, n_past = torch.arange(n_keys, device=allowed.device), n_keys - n_queries
        query, seen = key[n_past:], allowed.any(-1)
        start = torch.where(seen, allowed.int().argmax(-1), 0).cummax(1).values.maximum(memory[:, :1])
        before = torch.cat([memory[:, :1], start[:, :-1]], dim=1)
        there = allowed.diagonal(n_past, 1, 2)
        held = (allowed[..., :n_past] & (start == memory[:, :1]).unsqueeze(-1)).any(1)
        present = torch.cat([held, there], dim=1)
        expected = present.unsqueeze(1) & (key >= start.unsqueeze(-1)) & (key <= query.unsqueeze(-1))
        fits = ((allowed == expected).all(-1) | ~seen) & ((start == before) | (start >= query))
        fits = fits & ((held.sum(1, keepdim=True) == memory[:, 1:]) | (start > memory[:, :1]) | ~seen)
        unread = allowed.is_meta or torch.compiler.is_compiling() or functorch_active()
        if not (unread or bool(fits.all())):
            return None
        last = start[:, -1:]
        n_held = (present & (key >= last)).sum(1, keepdim=True)
        n_held = torch.where((last == memory[:, :1]) & ~held.any(1, keepdim=True), n_held + memory[:, 1:], n_held)
        return cls(start != before, there, seen, torch.cat([last, n_held], dim=1))

    def of_decay(self, log_decay: Tensor) -> Tensor:
        there = log_decay.masked_fill(~self.there.unsqueeze(1), 0.0)
        return there.masked_fill(self.begins.unsqueeze(1), float("-inf"))

    def of_rate(self, rate: Tensor) -> Tensor:
        return rate.masked_fill(~self.there.unsqueeze(1), 0.0)


def context_under_mask(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, mask: Mask, scale: float
) -> Tensor:
    """Return c of the memory that all positions a query may attend to have written, with a memory for each query."""
    log_decay, rate = as_each_query_sees(log_decay, rate, mask, q.shape[2])
    state = k.new_zeros(*q.shape, v.shape[-1])
    for s in range(k.shape[2]):
        state = written(state, k[:, :, s, None], v[:, :, s, None], log_decay[..., s], rate[..., s])
    return scale * (state.mT @ q.unsqueeze(-1)).squeeze(-1)


def as_each_query_sees(log_decay: Tensor, rate: Tensor, mask: Mask, n_queries: int) -> tuple[Tensor, Tensor]:
    """Return log a and b as B H T S, 0 at the positions that a query may not attend to."""
    allowed = mask.spelled_out(n_queries, n_queries, rate.device)
    log_decay, rate = (x.unsqueeze(2).expand(-1, -1, n_queries, -1) for x in (log_decay, rate))
    if allowed is None:
        return log_decay, rate
    return log_decay.masked_fill(~allowed, 0.0), rate.masked_fill(~allowed, 0.0)


def delta_weights(q: Tensor, k: Tensor, log_decay: Tensor, rate: Tensor, mask: Mask, scale: float) -> Tensor:
    """Return A of c_t = sum_s A_ts v_s: B H T S."""
    identity = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)
    if mask.causal:
        kept = survival(log_decay)
        return scale * ((q @ k.mT) * kept) @ solve_writes(k, rate.unsqueeze(-1), kept, identity)
    log_decay, rate = as_each_query_sees(log_decay, rate, mask, q.shape[2])
    writes = solve_writes(k.unsqueeze(2), rate.unsqueeze(-1), survival(log_decay), identity)
    read = scale * (q @ k.mT) * sums_behind(log_decay).exp()
    return (read.unsqueeze(-2) @ writes).squeeze(-2)
