"""Phase activation: queries and keys are modulated by a phase that is linear in the vector, in real arithmetic.

    Psi(v) = v exp(i W v),   score = Re(Psi(q) . conj Psi(r))                                               (1)
           = [q cos Wq, q sin Wq] . [r cos Wr, r sin Wr]                                                    (2)

(2) is a dot product of twice the width, so ordinary fused attention scores it; the scale stays 1/sqrt(d_k).
Limits: W = 0 is dot-product attention exactly; |score| <= |q| |r|. A layer has one W without bias, shared by q, r and
all heads. Phases are computed in fp32 or wider, since the 8 bits of bf16 would change the angles.
PsiQRH, "Phase Activation Function": Phase-Activated Attention with Latent Coupling, research proposal. Its r is the
key.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.acting_weight import acting_weight
from attractor.attention.stage import Coupling, HeadLayout
from attractor.kernels.phase import phase_activation


@dataclass(frozen=True)
class Phase(Coupling):
    parts: ClassVar[int] = 2

    def build(self, layout: HeadLayout) -> nn.Module:
        return PhaseActivation(layout)


class PhaseActivation(nn.Module):
    def __init__(self, layout: HeadLayout) -> None:
        super().__init__()
        self.phase = nn.Linear(layout.free, layout.free, bias=False)

    def activate(self, v: Float[Tensor, "B H T K"]) -> Float[Tensor, "B H T 2*K"]:
        # Positions come before heads, as the projections leave them in memory.
        return phase_activation(v.transpose(1, 2), acting_weight(self.phase)).transpose(1, 2)  # (2)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.activate(q), self.activate(k)
