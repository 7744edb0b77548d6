"""Gated output: the heads' contexts are scaled by gates computed from the layer's input.

    out = W_O ([c_1 ... c_H] * sigmoid(W_g x))                              or SiLU, as in DeltaNet          (1)

The gate is specific to the head, before W_O. It has a number for each coordinate, which adds D H V parameters per layer
(compare models of equal size), or one for each head (`by_head`), which adds D H. With `n_channels`, W_g reads only the
first channels of x.
Limits: rows of W_g that are equal within a head are one gate for the head; n_channels = D is the whole input.
Qiu et al., Gated attention for large language models, 2025, arXiv 2505.06708. Twelve channels are those of public
speed runs.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.stage import HeadLayout, Output, Shape
from attractor.errors import require
from attractor.fields import later


@dataclass(frozen=True)
class Gated(Output):
    out_bias: bool = False
    by_head: bool = later(False)  # one gate for a head and token, not one for each coordinate
    n_channels: int | None = later(None)  # channels of x that decide; None: all
    activation: Literal["sigmoid", "silu"] = later("sigmoid")

    def build(self, shape: Shape, layout: HeadLayout) -> nn.Module:
        return GatedOutput(self, shape, layout)

    def projection(self, shape: Shape, layout: HeadLayout) -> nn.Linear:
        """Return W_g."""
        n_channels = self.n_channels or shape.d_model
        fits = 1 <= n_channels <= shape.d_model
        require(fits, "n_channels", f"from 1 to d_model={shape.d_model}, or None", self.n_channels)
        return nn.Linear(n_channels, layout.n_heads * (1 if self.by_head else layout.value), bias=False)

    def gates(self, projection: nn.Module, x: Float[Tensor, "B T D"], n_heads: int) -> Float[Tensor, "B T H G"]:
        """Return the gates of each head: one, or one for each coordinate."""
        activation = F.silu if self.activation == "silu" else torch.sigmoid
        return activation(projection(x[..., : self.n_channels])).unflatten(-1, (n_heads, -1))


class GatedOutput(nn.Module):
    def __init__(self, config: Gated, shape: Shape, layout: HeadLayout) -> None:
        super().__init__()
        self.config = config
        self.gate = config.projection(shape, layout)
        self.out = nn.Linear(layout.n_heads * layout.value, shape.d_model, bias=config.out_bias)

    def forward(self, context: Float[Tensor, "B H T V"], x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        gates = self.config.gates(self.gate, x, context.shape[1])
        return self.out((context.transpose(1, 2) * gates).flatten(2))  # (1)
