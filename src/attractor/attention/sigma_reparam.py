"""sigmaReparam: a weight matrix divided by its largest singular value, times a learned gain.

    W_hat = gamma W / sigma(W),   sigma(W) = u' W v                                                         (1)
    v <- W' u / |W' u|,   u <- W v / |W v|,   once in every forward pass of training                        (2)

The norm of W_hat is thus a single number, which AdamW moves as slowly as any other, however W grows. u and v are
constants in the gradient, as in spectral normalisation, and are stored with the weights. They start as the singular
vectors, so (1) is exact from the first step on. gamma starts at 1 as in the paper, whereas `nn.Linear` starts square
matrices with a norm near 1.15. On a trained layer gamma starts at sigma(W), which leaves its output unchanged.

Zhai et al., Stabilizing Transformer training by preventing attention entropy collapse, 2023, arXiv 2303.06296. The
paper reparametrizes every linear map; here it is those that make queries and keys.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from attractor.errors import require
from attractor.kernels.precision import without_autocast


class Sigma(nn.Module):
    """The parametrization that maps W to W_hat."""

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.gain = nn.Parameter(weight.new_empty(1))
        self.register_buffer("u", weight.new_empty(weight.shape[0]))
        self.register_buffer("v", weight.new_empty(weight.shape[1]))

    def reset_parameters(self) -> None:
        """Reset the gain; `start` sets u and v, which depend on the weight."""
        nn.init.ones_(self.gain)

    @torch.no_grad()
    def start(self, weight: Tensor) -> None:
        left, _, right = torch.linalg.svd(weight.to(_wide(weight)), full_matrices=False)
        self.u.copy_(left[:, 0])
        self.v.copy_(right[0])

    def forward(self, weight: Tensor) -> Tensor:
        with without_autocast(weight):
            # Activation checkpointing recomputes a block in the backward pass, which must use the same u and v.
            # A compiler cannot trace this check, and recomputes from what it has traced.
            recomputed = not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
            if self.training and not recomputed:
                self.iterate(weight)
            # Copies in fp32, since the next forward pass changes u and v in place, and this one's gradient needs them.
            u, v = (_unit(x.to(_wide(weight), copy=True)) for x in (self.u, self.v))
            sigma = u @ (weight.to(_wide(weight)) @ v)  # (1)
            return weight * (self.gain / sigma).to(weight.dtype)

    @torch.no_grad()
    def iterate(self, weight: Tensor) -> None:
        """Take a step (2) of power iteration."""
        wide = weight.to(_wide(weight))
        v = _unit(wide.T @ self.u.to(wide.dtype))
        self.v.copy_(v)
        self.u.copy_(_unit(wide @ v))


class SigmaLinear(nn.Linear):
    """A linear layer that multiplies by W_hat. Its `weight` is W, which the optimizer updates."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        self.sigma = Sigma(self.weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "sigma"):  # nn.Linear calls this once before `sigma` exists
            self.sigma.reset_parameters()
            self.sigma.start(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.sigma(self.weight), self.bias)


def linear(in_features: int, out_features: int, bias: bool, sigma_reparam: bool) -> nn.Linear:
    """Return a linear layer, with or without sigmaReparam."""
    return (SigmaLinear if sigma_reparam else nn.Linear)(in_features, out_features, bias)


def sigma_reparametrize(layer: nn.Linear) -> None:
    """Reparametrize a linear layer of any model in place, without changing its output."""
    with torch.no_grad():
        norm = torch.linalg.matrix_norm(layer.weight.to(_wide(layer.weight)), ord=2)
        require(bool(norm > 0), "weight", "other than 0 for sigmaReparam, which divides by its norm", float(norm))
        sigma = Sigma(layer.weight)
        sigma.start(layer.weight)
        sigma.gain.fill_(norm)
    parametrize.register_parametrization(layer, "weight", sigma)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=0)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
