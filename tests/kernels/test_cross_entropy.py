"""The fast readout losses equal the plain one, forward and backward."""

import pytest
import torch
from torch import Tensor

from attractor.kernels import cross_entropy as kernels

PATHS = {
    "chunked": kernels.chunked_linear_cross_entropy,
    "fused": kernels.fused_linear_cross_entropy,
    "chosen": kernels.linear_cross_entropy,
}


def case(n: int = 37, d: int = 8, classes: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, d, generator=generator).requires_grad_()
    weight = torch.randn(classes, d, generator=generator).requires_grad_()
    targets = torch.randint(0, classes, (n,), generator=generator)
    targets[::5] = kernels.IGNORED
    return hidden, weight, targets


def needs_torch_for(path: str) -> None:
    if path == "fused" and kernels._fused is None:
        pytest.skip("this torch has no linear_cross_entropy: the chunked path is used instead")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("small", [0, 2**22], ids=["large", "small"])
def test_value_and_gradients_equal_the_reference(path: str, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_torch_for(path)
    monkeypatch.setattr(kernels, "SMALL", small)
    monkeypatch.setattr(kernels, "CHUNK", 10)
    hidden, weight, targets = case()
    expected = kernels.linear_cross_entropy_reference(hidden, weight, targets)
    wanted = torch.autograd.grad(expected, (hidden, weight))
    loss = PATHS[path](hidden, weight, targets)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, (hidden, weight)), wanted)


def test_large_logits_take_the_chunks_where_torch_has_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an older torch does, on this one."""
    monkeypatch.setattr(kernels, "SMALL", 0)
    monkeypatch.setattr(kernels, "_fused", None)
    called = []
    monkeypatch.setattr(kernels, "chunked_linear_cross_entropy", lambda *args: called.append(args) or args[0].sum())
    kernels.linear_cross_entropy(*case())
    assert called


@pytest.mark.parametrize("path", PATHS)
def test_half_precision_stays_near(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under bf16 autocast, within bf16's resolution of the fp32 loss; the loss itself comes back in fp32."""
    needs_torch_for(path)
    monkeypatch.setattr(kernels, "SMALL", 0)
    hidden, weight, targets = case()
    expected = kernels.linear_cross_entropy_reference(hidden, weight, targets)
    with torch.autocast("cpu", torch.bfloat16):
        loss = PATHS[path](hidden, weight, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=0)
    loss.backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_position_losses_average_to_the_loss_beside_the_likeliest_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALL", 200)  # several chunks
    hidden, weight, targets = case()
    losses, likeliest = kernels.position_losses(hidden, weight, targets)
    scored = targets != kernels.IGNORED
    torch.testing.assert_close(
        losses.sum() / scored.sum(), kernels.linear_cross_entropy_reference(hidden, weight, targets)
    )
    assert (losses[~scored] == 0).all()
    assert torch.equal(likeliest, (hidden @ weight.T).argmax(-1))
