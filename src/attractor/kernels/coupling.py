"""One kick of coupled dynamics, k + dt f(q) with the two-layer force, keeping nothing for the backward pass but q.

    h = q W_1',   s = silu(h),   k' = k + mean over the group of dt s W_2'                                  (1)

Autograd would keep h, s and f; here h and s are formed again from q, and the gradient of dt comes from s alone:

    g_s = (dt g_k) W_2,   dL/d dt = sum g_s . s / dt,   g_q = (g_s silu'(h)) W_1                            (2)

q: B T J G K (G queries for each of J keys), k: B T J 1 K, dt: J G 1. Positions come before heads, as the projections
leave them in memory, so that every product runs over contiguous rows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.kernels.precision import autocast_dtype, without_autocast


def mlp_kick_reference(k: Tensor, q: Tensor, dt: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """(1) as it is written."""
    force = F.linear(F.silu(F.linear(q, inner)), outer)
    return k + (dt * force).mean(3, keepdim=True)


def mlp_kick(k: Tensor, q: Tensor, dt: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """(1), recomputing in the backward pass. Under autocast products run in half precision, k stays as it is."""
    half = autocast_dtype(q)
    if half is not None:
        q, inner, outer = q.to(half), inner.to(half), outer.to(half)
    return MLPKick.apply(k, q, dt, inner, outer)


class MLPKick(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(k: Tensor, q: Tensor, dt: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
        with without_autocast(q):
            force = F.linear(F.silu(F.linear(q, inner)), outer)
            if q.shape[3] == 1:
                return torch.addcmul(k, dt, force.to(k.dtype))
            return k + (dt * force).mean(3, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        _, q, dt, inner, outer = inputs
        ctx.save_for_backward(q, dt, inner, outer)

    @staticmethod
    def backward(ctx, grad_k: Tensor) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
        q, dt, inner, outer = ctx.saved_tensors
        with without_autocast(q):
            h = F.linear(q, inner)
            s = F.silu(h)
            grad_force = (dt / q.shape[3] * grad_k).to(q.dtype)  # B T J G K, the group's share each
            grad_s = grad_force @ outer
            # Summed over rows first, which runs along memory: several times faster than along each row.
            grad_dt = (grad_s * s).flatten(0, 1).sum(0, dtype=dt.dtype).sum(-1, keepdim=True) / dt  # (2)
            grad_h = silu_gradient(grad_s, h)
            rows = (0, 1, 2, 3)
            grad_outer = torch.tensordot(grad_force, s, (rows, rows))
            grad_inner = torch.tensordot(grad_h, q, (rows, rows))
            return grad_k, grad_h @ inner, grad_dt, grad_inner, grad_outer


def silu_gradient(grad: Tensor, h: Tensor) -> Tensor:
    """grad silu'(h), by torch's fused operator unless it must be differentiated again, which that one cannot be."""
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(grad, h)
    sigmoid = h.sigmoid()
    return grad * sigmoid * (1 + h * (1 - sigmoid))
