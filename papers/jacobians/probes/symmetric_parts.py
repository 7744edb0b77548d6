"""How much of a Jacobian stretches and how much rotates, by its symmetric and antisymmetric parts.

    S = (J + J') / 2,    A = (J - J') / 2,    v'J v = v'S v,    |J|_F^2 = |S|_F^2 + |A|_F^2                 (1)
    oscillatory share    |A|_F^2 / (|S|_F^2 + |A|_F^2)                                                      (2)
    E |S z|^2 = |S|_F^2,  E |A z|^2 = |A|_F^2    over vectors z of random signs (Hutchinson)                (3)

Limits of (2): 0 for the Jacobian of a gradient, 1 for a rotation by 90 degrees, about 1/2 for a matrix of independent
entries. (3) costs two products for each of `n_probes` vectors; a system of at most that many dimensions is probed along
its axes, exactly. Pseudo-energy changes by v'S v: Jacobians, section 5.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attractor.analysis import Jacobian
from attractor.errors import require_count
from attractor.models.maps import Step


@dataclass(frozen=True)
class OscillatoryShare:
    """(2) and the standard error of its estimate by (3)."""

    share: Tensor
    standard_error: Tensor  # zero where the axes were probed


def quadratic_form(step: Step, x: Tensor, v: Tensor, batched: bool = False) -> Tensor:
    """Return v'S v for a direction or a block of them: a number for each direction (and sample)."""
    image = Jacobian(step, x, batched).jvp(v)
    n_kept = v.ndim - x.ndim + batched
    return (v * image).unsqueeze(-1).flatten(n_kept).sum(-1)


def oscillatory_share(
    step: Step,
    x: Tensor,
    batched: bool = False,
    n_probes: int = 64,
    seed: int = 0,
) -> OscillatoryShare:
    """Estimate (2) by (3)."""
    require_count("n_probes", n_probes, least=2)
    j = Jacobian(step, x, batched)
    exact = j.dim <= n_probes
    if exact:
        probes = torch.eye(j.dim, dtype=x.dtype).expand(j.n_samples, -1, -1)
    else:
        generator = torch.Generator().manual_seed(seed)
        probes = torch.randint(0, 2, (j.n_samples, j.dim, n_probes), generator=generator).to(x.dtype) * 2 - 1
    probes = probes.to(x.device)
    products, transposed = j.times(probes), j.transposed_times(probes)
    unit = torch.maximum(products.abs(), transposed.abs()).amax((1, 2), keepdim=True)
    unit = torch.where(unit == 0, 1.0, unit)
    products, transposed = products / unit, transposed / unit  # no square overflows or vanishes
    symmetric, antisymmetric = ((products + sign * transposed).div(2).square().sum(1) for sign in (1, -1))  # (3)
    total = symmetric + antisymmetric
    mean = total.mean(-1)
    positive = torch.where(mean > 0, mean, 1.0)
    share = antisymmetric.mean(-1) / positive
    # The standard error of a ratio of means comes from the residuals of the numerator against ratio times denominator.
    residual = antisymmetric - share.unsqueeze(-1) * total
    error = torch.zeros_like(share) if exact else residual.std(-1) / positive / n_probes**0.5
    return OscillatoryShare(j.result(share), j.result(error))
