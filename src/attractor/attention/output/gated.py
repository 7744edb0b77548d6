"""Gated output: each coordinate of each head's context is scaled by a gate computed from the layer's input.

    out = W_O ([c_1 ... c_H] * sigmoid(W_g x))                                                              (1)

The gate is elementwise and specific to the head, before W_O. It adds D H V parameters per layer, so compare
models of equal size.
Qiu et al., Gated attention for large language models, 2025, arXiv 2505.06708: the strongest published rival of the
mechanisms in the five papers (docs/glossary.md).
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
