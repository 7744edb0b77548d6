"""The force f(q) that deflects keys: three networks, each one per layer and shared by the layer's heads.

    mlp        f(q) = W_2 silu(W_1 q)      the paper's, K -> K -> K without bias                            (1)
    linear     f(q) = W q                  the simplest coupling the paper asks for                         (2)
    gradient   f(q) = -W' silu(W q)        minus the gradient of sum F(W q), F' = silu: conservative        (3)

Only (3) is a gradient, so only with it does leapfrog preserve the symplectic form and not merely volume. It is (1) with
W_2 = -W_1', and (2) is its last layer alone: kernels know no other force.
CoupledQK, "Coupling network" and appendix A ("amortized force field").
"""

from abc import abstractmethod
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from attractor.kernels.coupling import two_layer_force


class Force(nn.Module):
    @abstractmethod
    def matrices(self) -> tuple[Tensor | None, Tensor]:
        """W_1, or None where there is one layer; and W_2."""


class MLPForce(Force):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)
        self.outer = nn.Linear(width, width, bias=False)

    def forward(self, q: Tensor) -> Tensor:
        return two_layer_force(q, self.inner.weight, self.outer.weight)  # (1)

    def matrices(self) -> tuple[Tensor, Tensor]:
        return self.inner.weight, self.outer.weight


class LinearForce(Force):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Linear(width, width, bias=False)

    def forward(self, q: Tensor) -> Tensor:
        return self.matrix(q)  # (2)

    def matrices(self) -> tuple[None, Tensor]:
        return None, self.matrix.weight


class GradientForce(Force):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Linear(width, width, bias=False)

    def forward(self, q: Tensor) -> Tensor:
        return -F.linear(F.silu(self.matrix(q)), self.matrix.weight.T)  # (3)

    def matrices(self) -> tuple[Tensor, Tensor]:
        return self.matrix.weight, -self.matrix.weight.T


FORCES: dict[str, Callable[[int], Force]] = {"mlp": MLPForce, "linear": LinearForce, "gradient": GradientForce}
