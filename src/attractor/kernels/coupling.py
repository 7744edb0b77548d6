"""Integration of coupled query-key dynamics that saves only the initial state for the backward pass.

An integrator is a program, a sequence of moves; a number c stands for a kick:

    FORCE    f = force(q)                                                                                   (1)
    DRIFT    q <- q + dt k                                                                                  (2)
    c        k <- k + c mean over the group of dt f                                                         (3)
    PUSH     q <- q + f                                                                                     (4)

`integrate_reference` takes any force. `integrate` computes the same for the two-layer force f = W_2 silu(W_1 q). It
saves the initial state alone, where autograd would save about ten tensors for each force. The backward pass repeats the
forward pass, and then goes backwards by

    g_f = c dt g_k / G,   g_s = g_f W_2,   g_q <- g_q + (g_s silu'(W_1 q)) W_1,   dL/d dt = (sum g_s . s) / dt    (5)

q: B T J G K (G queries for each of J keys), k: B T J 1 K, dt: J G 1 and positive. Positions come before heads, as the
projections leave them in memory, so that every matrix product reads contiguous rows.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.kernels.precision import autocast_dtype, without_autocast

FORCE: Literal["force"] = "force"
DRIFT: Literal["drift"] = "drift"
PUSH: Literal["push"] = "push"
Program = tuple[Literal["force", "drift"] | float, ...]
MLPProgram = tuple[Literal["force", "push"], ...]  # without a step size
PIECE = 2**18  # numbers of q that a CPU takes through a program at a time


def apply_force(q: Tensor, inner: Tensor | None, outer: Tensor) -> Tensor:
    """Return W_2 silu(W_1 q), or W_2 q without W_1."""
    return F.linear(q if inner is None else F.silu(F.linear(q, inner)), outer)


def integrate_reference(
    program: Program | MLPProgram,
    q: Tensor,
    k: Tensor,
    dt: Tensor,
    force: Callable[[Tensor], Tensor],
    velocity: Callable[[Tensor], Tensor] = lambda k: k,
) -> tuple[Tensor, Tensor]:
    """Compute (1) to (4) as written; `velocity(k)` replaces k in (2)."""
    f = torch.zeros_like(q)
    for move in program:
        if move == FORCE:
            f = force(q)
        elif move == DRIFT:
            q = q + dt * velocity(k)
        elif move == PUSH:
            q = q + f
        else:
            k = k + move * (dt * f).mean(3, keepdim=True)
    return q, k


def integrate(
    program: Program, q: Tensor, k: Tensor, dt: Tensor, inner: Tensor, outer: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the program with the two-layer force.

    The state has the precision of dt, even if q and k come in half precision. Under autocast the products of the force
    run in half precision.
    """
    half = autocast_dtype(q)
    if half is not None:
        inner, outer = inner.to(half), outer.to(half)
    qn, kn = Integration.apply(program, q, k, dt, inner, outer)
    return qn, kn


class Integration(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        program: Program, q: Tensor, k: Tensor, dt: Tensor, inner: Tensor, outer: Tensor
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(q):
            ends = [_end_state(program, q_piece, k_piece, dt, inner, outer) for q_piece, k_piece in _pieces(q, k)]
        qs, ks = zip(*ends, strict=True)
        return _joined(qs).view(q.shape), _joined(ks).view(k.shape)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.program, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, grad_q: Tensor, grad_k: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        q, k, dt, inner, outer = ctx.saved_tensors
        with without_autocast(q):
            # Attention returns gradients with heads before positions in memory.
            pieces = _pieces(q, k, grad_q.contiguous(), grad_k.contiguous())
            gradients = [_gradients(ctx.program, piece, dt, inner, outer) for piece in pieces]
        qs, ks, *shared = zip(*gradients, strict=True)
        grads = _joined(qs).view(q.shape).to(q.dtype), _joined(ks).view(k.shape).to(k.dtype)
        sums = (reduce(torch.add, parts).to(x.dtype) for parts, x in zip(shared, (dt, inner, outer), strict=True))
        return None, *grads, *sums


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors B T J . K, q first, into pieces n J . K, which on a CPU are small enough to stay in its cache."""
    rows = [x.flatten(0, 1) for x in tensors]
    n = max(PIECE // max(rows[0][:1].numel(), 1), 1) if rows[0].device.type == "cpu" else max(len(rows[0]), 1)
    return zip(*(x.split(n) for x in rows), strict=True)


def _joined(pieces: tuple[Tensor, ...]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _end_state(
    program: Program, q: Tensor, k: Tensor, dt: Tensor, inner: Tensor, outer: Tensor
) -> tuple[Tensor, Tensor]:
    q, k = q.to(dt.dtype), k.to(dt.dtype)
    f = q
    for move in program:
        if move == FORCE:
            f = apply_force(q.to(inner.dtype), inner, outer).to(q.dtype)
        elif move == DRIFT:
            q = torch.addcmul(q, dt, k)
        else:
            k = _kicked(k, move, dt, f)
    return q, k


def _gradients(
    program: Program, piece: tuple[Tensor, ...], dt: Tensor, inner: Tensor, outer: Tensor
) -> tuple[Tensor, ...]:
    """Repeat the forward pass, recording what the gradient of each move needs; then go backwards by (5)."""
    q, k, grad_q, grad_k = piece
    q, k = q.to(dt.dtype), k.to(dt.dtype)
    groups, last = q.shape[-2], len(program) - 1
    recorded: list[tuple[Tensor, ...]] = []
    for number, move in enumerate(program):
        if move == FORCE:
            x = q.to(inner.dtype)
            h = F.linear(x, inner)
            latest = x, h, F.silu(h)
            recorded.append(latest)
        elif move == DRIFT:
            recorded.append((k,))
            q = torch.addcmul(q, dt, k)
        else:
            recorded.append(())
            if number < last:
                k = _kicked(k, move, dt, F.linear(latest[2], outer).to(k.dtype))

    grad_f, grad_inner, grad_outer = (
        grad_k,
        torch.zeros_like(inner, dtype=dt.dtype),
        torch.zeros_like(outer, dtype=dt.dtype),
    )
    by_force = by_drift = None  # products whose sums are the gradient of dt
    for move in reversed(program):
        operands = recorded.pop()
        if move == FORCE:
            x, h, s = operands
            force = grad_f.to(inner.dtype)
            grad_s = force @ outer
            grad_h = _silu_gradient(grad_s, h)
            by_force = _sum_of_products(by_force, grad_s, s)
            grad_outer = grad_outer + _rows(force).mT @ _rows(s)
            grad_inner = grad_inner + _rows(grad_h).mT @ _rows(x)
            if grad_h.dtype == grad_q.dtype:
                grad_q = torch.addmm(_rows(grad_q), _rows(grad_h), inner).view_as(q)
            else:
                grad_q = grad_q + grad_h @ inner
        elif move == DRIFT:
            by_drift = _sum_of_products(by_drift, grad_q, operands[0])
            grad_k = torch.addcmul(grad_k, dt, grad_q) if groups == 1 else grad_k + (dt * grad_q).sum(-2, True)
        else:
            grad_f = (move / groups) * dt * grad_k
    grad_dt = _by_head(by_force, dt) / dt + _by_head(by_drift, dt)
    return grad_q, grad_k, grad_dt, grad_inner, grad_outer


def _kicked(k: Tensor, c: float, dt: Tensor, f: Tensor) -> Tensor:
    """Return k after the kick (3)."""
    return torch.addcmul(k, dt, f, value=c) if f.shape[-2] == 1 else k + c * (dt * f).mean(-2, keepdim=True)


def _sum_of_products(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    return a * b if total is None else torch.addcmul(total, a, b)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _by_head(x: Tensor | None, dt: Tensor) -> Tensor:
    """Sum over positions, then over coordinates: this order reads memory in sequence and is several times faster."""
    return torch.zeros_like(dt) if x is None else x.sum(0, dtype=dt.dtype).sum(-1, keepdim=True)


def _silu_gradient(grad: Tensor, h: Tensor) -> Tensor:
    """Return grad silu'(h), by torch's fused operator unless the result will be differentiated again."""
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(grad, h)
    sigmoid = h.sigmoid()
    return grad * sigmoid * (1 + h * (1 - sigmoid))
