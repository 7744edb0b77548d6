"""The variational projector: a network that predicts the equilibrium of a fast chain, without iteration.

    A_ij(y) = exp(b_ij + w_ij . y)   for i != j,   A_jj(y) = -sum_i A_ij(y)                                 (1)
    phi(y) = softmax(MLP(y)) ~ p_st(A(y))                                                                   (2)
    min over phi of the mean over y of D(p_st(A(y)), phi(y))                                                (3)

The slow variable y sets the rates of a fast chain. They are smooth in y and positive, so each y has one stationary
distribution. The error is the mean over held-out y of sum_i |phi_i(y) - p_i(y)|, which lies between 0 and 2; for each
y, no entry is off by more than half of that sum.
FastSlow, corollary 29 and remark 31, which reports a mean error of 0.031 without defining it: Gao, Attention is just
another name for coupling?, 2026, arXiv 2606.16730.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attractor.equilibrium.master_equation import relative_entropy, stationary


@dataclass(frozen=True)
class GeneratorFamily:
    """Generators (1) with normal b and w; over y, a log rate has a standard deviation of about `strength`."""

    n_states: int = 12
    n_controls: int = 4
    strength: float = 1.0
    seed: int = 0

    def __call__(self, y: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch n n"]:
        draw = torch.Generator().manual_seed(self.seed)
        shape = (self.n_states, self.n_states)
        base = torch.randn(shape, generator=draw, dtype=torch.float64)
        direction = torch.randn((*shape, self.n_controls), generator=draw, dtype=torch.float64)
        direction *= self.strength * self.n_controls**-0.5
        rates = (base + torch.einsum("ijm,...m->...ij", direction, y)).exp()
        rates = rates * (1 - torch.eye(self.n_states, dtype=torch.float64))
        return rates - rates.sum(-2).diag_embed()  # (1)


class Projector(nn.Module):
    """The network (2): two layers with a GELU between them, as in the fast-slow model."""

    def __init__(self, n_controls: int, n_states: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_controls, width), nn.GELU(), nn.Linear(width, n_states)).double()

    def forward(self, y: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch n"]:
        return self.layers(y).softmax(-1)


class ProjectorFit(NamedTuple):
    """A fitted projector and its errors. `error_of_constant` is that of the best constant for the held-out set."""

    projector: Projector
    error_before: float
    error_after: float
    error_of_constant: float


def fit_projector(
    family: GeneratorFamily,
    width: int = 64,
    n_train: int = 4096,
    n_held_out: int = 1024,
    n_steps: int = 1500,
    batch_size: int = 256,
    lr: float = 1e-2,
    seed: int = 0,
) -> ProjectorFit:
    """Train on (3) with standard normal y, by Adam with a cosine schedule that ends at zero."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randn(n_train + n_held_out, family.n_controls, generator=draw, dtype=torch.float64)
    p = stationary(family(y))
    (y, y_held_out), (p, p_held_out) = (x.split([n_train, n_held_out]) for x in (y, p))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        projector = Projector(family.n_controls, family.n_states, width)

    def error() -> float:
        with torch.no_grad():
            return float((projector(y_held_out) - p_held_out).abs().sum(-1).mean())

    before = error()
    optimizer = torch.optim.Adam(projector.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    for _ in range(n_steps):
        drawn = torch.randint(n_train, (batch_size,), generator=draw)
        optimizer.zero_grad()
        relative_entropy(p[drawn], projector(y[drawn])).mean().backward()  # (3)
        optimizer.step()
        schedule.step()
    # The entrywise median has the least error of all constants, even of those that do not sum to one.
    constant = (p_held_out.median(0).values - p_held_out).abs().sum(-1).mean()
    return ProjectorFit(projector, before, error(), float(constant))
