"""MLP-only: the capacity of the coupling network without the coupling.

    q' = q + f(q),   k' = k                                                                                 (1)

The paper's structural control. It has no step size: 2 K^2 parameters a layer, H fewer than coupled attention.
CoupledQK, section 2.3.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from attractor.attention.couple.force import MLPForce
from attractor.attention.stage import Coupling, HeadLayout


@dataclass(frozen=True)
class MLPOnly(Coupling):
    def build(self, layout: HeadLayout) -> nn.Module:
        return QueryMLP(layout)


class QueryMLP(nn.Module):
    def __init__(self, layout: HeadLayout) -> None:
        super().__init__()
        self.force = MLPForce(layout.free)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q + self.force(q), k  # (1)
