"""The theorem behind FastSlow as numbers: equilibria of generators are stationary distributions, and of what else not.

A generator of 12 states is drawn with the run's seed, and Euler steps of half the largest safe size begin at each state
for certain. The model that was trained takes no part in this; what its own block owes the theorem is measured by the
probe `timescales`.

    error        max |x - p| after 100 steps, p being the stationary distribution                           (1)
    residual     max |A x|                                                                                  (2)
    growth       the largest change of D(x, p) in the first 30 steps, after which rounding has a say        (3)
    conserved    the largest |column sum - 1| of one such step                                              (4)
    lost         the same of x + W x / 20, W random with column sums of variance 1                          (5)
    projector    held-out error of a network that answers with p without iterating                          (6)

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
from attractor.equilibrium.projector import GeneratorFamily, fit_projector
from attractor.models.language_model import LanguageModel
from attractor.train.config import TrainConfig

N_STATES = 12
N_STEPS, N_WATCHED = 100, 30
SPREAD = 0.05  # of the column sums of a map that is no generator's


def equations_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    with torch.enable_grad():  # the projector is trained
        return {"equations": equations(config.seed)}


def equations(seed: int) -> dict[str, float]:
    generator = random_generator(N_STATES, seed)
    p, dt = stationary(generator), 0.5 * largest_step(generator)
    path = euler(generator, torch.eye(N_STATES, dtype=torch.float64), dt, N_STEPS, trajectory=True)
    draw = torch.Generator().manual_seed(seed)
    w = torch.randn(N_STATES, N_STATES, generator=draw, dtype=torch.float64) / N_STATES**0.5
    fit = fit_projector(GeneratorFamily(N_STATES, seed=seed), seed=seed)
    return {
        "error": float((path[-1] - p).abs().max()),  # (1)
        "residual": float((path[-1] @ generator.T).abs().max()),  # (2)
        "growth": float(relative_entropy(path[: N_WATCHED + 1], p).diff(dim=0).max()),  # (3)
        "conserved": _off_one(column_sums(lambda x: euler(generator, x, dt, 1), p)),  # (4)
        "lost": _off_one(column_sums(lambda x: x + SPREAD * w @ x, p)),  # (5)
        "projector": fit.error_after,  # (6)
    }


def _off_one(sums: Tensor) -> float:
    return float((sums - 1).abs().max())
