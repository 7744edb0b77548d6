"""Finite-time exponents agree with the singular values of dense products; lost directions have minus infinity."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.analysis import Effort, finite_time, finite_time_exponents, jacobian, lyapunov_spectrum, sphere_tangent
from attractor.analysis.frames import empty_product, orthonormalise, rounds
from attractor.errors import InputError


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def normalised(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def exponents_of(matrix: Tensor, n_steps: int) -> Tensor:
    return torch.linalg.svdvals(torch.linalg.matrix_power(matrix, n_steps)).log() / n_steps


def known_product(n: int, logs: Tensor) -> tuple[list[Tensor], Tensor]:
    """Build one matrix per row of `logs`, none of them normal. Their product has singular values e^(sum of logs)."""
    turns = [torch.linalg.qr(normal(n, n, seed=seed)).Q for seed in range(len(logs) + 1)]
    factors = [turns[t + 1] @ torch.diag(row.exp()) @ turns[t].T for t, row in enumerate(logs)]
    return factors, logs.sum(0).sort(descending=True).values


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_frame_shows_less_growth_than_the_product(seed: int) -> None:
    """Criterion: 16 steps of a Gaussian map with 200 dimensions and radius one stretch by about e^(16 * 0.11). The
    exponents equal those of the dense product to 1e-5, and a frame carried along shows at least 0.05 less."""
    matrix = normal(200, 200, seed=seed) / 200**0.5
    step, x = (lambda x: matrix @ x), torch.zeros(200, dtype=torch.float64)
    found = finite_time(step, x, k=8, effort=Effort(tolerance=1e-6))
    torch.testing.assert_close(found.exponents, exponents_of(matrix, 16)[:8], rtol=0, atol=1e-5)
    assert found.error < 1e-6
    assert 0.09 < found.exponents[0] < 0.13
    assert lyapunov_spectrum(step, x, n_steps=16, k=8, n_transient=0)[0] < found.exponents[0] - 0.05


@pytest.mark.parametrize("k", [1, 3, 29, 30])
@pytest.mark.parametrize("n_steps", [1, 5])
def test_any_number_of_exponents_up_to_the_dimension_is_exact(k: int, n_steps: int) -> None:
    matrix = normal(30, 30) / 30**0.5
    effort = Effort(tolerance=1e-8, max_iterations=300)
    found = finite_time_exponents(lambda x: matrix @ x, torch.zeros(30).double(), n_steps, k, effort=effort)
    torch.testing.assert_close(found, exponents_of(matrix, n_steps)[:k], rtol=0, atol=1e-6)


@pytest.mark.parametrize("batched", [False, True])
def test_different_steps_are_taken_one_after_another(batched: bool) -> None:
    """Criterion: a sequence of four nonlinear maps, one of them used twice, has the exponents of its dense product. A
    sequence that repeats one map equals four steps of it. A limit of memory changes nothing."""
    maps = [normal(12, 12, seed=seed) / 12**0.5 for seed in range(3)]
    first, second, third = ((lambda x, m=m: torch.tanh(x @ m.T)) for m in maps)
    steps, x = [first, second, first, third], normal(2, 12, seed=9)
    expected = []
    for state in x:
        product = torch.eye(12, dtype=torch.float64)
        for step in steps:
            product, state = jacobian(step, state) @ product, step(state)
        expected.append(torch.linalg.svdvals(product)[:3].log() / 4)
    given = x if batched else x[0]
    for max_bytes in (2**28, 1):
        effort = Effort(tolerance=1e-7, max_iterations=300, max_bytes=max_bytes)
        found = finite_time(steps, given, k=3, batched=batched, effort=effort).exponents
        torch.testing.assert_close(found, torch.stack(expected) if batched else expected[0], rtol=0, atol=1e-5)
    again = finite_time([first] * 4, given, k=3, batched=batched).exponents
    assert torch.equal(again, finite_time(first, given, n_steps=4, k=3, batched=batched).exponents)


@pytest.mark.parametrize("spread", [1.0, 20.0, 200.0])
def test_products_of_any_range_keep_every_exponent(spread: float) -> None:
    """Criterion: all exponents are exact to 1e-9 where singular values are up to e^2000 apart, beyond any number
    format. The factors share their frames, so fp64 resolves the range of each step, but not that of the product."""
    logs = torch.linspace(0, -1, 6, dtype=torch.float64) * spread / 10
    logs = torch.stack([logs.roll(t % 2) for t in range(100)]) if spread < 20 else logs.expand(100, -1)
    factors, expected = known_product(6, logs)
    product = empty_product(torch.zeros(1, 6, 6))
    frame = torch.linalg.qr(normal(1, 6, 6, seed=9)).Q
    for factor in factors:
        frame, r = orthonormalise(factor @ frame)
        product = product.after(r)
    torch.testing.assert_close(product.log_singular_values()[0] / 100, expected / 100, rtol=1e-9, atol=1e-9)


def test_equal_exponents_are_exact() -> None:
    """Criterion: one sweep finds that all exponents of orthogonal maps are 0, although no gap separates them."""
    for matrix in (torch.eye(12).double(), torch.linalg.qr(normal(12, 12)).Q):
        found = finite_time(lambda x, m=matrix: m @ x, torch.ones(12).double(), n_steps=7, k=5)
        torch.testing.assert_close(found.exponents, torch.zeros(5).double(), rtol=0, atol=1e-13)
        assert found.n_sweeps == 1


def test_single_precision_state() -> None:
    matrix = normal(80, 80) / 80**0.5
    found = finite_time_exponents(lambda x: matrix.float() @ x, torch.zeros(80), k=4, effort=Effort(tolerance=1e-5))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exponents_of(matrix, 16)[:4], rtol=0, atol=1e-4)


def test_the_number_of_calls_of_the_step() -> None:
    """Criterion: the step is called T times for the orbit, T times for each half sweep, and four times for checks,
    since whole blocks pass at once. With one direction at a time, three sweeps take at most 15 (k + 8) passes."""
    matrix, n_calls = normal(60, 60) / 60**0.5, 0

    def step(x: Tensor) -> Tensor:
        nonlocal n_calls
        n_calls += 1
        return matrix @ x

    x, effort = torch.zeros(60, dtype=torch.float64), Effort(tolerance=0.0, max_iterations=3)
    assert finite_time(step, x, n_steps=16, k=4, effort=effort).n_sweeps == 3
    assert n_calls <= 16 * (1 + 2 * 3) + 4
    n_calls = 0
    finite_time(step, x, k=4, effort=replace(effort, max_bytes=1))
    assert n_calls <= 16 * 15 * (4 + 8)


def test_too_few_sweeps_warn() -> None:
    matrix = normal(200, 200) / 200**0.5
    effort = Effort(max_iterations=1)
    with pytest.warns(RuntimeWarning, match=r"lower bounds: after 1 sweeps their error may be .*max_iterations"):
        found = finite_time_exponents(lambda x: matrix @ x, torch.zeros(200).double(), k=2, effort=effort)
    assert (found < exponents_of(matrix, 16)[:2]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalisation_loses_one_direction_a_row(dtype: torch.dtype) -> None:
    """Criterion: x / |x| keeps all tangent directions (exponent 0) and loses each radius (minus infinity, not NaN).
    With the tangent space the lost directions are left out, and a k beyond its dimension is refused."""
    x = normalised(normal(3, 5, dtype=dtype))
    found = finite_time_exponents(normalised, x, k=15)
    torch.testing.assert_close(found[:12], torch.zeros(12, dtype=dtype), rtol=0, atol=1e-6)
    assert found[12:].isneginf().all()
    within = finite_time_exponents(normalised, x, k=12, tangent=sphere_tangent())
    torch.testing.assert_close(within, torch.zeros(12, dtype=dtype), rtol=0, atol=1e-6)
    with pytest.raises(InputError, match="k must be at most 12, the dimension of the tangent space, got 13"):
        finite_time_exponents(normalised, x, k=13, tangent=sphere_tangent())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tangent_space_changes_nothing_else(dtype: torch.dtype) -> None:
    """Criterion: each sample of a normalised linear map has the same finite exponents with and without the tangent
    space."""
    matrix, x = normal(4, 4, dtype=dtype), normalised(normal(2, 3, 4, seed=1, dtype=dtype))

    def step(x: Tensor) -> Tensor:
        return normalised(x @ matrix)

    everything = finite_time_exponents(step, x, n_steps=8, k=12, batched=True)
    within = finite_time_exponents(step, x, n_steps=8, k=9, batched=True, tangent=sphere_tangent())
    assert everything[:, 9:].isneginf().all()
    torch.testing.assert_close(within, everything[:, :9], rtol=1e-4, atol=1e-4)


def test_zero_singular_values_anywhere_along_the_product() -> None:
    """Criterion: a repeated projection loses one direction in all, and a shift one at each step. Lost directions have
    minus infinity."""
    keep = torch.diag(torch.tensor([0.0, 1, 1, 1, 1, 1])).double()
    shift = torch.diag(torch.ones(5), 1).double()
    for step, n_steps, n_left in ((lambda x: keep @ x, 9, 5), (lambda x: shift @ x, 3, 3)):
        found = finite_time_exponents(step, torch.ones(6).double(), n_steps, k=6)
        assert found.isfinite().sum() == n_left
        assert found[n_left:].isneginf().all()
    nothing = finite_time(lambda x: 0 * x, torch.ones(6), n_steps=3, k=2)
    assert nothing.exponents.isneginf().all()
    assert nothing.error == 0


def test_exponents_of_an_attention_like_map() -> None:
    """Criterion: for a recurrence with attention, all finite exponents are those of the dense product, which starts
    from the tangent space of the first state."""
    weights, injected = normal(3, 6, 6) / 6**0.5, 0.3 * normal(4, 6, seed=1)

    def step(x: Tensor) -> Tensor:
        q, k, v = (x @ w for w in weights)
        return normalised(x + injected + F.scaled_dot_product_attention(q, 3 * k, v))

    x = normalised(normal(4, 6, seed=2))
    product = torch.block_diag(*(torch.eye(6).double() - torch.outer(row, row) for row in x))
    state = x
    for _ in range(6):
        product = torch.autograd.functional.jacobian(step, state).reshape(24, 24) @ product
        state = step(state)
    expected = torch.linalg.svdvals(product)[:20].log() / 6
    found = finite_time_exponents(step, x, n_steps=6, k=20, tangent=sphere_tangent(), effort=Effort(tolerance=1e-10))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_rounds_contain_every_pair_once() -> None:
    for n in (1, 2, 5, 8):
        played = [pair for first, second in rounds(n) for pair in zip(first, second, strict=True)]
        assert sorted(played) == list(itertools.combinations(range(n), 2))
        assert all(len({*first, *second}) == 2 * len(first) for first, second in rounds(n))


def test_a_frame_of_the_whole_space_takes_one_sweep() -> None:
    """Criterion: further sweeps would leave its error, which is rounding alone, in fp32 above the tolerance."""
    matrix = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)) @ torch.diag(10.0 ** -torch.arange(6))
    estimate = finite_time(lambda x: matrix @ x, torch.ones(6), n_steps=3, k=6)
    assert estimate.n_sweeps == 1
    exact = torch.linalg.svdvals(torch.linalg.matrix_power(matrix.double(), 3)).log() / 3
    assert (estimate.exponents.double() - exact).abs().max() <= estimate.error
