"""The Jacobian as an operator, and its norm, agree with the dense matrix of each map."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attractor import attention
from attractor.analysis import (
    Effort,
    Jacobian,
    estimate_jacobian_norm,
    jacobian,
    jacobian_norm,
    spectral_radius,
    sphere_tangent,
)
from attractor.analysis.jacobian import backward_bytes
from attractor.models import FastSlowConfig
from attractor.models.maps import layer_maps

Map = Callable[[Tensor], Tensor]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


WEIGHTS = normal(3, 8, 8, seed=1) / 8**0.5


def attend(x: Tensor) -> Tensor:
    """Apply two heads of F.scaled_dot_product_attention to T x 8, add the residual, and normalise the rows."""
    q, k, v = ((x @ w).unflatten(-1, (2, 4)).transpose(-2, -3) for w in WEIGHTS)
    y = x + F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)
    return y / y.norm(dim=-1, keepdim=True)


class Cube(torch.autograd.Function):
    """A function in the style of older kernels, with neither forward mode nor vectorisation."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


def branching(x: Tensor) -> Tensor:
    """Branch on values of the input, which vectorised code may not."""
    return x.tanh() if bool((x > 9).any()) else x.sin()


def coupled() -> Map:
    """Build a map with one of our own kernels, which has no forward mode."""
    layer = attention.build("coupled-euler", d_model=8, n_heads=2).double()
    layer.load_state_dict({name: normal(*w.shape, seed=7) / 3 for name, w in layer.state_dict().items()})
    return lambda x: x + layer(x[None], causal_mask=True)[0][0]


MAPS: dict[str, tuple[Map, Tensor]] = {
    "vector": (lambda x: (WEIGHTS[0] @ x).tanh(), normal(8)),
    "attention": (attend, normal(5, 8)),
    "own-function": (lambda x: Cube.apply(x @ WEIGHTS[1]), normal(3, 8)),
    "own-kernel": (coupled(), normal(5, 8)),
    "branching": (branching, normal(2, 3)),
    "a-number": (lambda x: 4 * x * (1 - x), torch.tensor(0.3, dtype=torch.float64)),
    "constant": (lambda x: torch.ones_like(x), normal(4)),
}


def reference(step: Map, x: Tensor) -> Tensor:
    """Return the Jacobian, computed row by row in reverse mode."""
    x = x.clone().requires_grad_()
    y = step(x).reshape(-1)
    if not y.requires_grad:
        return torch.zeros(x.numel(), x.numel(), dtype=x.dtype)
    rows = [torch.autograd.grad(number, x, retain_graph=True)[0].reshape(-1) for number in y]
    return torch.stack(rows)


@pytest.fixture(params=MAPS, name="case")
def case_of(request: pytest.FixtureRequest) -> tuple[Map, Tensor]:
    return MAPS[request.param]


def test_products_are_those_of_the_matrix(case: tuple[Map, Tensor]) -> None:
    """Criterion: J v and J' u equal dense products to 1e-12, for blocks and for single directions; so does J itself."""
    step, x = case
    matrix, v = reference(step, x), normal(7, *x.shape, seed=2)
    operator = Jacobian(step, x)
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(operator.jvp(v).reshape(7, -1), v.reshape(7, -1) @ matrix.T, **close)
    torch.testing.assert_close(operator.vjp(v).reshape(7, -1), v.reshape(7, -1) @ matrix, **close)
    torch.testing.assert_close(operator.jvp(v[3]), operator.jvp(v)[3], **close)
    torch.testing.assert_close(operator.vjp(v[3]), operator.vjp(v)[3], **close)
    torch.testing.assert_close(jacobian(step, x), matrix, **close)


def test_products_of_the_operator_have_no_graph() -> None:
    layer = torch.nn.Linear(4, 4)
    x = torch.ones(4, requires_grad=True)
    operator = Jacobian(lambda x: layer(x).tanh(), x)
    for result in (operator.jvp(torch.ones(4)), operator.vjp(torch.ones(4)), operator.image, operator.x):
        assert not result.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(operator.jvp(torch.ones(4)), jacobian(lambda x: layer(x).tanh(), x) @ torch.ones(4))


def test_samples_have_their_own_matrix() -> None:
    """Criterion: each sample has the Jacobian that it has alone, even if the step works only for the size of the
    batch."""
    x, offset = normal(3, 5, 8), normal(3, 5, 8, seed=3)
    found = jacobian(lambda x: attend(x + offset), x, batched=True)
    for b in range(3):
        torch.testing.assert_close(found[b], jacobian(lambda x, b=b: attend(x + offset[b]), x[b]))


def test_a_limit_of_memory_cuts_blocks_and_changes_nothing() -> None:
    """Criterion: with memory for three directions at once, 11 directions take four calls and give the same products."""
    x, v = normal(5, 8), normal(11, 5, 8, seed=2)
    n_calls = 0

    def watched(x: Tensor) -> Tensor:
        nonlocal n_calls
        n_calls += 1
        return attend(x)

    whole = Jacobian(attend, x)
    narrow = Jacobian(watched, x, max_bytes=3 * backward_bytes(attend, x))
    assert whole.n_at_once > 11
    n_calls = 0
    torch.testing.assert_close(narrow.jvp(v), whole.jvp(v))
    assert n_calls == 4
    torch.testing.assert_close(narrow.vjp(v), whole.vjp(v))
    assert Jacobian(attend, x, max_bytes=1).n_at_once == 1


def test_saved_bytes_exclude_weights_shared_by_all_directions() -> None:
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    assert backward_bytes(lambda x: (x @ weight).tanh() @ weight, torch.zeros(2, 64)) == 2 * (2 * 64 * 4)


def test_tangent_space_is_taken_at_both_ends() -> None:
    """Criterion: the matrix is P(step(x)) J P(x), and `vjp` its transpose, with the projections P written out."""
    step, x = MAPS["attention"]
    for tangent, width in ((sphere_tangent(), 8), (sphere_tangent(4), 4)):

        def projection(x: Tensor, width: int = width) -> Tensor:
            groups = F.normalize(x.reshape(-1, width), dim=-1)
            return torch.block_diag(*(torch.eye(width, dtype=x.dtype) - torch.outer(m, m) for m in groups))

        expected = projection(step(x)) @ reference(step, x) @ projection(x)
        torch.testing.assert_close(jacobian(step, x, tangent=tangent), expected)
        v = normal(2, *x.shape, seed=4)
        found = Jacobian(step, x, tangent=tangent).vjp(v)
        torch.testing.assert_close(found.reshape(2, -1), v.reshape(2, -1) @ expected)


def test_with_a_gain_the_image_lies_in_the_tangent_space_of_the_ellipsoid() -> None:
    """Criterion: projecting onto the tangent space of the ellipsoid does not change the image of the Jacobian of g x /
    |x|."""
    gain = torch.linspace(0.5, 2, 6, dtype=torch.float64)
    x = normal(4, 6)

    def step(x: Tensor) -> Tensor:
        return gain * F.normalize(x @ normal(6, 6, seed=5), dim=-1)

    moved = Jacobian(step, x).jvp(normal(3, 4, 6, seed=6))
    torch.testing.assert_close(sphere_tangent(gain=gain)(step(x), moved), moved)
    assert (sphere_tangent()(step(x), moved) - moved).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norm_of_a_random_matrix_of_500_dimensions(dtype: torch.dtype) -> None:
    """Criterion: by default, the norm is within 1e-4 of the dense one, although the largest singular values are 1%
    apart."""
    matrix = normal(500, 500, dtype=dtype) / 500**0.5
    largest = torch.linalg.svdvals(matrix.double())[0]
    for tolerance in (None, 1e-5):
        effort = Effort(tolerance=tolerance)
        estimate = estimate_jacobian_norm(lambda x: matrix @ x, torch.zeros(500, dtype=dtype), effort=effort)
        assert abs(estimate.norm.double() / largest - 1) < 1e-4
        assert estimate.error < (tolerance or 1e-4)
        assert estimate.n_iterations <= 80


KNOWN = {
    "identity": (torch.eye(6), 1.0),
    "zero": (torch.zeros(6, 6), 0.0),
    "repeated": (torch.diag(torch.tensor([3.0, 3.0, -3.0, 1.0])), 3.0),
    "nilpotent": (torch.tensor([[0.0, 5.0], [0.0, 0.0]]), 5.0),
    "number": (torch.tensor([[2.0]]), 2.0),
}


@pytest.mark.parametrize(("matrix", "norm"), KNOWN.values(), ids=KNOWN)
def test_norm_where_lanczos_ends_early(matrix: Tensor, norm: float) -> None:
    assert jacobian_norm(lambda x: matrix @ x, torch.ones(len(matrix))).item() == pytest.approx(norm, rel=1e-6)


def test_norms_of_samples_that_end_at_different_times() -> None:
    """Criterion: an identity, a zero and a full matrix in one batch each have the right norm."""
    matrices = torch.stack([torch.eye(40), torch.zeros(40, 40), normal(40, 40, dtype=torch.float32)])
    found = jacobian_norm(lambda x: (matrices @ x.unsqueeze(-1)).squeeze(-1), torch.ones(3, 40), batched=True)
    torch.testing.assert_close(found, torch.linalg.matrix_norm(matrices, 2), rtol=1e-5, atol=1e-6)


def test_norm_that_has_not_converged_warns_and_says_by_how_much() -> None:
    matrix = normal(300, 300)
    x, effort = torch.zeros(300, dtype=matrix.dtype), Effort(max_iterations=8)
    with pytest.warns(RuntimeWarning, match=r"after 8 iterations its relative error may .*larger max_iterations"):
        found = jacobian_norm(lambda x: matrix @ x, x, effort=effort)
    error = 1 - found / torch.linalg.matrix_norm(matrix, 2)
    assert 1e-5 < error < 0.2


def test_norm_of_attention_is_the_dense_one() -> None:
    x = normal(4, 5, 8)
    for tangent in (None, sphere_tangent()):
        dense = torch.linalg.matrix_norm(jacobian(attend, x, batched=True, tangent=tangent), 2)
        torch.testing.assert_close(jacobian_norm(attend, x, batched=True, tangent=tangent), dense, rtol=1e-6, atol=0)


class Once(torch.autograd.Function):
    """Multiplies rows by a matrix. Its derivative is right, and has no derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x @ WEIGHTS[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient @ WEIGHTS[0].T


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("residual", [0.0, 1.0])
def test_a_step_with_one_derivative_has_its_jacobian(residual: float, batched: bool) -> None:
    x = normal(3, 8)
    step: Map = lambda x: residual * x.sin() + Once.apply(x)  # noqa: E731
    known: Map = lambda x: residual * x.sin() + x @ WEIGHTS[0]  # noqa: E731
    for measure in (jacobian, jacobian_norm, spectral_radius):
        torch.testing.assert_close(measure(step, x, batched=batched), measure(known, x, batched=batched))


def test_the_equilibrium_of_a_fast_slow_model_has_its_jacobian() -> None:
    config = FastSlowConfig(20, d_model=8, n_heads=2, d_ff=8, pool_factor=2, max_seq_len=4)
    config = config.replace(equilibrium="deq", n_iterations=90)
    step, x = layer_maps(config.build(seed=0).double().eval(), torch.arange(3)[None]).block(2)
    v = normal(*x.shape, seed=4)
    with torch.no_grad():
        difference = (step(x + 1e-6 * v) - step(x - 1e-6 * v)) / 2e-6
    torch.testing.assert_close(Jacobian(step, x).jvp(v), difference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_the_size_of_a_derivative_is_no_reason_to_refuse_it(scale: float) -> None:
    weight = normal(8, 8, dtype=torch.float32)
    norm = jacobian_norm(lambda x: scale * (weight @ x), torch.ones(8))
    torch.testing.assert_close(norm.double(), scale * torch.linalg.matrix_norm(weight.double(), 2), rtol=1e-4, atol=0)


def test_a_step_in_half_precision_is_accepted() -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).eval()

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x[None])[0].float()

    assert jacobian_norm(step, normal(6, 64, dtype=torch.float32)) > 0
