"""The force f(q) that deflects keys: three networks, each one per layer and shared by the layer's heads.

    mlp        f(q) = W_2 silu(W_1 q)      the paper's, K -> K -> K without bias                            (1)
    linear     f(q) = W q                  the simplest coupling the paper asks for                         (2)
    gradient   f(q) = -W' silu(W q)        minus the gradient of sum F(W q), F' = silu: conservative        (3)

Only (3) is a gradient, so only with it does leapfrog preserve the symplectic form and not merely volume.
CoupledQK, "Coupling network" and appendix A ("amortized force field").
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from attractor.kernels.coupling import mlp_kick


class Force(nn.Module):
    """f, and the kick it gives: B T J G K queries move the keys B T J 1 K of their groups, each by its group's mean."""

    def kick(self, k: Tensor, q: Tensor, dt: Tensor) -> Tensor:
        return k + group_mean(dt * self(q))


def group_mean(kick: Tensor) -> Tensor:
    """What one key receives from the queries of its group: B T J G K to B T J 1 K."""
    return kick.mean(3, keepdim=True) if kick.shape[3] > 1 else kick


class MLPForce(Force):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)
        self.outer = nn.Linear(width, width, bias=False)

    def forward(self, q: Tensor) -> Tensor:
        return self.outer(F.silu(self.inner(q)))  # (1)

    def kick(self, k: Tensor, q: Tensor, dt: Tensor) -> Tensor:
        return mlp_kick(k, q, dt, self.inner.weight, self.outer.weight)


class LinearForce(Force):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Linear(width, width, bias=False)

    def forward(self, q: Tensor) -> Tensor:
        return self.matrix(q)  # (2)


class GradientForce(Force):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Linear(width, width, bias=False)

    def forward(self, q: Tensor) -> Tensor:
        return -F.linear(F.silu(self.matrix(q)), self.matrix.weight.T)  # (3)


FORCES: dict[str, Callable[[int], Force]] = {"mlp": MLPForce, "linear": LinearForce, "gradient": GradientForce}
