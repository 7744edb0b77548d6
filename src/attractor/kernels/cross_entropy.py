"""Cross-entropy of a linear readout without ever holding all logits: the fused one where torch has it, else chunks.

    loss = mean over scored positions of -log softmax(W h_t)[y_t];   targets of -100 are not scored          (1)

At a vocabulary of 50,257 the logits of 32 x 512 tokens are 3.3 GB in fp32; in chunks a hundredth of it.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attractor.kernels.precision import autocast_dtype

IGNORED = -100
CHUNK = 2048  # positions whose logits are held at once
SMALL = 2**22  # logits that are not worth avoiding: 16 MB in fp32

# In torch from 2.13 on; the CPU and CUDA builds have it alike.
_fused = getattr(F, "linear_cross_entropy", None)


def linear_cross_entropy_reference(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "C D"], targets: Int[Tensor, "N"]
) -> Float[Tensor, ""]:
    """(1) as it is written."""
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, ignore_index=IGNORED)


def _chunk_sum(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, ignore_index=IGNORED, reduction="sum")


def chunked_linear_cross_entropy(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "C D"], targets: Int[Tensor, "N"]
) -> Float[Tensor, ""]:
    """(1) in chunks whose logits are computed again in the backward pass."""
    total = hidden.new_zeros((), dtype=torch.float32)
    for h, y in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True):
        total = total + checkpoint(_chunk_sum, h, weight, y, use_reentrant=False)
    return total / (targets != IGNORED).sum()


def fused_linear_cross_entropy(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "C D"], targets: Int[Tensor, "N"]
) -> Float[Tensor, ""]:
    """(1) by torch's own chunked operator, which forms the gradients in the forward pass."""
    half = autocast_dtype(hidden)
    if half is not None:  # the operator is not on autocast's list
        hidden, weight = hidden.to(half), weight.to(half)
    options = torch.nn.LinearCrossEntropyOptions(allow_retain_graph=True)
    assert _fused is not None
    return _fused(hidden, weight, targets, ignore_index=IGNORED, options=options).float()


def linear_cross_entropy(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "C D"], targets: Int[Tensor, "N"]
) -> Float[Tensor, ""]:
    """(1), as it is written while the logits are small, and without holding them when they are not."""
    if hidden.shape[0] * weight.shape[0] <= SMALL:
        return linear_cross_entropy_reference(hidden, weight, targets)
    if _fused is not None:
        return fused_linear_cross_entropy(hidden, weight, targets)
    return chunked_linear_cross_entropy(hidden, weight, targets)


def position_losses(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "C D"], targets: Int[Tensor, "N"]
) -> tuple[Float[Tensor, "N"], Int[Tensor, "N"]]:
    """The loss of every position (0 where not scored), and its likeliest class. No gradients."""
    chunk = max(SMALL // weight.shape[0], 1)
    losses, likeliest = [], []
    for h, y in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        logits = F.linear(h, weight).float()
        losses.append(F.cross_entropy(logits, y, ignore_index=IGNORED, reduction="none"))
        likeliest.append(logits.argmax(-1))
    return torch.cat(losses), torch.cat(likeliest)
