"""The decayed sum in pieces equals the sum over pairs, forward and backward, and no cost is quadratic in the length."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attractor.attention.mask import Mask
from attractor.attention.score.decayed import decayed_weights
from attractor.attention.score.softmax import weigh
from attractor.kernels.decay import decayed_attention, survival
from saved_tensors import Largest

B, H, K, V, PIECE, SCALE = 2, 4, 3, 5, 4, 0.6


def reference(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    return weigh(decayed_weights(q, k, log_decay, Mask(causal=True), SCALE), v)


def case(length: int, kv_heads: int = 2, slowest: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return q, k, v and log a, where -log a is spread over six powers of ten up to `slowest`."""
    generator = torch.Generator().manual_seed(length)
    shapes = [(B, H, length, K), (B, kv_heads, length, K), (B, kv_heads, length, V), (B, kv_heads, length)]
    q, k, v, z = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    log_decay = -slowest * 10 ** (z.abs() * -2)
    return [*(x.to(dtype).requires_grad_() for x in (q, k, v)), log_decay.requires_grad_()]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 13, 16])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("slowest", [1.0, 1e3])
def test_values_and_gradients_equal_the_reference(length: int, kv_heads: int, slowest: float) -> None:
    """Criterion: they agree to 1e-12 in fp64, for lengths of whole pieces and of incomplete ones."""
    given = case(length, kv_heads, slowest)
    found, expected = decayed_attention(*given, SCALE, piece=PIECE), reference(*given)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    probe = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    ours, theirs = (torch.autograd.grad((c * probe).sum(), given) for c in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("batch", "length"), [(0, 13), (2, 0)])
def test_an_empty_batch_or_sequence_gives_an_empty_context(batch: int, length: int) -> None:
    context = decayed_attention(*[x[:batch] for x in case(length)], SCALE, piece=PIECE)
    assert context.shape == (batch, H, length, V)
    context.sum().backward()


@pytest.mark.slow
def test_second_derivatives_are_right() -> None:
    assert torch.autograd.gradgradcheck(lambda *given: decayed_attention(*given, SCALE, piece=2), case(5))


def test_the_future_has_no_gradient() -> None:
    """Criterion: gradients are exactly zero before, within and after the query's piece."""
    given = case(13)
    context = decayed_attention(*given, SCALE, piece=PIECE)
    for t in range(13):
        for gradient in torch.autograd.grad(context[:, :, t].sum(), given, retain_graph=True):
            assert (gradient[:, :, t + 1 :] == 0).all()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rounding_is_that_of_the_reference(dtype: torch.dtype, autocast: bool) -> None:
    """Criterion: the root mean square error against fp64 is at most 1.5 times that of the reference."""
    given = [x.detach() for x in case(400, dtype=dtype)]
    exact = reference(*(x.double() for x in given))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = decayed_attention(*given, SCALE, piece=64), reference(*given)
    assert found[0].dtype == found[1].dtype
    ours, theirs = ((c.double() - exact).square().mean().sqrt() for c in found)
    assert 0 < ours <= 1.5 * theirs


def test_far_positions_cost_near_ones_no_precision() -> None:
    """Criterion: in fp32 the survival over one step is exact to 1e-6 after 2,000 positions whose logarithms sum to
    -100,000. A difference of running sums would be off by 1e-3."""
    ones = torch.ones(1, 1, 2010, 1)
    log_decay = torch.cat([torch.full((1, 1, 2000), -50.0), torch.full((1, 1, 10), -0.01)], dim=-1)
    v = ones.clone()
    v[0, 0, :-2] = v[0, 0, -1] = 0
    found = decayed_attention(ones, ones, v, log_decay, 1.0)[0, 0, -1, 0]
    torch.testing.assert_close(found, torch.tensor(-0.01).exp(), rtol=1e-6, atol=0)


def test_survival_is_the_product_of_the_decays_between_two_positions() -> None:
    a = torch.rand(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    by_hand = [[a[s + 1 : t + 1].prod() if s <= t else 0.0 for s in range(6)] for t in range(6)]
    torch.testing.assert_close(survival(a.log()), torch.tensor(by_hand, dtype=torch.float64))


def test_cost_is_linear_in_the_length() -> None:
    """Criterion: twice the length doubles the largest tensor of both passes, and the products within 2%. A sum over
    pairs would quadruple both."""
    sizes, flops = [], []
    for length in (1024, 2048):
        given = [torch.empty_like(x, device="meta").requires_grad_() for x in case(length)]
        with FlopCounterMode(display=False) as counter, Largest() as largest:
            decayed_attention(*given, SCALE).sum().backward()
        sizes.append(largest.n_numbers)
        flops.append(counter.get_total_flops())
    assert sizes[1] == 2 * sizes[0]
    assert 2 <= flops[1] / flops[0] < 2.04


@pytest.mark.slow
def test_the_sum_compiles_without_a_graph_break() -> None:
    given = case(13)
    compiled = torch.compile(decayed_attention, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*given, SCALE, piece=PIECE), decayed_attention(*given, SCALE, piece=PIECE)
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(c.sum(), given) for c in (found, expected))
    torch.testing.assert_close(ours, theirs)
