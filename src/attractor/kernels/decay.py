"""Causal linear attention with decay, computed in chunks: time and memory are linear in the sequence's length.

    c_t = scale sum_s (q_t . k_s) prod_r a_r v_s,   s <= t,   r = s + 1, ..., t                             (1)

For a chunk that begins after position b, all earlier positions are one state of K x V numbers for each key head:

    c_t = (1) over b < s <= t,  +  scale prod_(b < r <= t) a_r S_b' q_t                                     (2)
    D = sum_s prod_(s < r <= e) a_r k_s v_s',   what a chunk that ends at e adds                            (3)
    S_e = sum over chunks up to here of D prod a_r over the chunks after it                                 (4)

All chunks are computed at once, and (4) is a product with a matrix that has a row for each chunk. Every product of a is
the exponential of a sum of log a over the same positions, so it is at most 1, and no large sums are subtracted.
Chunks as in gated linear attention, Yang et al., 2024, arXiv 2312.06635, and Mamba-2, Dao and Gu, 2024,
arXiv 2405.21060.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.kernels.precision import without_autocast

PIECE = 64  # positions in a chunk


def decayed_attention(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, scale: float, piece: int = PIECE) -> Tensor:
    """Compute (1). q: B H T K; k: B J T K; v: B J T V; log_decay: B J T, at most 0; J divides H."""
    length, wide = q.shape[2], torch.promote_types(q.dtype, torch.float32)
    exporting = torch.compiler.is_exporting()  # a program for any length, so no step may depend on it
    piece = piece if exporting else max(1, min(piece, length))
    q = in_pieces(q, piece).unflatten(1, (k.shape[1], -1))  # B J G N P K
    k, v = in_pieces(k, piece), in_pieces(v, piece)  # B J N P .
    log_decay = in_pieces(log_decay.to(wide).unsqueeze(-1), piece).squeeze(-1)
    kept = survival(log_decay)  # B J N P P
    weights = (q @ k.unsqueeze(2).mT).to(wide) * (scale * kept).unsqueeze(2)
    context = weights.to(v.dtype) @ v.unsqueeze(2)
    if exporting or log_decay.shape[2] > 1:
        added = (k * kept[..., -1, :, None]).to(v.dtype).mT @ v  # (3): B J N K V
        with without_autocast(q):
            before = states(added.to(wide), log_decay.sum(-1)).to(v.dtype)
        reached = scale * log_decay.cumsum(-1).exp()
        past = (q @ before.unsqueeze(2)).to(wide) * reached.unsqueeze(2).unsqueeze(-1)
        context = (context + past).to(context.dtype)  # (2)
    return context.flatten(3, 4).flatten(1, 2)[..., :length, :]


def in_pieces(x: Tensor, piece: int) -> Tensor:
    """Return B J T ... as B J N P ...; the last chunk is padded with zeros: keys that add nothing, and a = 1."""
    missing = -x.shape[2] % piece
    return (F.pad(x, (0, 0, 0, missing)) if torch.compiler.is_exporting() or missing else x).unflatten(2, (-1, piece))


def survival(log_decay: Tensor) -> Tensor:
    """Return prod_r a_r over s < r <= t: ... T S, and 0 where s > t."""
    past = torch.ones(log_decay.shape[-1:] * 2, dtype=torch.bool, device=log_decay.device).tril()
    since = sums_behind(log_decay.unsqueeze(-2).masked_fill(~past, 0.0))
    return since.exp().masked_fill(~past, 0.0)


def sums_behind(steps: Tensor) -> Tensor:
    """Return sum_r steps_r over r > s for every s: ... S, added up from the end."""
    return F.pad(steps[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)


def states(added: Tensor, log_decay: Tensor) -> Tensor:
    """Return the state (4) before every chunk: B J N K V, the first one 0. `log_decay` is that of chunks: B J N."""
    after = survival(log_decay[..., :-1]) @ added[:, :, :-1].flatten(-2)
    return F.pad(after, (0, 0, 1, 0)).unflatten(-1, added.shape[-2:])
