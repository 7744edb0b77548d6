"""Coupling by the fused kernel: its inputs, and the inputs that it does not support.

Forces are W_2 silu(W_1 q) or linear. The kernel does not support a shared force, which moves both queries and keys.
"""

from typing import cast

import torch
from torch import Tensor

from attractor.attention.couple.force import Force, LinearForce
from attractor.attention.couple.norm_and_position import NormAndPosition
from attractor.attention.norm import RMSNorm
from attractor.kernels.coupling import FORCE, MLPProgram, Program
from attractor.kernels.fallback import use_kernel
from attractor.kernels.precision import autocast_dtype

WIDEST, LARGEST_GROUP = 256, 16  # width of a head; queries per key
WIDEST_LINEAR = {torch.bfloat16: 128, torch.float16: 128, torch.float32: 64}  # where one GPU program holds the matrix
LONGEST = 8  # forces in a `Program` of moves, which the kernel unrolls


def kernel_applies(
    program: Program | MLPProgram, q: Tensor, k: Tensor, force: Force, unsupported: str | None = None
) -> bool:
    return use_kernel("coupling", q, unsupported=unsupported or _unsupported(program, q, k, force))


def _unsupported(program: Program | MLPProgram, q: Tensor, k: Tensor, force: Force) -> str | None:
    width, group, n_forces, products = q.shape[-1], q.shape[1] // k.shape[1], program.count(FORCE), _products(q, force)
    if torch.float64 in (q.dtype, products):
        return "it computes in fp32, and the input is fp64"
    widest = WIDEST_LINEAR[products] if isinstance(force, LinearForce) else WIDEST
    if width > widest:
        return f"heads are {width} wide, and it takes up to {widest}"
    if group > LARGEST_GROUP:
        return f"a key has {group} queries, and it takes up to {LARGEST_GROUP}"
    if n_forces > LONGEST:
        return f"there are {n_forces} forces, and it takes up to {LONGEST}"
    return None


def couple(
    program: Program | MLPProgram,
    q: Tensor,
    k: Tensor,
    dt: Tensor | None,
    force: Force,
    norm_and_position: NormAndPosition | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the kernel on q: B H T K, k: B J T K, dt: H. Without `norm_and_position` the result is the state in fp32."""
    from attractor.kernels.gpu.coupling import couple as kernel

    matrices, products = force.matrices(), _products(q, force)
    if norm_and_position is None:
        return kernel(program, q, k, dt, matrices, products, torch.float32)
    norm, rotation, result = norm_and_position.query_norm, norm_and_position.rotation, norm_and_position.dtype
    angles = None if rotation is None else (rotation.cos.float(), rotation.sin.float())
    if not isinstance(norm, RMSNorm):
        return kernel(program, q, k, dt, matrices, products, result, angles=angles)
    weights = norm.weight, cast(RMSNorm, norm_and_position.key_norm).weight
    return kernel(program, q, k, dt, matrices, products, result, weights, cast(float, norm.eps), angles)


def _products(q: Tensor, force: Force) -> torch.dtype:
    """Return the precision of the force's matrix products: that of autocast, or of the weights."""
    weights = (parameter.dtype for parameter in force.parameters() if parameter.is_floating_point())
    return autocast_dtype(q) or next(weights, q.dtype)  # quantised layers have no such weights
