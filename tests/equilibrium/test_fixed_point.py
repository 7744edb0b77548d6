"""Solves of fixed points of causal maps: causality, accuracy, reported residuals and gradients.

Numbers in brackets are the equations of `attractor.equilibrium.fixed_point`.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attractor import attention
from attractor.attention.cache import Cache
from attractor.equilibrium.fixed_point import IMPLICIT, METHODS, Equilibrium, Solver, growth_rate
from attractor.errors import InputError
from tiers import fast_alone

WIDTH = 4
SOLVERS = {method: Solver(method, 5) for method in ("passes", "anderson", "deq", "forced", "forced-deq")}
SOLVERS |= {"single": Solver(), "anderson, depth 3": Solver("anderson", 6, depth=3)}
SOLVERS |= {"deq, depth 3": Solver("deq", 7, depth=3, backward_iterations=4)}
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


class Toy(nn.Module):
    """Compute z + (mean over the past of tanh(z W)) V. Its cache holds the sum and number of the past tokens."""

    def __init__(self, scale: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        drawn = scale * torch.randn(2, WIDTH, WIDTH, dtype=torch.float64, generator=generator)
        self.weight, self.value = map(nn.Parameter, drawn)

    def forward(self, z: Tensor, index: int, past: dict[int, tuple[Tensor, int]] | None = None) -> Tensor:
        before, n_before = (past or {}).get(index, (torch.zeros_like(z[:, :1]), 0))
        summed = before + (z @ self.weight).tanh().cumsum(1)
        counts = n_before + torch.arange(1, z.shape[1] + 1, dtype=z.dtype).unsqueeze(-1)
        if past is not None:
            past[index] = summed[:, -1:], n_before + z.shape[1]
        return z + (summed / counts) @ self.value


class Layer(nn.Module):
    """A transformer block with real attention."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = attention.build(name, d_model=8, n_heads=2).double()
        self.up, self.down = nn.Linear(8, 16, dtype=torch.float64), nn.Linear(16, 8, dtype=torch.float64)

    def forward(self, z: Tensor, index: int, past: dict[int, Cache] | None = None) -> Tensor:
        cache = None if past is None else past.setdefault(index, Cache())
        z = z + self.attention(F.rms_norm(z, (8,)), causal_mask=True, cache=cache)[0]
        return z + self.down(F.gelu(self.up(F.rms_norm(z, (8,)))))


class Linear(nn.Module):
    """Compute z + M z, where M is a causal matrix of the given spectral radius. M is the Jacobian of G in (4)."""

    def __init__(self, length: int, radius: float, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(length, WIDTH, length, WIDTH, dtype=torch.float64, generator=generator) / length
        matrix = matrix * torch.ones(length, length, dtype=torch.float64).tril()[:, None, :, None]
        self.matrix = nn.Parameter(matrix * radius / torch.linalg.eigvals(flat(matrix)).abs().max())

    def forward(self, z: Tensor, index: int = 0) -> Tensor:
        return z + torch.einsum("tiuj,buj->bti", self.matrix, z)


def flat(matrix: Tensor) -> Tensor:
    return matrix.flatten(2).flatten(0, 1)


def inputs(batch: int = 2, length: int = 7, width: int = WIDTH, seed: int = 1) -> Tensor:
    return torch.randn(batch, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradients(state: Tensor, *variables: Tensor) -> list[Tensor]:
    weights = torch.randn(state.shape, dtype=state.dtype, generator=torch.Generator().manual_seed(2))
    return list(torch.autograd.grad((state * weights).sum(), variables))


def assert_same_gradients(state: Tensor, expected: Tensor, *variables: Tensor, within: float = 1e-7) -> None:
    for ours, theirs in zip(gradients(state, *variables), gradients(expected, *variables), strict=True):
        torch.testing.assert_close(ours, theirs, atol=within, rtol=within)


def solved(solver: Solver, step: Callable[[Tensor, int], Tensor], u: Tensor) -> Equilibrium:
    """Solve from u. Under "forced-deq", whose root forgets the start, solve the equation of "deq": z = F(z) - z + u."""
    if solver.method != "forced-deq":
        return solver.solve(step, u)
    return solver.solve(lambda z, index: step(z, index) - z, u, u)


@every_solver
@pytest.mark.parametrize("make", [Toy, lambda: Layer("standard"), lambda: Layer("coupled-euler")])
def test_no_token_depends_on_the_future_or_another_sequence(solver: Solver, make: Callable[[], nn.Module]) -> None:
    """Criterion: a token has a nonzero gradient at itself and every earlier token, and exactly zero at later tokens and
    in other rows. Gradients show every smooth dependence."""
    step = make()
    u = inputs(width=WIDTH if isinstance(step, Toy) else 8).requires_grad_()
    state = solved(solver, step, u).state
    for t in range(u.shape[1]):
        (gradient,) = torch.autograd.grad(state[1, t].sum(), u, retain_graph=True)
        assert gradient[1, : t + 1].any(-1).all()
        assert not gradient[1, t + 1 :].any()
        assert not gradient[0].any()


@every_solver
def test_values_do_not_depend_on_the_future_or_other_sequences(solver: Solver) -> None:
    """Criterion: when later tokens overflow and another sequence is NaN, the other states keep every bit. Stopping
    rules and choices of an iterate have no gradient, so the values are compared as well."""
    u = inputs(3)
    changed = u.clone()
    changed[0, 4:] = 1e300
    changed[1] = torch.nan
    step = Linear(7, 0.9)
    assert torch.equal(solver.solve(step, u).state[0, :4], solver.solve(step, changed).state[0, :4])
    assert torch.equal(solver.solve(step, u).state[2], solver.solve(step, changed).state[2])


@every_solver
@pytest.mark.parametrize("make", [Toy, lambda: Layer("standard"), lambda: Layer("mla")])
def test_a_solve_in_parts_with_caches_equals_the_whole_solve(solver: Solver, make: Callable[[], nn.Module]) -> None:
    step = make().eval()
    u = inputs(length=11, width=WIDTH if isinstance(step, Toy) else 8)
    past: dict[int, Any] = {}
    with torch.no_grad():
        whole = solver.solve(step, u)
        parts = [solver.solve(lambda z, index: step(z, index, past), part) for part in u.split([4, 1, 1, 3, 2], dim=1)]
    torch.testing.assert_close(torch.cat([part.state for part in parts], 1), whole.state, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(torch.cat([part.residual for part in parts], 1), whole.residual, atol=1e-9, rtol=1e-9)
    assert sorted(past) == list(range(solver.n_iterations))


@every_solver
def test_evaluations_are_numbered_and_their_number_is_fixed(solver: Solver) -> None:
    """Criterion: the number of evaluations is the same even if the start is a fixed point already."""
    for start in (inputs(), torch.zeros(2, 7, WIDTH)):
        numbers = []
        result = solver.solve(lambda z, index, seen=numbers: seen.append(index) or z, start)
        assert numbers == list(range(solver.n_iterations))
        assert result.trace.shape == (solver.n_iterations,)
        assert not result.residual.any()
        assert torch.equal(result.state, start)


@pytest.mark.parametrize("method", METHODS)
def test_one_evaluation_is_the_single_pass(method: str) -> None:
    step, u = Toy(), inputs().requires_grad_()
    state = Solver(method, 1).solve(step, u).state
    expected = step(u, 0)
    assert torch.equal(state, expected)
    assert_same_gradients(state, expected, u, step.weight, step.value)


def test_depth_one_is_the_rule_of_the_paper() -> None:
    """Criterion: the states equal those of FastSlow, section 11.3, written as a loop over tokens."""
    step, u = Toy(), inputs(1)
    x_old, x = u, step(u, 0)
    for _ in range(3):
        r_old, r = step(x_old, 0) - x_old, step(x, 0) - x
        x_next = x.clone()
        for t in range(u.shape[1]):
            dx, dr = x[0, t] - x_old[0, t], r[0, t] - r_old[0, t]
            alpha = (dr @ r[0, t]) / (dr @ dr)
            x_next[0, t] = x[0, t] + r[0, t] - alpha * (dx + dr)
        x_old, x = x, x_next
    torch.testing.assert_close(Solver("anderson", 4).solve(step, u).state, x, atol=1e-10, rtol=1e-10)


def test_the_limit_of_passes_forgets_the_input_and_that_of_deq_does_not() -> None:
    """Criterion: after 200 passes two inputs give the same state, since a contraction has one fixed point. The root of
    (4) contains the input, so the states of two inputs stay apart."""
    contraction = Layer("standard")

    def apart(method: str, n_iterations: int) -> Tensor:
        solver = Solver(method, n_iterations)
        states = [
            solver.solve(lambda z, index: 0.5 * contraction(F.rms_norm(z, (8,)), index), u).state
            for u in (inputs(width=8), inputs(width=8, seed=3))
        ]
        return (states[0] - states[1]).abs()

    assert apart("passes", 1).max() > 0.1
    assert apart("passes", 200).max() < 1e-10 * apart("passes", 1).max()
    assert apart("deq", 64).mean() > 0.1


def contracting(z: Tensor, index: int) -> Tensor:
    """A contraction over the past of a sequence."""
    return 0.3 * z + 0.2 * (z.cumsum(1) / torch.arange(1, z.shape[1] + 1, dtype=z.dtype).unsqueeze(-1)).tanh()


def test_the_limit_of_forced_depends_on_the_forcing_alone() -> None:
    """Criterion: from two starts with the same forcing, the states agree within 1e-8; with two forcings they do not.
    The state solves z = F(z) + c, and its residual says so."""
    solver, u, v, c, d = Solver("forced", 64), *(inputs(seed=seed) for seed in range(4))
    from_u, from_v = (solver.solve(contracting, start, c) for start in (u, v))
    assert (from_u.state - from_v.state).abs().max() < 1e-8
    assert (from_u.state - solver.solve(contracting, u, d).state).abs().max() > 1e-2
    torch.testing.assert_close(from_u.state, contracting(from_u.state, 0) + c)
    assert from_u.n_unsolved == 0
    torch.testing.assert_close(Solver("forced-deq", 64).solve(contracting, v, c).state, from_u.state)
    assert torch.equal(solver.solve(contracting, u).state, Solver("passes", 64).solve(contracting, u).state)


def test_forced_has_exact_gradients_and_reads_no_future() -> None:
    """Criterion: gradients for start and forcing agree with finite differences, and are zero at later tokens."""
    solver, u, c = Solver("forced", 3), inputs().requires_grad_(), inputs(seed=5).requires_grad_()
    assert torch.autograd.gradcheck(lambda u, c: solver.solve(contracting, u, c).state, (u, c))
    for t in range(7):
        for gradient in torch.autograd.grad(solver.solve(contracting, u, c).state[:, t].sum(), (u, c)):
            assert gradient[:, : t + 1].any()
            assert not gradient[:, t + 1 :].any()


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_mixing_needs_fewer_evaluations_than_passes(depth: int) -> None:
    """Criterion: on linear contractions, Anderson mixing needs fewer than 80% of the passes for a residual of 1e-10."""
    for seed in range(3):
        map = Linear(5, 0.9, seed)
        reached = {}
        for method, options in (("passes", {}), ("anderson", {"depth": depth})):
            trace = Solver(method, 400, **options).solve(lambda z, _, map=map: map(z) - z + 1, inputs(1, 5)).trace
            reached[method] = int((trace > 1e-10).sum())
        assert reached["anderson"] < 0.8 * reached["passes"] < 0.8 * 400


def test_deq_solves_linear_equations() -> None:
    """Criterion: the state is (1 - M)^-1 u, and the gradient is the transposed inverse times the given one. The
    spectral radius is 0.9, close to 1, where plain iteration fails."""
    step, u = Linear(6, 0.9), inputs(3, 6).requires_grad_()
    result = Solver("deq", 300, depth=3, tolerance=1e-12).solve(step, u)
    inverse = torch.linalg.inv(torch.eye(6 * WIDTH, dtype=torch.float64) - flat(step.matrix))
    torch.testing.assert_close(result.state.flatten(1), u.flatten(1) @ inverse.T, atol=1e-10, rtol=1e-10)
    assert result.n_unsolved == 0
    g = inputs(3, 6, seed=5)
    (gradient,) = torch.autograd.grad((result.state * g).sum(), u)
    torch.testing.assert_close(gradient.flatten(1), g.flatten(1) @ inverse, atol=1e-10, rtol=1e-10)


def test_deq_reaches_a_root_with_any_number_of_token_dimensions() -> None:
    toy, u = Toy(), inputs(width=3 * WIDTH).unflatten(-1, (3, WIDTH))

    def step(z: Tensor, index: int) -> Tensor:
        return toy(z.flatten(2).unflatten(2, (WIDTH, 3)).mean(-1), index).unsqueeze(2) + z - z.mean(2, keepdim=True)

    result = Solver("deq", 80, tolerance=1e-12).solve(step, u)
    torch.testing.assert_close(result.state, u + step(result.state, 0) - result.state)
    assert result.residual.shape == u.shape[:2]
    assert result.n_unsolved == 0


def test_mixing_is_the_same_under_vmap() -> None:
    """Criterion: `vmap` over three weights equals three solves. It fails on code that branches on a tensor's value."""
    solver, u = Solver("anderson", 4, depth=2), inputs()
    weights = torch.stack([Toy(seed=s).weight.detach() for s in range(3)])

    def solve(weight: Tensor) -> Tensor:
        return solver.solve(lambda z, _: z + (z @ weight).tanh(), u).state

    torch.testing.assert_close(torch.vmap(solve)(weights), torch.stack([solve(weight) for weight in weights]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("solver", [Solver("anderson", 60), Solver("deq", 60), Solver("deq", 60, depth=3)])
def test_expansive_maps_count_as_unsolved_and_give_no_nan(solver: Solver, dtype: torch.dtype) -> None:
    """Criterion: evaluated states, result and gradient stay finite, and exactly the expansive row counts as unsolved.
    The map of the first row contracts. That of the second multiplies by 30 at each step, until numbers overflow."""
    scale = torch.tensor([0.3, 30.0], dtype=dtype).view(2, 1, 1)
    turn = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))[0].to(dtype)
    u = inputs(width=16).to(dtype).requires_grad_()
    evaluated = []

    def step(z: Tensor, index: int) -> Tensor:
        evaluated.append(z.detach())
        return (scale * z.roll(1, -1) @ turn) + (z if solver.method == "deq" else 1)

    result = solver.solve(step, u)
    assert all(z.isfinite().all() for z in evaluated)
    assert result.state.isfinite().all()
    assert result.largest_residual > 0.1
    if dtype != torch.float16:  # fp16 cannot reach the tolerance in the first row
        assert result.n_unsolved == u.shape[1]
    if solver.method == "deq":
        (gradient,) = gradients(result.state, u)
        assert gradient.isfinite().all()


def test_the_best_iterate_is_kept_token_by_token() -> None:
    """The result is the image of the evaluated state with the smallest residual, and that residual is reported."""
    seen = []

    def step(z: Tensor, index: int) -> Tensor:
        seen.append((z, 4 * (3 * z).sin() @ torch.linspace(-1, 1, WIDTH**2, dtype=z.dtype).view(WIDTH, WIDTH)))
        return z + seen[-1][1]

    u = inputs(3)
    result = Solver("deq", 12).solve(step, u)
    states, images = torch.stack([z for z, _ in seen]), torch.stack([u + change for _, change in seen])
    residuals = (images - states).norm(dim=-1) / states.norm(dim=-1)
    least, chosen = residuals.min(0)
    assert len(chosen.unique()) > 2
    torch.testing.assert_close(result.residual, least)
    torch.testing.assert_close(result.trace, residuals.mean((1, 2)))
    torch.testing.assert_close(result.state, images.gather(0, chosen[None, ..., None].expand_as(images[:1]))[0])
    assert result.n_unsolved == (least > result.tolerance).sum()


@every_solver
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close_and_stays_half(solver: Solver, dtype: torch.dtype) -> None:
    toy = Toy()

    def step(z: Tensor, index: int) -> Tensor:
        """Apply a contraction, or for implicit methods a map whose G in (4) is a contraction."""
        return toy(z, index) - (0 if solver.method in IMPLICIT else z - 1)

    wide = solved(solver, step, inputs()).state
    u = inputs().to(dtype).requires_grad_()
    toy.to(dtype)
    result = solved(solver, step, u)
    assert result.state.dtype == dtype
    assert result.trace.dtype == torch.float32
    torch.testing.assert_close(result.state.double(), wide, atol=0.1, rtol=0.1)
    assert all(x.isfinite().all() for x in gradients(result.state, u, toy.weight))


@pytest.mark.parametrize("solver", [Solver("anderson", 5), Solver("anderson", 5, depth=3), Solver("deq", 5)])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_constant_residual_causes_no_division_by_zero(solver: Solver, offset: float) -> None:
    """Criterion: states and gradients are exact where the residual is constant or zero, so that (3) has dr = 0."""
    u = inputs().requires_grad_()
    result = solver.solve(lambda z, _: z + offset, u)
    torch.testing.assert_close(result.state, u + offset * (1 if solver.method == "deq" else 5))
    (gradient,) = torch.autograd.grad(result.state.sum(), u)
    torch.testing.assert_close(gradient, torch.ones_like(u))


def unrolled(step: Callable[[Tensor, int], Tensor], u: Tensor, n: int = 300) -> Tensor:
    z = u
    for _ in range(n):
        z = u + step(z, 0) - z
    return z


@pytest.mark.parametrize("depth", fast_alone([1, 3], 1))
@pytest.mark.parametrize("make", [lambda: Toy(0.6), lambda: Linear(7, 0.8), lambda: Layer("standard")])
def test_the_implicit_gradient_is_that_of_unrolling(make: Callable[[], nn.Module], depth: int) -> None:
    """Criterion: both gradients agree for the input and for every parameter."""
    step = make()
    u = inputs(width=8 if isinstance(step, Layer) else WIDTH).requires_grad_()
    result = Solver("deq", 120, depth=depth, tolerance=1e-10).solve(step, u)
    assert result.n_unsolved == 0
    assert_same_gradients(result.state, unrolled(step, u), u, *step.parameters(), within=1e-8)


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_forced_deq_solves_the_equation_of_deq_where_both_have_one(n: int) -> None:
    """Criterion: with F(z) - z in place of F and c = u, the root, the residuals and all gradients are those of deq."""
    step, u = Toy(), inputs().requires_grad_()
    deq, forced = Solver("deq", n).solve(step, u), solved(Solver("forced-deq", n), step, u)
    torch.testing.assert_close(forced.residual, deq.residual)
    assert_same_gradients(forced.state, deq.state, u, *step.parameters())


def test_gradients_agree_with_finite_differences() -> None:
    u = inputs(1, 3).requires_grad_()
    weights = [weight.detach().requires_grad_() for weight in Toy().parameters()]
    for solver in (Solver("deq", 60), Solver("anderson", 4), Solver("anderson", 4, depth=2)):

        def solve(u: Tensor, *weights: Tensor, solver: Solver = solver) -> Tensor:
            named = dict(zip(("weight", "value"), weights, strict=True))
            return solver.solve(lambda z, i: torch.func.functional_call(Toy(), named, (z, i)), u).state

        assert torch.autograd.gradcheck(solve, (u, *weights), fast_mode=True)


def test_without_backward_iterations_the_gradient_is_of_one_evaluation() -> None:
    """Criterion: without backward iterations, the gradient is that of one evaluation at the root. With more iterations,
    its distance from the gradient of the unrolled solve shrinks."""
    step, u = Toy(), inputs().requires_grad_()
    (true,) = gradients(unrolled(step, u), step.weight)
    off = []
    for n in (0, 1, 2, 4, 8):
        result = Solver("deq", 60, backward_iterations=n).solve(step, u)
        (ours,) = gradients(result.state, step.weight)
        off.append((ours - true).norm().item())
    (once,) = gradients(step(unrolled(step, u).detach(), 0), step.weight)
    torch.testing.assert_close(off[0], (once - true).norm().item())
    assert off == sorted(off, reverse=True)
    assert off[-1] < 0.01 * off[0]


def test_one_backward_iteration_reaches_tokens_without_a_gradient_of_their_own() -> None:
    """Criterion: if only the last token has a gradient g, one iteration of (5) gives g + J'g at every token."""
    step, u = Linear(7, 0.5), inputs().requires_grad_()
    g = torch.zeros_like(u)
    g[:, -1] = 1
    (found,) = torch.autograd.grad(Solver("deq", 5, backward_iterations=1).solve(step, u).state, u, g)
    torch.testing.assert_close(found, g + torch.einsum("tiuj,bti->buj", step.matrix, g))


@contextmanager
def saved_numbers() -> Iterator[list[int]]:
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        yield saved


def test_memory_does_not_grow_with_evaluations() -> None:
    """Criterion: "deq" saves as many numbers for 50 evaluations as for 2, and nothing is saved without gradients."""
    step, u = Toy(), inputs().requires_grad_()
    sizes = []
    for solver in (Solver("passes", 1), Solver("deq", 2), Solver("deq", 50)):
        with saved_numbers() as saved:
            solver.solve(step, u)
        sizes.append(sum(saved))
    assert sizes[0] <= sizes[1] == sizes[2] <= 1.5 * sizes[0]
    for mode in (torch.no_grad(), torch.inference_mode()):
        for solver in SOLVERS.values():
            with mode, saved_numbers() as saved:
                assert not solver.solve(step, u).state.requires_grad
            assert not saved


def test_the_graph_of_a_solve_is_freed_with_its_result() -> None:
    """Criterion: the last state is freed with the result, without the garbage collector. A graph that refers to itself
    would keep the activations of a model until the next collection."""
    step, last = Toy(), []

    def watched(z: Tensor, index: int) -> Tensor:
        last.append(weakref.ref(z))
        return step(z, index)

    gc.collect()
    gc.disable()
    try:
        result = Solver("deq", 4).solve(watched, inputs().requires_grad_())
        assert last[-1]() is not None
        del result
        assert last[-1]() is None
    finally:
        gc.enable()


def test_growth_of_known_maps() -> None:
    """Criterion: the estimate equals the known value of a scaled rotation, of multiples, a shift and a causal matrix.
    The eigenvalues of the rotation are a complex pair, and the shift is nilpotent, so its growth rate is zero."""
    z = inputs(3, 5, 2)
    turn = 0.9 * torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    torch.testing.assert_close(growth_rate(lambda z: z @ turn, z), torch.full((3,), 0.9, dtype=torch.float64))
    factors = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).view(3, 1, 1)
    torch.testing.assert_close(growth_rate(lambda z: factors * z, z), factors.flatten())
    assert not growth_rate(lambda z: F.pad(z, (0, 0, 1, -1)), z).any()
    map, z = Linear(6, 0.8), inputs(2, 6)
    found = growth_rate(lambda z: map(z) - z, z, 200)
    torch.testing.assert_close(found, torch.full((2,), 0.8).double(), atol=0.01, rtol=0)


def test_the_growth_rate_predicts_whether_plain_iteration_converges() -> None:
    for scale, converges in ((0.4, True), (2.0, False)):
        step, u = Toy(scale), inputs()
        z = unrolled(step, u).detach()
        root = Solver("deq", 400, depth=3).solve(step, u).state.detach()
        assert (growth_rate(lambda z, step=step: step(z, 0) - z, root).max() < 1) == converges
        assert ((z - root).abs().max() < 1e-6) == converges


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "andersen"}, "did you mean 'anderson'"),
        ({"method": "passes", "n_iterations": 0}, "n_iterations must be an integer of at least 1, got 0"),
        ({"method": "passes", "n_iterations": 2.0}, "n_iterations must be an integer of at least 1, got 2.0"),
        ({"n_iterations": 3}, "n_iterations must be 1 under method 'single', got 3; choose method 'passes'"),
        ({"method": "passes", "depth": 2}, "depth must be 1 under method 'passes', got 2"),
        ({"method": "deq", "depth": 0}, "depth must be an integer of at least 1, got 0"),
        ({"method": "deq", "backward_iterations": -1}, "backward_iterations must be an integer of at least 0, got -1"),
        ({"method": "anderson", "backward_iterations": 3}, "backward_iterations must be None under method 'anderson'"),
        ({"method": "deq", "tolerance": 0.0}, "tolerance must be positive, got 0.0"),
        ({"tolerance": 0.1}, "tolerance must be 0.001 under method 'single', got 0.1; choose method 'passes' or"),
    ],
)
def test_invalid_fields_are_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        Solver(**fields)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("factor", [0.5, 3.0, 100.0])
def test_growth_in_fp16_does_not_overflow(factor: float) -> None:
    z = torch.randn(1, 512, 256, generator=torch.Generator().manual_seed(0)).half()
    torch.testing.assert_close(growth_rate(lambda z: factor * z, z).float(), torch.tensor([factor]), rtol=0.01, atol=0)
