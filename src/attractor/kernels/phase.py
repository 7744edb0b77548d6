"""Phase activation: a vector times the cosines, and times the sines, of angles that are linear in the vector.

    y = [v cos a, v sin a],   a = W v                                                                       (1)

Autograd would save angles, cosines and sines, and compute cosines and sines again in the backward pass. This
implementation saves only cosines and sines. A gradient g = [g_c, g_s] of y gives

    g_a = v (g_s cos a - g_c sin a),   g_v = g_c cos a + g_s sin a + W' g_a,   g_W = sum g_a v'             (2)

Angles are computed in fp32 or wider, since the 8 bits of bf16 would change them. v: B T H K, as projections leave it in
memory; y: B T H 2K.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.kernels.fallback import functorch_active
from attractor.kernels.precision import without_autocast


def phase_activation_reference(v: Tensor, weight: Tensor) -> Tensor:
    """Compute (1) as written."""
    cos, sin = turns(v, weight)
    return torch.cat([v * cos, v * sin], dim=-1).to(v.dtype)


def phase_activation(v: Tensor, weight: Tensor) -> Tensor:
    """Compute (1), by the reference under functorch transforms and compilers, which need plain operations."""
    if functorch_active() or torch.compiler.is_compiling():
        return phase_activation_reference(v, weight)
    return PhaseActivationFunction.apply(v, weight)[0]


class PhaseActivationFunction(torch.autograd.Function):
    @staticmethod
    def forward(v: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin = turns(v, weight)
        return torch.cat([v * cos, v * sin], dim=-1).to(v.dtype), cos, sin

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        _, *kept = output
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *kept)

    @staticmethod
    def backward(ctx, grad: Tensor | None, *_: None) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[no-untyped-def]
        if grad is None:  # gradients are not materialised, which would also make zeros for the cosines and sines
            return None, None
        v, weight, cos, sin = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradients will be differentiated again, through the angles
            cos, sin = turns(v, weight)
        return phase_gradients(v, weight, cos, sin, grad)


def phase_gradients(v: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients (2) of v and W."""
    grad_cos, grad_sin = grad.to(cos.dtype).chunk(2, dim=-1)
    grad_angle = torch.addcmul(grad_sin * cos, grad_cos, sin, value=-1) * v
    grad_v = torch.addcmul(grad_sin * sin, grad_cos, cos)
    rows = grad_angle.flatten(0, -2)
    with without_autocast(v):
        grad_v = torch.addmm(grad_v.flatten(0, -2), rows, weight.to(cos.dtype)).view(grad_v.shape)
        grad_weight = rows.mT @ v.flatten(0, -2).to(cos.dtype)
    return grad_v.to(v.dtype), grad_weight.to(weight.dtype)


def turns(v: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of the angles."""
    wide = torch.promote_types(v.dtype, torch.float32)
    with without_autocast(v):
        angle = F.linear(v.to(wide), weight.to(wide))
    return angle.cos(), angle.sin()
