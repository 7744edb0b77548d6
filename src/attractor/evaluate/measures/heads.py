"""Compute softmax maps from queries and keys, and measure them, for as many heads at once as memory holds.

    L = scale q k'                                      the logits, before soft-cap, bias and mask           (1)
    A = softmax(cap tanh(L / cap) + bias + mask)        a sink adds one more logit to the softmax            (2)

The measures of a head with T queries and S keys are: the entropy of the rows of A, with and without the first row, and
divided by log n for rows that may attend to n > 1 keys; the effective rank and the share of the largest singular value;
attention on position 0; mean, standard deviation and maximum of L where attention is allowed. Differential attention
counts as twice the heads: each softmax map is measured, never their difference.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attractor.analysis import attention_entropy, normalised_entropy, sink_mass, spectral_profile
from attractor.attention.foreign_projections import REPLACEMENT
from attractor.control.score_inputs import ScoreInputs
from attractor.errors import InputError
from attractor.evaluate.measures.plan import GB

COPIES = 8  # of a map in memory at once: logits, mask, weights, and the working memory of a decomposition


@torch.no_grad()
def head_measures(module: nn.Module, scored: ScoreInputs, max_bytes: int) -> dict[str, Float[Tensor, " H"]]:
    """Return the measures by name. `module` is the one that attends, since it holds the soft-cap and the sinks."""
    n_heads, n_queries, n_keys = scored.q.shape[1], scored.q.shape[2], scored.k.shape[2]
    bytes_per_head = COPIES * n_queries * n_keys * torch.promote_types(scored.q.dtype, torch.float32).itemsize
    if bytes_per_head > max_bytes:
        raise InputError(
            f"memory must be at least {bytes_per_head / GB:.2g} GB for a head's map of {n_queries:,} x {n_keys:,}, got "
            f"{max_bytes / GB:g}; give more, or a smaller length"
        )
    blocks = torch.arange(n_heads, device=scored.q.device).split(max_bytes // bytes_per_head)
    parts = [_measures(*softmax_maps(module, scored, heads)) for heads in blocks]
    return {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}


def softmax_maps(
    module: nn.Module, scored: ScoreInputs, heads: Int[Tensor, " H"]
) -> tuple[Float[Tensor, "H T S"], Bool[Tensor, "H T S"], Float[Tensor, "H T S"]]:
    """Return (1), where attention is allowed, and (2), for these heads of one sequence."""
    assert scored.q.shape[0] == 1
    replaced: Any = getattr(module, REPLACEMENT, None)
    module = module if replaced is None or replaced.score is None else replaced.score
    logits, allowed = (part[0] for part in scored.logits(heads))  # (1)
    capped = _biased(_capped(logits, module), scored.allowed, heads).masked_fill(~allowed, float("-inf"))
    sinks = getattr(module, "sinks", None)
    if isinstance(sinks, Tensor):
        column = sinks.detach().to(capped)[heads].view(-1, 1, 1).expand(-1, capped.shape[1], 1)
        weights = torch.cat([capped, column], dim=-1).softmax(-1)[..., :-1]
    else:
        weights = capped.softmax(-1)
    return logits, allowed, weights.masked_fill(~allowed, 0.0)  # (2); a row without an allowed key is NaN


def _capped(logits: Tensor, module: nn.Module) -> Tensor:
    """Apply the soft-cap, under the name that our modules or those of transformers have for it."""
    for name in ("softcap", "attn_logit_softcapping"):
        cap = getattr(module, name, None)
        if cap is not None:
            return cap * (logits / cap).tanh()
    return logits


def _biased(logits: Tensor, added: object, heads: Tensor) -> Tensor:
    """Add the bias of a mask that is not boolean, such as ALiBi's bias by distance."""
    if not isinstance(added, Tensor) or added.dtype == torch.bool:
        return logits
    bias = added.expand(1, *added.shape[-3:])[0] if added.ndim == 4 else added
    return logits + (bias[heads] if bias.ndim == 3 and len(bias) > 1 else bias)


def _measures(logits: Tensor, allowed: Tensor, weights: Tensor) -> dict[str, Tensor]:
    rows = attention_entropy(weights)
    spectrum = spectral_profile(weights)
    n_logits = allowed.sum((-2, -1))
    mean = logits.masked_fill(~allowed, 0.0).sum((-2, -1), dtype=torch.float64) / n_logits
    deviations = (logits - mean.to(logits.dtype).view(-1, 1, 1)).masked_fill(~allowed, 0.0)
    return {
        "entropy": rows.mean(-1),
        "entropy_after_first": rows[..., 1:].mean(-1),
        "normalised_entropy": normalised_entropy(weights, allowed),
        "effective_rank": spectrum.effective_rank,
        "top_share": spectrum.top_share,
        "sink_mass": sink_mass(weights),
        "logit_mean": mean,
        "logit_std": (deviations.square().sum((-2, -1), dtype=torch.float64) / n_logits).sqrt(),
        "logit_max": logits.masked_fill(~allowed, float("-inf")).amax((-2, -1)),
    }
