"""The readout loss in chunks equals the plain loss, forward and backward, in every context of use."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attractor.analysis.jacobian import load_forward_mode
from attractor.kernels import cross_entropy as kernels
from attractor.kernels.cross_entropy import (
    NOT_SCORED,
    chunked_linear_cross_entropy,
    linear_cross_entropy,
    linear_cross_entropy_reference,
)
from attractor.tasks import task

N, D, CLASSES = 37, 8, 50


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ROWS", 10)
    monkeypatch.setattr(kernels, "HELD_ON_CPU", 0)


def case(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(CLASSES, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(0, CLASSES, (N,), generator=generator)
    targets[::5] = NOT_SCORED
    return hidden, weight, targets


def gradients(loss: Callable[..., Tensor], hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Return the loss and the gradients of three times the loss."""
    value = loss(hidden, weight, targets)
    return value.detach(), *torch.autograd.grad(3 * value, (hidden, weight))


@pytest.mark.parametrize("loss", [chunked_linear_cross_entropy, linear_cross_entropy])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradients_equal_the_reference(loss: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Criterion: they agree to 1e-12 in fp64, and the result is fp64, too."""
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {}
    expected = gradients(linear_cross_entropy_reference, *case(dtype))
    torch.testing.assert_close(gradients(loss, *case(dtype)), expected, **close)


@pytest.mark.parametrize("loss", [chunked_linear_cross_entropy, linear_cross_entropy])
def test_a_soft_cap_on_the_logits_is_differentiated(loss: Callable[..., Tensor]) -> None:
    """Criterion: value and gradients agree to 1e-12 in fp64, also for losses of positions, and second derivatives are
    right."""
    capped = partial(linear_cross_entropy_reference, softcap=1.5)
    expected = gradients(capped, *case())
    assert not torch.allclose(expected[0], gradients(linear_cross_entropy_reference, *case())[0])
    torch.testing.assert_close(gradients(partial(loss, softcap=1.5), *case()), expected, rtol=1e-12, atol=1e-12)
    hidden, weight, targets = case()
    losses, _ = kernels.position_losses(hidden, weight, targets, 1.5)
    torch.testing.assert_close(losses.sum() / (targets != NOT_SCORED).sum(), capped(hidden, weight, targets))
    one = hidden[:3].detach().requires_grad_(), weight[:5].detach().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda h, w: loss(h, w, targets[:3] % 5, 1.5), one)


@pytest.mark.parametrize("which", [0, 1], ids=["hidden", "weight"])
def test_one_gradient_can_be_computed_alone(which: int) -> None:
    inputs = case()
    inputs[1 - which].requires_grad_(False)
    (expected,) = torch.autograd.grad(linear_cross_entropy_reference(*inputs), inputs[which])
    (found,) = torch.autograd.grad(chunked_linear_cross_entropy(*inputs), inputs[which])
    torch.testing.assert_close(found, expected)


class Operations(TorchDispatchMode):
    """Count matrix products and the entries of the largest result; refuse operations for which the host waits on a
    GPU."""

    n_products = largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "item")
        self.n_products += name in ("mm", "addmm", "addmm_")
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def test_each_chunk_costs_three_products_and_without_gradients_one() -> None:
    """Criterion: the backward pass needs no product. No operation waits for the device or forms a tensor of all
    logits."""
    inputs, n_chunks = case(), math.ceil(N / 10)
    for needed in ((False, False), (True, True)):
        with torch.no_grad(), Operations() as forward:
            kernels.loss_and_gradients(*inputs, *needed)
        assert forward.n_products == n_chunks * (1 + sum(needed))
        assert forward.largest == 10 * CLASSES
    loss = chunked_linear_cross_entropy(*inputs)
    with Operations() as backward:
        loss.backward()
    assert backward.n_products == 0


def test_a_graph_that_is_kept_gives_the_same_gradients_twice() -> None:
    inputs = case()
    loss = chunked_linear_cross_entropy(*inputs)
    once = torch.autograd.grad(loss, inputs[:2], retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, inputs[:2]), once)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("where", ["autocast", "tensors"])
def test_half_precision_stays_near(dtype: torch.dtype, where: str) -> None:
    """Criterion: the loss is fp32 within the resolution of the products, and gradients have their tensors'
    precision."""
    exact = gradients(linear_cross_entropy_reference, *case())
    hidden, weight, targets = case(torch.float32)
    if where == "tensors":
        hidden, weight = (x.detach().to(dtype).requires_grad_() for x in (hidden, weight))
    with torch.autocast("cpu", dtype, enabled=where == "autocast"):
        loss = chunked_linear_cross_entropy(hidden, weight, targets)
    found = torch.autograd.grad(3 * loss, (hidden, weight))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), exact[0], rtol=4 * torch.finfo(dtype).eps, atol=0)
    for gradient, x, wanted in zip(found, (hidden, weight), exact[1:], strict=True):
        assert gradient.dtype == x.dtype
        assert (gradient.double() - wanted).norm() < 2 * torch.finfo(dtype).eps * wanted.norm()


def test_sums_over_many_chunks_stay_wide() -> None:
    """Criterion: over 500 chunks of bf16 the gradient of W is off by one rounding; sums in bf16 would accumulate
    many."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5000, D, generator=generator)
    weight = torch.randn(4, D, generator=generator).requires_grad_()
    targets = torch.zeros(5000, dtype=torch.long)
    (wanted,) = torch.autograd.grad(linear_cross_entropy_reference(hidden, weight, targets), weight)
    with torch.autocast("cpu", torch.bfloat16):
        loss = chunked_linear_cross_entropy(hidden, weight, targets)
    (found,) = torch.autograd.grad(loss, weight)
    assert (found - wanted).norm() < 2**-8 * wanted.norm()


@pytest.mark.parametrize("n", [N, 0], ids=["all ignored", "no positions"])
def test_without_scored_positions_the_loss_is_that_of_the_reference(n: int) -> None:
    hidden, weight, _ = case()
    nothing = hidden[:n], weight, torch.full((n,), NOT_SCORED)
    expected = gradients(linear_cross_entropy_reference, *nothing)
    assert expected[0].isnan()
    torch.testing.assert_close(gradients(chunked_linear_cross_entropy, *nothing), expected, equal_nan=True)


def test_nan_spreads_as_in_the_reference() -> None:
    for row in (0, 1):  # an ignored position and a scored one
        hidden, weight, targets = case()
        hidden = hidden.detach().clone()
        hidden[row] = float("nan")
        inputs = hidden.requires_grad_(), weight, targets
        expected = gradients(linear_cross_entropy_reference, *inputs)
        torch.testing.assert_close(gradients(chunked_linear_cross_entropy, *inputs), expected, equal_nan=True)


def test_transforms_of_functions_see_plain_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: vmap over seeds and directional derivatives are right, however large the logits."""
    monkeypatch.setattr(kernels, "SMALL", 0)
    hidden, weight, targets = (torch.stack([x, x.flip(0)]).detach() for x in case())
    expected = torch.stack([linear_cross_entropy_reference(*one) for one in zip(hidden, weight, targets, strict=True)])
    torch.testing.assert_close(torch.func.vmap(linear_cross_entropy)(hidden, weight, targets), expected)

    load_forward_mode()

    def of_weight(loss: Callable[..., Tensor]) -> Tensor:
        return torch.func.jvp(lambda w: loss(hidden[0], w, targets[0]), (weight[0],), (weight[1],))[1]

    torch.testing.assert_close(of_weight(linear_cross_entropy), of_weight(linear_cross_entropy_reference))


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "autocast"])
def test_compiled_in_one_graph(half: bool) -> None:
    inputs = case(torch.float32)

    def loss(*inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return chunked_linear_cross_entropy(*inputs)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled, *inputs), gradients(loss, *inputs))


def test_the_operator_keeps_the_rules_of_torch() -> None:
    hidden, weight, targets = case()
    for needed in ((True, True), (True, False), (False, False)):
        torch.library.opcheck(torch.ops.attractor.linear_cross_entropy, (hidden, weight, targets, *needed))


def test_large_logits_are_taken_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Tensor, ...]] = []
    monkeypatch.setattr(kernels, "chunked_linear_cross_entropy", lambda *inputs: called.append(inputs) or inputs[0])
    inputs = case()
    for small, expected in ((N * CLASSES, 0), (N * CLASSES - 1, 1)):
        monkeypatch.setattr(kernels, "SMALL", small)
        linear_cross_entropy(*inputs)
        assert len(called) == expected


def test_position_losses_average_to_the_loss_beside_the_likeliest_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL", 200)  # so small that there are several chunks
    hidden, weight, targets = case()
    losses, likeliest = kernels.position_losses(hidden, weight, targets)
    scored = targets != NOT_SCORED
    torch.testing.assert_close(losses.sum() / scored.sum(), linear_cross_entropy_reference(hidden, weight, targets))
    assert (losses[~scored] == 0).all()
    assert torch.equal(likeliest, (hidden @ weight.T).argmax(-1))


def test_the_loss_and_the_tasks_leave_the_same_targets_out() -> None:
    assert NOT_SCORED == task.NOT_SCORED
