"""Phase activation: a phase, linear in the vector itself, modulates queries and keys; real arithmetic only.

    Psi(v) = v exp(i W v),   score = Re(Psi(q) . conj Psi(r))                                               (1)
           = [q cos Wq, q sin Wq] . [r cos Wr, r sin Wr]                                                    (2)

(2) is a plain dot product of twice the width, so ordinary fused attention scores it; the scale stays 1/sqrt(d_k).
Limits: W = 0 is dot-product attention exactly; |score| <= |q| |r|. W is one per layer, without bias, shared by q and r
and by the heads. Phases are taken in fp32 or wider: an angle rounded to 8 bits is another angle.
PsiQRH, "Phase Activation Function" (r there is the key here).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attractor.attention.stage import Coupling, HeadLayout
from attractor.kernels.precision import without_autocast


@dataclass(frozen=True)
class Phase(Coupling):
    parts: ClassVar[int] = 2

    def build(self, layout: HeadLayout) -> nn.Module:
        return PhaseActivation(layout)


class PhaseActivation(nn.Module):
    def __init__(self, layout: HeadLayout) -> None:
        super().__init__()
        self.phase = nn.Linear(layout.free, layout.free, bias=False)

    def activate(self, v: Tensor) -> Tensor:
        wide = torch.promote_types(v.dtype, torch.float32)
        with without_autocast(v):
            angle = F.linear(v.to(wide), self.phase.weight.to(wide))
        return torch.cat([v * angle.cos(), v * angle.sin()], dim=-1).to(v.dtype)  # (2)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.activate(q), self.activate(k)
