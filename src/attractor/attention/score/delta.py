"""The gated delta rule (gated DeltaNet): a memory of constant size, of which each position corrects a part.

    S_t = a_t S_(t-1) + b_t k_t (v_t - a_t S_(t-1)' k_t)',   c_t = scale S_t' q_t,   |q_t| = |k_t| = 1        (1)
    out = norm(c_t),   RMSNorm with a weight for each coordinate of a head                                    (2)

S' k is the value that the memory holds for a key; b = 1 replaces it by v, where linear attention adds to it. (1) is
`recurrent_delta`, the definition; `kernels/delta.py` computes it in chunks.

A position that t may not attend to counts as absent for t: it neither writes nor lets the memory fade. Without a causal
mask, t reads the memory that all positions it may attend to have written, in their order. Padding and documents in a
row are states that begin anew; any other mask has a memory for each query, which is exact and slow.

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
        state, n_held = (cache.state[1:] if cache is not None else None) or (
            k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]),
            torch.zeros(batch, dtype=torch.long, device=k.device),
        )
        if sees_all_past(mask, n_queries):
            n_held = n_held + n_queries
        elif (first := first_seen(mask, n_queries, n_held)) is not None:
            log_decay, rate, n_held = begun_anew(log_decay, rate, first, mask, n_held)
        elif cache is None:
            return context_under_mask(q, k, v, log_decay, rate, mask, self.scale)
        else:
            raise InputError(
                "causal_mask must show each query all positions from the beginning of its sequence or document up to "
                "itself beside a cache of the delta rule, whose memory can leave out no other; leave the cache out"
            )
        compute = (
            delta_attention_on_gpu if has_gpu_kernel(v, log_decay_is_finite=mask.allowed is None) else delta_attention
        )
        context, state = compute(q, k, v, log_decay, rate, self.scale, state)
        if cache is not None:
            cache.length += n_queries
            cache.state[1:] = [state, n_held]
        return context


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


# --- masks ----------------------------------------------------------------------------------------------------------


def sees_all_past(mask: Mask, n_queries: int) -> bool:
    return mask.causal or (mask.allowed is None and n_queries == 1)


def first_seen(mask: Mask, n_queries: int, n_held: Tensor) -> Tensor | None:
    """Return the first position that each query may attend to, B T, if it may attend to all from there up to itself.

    Each begins where the query before it does, or anew with itself. A query that may attend to nothing has the next
    position. None: the mask is another one, or its values cannot be read here."""
    if mask.allowed is None or mask.allowed.is_meta or torch.compiler.is_compiling() or functorch_active():
        return None
    allowed = mask.allowed.expand(len(n_held), 1, n_queries, -1).squeeze(1)
    key = torch.arange(allowed.shape[-1], device=allowed.device)
    query = key[len(key) - n_queries :]
    first = torch.where(allowed.any(-1), allowed.int().argmax(-1), query + 1)
    spans = (key >= first.unsqueeze(-1)) & (key <= query.unsqueeze(-1))
    fits = (allowed == spans) & (goes_on(first, query, n_held) | (first >= query)).unsqueeze(-1)
    return first if bool(fits.all()) else None


def goes_on(first: Tensor, query: Tensor, n_held: Tensor) -> Tensor:
    """Return whether each query begins where the one before it does; the first one, where the held positions do."""
    before = torch.cat([(query[:1] - n_held[:, None]), first[:, :-1]], dim=1)
    return first == before


def begun_anew(
    log_decay: Tensor, rate: Tensor, first: Tensor, mask: Mask, n_held: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Let the memory fade wholly where a query begins anew, and write nothing where it may attend to nothing.

    Also return how many positions the last memory holds."""
    query = torch.arange(first.shape[1], device=first.device) + (mask.allowed.shape[-1] - first.shape[1])
    anew = ~goes_on(first, query, n_held)
    log_decay = log_decay.masked_fill(anew.unsqueeze(1), float("-inf"))
    return log_decay, rate.masked_fill((first > query).unsqueeze(1), 0.0), query[-1] + 1 - first[:, -1]


def context_under_mask(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, mask: Mask, scale: float
) -> Tensor:
    """Return c of the memory that all positions a query may attend to have written, with a memory for each query."""
    if torch.compiler.is_compiling():  # a program has no loop over as many positions as a sequence has
        return delta_weights(q, k, log_decay, rate, mask, scale) @ v.to(q.dtype)
    log_decay, rate = as_each_query_sees(log_decay, rate, mask, q.shape[2])
    state = k.new_zeros(*q.shape, v.shape[-1])
    for s in range(k.shape[2]):
        state = written(state, k[:, :, s, None], v[:, :, s, None], log_decay[..., s], rate[..., s])
    return scale * (state.mT @ q.unsqueeze(-1)).squeeze(-1)


def as_each_query_sees(log_decay: Tensor, rate: Tensor, mask: Mask, n_queries: int) -> tuple[Tensor, Tensor]:
    """Return log a and b as B H T S, 0 at the positions that a query may not attend to."""
    allowed = mask.spelled_out(n_queries, n_queries, rate.device)
    each = [x.unsqueeze(2).expand(-1, -1, n_queries, -1) for x in (log_decay, rate)]
    if allowed is not None:
        each = [x.masked_fill(~allowed, 0.0) for x in each]
    return each[0], each[1]


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
