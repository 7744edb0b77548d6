"""The probe `dynamics` measures how a recurrent model's iteration moves its states, on the first validation boards.

J is the Jacobian of an iteration, J_u that of the iteration without its norm, J_y that of the response y = c + MSA(x),
and S the symmetric part of J_y; |.| of a matrix is its largest singular value. Numbers are means over boards.

    norm, norm_before     |J| and |J_u| along the orbit                                                     (1)
    entropy               entropy / log T of attention along the orbit: 1 where attention is uniform, so that the
                          Jacobians are those of averaging
    bound                 max |gain| / R (1 + eta |J_y|),   R = min_i |x_i + eta y_i|     ItrSA with a norm (2)
    exponents             (1 / T) log singular values of J_(T-1) ... J_0, radial directions left out        (3)
    radius                largest modulus of J's eigenvalues                                                (4)
    antisymmetric_share   |A|_F^2 / |J|_F^2,   A = (J - J') / 2                                             (5)
    energy                E = -x'y,   linearised as  y ~ J_y x  or, with y at x = 0,  y ~ y(0) + J_y x       (6)
                          quadratic = -x'S x                           affine = -x'S x - x'y(0)
    alignment             |<x, v>| / |x| for the leading eigenvector v of S; about 1 / sqrt(n) by chance    (7)
    reached               x'S x / (|x|^2 theta) for its eigenvalue theta: 1 where x has turned into v       (8)
    linear                cosine of MSA(x) = y - c with J_y x: 1 where attention acts like its Jacobian     (9)
    share                 of |x|^2 in the span of the leading 2% of S's eigenvectors; .02 by chance         (10)

(9) and (10) are those of figure 6 in the paper's fourth version. (10) takes sums of squares of x's components by
Lanczos quadrature from x, above the eigenvalue that as much of a random vector exceeds, so the 2% are an estimate.
(2) is proposition 5.1 with R taken before the norm, where it has to be, state by state. The proposition also holds with
one R for all states, their smallest: how loose the bound is depends on this choice. `gain` is gamma, times sqrt(D)
under "rms".
In (6) y(0) is the stimulus and the constant part of attention; without it the linearisation is the paper's.

`probes.dynamics`, T = 16:

    norm, norm_before, entropy, bound, energy
                                        `by_step`: at x_0 to x_(T-1), the energy at x_T, too; `mean` and `largest` of it
    norm, norm_before                   also `error`, relative, the largest: a norm that has not converged is too small
    bound                               also `holds` (share of boards and steps), `ratio` (mean of bound / |J|) and
                                        `least_length` (R by step), `one_radius` (the smallest R of all states as
                                        `radius`, and the `ratio` with it)
    exponents                           `largest` (mean), `spread` (over boards) and its `standard_error` from this
                                        spread, null for one board; `by_rank` (4 of them), `error` (a bound, the
                                        largest)
    radius, antisymmetric_share         `start` (at x_0), `end` (at x_T); `residual` of the eigenvalues, the largest
    pseudo_energy                       `quadratic` and `affine` by step, and the correlation over t of each with the
                                        energy, as `correlation` and `affine_correlation`: null where one of the two
                                        is constant (x'S x is 0 where y depends only on the directions of rows)
    alignment                           `by_step`, `reached`, `linear` and `share`, at x_t for t in `steps`; `residual`
                                        of v; `chance` of (7)
    accuracy                            of every validation set, as many boards as the run itself looked at:
                                        accuracy.SET.MEASURE.T for T = 4, 8, 16, 32, 64, 128 iterations
    portrait                            `orbits`: of each board its states x_0 to x_64, on the two axes along which
                                        those of all boards vary most, as far as they stay below 1e9; `share` of
                                        their variance that the two have

Where a state grows beyond 1e9, only the accuracy is measured. Each board takes at most 7,000 products with a Jacobian,
and usually some 3,000; a product costs about four iterations. That is two minutes and a half on one core for four
boards at the published size. Accuracies take 128 iterations of each board, and 252 in tasks other than boards.
Jacobians: arXiv 2505.19458, section 5.
"""

from typing import Any

import torch
from torch import Tensor

from attractor.analysis import (
    Effort,
    Jacobian,
    error_between_orbits,
    estimate_eigenvalues,
    estimate_jacobian_norm,
    finite_time,
    normalised_entropy,
    sphere_tangent,
)
from attractor.attention.hooks import capture
from attractor.attention.mask import resolve_mask
from attractor.evaluate.boards.evaluation import Question, evaluate_run
from attractor.models.itrsa import ItrSA
from attractor.models.language_model import LanguageModel
from attractor.models.maps import Iteration, Step
from attractor.models.recurrent import RecurrentModel
from attractor.study.study import Probe
from attractor.train.config import TrainConfig
from attractor.train.finished import Finished
from attractor.train.hardware import on_device

from .symmetric_parts import oscillatory_share, quadratic_form

N_BOARDS = 4
N_STEPS = 16
N_EXPONENTS = 4
LONGER = (4, 8, 16, 32, 64, 128)  # iterations at which answers are judged
DRAWN = 64  # iterations of a portrait
COSTS = ("seconds", "seconds_per_board", "n_boards")  # of an evaluation; not stored, since seconds differ between runs
ALIGNED_AT = (0, 1, 2, 4, 8, 16)
TOLERANCE = 1e-3  # bound on the relative error of norms
TOO_LARGE = 1e9  # beyond it, squares of a state's Jacobian would overflow
N_LANCZOS, N_PROBES = 30, 16
OF_NORMS, OF_EIGENVALUES = Effort(TOLERANCE, 2 * N_LANCZOS), Effort(TOLERANCE, max_iterations=160)
OF_EXPONENTS = Effort(max_iterations=6)
NOISE = 1e-6
LEADING = 0.02  # share of the eigenvectors of (10)
CLOSE = 1e-3  # nodes of a quadrature that are closer, as a share of its span, stand for one eigenvalue


def dynamics_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    if not isinstance(model, RecurrentModel):
        return {}
    task = config.build_task()
    batch = next(iter(task.valid_batches(N_BOARDS, 1)))
    tokens, _, real = on_device(batch, model.device)
    return {"dynamics": dynamics(Iteration.of(model, tokens, real)) | {"accuracy": accuracies(model, config)}}


@torch.no_grad()
def dynamics(iteration: Iteration) -> dict[str, Any]:
    """Return all measures but the accuracies, or none at all where a state exceeds TOO_LARGE."""
    orbit = iteration.orbit(N_STEPS)
    if not (orbit.abs() < TOO_LARGE).all():
        return {}
    norms, error = norms_along(iteration.step, orbit[:-1])
    before, error_before = norms_along(iteration.before_norm, orbit[:-1])
    return {
        "norm": trajectory(norms) | {"error": error},
        "norm_before": trajectory(before) | {"error": error_before},
        **entropies(iteration, orbit[:-1]),
        "bound": bound(iteration, orbit[:-1], norms),
        "exponents": exponents(iteration),
        "radius": radius(iteration, orbit),
        "antisymmetric_share": antisymmetric_share(iteration, orbit),
        "portrait": portrait(iteration.orbit(DRAWN)),
    } | energies(iteration, orbit)


# --- norms and exponents --------------------------------------------------------------------------------------------


def norms_along(step: Step, orbit: Tensor) -> tuple[Tensor, float]:
    """Return (1), of shape T B, and its largest relative error."""
    estimates = [estimate_jacobian_norm(step, x, batched=True, effort=OF_NORMS) for x in orbit]
    return torch.stack([x.norm for x in estimates]), max(float(x.error.max()) for x in estimates)


def entropies(iteration: Iteration, orbit: Tensor) -> dict[str, Any]:
    """Measure the entropy of attention along the orbit; a model without attention has none."""
    n_boards, n_cells = orbit.shape[1:3]
    mask = resolve_mask(iteration.inputs.mask, n_boards, n_cells, n_cells, orbit.device)
    allowed = mask.spelled_out(n_cells, n_cells, orbit.device)
    along = [entropy_of(iteration.step, x, allowed) for x in orbit]
    known = [entropy for entropy in along if entropy is not None]
    return {"entropy": trajectory(torch.stack(known))} if known else {}


def entropy_of(step: Step, x: Tensor, allowed: Tensor | None = None) -> Tensor | None:
    """Return entropy / log T of the attention in a step, as a mean over its maps; None for a step without attention."""
    with torch.no_grad(), capture("weights") as seen:
        step(x)
    maps = [normalised_entropy(weights, allowed).mean(-1) for weights in seen["weights"]]
    return torch.stack(maps).mean(0) if maps else None


def bound(iteration: Iteration, orbit: Tensor, norms: Tensor) -> dict[str, Any]:
    """Measure (2). Other families than ItrSA, and models without a norm, have no bound."""
    model, sphere = iteration.model, iteration.sphere
    if not isinstance(model, ItrSA) or sphere is None:
        return {}
    least = torch.stack([iteration.before_norm(x).norm(dim=-1).amin(-1) for x in orbit])
    of_response, _ = norms_along(iteration.response, orbit)
    without_radius = sphere.gain.abs().max() * (1 + model.config.eta * of_response)
    allowed = without_radius / least  # (2)
    return trajectory(allowed) | {
        "holds": float((norms <= allowed * (1 + 2 * TOLERANCE)).double().mean()),
        "ratio": float((allowed / norms).mean()),
        "least_length": least.mean(1).tolist(),
        "one_radius": {"radius": float(least.min()), "ratio": float((without_radius / least.min() / norms).mean())},
    }


def exponents(iteration: Iteration) -> dict[str, Any]:
    """Measure the largest finite-time exponents (3)."""
    tangent = None if iteration.sphere is None else sphere_tangent(*iteration.sphere)
    spectrum = finite_time(iteration.step, iteration.start, N_STEPS, N_EXPONENTS, True, tangent, OF_EXPONENTS)
    largest = spectrum.exponents[:, 0]
    return {
        "largest": float(largest.mean()),
        "spread": float(largest.std(correction=min(1, len(largest) - 1))),
        "standard_error": None if len(largest) == 1 else float(error_between_orbits(spectrum.exponents)[0]),
        "by_rank": spectrum.exponents.mean(0).tolist(),
        "error": float(spectrum.error.max()),
    }


def radius(iteration: Iteration, orbit: Tensor) -> dict[str, float]:
    """Measure the spectral radius (4) at both ends of the orbit."""
    estimates = {
        place: estimate_eigenvalues(iteration.step, x, batched=True, effort=OF_EIGENVALUES)
        for place, x in (("start", orbit[0]), ("end", orbit[-1]))
    }
    radii = {place: float(estimate.values[:, 0].abs().mean()) for place, estimate in estimates.items()}
    return radii | {"residual": max(float(estimate.residual.max()) for estimate in estimates.values())}


def antisymmetric_share(iteration: Iteration, orbit: Tensor) -> dict[str, float]:
    """Measure (5) at both ends of the orbit."""
    return {
        place: float(oscillatory_share(iteration.step, x, batched=True, n_probes=N_PROBES).share.mean())
        for place, x in (("start", orbit[0]), ("end", orbit[-1]))
    }


def portrait(orbit: Tensor) -> dict[str, Any]:
    """Project an orbit of shape T B ... onto its two principal axes.

    The sign of an axis means nothing, and is chosen so that its largest entry is positive.
    """
    within = (orbit.flatten(1).abs() < TOO_LARGE).all(1).cumprod(0).bool()
    states = orbit[within].flatten(2).double()
    centred = states - states.mean((0, 1))
    _, sigma, axes = torch.linalg.svd(centred.flatten(0, 1), full_matrices=False)
    axes = axes[:2] * axes[:2].gather(1, axes[:2].abs().argmax(1, keepdim=True)).sign()
    share = sigma[:2].square().sum() / sigma.square().sum().clamp(min=torch.finfo(sigma.dtype).tiny)
    return {"orbits": (centred @ axes.T).transpose(0, 1).tolist(), "share": float(share)}


# --- energies -------------------------------------------------------------------------------------------------------


def energies(iteration: Iteration, orbit: Tensor) -> dict[str, Any]:
    """Measure (6) to (10): the energy, its linearisations, and the alignment with S's leading eigenvectors."""
    constant = iteration.response(torch.zeros_like(orbit[0]))
    energy = torch.stack([-inner(x, iteration.response(x)) for x in orbit])
    quadratic = torch.stack([-quadratic_form(iteration.response, x, x, batched=True) for x in orbit])
    affine = quadratic - torch.stack([inner(x, constant) for x in orbit])
    aligned = [alignment(iteration.response, x, -q) for x, q in ((orbit[t], quadratic[t]) for t in ALIGNED_AT)]
    further = [(linearity(iteration, orbit[t]), leading_share(iteration.response, orbit[t])) for t in ALIGNED_AT]
    return {
        "energy": trajectory(energy),
        "pseudo_energy": {
            "quadratic": quadratic.mean(1).tolist(),
            "affine": affine.mean(1).tolist(),
            "correlation": correlation(energy, quadratic),
            "affine_correlation": correlation(energy, affine),
        },
        "alignment": {
            "steps": list(ALIGNED_AT),
            "by_step": [float(cosine.mean()) for cosine, _, _ in aligned],
            "reached": [float(reached.mean()) for _, reached, _ in aligned],
            "linear": [float(linear.mean()) for linear, _ in further],
            "share": [float(share.mean()) for _, share in further],
            "residual": [float(residual.max()) for _, _, residual in aligned],
            "chance": orbit[0, 0].numel() ** -0.5,
        },
    }


def alignment(response: Step, x: Tensor, form: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (7), (8) for form = x'S x, and the residual of v relative to its eigenvalue."""
    v, theta, residual = leading_eigenvector(Jacobian(response, x, batched=True))
    square = inner(x, x)
    return inner(x, v.view_as(x)).abs() / square.sqrt(), form / (square * theta), residual / theta.abs()


def leading_eigenvector(j: Jacobian) -> tuple[Tensor, Tensor, Tensor]:
    """Return the leading eigenvector v of S (B n), its eigenvalue theta, and the residual |S v - theta v|.

    Power iteration starts at a random vector; the result is the best vector in the span of all iterates (Ritz).
    """
    basis, images = krylov_space(j, j.random_columns(1, seed=0))
    values, s = torch.linalg.eigh(basis.mT @ images)
    v, image = ((columns @ s[..., -1:]).squeeze(-1) for columns in (basis, images))
    theta = values[:, -1]
    return v, theta, (image - theta.unsqueeze(-1) * v).norm(dim=-1)


def leading_share(response: Step, x: Tensor) -> Tensor:
    """Return (10). The cut is in a gap between two nodes, where the weights above it are nearest to LEADING."""
    j = Jacobian(response, x, batched=True)
    theta, weights = spectral_weights(j, j.random_columns(1, seed=0))
    off, gaps = (weights.cumsum(1) - LEADING).abs()[:, :-1], theta[:, :-1] - theta[:, 1:]
    last_above = off.masked_fill(gaps < CLOSE * gaps.sum(1, keepdim=True), torch.inf).argmin(1, keepdim=True)
    cut = theta.gather(1, last_above) - gaps.gather(1, last_above) / 2
    theta, weights = spectral_weights(j, x.flatten(1).unsqueeze(-1))
    return (weights * (theta >= cut)).sum(1)


def spectral_weights(j: Jacobian, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of a quadrature of S's spectrum, the largest first, and the share of |start|^2 at each."""
    basis, images = krylov_space(j, start)
    theta, s = torch.linalg.eigh(basis.mT @ images)
    return theta.flip(-1), s[:, 0].square().flip(-1)


def linearity(iteration: Iteration, x: Tensor) -> Tensor:
    """Return (9)."""
    attended = iteration.response(x) - iteration.stimulus
    pushed = Jacobian(iteration.response, x, batched=True).jvp(x)
    return torch.cosine_similarity(attended.flatten(1), pushed.flatten(1), dim=1)


def krylov_space(j: Jacobian, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return an orthonormal basis (B n m) of the space that S spans from a start, which comes first, and its images."""
    v = start / start.norm(dim=1, keepdim=True)
    basis = images = v[..., :0]
    for number in range(1, min(N_LANCZOS, j.dim) + 1):
        image = (j.times(v) + j.transposed_times(v)) / 2
        basis, images = torch.cat([basis, v], -1), torch.cat([images, image], -1)
        # A trace of noise gives a next direction where S leads to no new one.
        v = image + NOISE * (1 + image.norm(dim=1, keepdim=True)) * j.random_columns(1, seed=number) / j.dim**0.5
        for _ in range(2):
            v = v - basis @ (basis.mT @ v)
            v = v / v.norm(dim=1, keepdim=True)
    return basis, images


def correlation(energy: Tensor, form: Tensor) -> float | None:
    """Correlate over time (dimension 0), and average over the boards where both change by more than rounding."""
    noise = 1e-5 * energy.abs().amax(0)
    a, b = energy - energy.mean(0), form - form.mean(0)
    moving = (a.abs().amax(0) > noise) & (b.abs().amax(0) > noise)
    cosines = (a * b).sum(0) / (a.norm(dim=0) * b.norm(dim=0))
    return float(cosines[moving].mean()) if moving.any() else None


# --- answers --------------------------------------------------------------------------------------------------------


def accuracies(model: RecurrentModel, config: TrainConfig) -> dict[str, dict[str, dict[str, float]]]:
    """Return what `attractor evaluate` measures, by validation set, measure and number of iterations.

    That is in the run's own precision and on its own validation batches.
    """
    by_set: dict[str, dict[str, dict[str, float]]] = {}
    run = Finished(config, model, checkpoint="the last")
    for row in evaluate_run(run, Question(n_iterations=LONGER)):
        for measure, value in row.measures.items():
            if measure not in COSTS:
                by_set.setdefault(row.part, {}).setdefault(measure, {})[str(row.n_iterations)] = value
    return by_set


def trajectory(values: Tensor) -> dict[str, Any]:
    """Return the mean over boards at each step, the mean of all, and the largest of values of shape T B."""
    return {"by_step": values.mean(1).tolist(), "mean": float(values.mean()), "largest": float(values.max())}


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product of two states for each board."""
    return (x * y).flatten(1).sum(-1)


DYNAMICS_PROBE = Probe("dynamics", dynamics_of_run)
