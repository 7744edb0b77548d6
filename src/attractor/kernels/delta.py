"""The gated delta rule, computed in chunks: time is linear in the sequence's length, and memory of the state constant.

    S_t = a_t S_(t-1) + b_t k_t (v_t - a_t S_(t-1)' k_t)',   c_t = scale S_t' q_t                             (1)

The state S (K x V) is a memory that answers a key with a value. Each position lets it fade by a, and moves its answer
to the own key by the share b towards the own value. For a chunk that begins in state S, with e_i the product of a up to
i and d_ij that over r = j + 1, ..., i, what the positions write is

    u_i = b_i (v_i - e_i S' k_i - sum_(j < i) d_ij (k_i . k_j) u_j)                                          (2)
    c_i = scale (e_i S' q_i + sum_(j <= i) d_ij (q_i . k_j) u_j)                                             (3)
    S <- e_C S + sum_j d_Cj k_j u_j'                                                                         (4)

(2) is one triangular system for each chunk, solved for all chunks at once; only (4) goes from chunk to chunk. Every
product of a is the exponential of a sum of log a over its positions, as in `decay.py`.
Yang, Kautz and Hatamizadeh, Gated delta networks, 2024, arXiv 2412.06464. On a GPU, half precision takes the kernel of
flash-linear-attention where that package is installed.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from attractor.kernels.decay import PIECE, in_pieces, survival
from attractor.kernels.precision import without_autocast

HAS_GPU_KERNELS = find_spec("fla") is not None


def delta_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, scale: float, state: Tensor, piece: int = PIECE
) -> tuple[Tensor, Tensor]:
    """Return c of (1) and the last state. q, k: B H T K; v: B H T V; log_decay, rate: B H T; state: B H K V.

    log_decay may be minus infinity, where a sequence begins anew."""
    length = q.shape[2]
    # A program for any length has no loop over chunks: its only chunk is the sequence.
    piece = length if torch.compiler.is_exporting() else max(1, min(piece, length))
    with without_autocast(q):
        inputs = (x.to(state.dtype) for x in (q, k, v, log_decay.unsqueeze(-1), rate.unsqueeze(-1)))
        q, k, v, log_decay, rate = (  # N B H P .
            x.unsqueeze(0) if piece == length else in_pieces(x, piece).movedim(2, 0) for x in inputs
        )
        kept = survival(log_decay.squeeze(-1))  # d_ij
        reached = log_decay.cumsum(-2).exp()  # e_i
        written, forgotten = solve_writes(k, rate, kept, torch.cat([v, reached * k], dim=-1)).split(
            [v.shape[-1], k.shape[-1]], dim=-1
        )
        read = (q @ k.mT) * kept
        contexts = []
        for i in range(len(q)):
            u = written[i] - forgotten[i] @ state  # (2)
            contexts.append(reached[i] * (q[i] @ state) + read[i] @ u)  # (3)
            state = reached[i, :, :, -1:] * state + (k[i] * kept[i, :, :, -1, :, None]).mT @ u  # (4)
        return scale * torch.cat(contexts, dim=2)[:, :, :length], state


def solve_writes(k: Tensor, rate: Tensor, kept: Tensor, right: Tensor) -> Tensor:
    """Solve u_i = b_i (right_i - sum_(j < i) d_ij (k_i . k_j) u_j). k: ... T K; rate: ... T 1; kept: ... T T."""
    system = (rate * (k @ k.mT) * kept).tril(-1)  # the ones of its diagonal are not read
    return torch.linalg.solve_triangular(system, rate * right, upper=False, unitriangular=True)


def has_gpu_kernel(v: Tensor, log_decay_is_finite: bool) -> bool:
    half = v.dtype in (torch.float16, torch.bfloat16)
    return v.is_cuda and half and v.shape[2] > 1 and log_decay_is_finite and HAS_GPU_KERNELS


def delta_attention_on_gpu(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the same by flash-linear-attention in the precision of v, for finite log_decay."""
    fla: Any = import_module("fla.ops.gated_delta_rule")  # no statement, or transformers would demand it of an export
    inputs = (q.to(v.dtype), k.to(v.dtype), v, log_decay, rate.to(v.dtype))
    q, k, v, log_decay, rate = (x.transpose(1, 2).contiguous() for x in inputs)  # B T H .
    context, state = fla.chunk_gated_delta_rule(
        q, k, v, log_decay, rate, scale=scale, initial_state=state, output_final_state=True
    )
    return context.transpose(1, 2), state
