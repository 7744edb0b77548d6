"""Gated output: each coordinate of each head's context passes a gate that the position's input opens.

    out = W_O ([c_1 ... c_H] * sigmoid(W_g x))                                                              (1)

Elementwise and head-specific, before W_O; D H V parameters a layer more than plain output, so match budgets.
Gated attention, arXiv 2505.06708: the strongest published rival from outside the five papers.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.stage import HeadLayout, Output, Shape


@dataclass(frozen=True)
class Gated(Output):
    out_bias: bool = False

    def build(self, shape: Shape, layout: HeadLayout) -> nn.Module:
        return GatedOutput(self, shape, layout)


class GatedOutput(nn.Module):
    def __init__(self, config: Gated, shape: Shape, layout: HeadLayout) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.d_model, layout.n_heads * layout.value, bias=False)
        self.out = nn.Linear(layout.n_heads * layout.value, shape.d_model, bias=config.out_bias)

    def forward(self, context: Float[Tensor, "B H T V"], x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        heads = context.transpose(1, 2).flatten(2)
        return self.out(heads * self.gate(x).sigmoid())  # (1)
