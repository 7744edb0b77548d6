"""The MLPs of a block by name: gated ones with three matrices, and a plain one with two."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

gelu_tanh = partial(F.gelu, approximate="tanh")


def relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


class GatedMLP(nn.Module):
    """down(act(gate x) * up x), three matrices."""

    def __init__(self, activation: Callable[[Tensor], Tensor], d_model: int, d_ff: int, bias: bool = False) -> None:
        super().__init__()
        self.activation = activation
        self.gate = nn.Linear(d_model, d_ff, bias=bias)
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class PlainMLP(nn.Module):
    """down(act(up x)), two matrices; the activation is GELU if none is given."""

    def __init__(
        self, d_model: int, d_ff: int, bias: bool = False, activation: Callable[[Tensor], Tensor] = F.gelu
    ) -> None:
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


MLPS: dict[str, Callable[..., nn.Module]] = {
    "swiglu": partial(GatedMLP, F.silu),
    "geglu": partial(GatedMLP, F.gelu),
    "geglu-tanh": partial(GatedMLP, gelu_tanh),  # Gemma's
    "gelu": PlainMLP,
    "gelu-tanh": partial(PlainMLP, activation=gelu_tanh),  # GPT-2's
    "relu2": partial(PlainMLP, activation=relu_squared),
}
