"""The least bytes and FLOPs of each stage, counted from shapes.

    bytes, forward           inputs and parameters are read once, outputs are written once: I + O + P
    bytes, with backward     inputs, outputs and parameters again, and their gradients: 3 I + 2 O + 3 P         (1)
    FLOPs, with backward     every product has two more in the backward pass: 3 times                          (2)

    force        mlp and gradient 4 K^2, linear 2 K^2, for every query head and position and every evaluation    (3)
    phase        2 K^2 for every query and key head and position                                                (4)
    scores       2 P (maps K + heads V) for every sequence and the P pairs of a query and a key that it sees     (5)
    decay        2 K V for every key and query head and position: writing to the state and reading from it      (6)
    readout      2 N D C                                                                                        (7)

As is usual, recomputation in the backward pass and everything but products are left out. Sizes are those of the given
precision, for parameters too: a kernel that reads them in fp32 moves more than the least.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from attractor.attention.couple.dynamics import Dynamics
from attractor.attention.couple.mlp import MLPOnly
from attractor.attention.couple.phase import Phase
from attractor.attention.score.decayed import Decayed
from attractor.attention.score.uniform import Uniform
from attractor.attention.score.window import pairs_seen
from attractor.attention.stage import Coupling, Scoring
from attractor.bench.roofline import Work
from attractor.kernels.coupling import FORCE

BACKWARD = 3  # (2)


def work_of(inputs: int, outputs: int, parameters: int, flops: float, size: int, backward: bool) -> Work:
    """Return (1) and (2) for these counts of numbers; `size` is the bytes of a number."""
    if not backward:
        return Work(size * (inputs + outputs + parameters), flops)
    return Work(size * (3 * inputs + 2 * outputs + 3 * parameters), BACKWARD * flops)


def n_numbers(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def n_trained(module: nn.Module) -> int:
    return n_numbers(module.parameters())


def coupling_flops(couple: Coupling, q: Tensor, k: Tensor) -> float:
    """Return the FLOPs of the forward pass over q: B H T K and k: B J T K."""
    width = q.shape[-1]
    if isinstance(couple, Phase):
        return 2.0 * width * (q.numel() + k.numel())  # (4)
    if isinstance(couple, MLPOnly):
        return 4.0 * width * q.numel()
    assert isinstance(couple, Dynamics)
    of_force = (2.0 if couple.force == "linear" else 4.0) * width * q.numel()  # (3)
    return of_force * sum(move == FORCE for move in couple.program)


def scoring_flops(score: Scoring, q: Tensor, k: Tensor, context: Tensor) -> float:
    """Return (5) for q: B M T K with its M maps and a context of B H T V. A running mean multiplies nothing."""
    if isinstance(score, Uniform):
        return 0.0
    if isinstance(score, Decayed):
        return 2.0 * context.shape[-1] * (k.numel() + q.numel())  # (6)
    length = q.shape[2]
    window = getattr(score, "window", None)
    return 2 * pairs_seen(length, window) / length * float(q.numel() + context.numel())


def readout_flops(hidden: Tensor, weight: Tensor) -> float:
    return 2.0 * hidden.numel() * weight.shape[0]  # (7)
