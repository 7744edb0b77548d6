"""The probe `iteration-maps` measures what normalisation does to iterations with random, untrained weights.

The model of a run takes no part in this; only the run's seed does.

    random      x <- Norm(x + eta (c + MSA(x))),  weights Gaussian of variance gain^2 / D, rows of c unit vectors (1)
    turning     x <- Norm(x + eta A x),  A' = -A,  of variance 1 / n and so of |A| about 2                  (2)

In (1) query and key matrices are larger by sqrt(D), as in a model whose rows have length 1: logits then have a standard
deviation of about gain^2 at the start. Without the factor it is gain^2 / D, attention is a mean at any gain, and |J| is
that of a mean. The entropy of attention stands beside every Jacobian: entropy / log T is 1 where attention is uniform.

Three measures are taken of (1), from x = c and at gain 1, 2 and 4. Two are |J| against the number of tokens T, and
against the step size eta (1 elsewhere), with Norm x / |x| row by row ("unit") and without ("none"), as the geometric
mean over x_0, x_4 and x_8; without Norm and against the step size at x_0 alone, since later states grow as eta^t. The
third is the largest exponent of 16 steps against the number of heads, radial directions left out. Where all rows attend
to one token, |softmax matrix| = sqrt(T).

Of (2) the eigenvalues of the Jacobian are measured. Before the norm they are 1 + i eta omega, none inside the unit
circle. A norm divides them by |x + eta A x| = sqrt(1 + eta^2 |A x|^2), where |x| = 1. This is less than
|1 + i eta omega| for pairs of eigenvalues that rotate faster than x does on average. These stay outside at first, and
come inside when, after many steps, x rotates with the fastest pair. This holds with one sphere for all of x. Models
have a sphere for each row, that is for each token, and there some eigenvalues may stay outside.

`probes.iteration_maps`, by the run's seed:

    tokens       `gain-1`, `gain-2`, `gain-4`, each with `unit` and `none`: `norm` and `entropy` by number of tokens;
                 `growth`, which is d log |J| / d log T; `mean_entropy` over the numbers of tokens
    steps        `gain-1`, `gain-2`, `gain-4`, each with `unit` and `none`: `norm` and `entropy` by step size; `largest`
    heads        `gain-1`, `gain-2`, `gain-4`: `exponent` and `entropy` by number of heads; `rise` of the exponent for
                 each doubling of the heads; `mean_entropy`
    turning      `before`, and under `one` sphere and under one for each of the `rows`: `start` and `later`, each with
                 `radius`, the largest modulus, and `outside`, the share of eigenvalues outside the circle

Jacobians: arXiv 2505.19458, section 5.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attractor.analysis import Effort, eigenvalues, estimate_jacobian_norm, finite_time, sphere_tangent
from attractor.models.itrsa import ItrSAConfig
from attractor.models.language_model import LanguageModel
from attractor.models.maps import StateMap, Step
from attractor.study.study import Probe
from attractor.train.config import TrainConfig

from .dynamics import entropy_of

D_MODEL, N_HEADS = 32, 4
GAINS = (1.0, 2.0, 4.0)
N_TOKENS = (8, 32, 128)
MEASURED_AT = (0, 4, 8)
HEADS, HEADS_TOKENS = (1, 4, 16), 16
STEP_SIZES, STEPS_TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0), 32
N_STEPS = 16
N_TURNING, N_COLUMNS, ETA, MUCH_LATER = 32, 8, 1.0, 256
ROUNDING = 1e-9  # how far beyond the circle counts as outside


class MapMeasure(NamedTuple):
    """A measure of a Jacobian, and entropy / log T of the attention that it belongs to."""

    value: float
    entropy: float


def iteration_maps_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    return {"iteration_maps": iteration_maps(config.seed)}


@cache  # runs of one seed share the measures
@torch.no_grad()
def iteration_maps(seed: int) -> dict[str, Any]:
    return {
        **{
            name: {f"gain-{gain:g}": {norm: by(norm, gain, seed) for norm in ("unit", "none")} for gain in GAINS}
            for name, by in (("tokens", by_tokens), ("steps", by_step_size))
        },
        "heads": {f"gain-{gain:g}": by_heads(gain, seed) for gain in GAINS},
        "turning": turning(seed),
    }


# --- (1) ------------------------------------------------------------------------------------------------------------


def random_map(n_tokens: int, n_heads: int, norm: str, gain: float, seed: int, eta: float = 1.0) -> StateMap:
    """Return (1) for one sequence and its start x = c, in fp64. All norms and numbers of heads share the same draws.

    Without a norm, states reach 1e10 and logits 1e20. In fp32 some logits are equal by rounding, and the softmax of
    equal logits has a derivative that the exact map lacks: |J| came out as 1e7 in place of 3e2.
    """
    config = ItrSAConfig(
        d_model=D_MODEL, n_heads=n_heads, d_ff=D_MODEL, max_seq_len=n_tokens, norm=norm, blank=None, eta=eta
    )
    model = config.build(seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.attention.named_parameters():
            for_unit_rows = D_MODEL**0.5 if name in ("project.query.weight", "project.key.weight") else 1.0
            weight.copy_(torch.randn(weight.shape, generator=generator) * gain / D_MODEL**0.5 * for_unit_rows)
    c = torch.nn.functional.normalize(torch.randn(1, n_tokens, D_MODEL, generator=generator), dim=-1).double()
    model = model.double()
    return StateMap(lambda x: model.step(x, c), c)


def by_tokens(norm: str, gain: float, seed: int) -> dict[str, Any]:
    measured = {str(n): norm_of(random_map(n, N_HEADS, norm, gain, seed), MEASURED_AT) for n in N_TOKENS}
    return _columns("norm", measured) | {"growth": slope({n: m.value for n, m in measured.items()}, log=True)}


def by_step_size(norm: str, gain: float, seed: int) -> dict[str, Any]:
    maps = {eta: random_map(STEPS_TOKENS, N_HEADS, norm, gain, seed, eta) for eta in STEP_SIZES}
    states = MEASURED_AT if norm == "unit" else MEASURED_AT[:1]
    measured = {f"{eta:g}": norm_of(of_eta, states) for eta, of_eta in maps.items()}
    return _columns("norm", measured) | {"largest": max(m.value for m in measured.values())}


def by_heads(gain: float, seed: int) -> dict[str, Any]:
    measured = {str(n): largest_exponent(n, gain, seed) for n in HEADS}
    return _columns("exponent", measured) | {"rise": slope({n: m.value for n, m in measured.items()}) * math.log(2)}


def _columns(name: str, measured: Mapping[str, MapMeasure]) -> dict[str, Any]:
    entropies = {number: m.entropy for number, m in measured.items()}
    mean_entropy = sum(entropies.values()) / len(entropies)
    return {name: {n: m.value for n, m in measured.items()}, "entropy": entropies, "mean_entropy": mean_entropy}


def norm_of(state_map: StateMap, measured_at: Sequence[int]) -> MapMeasure:
    """Return the geometric mean of |J| over the states after so many steps, and the mean entropy there."""
    step, x = state_map
    states = [after(step, x, t) for t in measured_at]
    norms = torch.stack([estimate_jacobian_norm(step, x, effort=Effort(1e-3, 40)).norm for x in states])
    return MapMeasure(float(norms.log().mean().exp()), _mean_entropy(step, states))


def largest_exponent(n_heads: int, gain: float, seed: int) -> MapMeasure:
    """Return the largest exponent of N_STEPS steps, and the mean entropy along them."""
    step, x = random_map(HEADS_TOKENS, n_heads, "unit", gain, seed)
    sweeps = Effort(max_iterations=6)
    exponents = finite_time(step, x, N_STEPS, k=1, tangent=sphere_tangent(), effort=sweeps).exponents
    return MapMeasure(float(exponents), _mean_entropy(step, [after(step, x, t) for t in range(N_STEPS)]))


def _mean_entropy(step: Step, states: list[Tensor]) -> float:
    entropies = [entropy for entropy in (entropy_of(step, x) for x in states) if entropy is not None]
    return float(torch.cat(entropies).mean())


def slope(values: Mapping[str, float], log: bool = False) -> float:
    """Fit the values, or their logarithms, against the logarithm of their keys by least squares."""
    x = torch.tensor([math.log(float(number)) for number in values], dtype=torch.float64)
    y = torch.tensor([math.log(value) if log else value for value in values.values()], dtype=torch.float64)
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


# --- (2) ------------------------------------------------------------------------------------------------------------


def turning(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    a = skew_symmetric(N_TURNING, generator)

    def moved(x: Tensor) -> Tensor:
        return x + ETA * a @ x

    def under(norm: Callable[[Tensor], Tensor], n_columns: int) -> dict[str, dict[str, float]]:
        def step(x: Tensor) -> Tensor:
            return norm(moved(x))

        start = norm(torch.randn(N_TURNING, n_columns, dtype=a.dtype, generator=generator))
        return {"start": on_circle(step, start), "later": on_circle(step, after(step, start, MUCH_LATER))}

    return {
        "before": on_circle(moved, torch.zeros(N_TURNING, 1, dtype=a.dtype)),
        "one": under(lambda x: x / x.norm(), 1),
        "rows": under(lambda x: x / x.norm(dim=-1, keepdim=True), N_COLUMNS),
    }


def skew_symmetric(n: int, generator: torch.Generator) -> Tensor:
    w = torch.randn(n, n, dtype=torch.float64, generator=generator)
    return (w - w.T) / (2 * n) ** 0.5


def on_circle(step: Step, x: Tensor) -> dict[str, float]:
    modulus = eigenvalues(step, x).abs()
    return {"radius": float(modulus.max()), "outside": float((modulus > 1 + ROUNDING).double().mean())}


def after(step: Step, x: Tensor, n_steps: int) -> Tensor:
    for _ in range(n_steps):
        x = step(x)
    return x


ITERATION_MAPS_PROBE = Probe("iteration-maps", iteration_maps_of_run, weights="first")
