"""Measures refuse states, steps and settings for which they are not defined, with the reason."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.analysis import (
    Effort,
    Jacobian,
    finite_time_exponents,
    jacobian_norm,
    lanczos,
    leading_eigenvalues,
    lyapunov_spectrum,
    normalised_entropy,
    spectral_radius,
    sphere_tangent,
)
from attractor.analysis.memory import distance_holding
from attractor.errors import InputError

ONES, MAPS = torch.ones(3), torch.full((2, 2, 4, 4), 0.25)
TANGENTLESS = {"tangent": sphere_tangent(1)}


def same(x: Tensor) -> Tensor:
    return x


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.sin()


def kinked(x: Tensor) -> Tensor:
    """Compute a step whose second state from 2, which is 1, has an infinite derivative, although all are finite."""
    return x - (x - 1).abs().sqrt()


class Once(torch.autograd.Function):
    """The identity with a derivative that has no derivative of its own."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


TWO = torch.full((2,), 2.0, dtype=torch.float64)
FINITE = "states must be finite, got NaN or infinity"
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: leading_eigenvalues(same, ONES, k=0), "k must be an integer of at least 1, got 0"),
    (lambda: leading_eigenvalues(same, ONES, k=1.5), "k must be an integer of at least 1, got 1.5"),
    (lambda: leading_eigenvalues(same, ONES, k=4), "k must be at most 3, the dimension of the state, got 4; ask"),
    (lambda: finite_time_exponents(same, ONES, n_steps=0, k=1), "n_steps must be an integer of at least 1, got 0"),
    (lambda: finite_time_exponents(same, ONES, k=0), "k must be an integer of at least 1, got 0"),
    (lambda: finite_time_exponents(same, ONES, k=4), "k must be at most 3, the dimension of the state, got 4"),
    (lambda: finite_time_exponents(kinked, TWO, 3, 1), "finite derivative at each state of the orbit, got NaN or infi"),
    (lambda: lyapunov_spectrum(kinked, TWO, 3, 1), "finite derivative at each state of the orbit, got NaN or infinity"),
    (lambda: lyapunov_spectrum(same, ONES, n_steps=0), "n_steps must be an integer of at least 1, got 0"),
    (lambda: lyapunov_spectrum(same, ONES, 9, n_transient=-1), "n_transient must be an integer of at least 0, got -1"),
    (lambda: lyapunov_spectrum(same, ONES, 9, k=4), "k must be at most 3, the dimension of the state, got 4"),
    (lambda: lyapunov_spectrum(lambda x: 2 * x, TWO / 2, 2_000, n_transient=0), f"{FINITE} after step 1024"),
    (
        lambda: finite_time_exponents(torch.square, torch.tensor([[0.5], [3.0]]), k=1, batched=True),
        f"{FINITE} in sample 1 after step 7",
    ),
    (lambda: Effort(max_iterations=0), "max_iterations must be an integer of at least 1, got 0"),
    (lambda: Effort(tolerance=math.nan), "tolerance must be at least 0 and finite, or None, got nan"),
    (lambda: Effort(tolerance=-1e-3), "tolerance must be at least 0 and finite, or None, got -0.001"),
    (lambda: sphere_tangent(-3), "n_channels must be an integer of at least 1, got -3"),
    (
        lambda: finite_time_exponents(same, torch.tensor([1.0, 0, 0, 0]), k=1, tangent=sphere_tangent(2)),
        "x must have a positive length in each group of 2 channels, got 0",
    ),
    (lambda: jacobian_norm(same, torch.ones(8), tangent=sphere_tangent(3)), "must divide the last dimension 8, got 3"),
    (lambda: jacobian_norm(lambda x: x[:2], ONES), r"step must keep the shape \(3,\), got \(2,\)"),
    (lambda: jacobian_norm(lambda x: x.double(), ONES), "step must keep the dtype torch.float32, got torch.float64"),
    (lambda: jacobian_norm(lambda x: (x, x), ONES), "step must return a tensor, got tuple"),
    (lambda: jacobian_norm(same, [1.0]), "x must be a tensor, got list"),
    (lambda: jacobian_norm(same, ONES.long()), "x must be of dtype float32 or float64, got torch.int64"),
    (lambda: jacobian_norm(same, ONES.bfloat16()), "x must be of dtype .*, got torch.bfloat16"),
    (lambda: jacobian_norm(same, ONES, batched=True), "x must have a dimension of samples and at least one more"),
    (lambda: jacobian_norm(same, torch.ones(0)), r"x must hold at least one number, got shape \(0,\)"),
    (lambda: jacobian_norm(same, ONES * math.nan), "states must be finite, got .* after step 0"),
    (
        lambda: jacobian_norm(same, torch.tensor([[1.0], [math.inf]]), batched=True),
        f"{FINITE} in sample 1 after step 0",
    ),
    (lambda: jacobian_norm(lambda x: x / 0, ONES), "states must be finite, got .* after step 1"),
    (lambda: jacobian_norm(without_grad, ONES), "one differentiable map, got two derivatives.*remove torch.no_grad"),
    (lambda: jacobian_norm(lambda x: x + without_grad(x), ONES), "one differentiable map, got two derivatives"),
    (lambda: jacobian_norm(lambda x: F.dropout(x, 0.5), torch.ones(64)), "one map, got two images of x; call"),
    (lambda: jacobian_norm(lambda x: (x - x.detach()).sqrt(), ONES), "a finite derivative at x, got NaN or infinity"),
    (
        lambda: jacobian_norm(Once.apply, torch.ones(600, 8)),
        r"step must be differentiable twice.* 4,800 numbers.*at most 4,096",
    ),
    *(
        (lambda product=product, v=v: product(Jacobian(same, torch.ones(2, 3)), v), r"the state's shape \(2, 3\)")
        for product in (Jacobian.jvp, Jacobian.vjp)
        for v in (torch.ones(3), torch.ones(1, 1, 2, 3), torch.ones(4, 2, 3).double())
    ),
    *(
        (
            lambda measure=measure, n=n: measure(same, torch.ones(n).double(), **TANGENTLESS),
            "tangent must leave at least one direction, and leaves none",
        )
        for measure in (jacobian_norm, spectral_radius)
        for n in (4, 600)
    ),
    (
        lambda: lanczos.largest_eigenvalue(lambda v: v * torch.nan, lambda seed: torch.ones(1, 4, 1), 1e-4, 20),
        "finite derivative at x, got NaN or infinity",
    ),
    *(
        (lambda share=share: distance_holding(torch.eye(2), share), r"^share must be above 0 and at most 1, got .*; 0")
        for share in (0.0, -1.0, 1.5, math.nan)
    ),
    # Where there are as many heads as samples, a mask B T S would be taken for one of heads.
    (
        lambda: normalised_entropy(MAPS, torch.ones(2, 4, 4, dtype=torch.bool)),
        r"allowed must be of two dimensions or 4.*give allowed\[:, None\]",
    ),
    (lambda: normalised_entropy(MAPS, torch.zeros(4, 4)), "allowed must be boolean"),
]


@pytest.mark.parametrize(("attempt", "message"), REFUSED)
def test_what_has_no_measure_is_refused_with_the_reason(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attempt()
