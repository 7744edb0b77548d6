"""The kernels of differential attention equal the reference, forward and backward. They are interpreted, or run on a
GPU where there is one; the interpreter does not support bf16."""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attractor.kernels.differential import IMPLEMENTATIONS, differential_attention_reference, maps_of_pairs
from attractor.kernels.gpu import differential
from attractor.kernels.gpu.differential import AttentionTile, KernelTiles

DEVICE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
SCALE = 0.6
EXACT = torch.float64

by_kernel = IMPLEMENTATIONS["kernel"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    row, key = getattr(request, "param", (16, 16))
    tile = AttentionTile(row, key, warps=4, stages=1)
    for table in ("HOPPER", "ELSEWHERE", "SINGLES"):
        monkeypatch.setattr(differential, table, (KernelTiles(768, tile, tile, tile),))


def case(
    length: int, heads: int = 2, kv_heads: int = 1, score: int = 5, value: int = 12, batch: int = 1
) -> list[Tensor]:
    """Return q, k, v and lambda in fp64 with the memory layout of projections, positions before heads."""
    generator = torch.Generator().manual_seed(length)
    sizes = ((2 * heads, score), (2 * kv_heads, score), (kv_heads, value))
    drawn = [torch.randn(batch, length, *size, generator=generator, dtype=EXACT).transpose(1, 2) for size in sizes]
    return [*drawn, torch.rand(heads, 1, 1, generator=generator, dtype=EXACT)]


def results(f: Callable[..., Tensor], inputs: list[Tensor], dtype: torch.dtype = EXACT) -> list[Tensor]:
    """Return in fp64 the context and the gradients of its weighted sum, computed from inputs rounded to `dtype`."""
    device = "cpu" if dtype == EXACT else DEVICE
    leaves = [x.to(device, dtype).requires_grad_() for x in inputs]
    context = f(*leaves, SCALE)
    weight = torch.linspace(-1, 1, context.numel(), dtype=EXACT).view(context.shape).to(device, dtype)
    gradients = torch.autograd.grad(context, leaves, weight)
    return [x.detach().to("cpu", EXACT) for x in (context, *gradients)]


def assert_as_reference(inputs: list[Tensor], dtype: torch.dtype = torch.float32) -> None:
    rounded = [x.to(dtype).to(EXACT) for x in inputs]
    found, wanted = results(by_kernel, inputs, dtype), results(differential_attention_reference, rounded)
    error = {torch.float32: 1e-5, torch.float16: 5e-3}[dtype]
    for x, y in zip(found, wanted, strict=True):
        assert (x - y).norm() <= error * y.norm() + 1e-6


@pytest.mark.parametrize(
    ("length", "small_blocks"),
    [(1, (16, 16)), (7, (16, 32)), (33, (16, 16)), (33, (16, 32)), (64, (32, 16))],
    indirect=["small_blocks"],
    ids=str,
)
def test_context_and_gradients_equal_the_reference(length: int) -> None:
    assert_as_reference(case(length))


@pytest.mark.parametrize(("heads", "kv_heads", "score", "value"), [(2, 2, 16, 16), (4, 2, 3, 17), (3, 1, 20, 7)])
def test_groups_of_heads_any_widths_and_a_lambda_by_token(heads: int, kv_heads: int, score: int, value: int) -> None:
    *inputs, by = case(17, heads, kv_heads, score, value)
    assert_as_reference([*inputs, by])
    assert_as_reference([*inputs, by * torch.linspace(0.5, 1, 17, dtype=EXACT).view(1, 1, 17, 1)])


def test_half_precision_stays_close_to_the_reference() -> None:
    assert_as_reference(case(33), torch.float16)


def test_pairs_of_heads_that_share_their_keys() -> None:
    """Criterion: views of the projections, without a copy, give the result of the same heads reordered into maps."""
    q, k, v, by = case(21, heads=4, kv_heads=2, value=5)
    assert_as = results(
        lambda q, k, v, by, scale: differential_attention_reference(*maps_of_pairs(q, k), v, by, scale),
        [q, k[:, :2], v, by],
    )

    def of_pairs(q: Tensor, k: Tensor, v: Tensor, by: Tensor, scale: float) -> Tensor:
        q = q.unflatten(1, (-1, 2)).transpose(1, 2)
        by = by.expand(len(q), *q.shape[2:4], 1).squeeze(-1)
        return differential.differential_attention(q, k.unsqueeze(1), v, by, scale)[0]

    for x, y in zip(results(of_pairs, [q, k[:, :2], v, by], torch.float32), assert_as, strict=True):
        assert (x - y).norm() <= 1e-5 * y.norm()


def test_inputs_may_have_any_strides() -> None:
    """Criterion: contiguous inputs give the same bits as views of every second entry of wider tensors that hold NaN
    between the entries. (The gradient of a sum has strides of 0.)"""
    dense = [x.to(DEVICE, torch.float32).contiguous() for x in case(18)]
    sparse = [torch.stack([x, torch.full_like(x, torch.nan)], dim=-1)[..., 0] for x in dense]

    def run(inputs: list[Tensor]) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        context = by_kernel(*leaves, SCALE)
        return [context, *torch.autograd.grad(context.sum(), leaves)]

    assert all(torch.equal(x, y) for x, y in zip(run(dense), run(sparse), strict=True))


def test_the_context_and_the_gradients_have_the_memory_layout_of_projections() -> None:
    *inputs, by = (x.to(DEVICE, torch.float32).requires_grad_() for x in case(6, kv_heads=2, batch=2))
    context = by_kernel(*inputs, by, SCALE)
    assert context.transpose(1, 2).is_contiguous()
    for grad, x in zip(torch.autograd.grad(context.sum(), inputs), inputs, strict=True):
        assert grad.stride() == x.stride()


def test_gradients_after_a_position_are_exactly_zero() -> None:
    inputs = [x.to(DEVICE, torch.float32).requires_grad_() for x in case(40, kv_heads=2)]
    context = by_kernel(*inputs, SCALE)
    grad_q, *before = torch.autograd.grad(context[:, :, 21].sum(), inputs[:3])
    for grad in (grad_q, *before):
        assert (grad[:, :, 22:] == 0).all()
    assert (grad_q[:, :, :21] == 0).all()
    assert (grad_q[:, :, 21] != 0).all()
    for grad in before:
        assert (grad[:, :, :22] != 0).all()


@pytest.mark.parametrize(("batch", "length"), [(0, 5), (2, 0)])
def test_an_empty_batch_or_sequence_gives_an_empty_context(batch: int, length: int) -> None:
    inputs = [x.to(DEVICE, torch.float32).requires_grad_() for x in case(length, batch=batch)]
    context = by_kernel(*inputs, SCALE)
    assert context.shape == (batch, 2, length, 12)
    gradients = torch.autograd.grad(context.sum(), inputs)
    assert [grad.shape for grad in gradients] == [x.shape for x in inputs]
    assert (gradients[-1] == 0).all()


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # the interpreter raises this warning
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_nan_reaches_every_position_that_attends_to_it_and_no_earlier_block(which: str) -> None:
    inputs = dict(zip(("q", "k", "v", "by"), (x.to(DEVICE, torch.float32) for x in case(40)), strict=True))
    inputs[which][:, :, 20] = torch.nan
    missing = by_kernel(*inputs.values(), SCALE).isnan().all(-1).all(1)[0]
    assert missing[20]
    assert not missing[:16].any()
    assert missing[21:].all() if which != "q" else not missing[21:].any()


def test_second_derivatives_are_those_of_the_reference() -> None:
    """Criterion: the gradients of the gradients' squared norm equal those of the reference."""

    def twice(f: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
        leaves = [x.requires_grad_() for x in inputs]
        gradients = torch.autograd.grad(f(*leaves, SCALE).square().sum(), leaves, create_graph=True)
        return [x.to("cpu", EXACT) for x in torch.autograd.grad(sum(grad.square().sum() for grad in gradients), leaves)]

    found = twice(by_kernel, [x.to(DEVICE, torch.float32) for x in case(17)])
    for x, y in zip(found, twice(differential_attention_reference, case(17)), strict=True):
        assert (x - y).norm() < 1e-4 * y.norm()


@pytest.mark.slow
def test_the_operator_keeps_torchs_rules() -> None:
    q, k, v, by = (x.to(DEVICE, torch.float32) for x in case(3))
    by = by.expand(1, 2, 3, 1).squeeze(-1)
    q, k, v = q.unflatten(1, (2, -1)).requires_grad_(), k.unflatten(1, (2, -1)), v.requires_grad_()
    torch.library.opcheck(differential.differential_attention, (q, k, v, by, SCALE))


def test_compiled_in_one_graph() -> None:
    """Criterion: there is no graph break, and the gradients equal those of the eager pass."""
    inputs = [x.to(DEVICE, torch.float32).requires_grad_() for x in case(9)]

    def loss(*inputs: Tensor) -> Tensor:
        return by_kernel(*inputs, SCALE).square().sum()

    wanted = torch.autograd.grad(loss(*inputs), inputs)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(*inputs), inputs), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("score", "value"), [(32, 64), (64, 64), (64, 128), (128, 128), (40, 80)])
def test_on_a_gpu_at_real_shapes(score: int, value: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: the error against fp64 is at most twice that of plain PyTorch in the same precision."""
    monkeypatch.undo()  # restores the block sizes of real use
    inputs = [x.cuda() for x in case(1000, heads=8, kv_heads=4, score=score, value=value, batch=2)]

    def run(f: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        context = f(*leaves, score**-0.5)
        return [
            context.detach().double(),
            *(grad.double() for grad in torch.autograd.grad(context.float().square().sum(), leaves)),
        ]

    rounded = [x.to(dtype).double() for x in inputs]
    inputs = rounded
    wanted = run(differential_attention_reference, EXACT)
    for x, y, z in zip(run(by_kernel, dtype), run(IMPLEMENTATIONS["two-calls"], dtype), wanted, strict=True):
        assert (x - z).norm() <= 2 * (y - z).norm() + 1e-6 * z.norm()
