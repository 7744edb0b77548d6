"""The master equation on generators with known results and on random ones: theorem 28 of FastSlow and its proof.

Numbers in brackets are the equations of `attractor.equilibrium.master_equation`.
"""

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attractor.equilibrium.master_equation import (
    check,
    closed_classes,
    column_sums,
    euler,
    largest_step,
    random_generator,
    relative_entropy,
    stationary,
)
from attractor.errors import InputError

N = 12  # the number of states in remark 31
SEEDS = range(2)


def generator_of(rates: Tensor) -> Tensor:
    """Return the off-diagonal rates with the diagonal that conserves probability."""
    rates = rates.double().clone().fill_diagonal_(0)
    return rates - rates.sum(0).diag()


def chain(up: list[float], down: list[float]) -> Tensor:
    """Build a birth-death chain with rate up[i] from state i to i + 1, and down[i] back."""
    up_rates, down_rates = (torch.tensor(rates, dtype=torch.float64) for rates in (up, down))
    return generator_of(up_rates.diag(-1) + down_rates.diag(1))


def vertex(n: int, j: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)[j]


def distributions(*shape: int, seed: int = 0) -> Tensor:
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).softmax(-1)


def reducible(sizes: list[int], n_transient: int, seed: int) -> tuple[Tensor, list[list[int]]]:
    """Build a generator from closed classes of the given sizes and transient states that lead into them. Return it with
    its states shuffled, and the states of each class."""
    n = sum(sizes) + n_transient
    draw = torch.Generator().manual_seed(seed)
    allowed = torch.zeros(n, n, dtype=torch.bool)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    for start, size in zip(starts, sizes, strict=True):
        allowed[start : start + size, start : start + size] = True
    allowed[:, n - n_transient :] = True
    order = torch.randperm(n, generator=draw)
    generator = generator_of(allowed * torch.rand(n, n, generator=draw))
    place = order.argsort().tolist()
    classes = [sorted(place[start : start + size]) for start, size in zip(starts, sizes, strict=True)]
    return generator[order][:, order], classes


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_generator_is_valid_and_irreducible(seed: int) -> None:
    generator = random_generator(N, seed)
    check(generator)
    assert generator.dtype == torch.float64
    assert closed_classes(generator) == [list(range(N))]
    assert torch.equal(generator, random_generator(N, seed))
    assert not torch.equal(generator, random_generator(N, seed + 1))


@pytest.mark.parametrize("function", [check, closed_classes, stationary, largest_step])
def test_an_invalid_generator_is_refused_and_its_wrong_entry_is_named(function) -> None:
    def refused(change, pattern: str) -> None:
        generator = random_generator(4).clone()
        change(generator)
        with pytest.raises(InputError, match=pattern):
            function(generator)

    refused(lambda a: a[1, 2].fill_(-0.5), r"generator\[1, 2\] must be at least 0, got -0.5; .* from state j to")
    refused(lambda a: a[3, 1].add_(0.25), r"generator\[:, 1\] must sum to 0, got 0.25; its diagonal")
    refused(lambda a: a[2, 0].fill_(torch.nan), r"generator\[2, 0\] must be finite, got nan")
    refused(lambda a: a[2, 0].fill_(torch.inf), r"generator\[2, 0\] must be finite, got inf")


def euler_of(x0: list[float], dt: float = 0.1, n_steps: float = 1) -> Tensor:
    return euler(random_generator(3), torch.tensor(x0, dtype=torch.float64), dt, n_steps)  # type: ignore[arg-type]


def one_wrong_of_a_batch() -> Tensor:
    batch = torch.stack([random_generator(4, seed) for seed in range(3)])
    batch[2, 0, 3] += 1
    return batch


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: check(torch.zeros(3, 4)), r"must be square, got shape \(3, 4\)"),
        (lambda: check(torch.zeros(3, 3, dtype=torch.long)), "floating-point"),
        (lambda: check(random_generator(5).T), "transpose"),
        (lambda: stationary(one_wrong_of_a_batch()), r"generator\[2, :, 3\] must sum to 0, got 1"),
        (lambda: largest_step(torch.zeros(2, 3, 3)), r"a single matrix here, got shape \(2, 3, 3\)"),
        (lambda: random_generator(1), "n must be at least 2, got 1"),
        (lambda: euler_of([1, 0, 0], n_steps=2.5), "n_steps must be an integer of at least 0, got 2.5"),
        (lambda: euler_of([1, 0, 0], n_steps=-3), "n_steps must be an integer of at least 0, got -3"),
        (lambda: euler_of([1, 0, 0], dt=0.0), "dt must be positive, got 0"),
        (lambda: euler_of([0.5, 0.25, 0.2500004]), r"^x0 must sum to 1, got 1\.00000[0-9]+; divide"),
        (lambda: euler_of([0.5, 0.4, 0.2]), r"x0 must sum to 1, got 1.1; divide by"),
        (lambda: euler_of([1.5, -0.5, 0.0]), "x0 must be at least 0 everywhere, got -0.5"),
        (lambda: euler_of([0.5, 0.5]), r"x0 must have 3 states in its last dimension, got shape \(2,\)"),
        (lambda: euler_of([math.nan, 0.5, 0.5]), "x0 must be at least 0 everywhere, got nan"),
    ],
)
def test_invalid_arguments_are_refused(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attempt()


def test_integers_rounded_sums_and_empty_batches_are_distributions() -> None:
    generator = random_generator(3)
    found = euler(generator, torch.tensor([1, 0, 0]), 0.1, 2)
    torch.testing.assert_close(found, euler(generator, vertex(3, 0), 0.1, 2))
    assert euler(generator, torch.tensor([0.1, 0.2, 0.7]), 0.1, 1).dtype == torch.float64  # fp32 rounds the sum
    assert euler(generator, torch.zeros(0, 3, dtype=torch.float64), 0.1, 3).shape[-2:] == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_errors_of_a_generator_are_accepted(dtype: torch.dtype) -> None:
    """Criterion: a diagonal that is summed in another order passes, at a size where the order changes digits. A
    diagonal with an error of a millionth (in fp32, of a thousandth) is refused."""
    rates = 10 ** (6 * torch.rand(300, 300, generator=torch.Generator().manual_seed(0), dtype=dtype))
    rates.fill_diagonal_(0)
    generator = rates - rates.flip(0).cumsum(0)[-1].diag()
    check(generator)
    generator[7, 7] *= 1 + 1e-3 if dtype == torch.float32 else 1 + 1e-6
    with pytest.raises(InputError, match=r"generator\[:, 7\]"):
        check(generator)


@pytest.mark.parametrize("n", [3, 40, 150])
def test_a_birth_death_chain_has_the_known_distribution_in_every_entry(n: int) -> None:
    """Criterion: p_{i+1} / p_i = up_i / down_i holds to relative rounding, even for entries as small as 1e-210."""
    draw = torch.Generator().manual_seed(n)
    up, down = (10 ** (4 * torch.rand(n - 1, generator=draw, dtype=torch.float64)) for _ in range(2))
    down = down * 30
    expected = torch.cat([torch.zeros(1), (up / down).log().cumsum(0)]).softmax(0)
    p = stationary(chain(up.tolist(), down.tolist()))
    assert p.min() < 1e-3 ** (n / 3) * 10
    torch.testing.assert_close(p, expected, rtol=1e-11, atol=0)  # the few lost digits are of these logarithms


def test_almost_separate_clusters_are_weighed_right() -> None:
    """Criterion: two pairs of states joined by rates of 1e-14 have the exact distribution. LU or an SVD would find a
    kernel of two dimensions here."""
    rates = torch.zeros(4, 4, dtype=torch.float64)
    rates[0, 1] = rates[1, 0] = rates[2, 3] = rates[3, 2] = 1
    rates[2, 1], rates[1, 2] = 1e-14, 3e-14
    expected = torch.tensor([3.0, 3, 1, 1], dtype=torch.float64) / 8
    torch.testing.assert_close(stationary(generator_of(rates)), expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("sizes", [[5], [3, 2], [1, 1, 1], [4, 3, 2, 1]])
@pytest.mark.parametrize("n_transient", [0, 3])
def test_the_kernel_has_a_dimension_for_each_closed_class(sizes: list[int], n_transient: int) -> None:
    """Criterion: the kernel has as many dimensions as there are closed classes, with and without transient states. So
    the stationary distribution is unique exactly if there is one closed class; otherwise the generator is refused."""
    generator, classes = reducible(sizes, n_transient, seed=len(sizes))
    found = closed_classes(generator)
    assert sorted(found) == sorted(classes)
    assert len(generator) - torch.linalg.matrix_rank(generator) == len(classes)
    if len(classes) > 1:
        with pytest.raises(InputError, match="one closed class of states, got") as refused:
            stationary(generator)
        assert all(str(states) in str(refused.value) for states in classes)
        states = found[0]
        assert stationary(generator[states][:, states]).shape == (len(states),)  # as the message advises
    else:
        p = stationary(generator)
        assert (p > 0).nonzero().flatten().tolist() == classes[0]
        assert (generator @ p).abs().max() < 1e-15


@pytest.mark.parametrize("seed", SEEDS)
def test_generators_in_a_batch_have_the_results_of_single_ones(seed: int) -> None:
    """Criterion: irreducible and reducible generators in one batch each have the distribution that they have alone."""
    parts = [random_generator(8, seed), reducible([3], 5, seed)[0], chain([1.0] * 7, [2.0] * 7)]
    together = stationary(torch.stack([torch.stack(parts), torch.stack(parts[::-1])]))
    assert together.shape == (2, 3, 8)
    for found, part in zip(together[0], parts, strict=True):
        torch.testing.assert_close(found, stationary(part), rtol=1e-13, atol=0)
    torch.testing.assert_close(together[1], together[0].flip(0), rtol=1e-13, atol=0)


def test_precision_is_that_of_the_generator() -> None:
    generator = random_generator(N)
    p = stationary(generator)
    assert stationary(generator.float()).dtype == torch.float32
    torch.testing.assert_close(stationary(generator.float()).double(), p, rtol=1e-5, atol=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_largest_step_is_tight_from_its_own_vertex_only(seed: int) -> None:
    """Criterion: a step just beyond the largest one turns only the vertex of the largest |A_jj| negative. Below that
    step all paths stay positive. A path from the stationary distribution does so even just beyond it."""
    generator = random_generator(N, seed)
    dt = largest_step(generator)
    worst = int(generator.diagonal().abs().argmax())
    starts = torch.eye(N, dtype=torch.float64)
    assert (euler(generator, starts, 0.9999 * dt, 50, trajectory=True) >= 0).all()
    with pytest.warns(UserWarning, match="largest safe step"):
        beyond = euler(generator, starts, 1.0001 * dt, 1)
    assert [j for j in range(N) if (beyond[j] < 0).any()] == [worst]
    with pytest.warns(UserWarning, match="largest safe step"):
        inside = euler(generator, stationary(generator), 1.0001 * dt, 50, trajectory=True)
    assert (inside > 0).all()


def test_the_warning_names_a_step_that_then_passes() -> None:
    generator = random_generator(N)
    with pytest.warns(UserWarning, match="dt 9 may turn probabilities negative") as caught:
        euler(generator, vertex(N, 0), 9.0, 1)
    assert caught[0].filename == __file__
    named = float(str(caught[0].message).split()[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        euler(generator, vertex(N, 0), named, 1)


def test_at_exactly_the_largest_step_two_states_swap_for_ever() -> None:
    """The map is still stochastic there, but no longer primitive. So (2) has a strict inequality."""
    generator = chain([1.0], [1.0])
    assert torch.equal(euler(generator, vertex(2, 0), largest_step(generator), 1001), vertex(2, 1))


@pytest.mark.parametrize(
    ("generator", "eigenvalues"),
    [
        pytest.param(chain([2.0], [0.5]), [-2.5], id="two states"),
        pytest.param(
            chain([1.0] * 7, [1.7] * 7),
            [-2.7 + 2 * math.sqrt(1.7) * math.cos(k * math.pi / 8) for k in range(1, 8)],
            id="birth and death",
        ),
        pytest.param(
            generator_of(torch.eye(5).roll(1, 0)),
            [complex(math.cos(a) - 1, math.sin(a)) for a in (2 * math.pi * k / 5 for k in range(1, 5))],
            id="one-way cycle",
        ),
    ],
)
@pytest.mark.parametrize("part", [0.3, 0.7])
def test_the_rate_of_euler_is_the_second_largest_eigenvalue(generator: Tensor, eigenvalues: list, part: float) -> None:
    """Criterion: for known spectra, the error shrinks at each step by the largest |1 + dt lambda|."""
    dt = part * largest_step(generator)
    rate = max(abs(1 + dt * eigenvalue) for eigenvalue in eigenvalues)
    n_steps = math.ceil(math.log(1e-8) / math.log(rate))
    path = euler(generator, distributions(len(generator)), dt, n_steps, trajectory=True)
    error = (path - stationary(generator)).norm(dim=-1)
    half = n_steps // 2
    assert float(error[-1] / error[half]) ** (1 / (n_steps - half)) == pytest.approx(rate, rel=0.02)


def test_euler_converges_to_the_flow_at_first_order() -> None:
    """Criterion: (2) is a first-order method for (1), so half the step leaves half the error."""
    generator, x0 = random_generator(N), vertex(N, 0)
    exact = torch.linalg.matrix_exp(0.5 * generator) @ x0
    errors = [float((euler(generator, x0, 0.5 / n, n) - exact).abs().sum()) for n in (200, 400)]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.02)


def test_euler_keeps_the_batch_and_the_path() -> None:
    generator, x0 = random_generator(N, 1), distributions(2, 3, N)
    dt = 0.5 * largest_step(generator)
    path = euler(generator, x0, dt, 4, trajectory=True)
    assert path.shape == (5, 2, 3, N)
    assert torch.equal(path[0], x0)
    torch.testing.assert_close(path[1:], path[:-1] + dt * path[:-1] @ generator.T, rtol=0, atol=1e-15)
    assert torch.equal(path[-1], euler(generator, x0, dt, 4))
    torch.testing.assert_close(path[-1, 1, 2], euler(generator, x0[1, 2], dt, 4), rtol=0, atol=1e-15)


def test_relative_entropy_of_known_pairs() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    q = torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64)
    expected = torch.tensor([0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0, math.log(4)], dtype=torch.float64)
    torch.testing.assert_close(relative_entropy(p, q), expected, rtol=1e-15, atol=0)
    assert relative_entropy(q, p[2]) == math.inf  # q has a state that p[2] lacks
    assert relative_entropy(p[2], p[2]) == 0


def test_relative_entropy_is_no_less_than_pinsker_says_and_keeps_its_digits() -> None:
    p, q = distributions(200, N, seed=1), distributions(200, N, seed=2)
    found = relative_entropy(p, q)
    assert (found >= (p - q).abs().sum(-1).square() / 2).all()
    torch.testing.assert_close(found, (p * (p / q).log()).sum(-1), rtol=1e-12, atol=0)
    z = torch.randn(200, N, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    direction = p * (z - (p * z).sum(-1, keepdim=True))
    for size in (1e-6, 1e-9):  # the plain sum of p log(p / q) has errors of 1e-16 of either sign
        second_order = (size * direction).square().div(p).sum(-1) / 2
        torch.testing.assert_close(relative_entropy(p + size * direction, p), second_order, rtol=1e-4, atol=0)


def test_relative_entropy_has_a_gradient_where_p_is_zero_or_far_below_q() -> None:
    """Criterion: the gradient is log(p / q) for p, and 1 - p / q for q. Where p is 0, that for p is -1."""
    p = torch.tensor([0.0, 1e-30, 0.2, 0.8], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.3, 0.2, 0.4, 0.1], dtype=torch.float64, requires_grad=True)
    for_p, for_q = torch.autograd.grad(relative_entropy(p, q), (p, q))
    torch.testing.assert_close(for_p, torch.cat([-torch.ones(1), (p / q).log()[1:]]))
    torch.testing.assert_close(for_q, 1 - p / q)


@pytest.mark.parametrize("part", [0.3, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_relative_entropy_never_grows_along_euler(seed: int, part: float) -> None:
    """Criterion: the H theorem holds from vertices and from the interior, until the entropy is 1e-25. The steps include
    the largest one."""
    generator = random_generator(N, seed)
    starts = torch.cat([torch.eye(N, dtype=torch.float64), distributions(4, N, seed=seed)])
    path = euler(generator, starts, part * largest_step(generator), 60, trajectory=True)
    found = relative_entropy(path.clamp(min=0), stationary(generator))  # at the bound a vertex may reach -1e-17
    still = found[:-1] > 1e-25
    assert (found[1:][still] < found[:-1][still]).all()
    assert still[:10].all()


def test_beyond_the_largest_step_relative_entropy_may_grow() -> None:
    """This shows that the test above can fail."""
    generator = chain([1.0], [1.0])
    with pytest.warns(UserWarning, match="largest safe step"):
        path = euler(generator, torch.tensor([0.6, 0.4]), 1.2, 3, trajectory=True)
    assert (relative_entropy(path, stationary(generator)).diff() > 0).all()


def test_column_sums_of_a_generators_step_are_one() -> None:
    generator, x = random_generator(N), distributions(3, N)
    for n_steps in (1, 7):
        dt = 0.9 * largest_step(generator)
        found = column_sums(lambda x, dt=dt, n_steps=n_steps: euler(generator, x, dt, n_steps), x)
        assert (found - 1).abs().max() < 1e-14


def test_column_sums_are_those_of_the_dense_jacobian() -> None:
    block = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    found = column_sums(lambda x: x + 0.5 * block(x), x)
    dense = torch.autograd.functional.jacobian(lambda x: x + 0.5 * block(x), x)  # 4 6 4 6
    torch.testing.assert_close(found, dense.sum((0, 1)))
    torch.testing.assert_close(found[2], dense[2, :, 2].sum(0))  # other members of the batch add nothing
    assert not found.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(column_sums(torch.sin, x[0]), x[0].cos())


def test_a_generator_of_zeros_allows_any_step() -> None:
    still = torch.zeros(2, 2, dtype=torch.float64)
    assert largest_step(still) == math.inf
    assert torch.equal(euler(still, vertex(2, 0), 1e6, 3), vertex(2, 0))
