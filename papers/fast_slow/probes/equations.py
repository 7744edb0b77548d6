"""The probe `equations` checks the theorem behind FastSlow: equilibria of generators are stationary distributions.

Generators of 4, 12 and 32 states are drawn with the run's seed. Euler steps of half the largest safe size start with
all probability at one state, for each state. The controls are random maps of the same sizes and of three strengths:
what the theorem says of generators must not hold for them, however weak they are. The trained model takes no part in
this; the probe `timescales` measures its block. Of all sizes and strengths, the least favourable counts:

    error        largest max |x - p| after 100 steps, p being the stationary distribution                   (1)
    residual     largest max |A x|                                                                          (2)
    growth       largest change of D(x, p) in the first 30 steps, before rounding matters                   (3)
    conserved    largest |column sum - 1| of one such step                                                  (4)
    lost_share   least |column sum - 1| / s of x + s W x, W random with column sums of variance 1           (5)
    projector    held-out error, at 12 states, of a network that answers with p without iterating           (6)

FastSlow, theorem 28, remarks 30 and 31, where (1) is 9.7e-8, (2) 1.2e-7, (6) 0.031, and sums lie in [0.892, 1.096].
"""

from typing import Any

import torch
from torch import Tensor

from attractor.equilibrium.master_equation import (
    column_sums,
    euler,
    largest_step,
    random_generator,
    relative_entropy,
    stationary,
)
from attractor.models.language_model import LanguageModel
from attractor.study.study import Probe
from attractor.train.config import TrainConfig

from .projector import GeneratorFamily, fit_projector

N_STATES = 12  # as in the paper
SIZES = (4, N_STATES, 32)
N_STEPS, N_WATCHED = 100, 30
STRENGTHS = (0.01, 0.05, 0.2)  # s of the random maps


def equations_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    with torch.enable_grad():  # the projector is trained
        return {"equations": equations(config.seed)}


def equations(seed: int) -> dict[str, float]:
    of_sizes = [of_generator(n_states, seed) for n_states in SIZES]
    largest = {name: max(figures[name] for figures in of_sizes) for name in of_sizes[0]}
    fit = fit_projector(GeneratorFamily(N_STATES, seed=seed), seed=seed)
    lost = min(of_random_map(n_states, strength, seed) for n_states in SIZES for strength in STRENGTHS)
    return largest | {"lost_share": lost, "projector": fit.error_after}  # (5), (6)


def of_generator(n_states: int, seed: int) -> dict[str, float]:
    generator = random_generator(n_states, seed)
    p, dt = stationary(generator), 0.5 * largest_step(generator)
    path = euler(generator, torch.eye(n_states, dtype=torch.float64), dt, N_STEPS, trajectory=True)
    return {
        "error": float((path[-1] - p).abs().max()),  # (1)
        "residual": float((path[-1] @ generator.T).abs().max()),  # (2)
        "growth": float(relative_entropy(path[: N_WATCHED + 1], p).diff(dim=0).max()),  # (3)
        "conserved": _off_one(column_sums(lambda x: euler(generator, x, dt, 1), p)),  # (4)
    }


def of_random_map(n_states: int, strength: float, seed: int) -> float:
    draw = torch.Generator().manual_seed(seed)
    w = torch.randn(n_states, n_states, generator=draw, dtype=torch.float64) / n_states**0.5
    at = torch.full((n_states,), 1 / n_states, dtype=torch.float64)
    return _off_one(column_sums(lambda x: x + strength * w @ x, at)) / strength


def _off_one(sums: Tensor) -> float:
    return float((sums - 1).abs().max())


EQUATIONS_PROBE = Probe("equations", equations_of_run)
