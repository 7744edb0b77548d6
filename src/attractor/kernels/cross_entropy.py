"""Cross-entropy of a linear readout that never holds all logits, and computes gradients in the forward pass.

    loss = mean over scored positions of -log softmax(W h_t)[y_t];   targets of -100 are not scored         (1)
    g_t = softmax(W h_t) - onehot(y_t), 0 where not scored;   dL/dh_t = W' g_t / n,   dL/dW = sum g_t h_t' / n  (2)
    with a soft-cap c, c tanh(W h_t / c) takes the place of W h_t = l, and g_t has the factor 1 - tanh(l / c)^2  (3)

The logits of a chunk of positions are computed once, turned into (2) in place, and multiplied. This takes three matrix
products, where recomputing logits in the backward pass would take four; the backward pass only scales the gradients.
With a vocabulary of 50,257, the logits of 32 x 512 tokens are 3.3 GB in fp32; a chunk holds 256 MB at most, or
50 MB on a CPU. Without the kernel, products in half precision are widened to fp32, which takes twice as much.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attractor.kernels.fallback import functorch_active, use_kernel
from attractor.kernels.precision import autocast_dtype, without_autocast

NOT_SCORED = -100
SMALL = 2**20  # at most so many logits (4 MB in fp32, which fit into a cache) are computed by the reference
HELD = 2**28  # bytes of logits held at once
HELD_ON_CPU = 2**22  # likewise on a CPU, whose cache holds 4 MB
ChunkLoss = Callable[[Tensor, Tensor, Tensor, int, bool], tuple[Tensor, Tensor]]
ROWS = 256  # fewest positions in a chunk, since each chunk updates the whole gradient of W


def soft_capped(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else softcap * (logits / softcap).tanh()


def linear_cross_entropy_reference(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "C D"],
    targets: Int[Tensor, "N"],
    softcap: float | None = None,
) -> Float[Tensor, ""]:
    """Compute (1) as written."""
    logits = soft_capped(F.linear(hidden, weight), softcap)
    return F.cross_entropy(_wide(logits), targets, ignore_index=NOT_SCORED)


def chunked_linear_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "C D"],
    targets: Int[Tensor, "N"],
    softcap: float | None = None,
) -> Float[Tensor, ""]:
    """Compute (1) in chunks. Products run in the precision of `hidden`, or of autocast; sums are in fp32 or wider."""
    half = autocast_dtype(hidden)
    needed = [torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight)]
    with without_autocast(hidden):
        return _chunked(hidden if half is None else hidden.to(half), weight, targets, *needed, softcap)[0]


def linear_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "C D"],
    targets: Int[Tensor, "N"],
    softcap: float | None = None,
) -> Float[Tensor, ""]:
    """Compute (1): in chunks, or by the reference if there are few logits.

    The reference is used under vmap and other functorch transforms too. They support plain operations only, and some
    would take the derivative of a custom operator to be zero.
    """
    if hidden.shape[0] * weight.shape[0] <= SMALL or functorch_active():
        return linear_cross_entropy_reference(hidden, weight, targets, softcap)
    return chunked_linear_cross_entropy(hidden, weight, targets, softcap)


def loss_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    hidden_needed: bool,
    weight_needed: bool,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, and the gradients of (2) without 1 / n; gradients that are not needed are empty."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    readout = weight.to(hidden.dtype)
    total = hidden.new_zeros((), dtype=wide)
    grad_hidden = torch.empty_like(hidden) if hidden_needed else hidden.new_empty(0)
    grad_weight = torch.zeros_like(weight, dtype=wide) if weight_needed else weight.new_empty(0)
    n_rows = _rows_at_once(hidden, weight)
    chunk_loss: ChunkLoss = partial(_chunk_loss, softcap=softcap)
    unsupported = "it computes in fp32, and the input is fp64" if hidden.dtype == torch.float64 else None
    unsupported = "it has no soft-cap" if softcap is not None else unsupported
    if use_kernel("the gradient of cross-entropy", hidden, unsupported):
        from attractor.kernels.gpu.cross_entropy import chunk_loss
    for start in range(0, len(hidden), n_rows):
        h, y = hidden[start : start + n_rows], targets[start : start + n_rows]
        loss, g = chunk_loss(h, readout, y, NOT_SCORED, hidden_needed or weight_needed)
        total += loss
        if hidden_needed:
            torch.mm(g, readout, out=grad_hidden[start : start + n_rows])
        if weight_needed and g.dtype == wide:
            grad_weight.addmm_(g.mT, h)
        elif weight_needed:
            grad_weight += g.mT @ h
    return total / (targets != NOT_SCORED).sum(), grad_hidden, grad_weight


def _chunk_loss(
    hidden: Tensor, readout: Tensor, targets: Tensor, ignored: int, differentiate: bool, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of these positions, and the gradients of their logits."""
    logits = _wide(soft_capped(F.linear(hidden, readout), softcap))
    log_p = logits.log_softmax(-1)
    loss = F.nll_loss(log_p, targets, ignore_index=ignored, reduction="sum")
    if not differentiate:
        return loss, log_p
    rows = torch.arange(len(targets), device=targets.device)
    gradient = log_p.exp_()
    gradient[rows, targets.clamp(min=0)] -= 1
    if softcap is not None:
        gradient *= 1 - (logits / softcap).square()  # (3)
    return loss, gradient.mul_((targets != ignored).unsqueeze(1)).to(hidden.dtype)


_chunked = torch.library.custom_op("attractor::linear_cross_entropy", loss_and_gradients, mutates_args=())


@_chunked.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    hidden_needed: bool,
    weight_needed: bool,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = _wide(hidden).dtype
    grad_hidden = torch.empty_like(hidden) if hidden_needed else hidden.new_empty(0)
    grad_weight = torch.empty_like(weight, dtype=wide) if weight_needed else weight.new_empty(0)
    return hidden.new_empty((), dtype=wide), grad_hidden, grad_weight


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, targets, *ctx.needed, ctx.softcap = inputs
    ctx.save_for_backward(hidden, weight, targets, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    hidden, weight, targets, *gradients = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradients will be differentiated again, so they are computed with a graph
        loss = linear_cross_entropy_reference(hidden, weight.to(hidden.dtype), targets, ctx.softcap)
        inputs = [x for x, needed in zip((hidden, weight), ctx.needed, strict=True) if needed]
        with_graph = iter(torch.autograd.grad(loss, inputs, grad, create_graph=True))
        return *(next(with_graph) if needed else None for needed in ctx.needed), None, None, None, None
    scale = grad / (targets != NOT_SCORED).sum().clamp(min=1)
    scaled = (
        (gradient * scale).to(x.dtype) if needed else None
        for gradient, x, needed in zip(gradients, (hidden, weight), ctx.needed, strict=True)
    )
    return *scaled, None, None, None, None


_chunked.register_autograd(_backward, setup_context=_setup_context)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _rows_at_once(hidden: Tensor, weight: Tensor) -> int:
    held = HELD_ON_CPU if hidden.device.type == "cpu" else HELD
    return max(held // (len(weight) * hidden.element_size() * ROWS), 1) * ROWS


def held_logits(hidden: Tensor, weight: Tensor) -> int:
    """Return the bytes of the logits of one chunk and of their logarithms, which are held at once."""
    return 2 * min(_rows_at_once(hidden, weight), len(hidden)) * len(weight) * hidden.element_size()


def position_losses(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "C D"],
    targets: Int[Tensor, "N"],
    softcap: float | None = None,
) -> tuple[Float[Tensor, "N"], Int[Tensor, "N"]]:
    """Return the loss of every position (0 where not scored) and its likeliest class, without gradients."""
    chunk = max(SMALL // weight.shape[0], 1)
    losses, likeliest = [], []
    for h, y in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        logits = _wide(soft_capped(F.linear(h, weight), softcap))
        losses.append(F.cross_entropy(logits, y, ignore_index=NOT_SCORED, reduction="none"))
        likeliest.append(logits.argmax(-1))
    return torch.cat(losses), torch.cat(likeliest)
