"""Value residual: the values of the first layer are mixed into those of all later layers.

    v_l = share v_1 + (1 - share) W_v x,   l > 1                                                            (1)

No parameters are added. A cache holds the mixed values, so decoding needs no state beyond one forward pass. Layers must
have the same value heads. A layer outside of a model, and the first one in it, are standard attention.
Limits: share = 0 is standard attention; under share = 1 all layers read the values of the first one (SVFormer).
Zhou et al., Value residual learning, ACL 2025, arXiv 2410.17897, whose ResFormer has share = .5.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.project.heads import HeadProjection, Heads
from attractor.attention.stage import Shape
from attractor.attention.surroundings import ALONE, Surroundings
from attractor.errors import require


@dataclass(frozen=True)
class ResidualHeads(Heads):
    reads_more = True

    share: float = 0.5  # of the first layer's values

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.share <= 1, "share", "from 0 to 1", self.share)

    def build(self, shape: Shape) -> nn.Module:
        return ResidualProjection(self, shape)


class ResidualProjection(HeadProjection):
    def __init__(self, config: ResidualHeads, shape: Shape) -> None:
        super().__init__(config, shape)
        self.share, self.is_first = config.share, shape.layer_index == 0

    def forward(self, x: Float[Tensor, "B T D"], around: Surroundings = ALONE) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().forward(x)
        carried = around.first_values
        if carried is not None and self.is_first:
            carried.held = v
        elif carried is not None:
            assert carried.held is not None, "a model refuses a first layer without values"
            v = self.share * carried.held + (1 - self.share) * v  # (1)
        return q, k, v
