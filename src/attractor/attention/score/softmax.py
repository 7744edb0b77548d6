"""Scaled dot-product attention with an optional soft-cap of its logits.

    L = scale q' k,   A = softmax(cap tanh(L / cap) + mask),   c = A v                                      (1)

`attention_weights` is the definition. `attend` uses torch's fused attention unless there is a soft-cap. `observe`
computes logits and weights separately, only while a tap is captured. Rows that may attend to nothing are zero.

With a window W, a query sees its own position and the W - 1 before it (`window.py`).
In training, `z_loss` adds a penalty on the size of the soft-capped logits:

    z_loss mean over batch, heads and rows t of (log sum_s exp L_ts)^2,   s and t allowed                   (2)

Vaswani et al., Attention is all you need, 2017, arXiv 1706.03762; soft-cap: Gemma 2, 2024, arXiv 2408.00118; (2) is
from ST-MoE, 2022, arXiv 2202.08906, which applies it to a router's logits.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.hooks import listening, tap
from attractor.attention.mask import Mask
from attractor.attention.score.window import by_flex, in_blocks, suits_flex
from attractor.attention.stage import HeadLayout, Scoring, Shape
from attractor.errors import require
from attractor.fields import later
from attractor.kernels.logsumexp import attention_logsumexp, attention_logsumexp_reference
from attractor.kernels.precision import HALF_PRECISIONS, without_autocast
from attractor.kernels.wide_products import has_matrix_unit

SHORT = 128  # keys up to which attention of unequal widths trains 1.1 to 1.6 times as fast on a CPU without padding


@dataclass(frozen=True)
class Softmax(Scoring):
    softcap: float | None = None
    z_loss: float = later(0.0)
    attention_scale: float | None = later(None)  # factor of the logits; None: K ** -0.5
    window: int | None = later(None)  # keys that a query sees, itself included; None: the whole past

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scoring(self.softcap, self.z_loss, self.attention_scale, self.window)

    def build(self, shape: Shape, layout: HeadLayout, scale: float, dropout: float) -> nn.Module:
        return SoftmaxScore(scale, self.softcap, dropout)


class SoftmaxScore(nn.Module):
    def __init__(self, scale: float, softcap: float | None, dropout: float) -> None:
        super().__init__()
        self.scale, self.softcap, self.dropout = scale, softcap, dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor) -> Tensor:
        observe(q, k, mask, self.scale, self.softcap)
        return attend(q, k, v, mask, self.scale, self.softcap, self.dropout if self.training else 0.0)


def require_scoring(softcap: float | None, z_loss: float, scale: float | None, window: int | None) -> None:
    fits = softcap is None or 0 < softcap < math.inf
    require(fits, "softcap", "positive and finite, or None", softcap, "None is no soft-cap")
    require(0 <= z_loss < math.inf, "z_loss", "at least 0 and finite", z_loss, "0 is no penalty")
    require(scale is None or 0 < scale < math.inf, "attention_scale", "positive and finite, or None", scale)
    require(
        window is None or window >= 1, "window", "an integer of at least 1, or None", window, "1 is the position alone"
    )


def logit_penalty(
    q: Float[Tensor, "B H T K"], k: Float[Tensor, "B J S K"], mask: Mask, scale: float, softcap: float | None
) -> Float[Tensor, ""]:
    """Return the mean of (2), without the factor z_loss. Rows that may attend to nothing do not count."""
    z = logsumexp(q, k, mask, scale, softcap)
    if mask.allowed is None:
        return z.square().sum() / max(z.numel(), 1)
    n_rows = mask.allowed.any(-1).expand(z.shape).sum()
    return z.square().sum() / n_rows.clamp(min=1)


def logsumexp(
    q: Float[Tensor, "B H T K"], k: Float[Tensor, "B J S K"], mask: Mask, scale: float, softcap: float | None
) -> Float[Tensor, "B H T"]:
    """Return log sum_s exp L_ts in fp32 or wider; 0 for rows that may attend to nothing."""

    # A program for any length has no loop over blocks.
    compute = attention_logsumexp_reference if torch.compiler.is_exporting() else attention_logsumexp

    def of_block(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        return compute(q, k, mask.allowed, mask.causal, scale, softcap)

    return of_block(q, k, k, mask) if mask.window is None else in_blocks(of_block, q, k, k, mask.window)


def attention_logits(
    q: Float[Tensor, "B H T K"], k: Float[Tensor, "B J S K"], scale: float
) -> Float[Tensor, "B H T S"]:
    """Return the scaled logits of H query heads and J key heads in fp32 or wider. Head h reads key head h J // H."""
    grouped = q.unflatten(1, (k.shape[1], -1))
    logits = (grouped @ k.unsqueeze(2).mT).flatten(1, 2)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)) * scale


def attention_weights(logits: Tensor, mask: Mask, softcap: float | None = None) -> Tensor:
    """Return A of (1)."""
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    allowed = mask.spelled_out(logits.shape[-2], logits.shape[-1], logits.device)
    if allowed is None:
        return logits.softmax(-1)
    weights = logits.masked_fill(~allowed, float("-inf")).softmax(-1)
    return weights.masked_fill(~allowed, 0.0)  # replaces the NaN of rows that may attend to nothing


def observe(q: Tensor, k: Tensor, mask: Mask, scale: float, softcap: float | None) -> None:
    """Pass logits and weights to their taps while these are captured; the output is computed elsewhere."""
    if listening("logits", "weights"):
        tap("weights", attention_weights(tap("logits", attention_logits(q, k, scale)), mask, softcap))


def attend(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B J S K"],
    v: Float[Tensor, "B J S V"],
    mask: Mask,
    scale: float,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T V"]:
    """Return c of (1), by torch's fused attention unless there is a soft-cap."""
    if mask.window is not None and suits_flex(q, dropout):
        return by_flex(q, k, v, mask.window, scale, softcap)
    if mask.window is not None:
        return in_blocks(partial(attend, scale=scale, softcap=softcap, dropout=dropout), q, k, v, mask.window)
    if softcap is None:
        return fused_attention(q, k, v, mask, scale, dropout)
    weights = F.dropout(attention_weights(attention_logits(q, k, scale), mask, softcap), dropout)
    return weigh(weights, v)


def weigh(weights: Float[Tensor, "B H T S"], v: Float[Tensor, "B J S V"]) -> Float[Tensor, "B H T V"]:
    """Return the weighted sums of the values, where H heads share J value heads."""
    grouped = weights.to(v.dtype).unflatten(1, (v.shape[1], -1))
    return (grouped @ v.unsqueeze(2)).flatten(1, 2)


def _known(condition: bool | torch.SymBool) -> bool:
    """Return whether a condition on lengths holds. A graph for many lengths is not restricted by it."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(condition)
    return bool(condition)


def _trains_faster_in_half(q: Tensor, n_keys: int) -> bool:
    """Return whether a CPU trains fused attention faster in bf16 than in fp32.

    With AMX it took .88 of the time at 512 keys and heads 64 wide, and .5 at 1,024 and 128, but 3 times as long at 128
    and 32 (LOG.md, 2026-11-29)."""
    return q.dtype == torch.bfloat16 and q.shape[-1] >= 64 and has_matrix_unit() and _known(n_keys >= 256)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float) -> Tensor:
    """Return c of (1) without a soft-cap, by torch's fused attention.

    It needs one width for queries, keys and values, so the narrower side is padded with zeros. They change neither a
    dot product nor the coordinates that are returned. A CPU differs in two ways. Training in half precision attends in
    fp32 unless half precision is faster. Short sequences are not padded, and torch then computes (1) as written.
    """
    on_cpu, is_half = q.device.type == "cpu", q.dtype in HALF_PRECISIONS.values()
    in_training = q.requires_grad and torch.is_grad_enabled()
    if on_cpu and is_half and in_training and not _trains_faster_in_half(q, k.shape[-2]):
        with without_autocast(q):
            return fused_attention(q.float(), k.float(), v.float(), mask, scale, dropout).to(q.dtype)
    scored, value = q.shape[-1], v.shape[-1]
    is_padded = not on_cpu or is_half or mask.allowed is not None or not _known(k.shape[-2] <= SHORT)
    if is_padded and scored < value:
        q, k = F.pad(q, (0, value - scored)), F.pad(k, (0, value - scored))
    elif is_padded and value < scored:
        v = F.pad(v, (0, scored - value))
    context = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask.allowed,
        dropout_p=dropout,
        is_causal=mask.causal,
        scale=scale,
        # Under a compiler with dynamic lengths the comparison may be a symbol, which is no boolean.
        enable_gqa=True if q.shape[1] != k.shape[1] else False,  # noqa: SIM210
    )
    return context[..., :value]
