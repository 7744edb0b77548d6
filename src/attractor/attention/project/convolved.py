"""A short causal convolution of each channel before the projections.

    z_t = x_t + sum_j w_j * x_(t-j),   j = 0, ..., width - 1,   then q, k, v = W z                          (1)

w_j has a number for each channel. x_(t-j) counts only where t may attend to t - j, so neither padding nor another
document of the row nor a position outside of a window is mixed in. The cache holds the last width - 1 inputs.
Limits: w = 0 is standard attention.
Canon layers before attention (A): Allen-Zhu, Physics of language models, part 4.1, 2025, arXiv 2512.17351, with width 4
and the initial weights of torch's convolution.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.project.heads import HeadProjection, Heads
from attractor.attention.stage import Shape
from attractor.attention.surroundings import ALONE, Surroundings
from attractor.errors import require


@dataclass(frozen=True)
class ConvolvedHeads(Heads):
    reads_more = True

    width: int = 4  # positions of the convolution, the own one included

    def __post_init__(self) -> None:
        super().__post_init__()
        require(2 <= self.width <= 4, "width", "from 2 to 4", self.width)

    def build(self, shape: Shape) -> nn.Module:
        return ConvolvedProjection(self, shape)


class ConvolvedProjection(HeadProjection):
    def __init__(self, config: ConvolvedHeads, shape: Shape) -> None:
        super().__init__(config, shape)
        self.convolution = ShortConvolution(shape.d_model, config.width)

    def forward(self, x: Float[Tensor, "B T D"], around: Surroundings = ALONE) -> tuple[Tensor, Tensor, Tensor]:
        return super().forward(x + self.convolution(x, around))  # (1)


class ShortConvolution(nn.Module):
    """The sum over j of (1)."""

    def __init__(self, n_channels: int, width: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(width, n_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = len(self.kernel) ** -0.5
        nn.init.uniform_(self.kernel, -bound, bound)

    def forward(self, x: Float[Tensor, "B T C"], around: Surroundings) -> Float[Tensor, "B T C"]:
        n_back, length = len(self.kernel) - 1, x.shape[1]
        seen = around.earlier(x, n_back)
        total = self.kernel[0] * x
        for back in range(1, n_back + 1):
            term = self.kernel[back] * seen[:, n_back - back : n_back - back + length]
            reached = around.reaches(back, length)
            total = total + (term * reached if isinstance(reached, bool) else term.masked_fill(~reached, 0.0))
        return total
