"""Row sums of exponentials in blocks equal the plain ones, forward and backward, and keep no tensor of size T x S."""

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from attractor.kernels import logsumexp
from attractor.kernels.logsumexp import attention_logsumexp, attention_logsumexp_reference
from saved_tensors import Largest

SCALE = 0.6


def some_mask(length: int) -> Tensor:
    """Return a mask B 1 T S in which row 2 of the second sequence may attend to nothing."""
    mask = torch.rand(2, 1, length, length, generator=torch.Generator().manual_seed(3)) < 0.5
    mask |= torch.eye(length, dtype=torch.bool)
    mask[1, 0, 2] = False
    return mask


MASKS = {
    "none": (None, False),
    "causal": (None, True),
    "T S": (some_mask(7)[1, 0], False),
    "B 1 T S": (some_mask(7), False),
    "1 1 T S": (some_mask(7)[1:], False),
}
every_mask = pytest.mark.parametrize(("allowed", "causal"), MASKS.values(), ids=MASKS)
every_cap = pytest.mark.parametrize("softcap", [None, 0.8])


@pytest.fixture(params=[1, 150, 10**6], ids=["row by row", "some rows", "one block"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logsumexp, "ON_CPU", request.param)


def case(heads: int = 4, kv_heads: int = 2, length: int = 7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, length, 3), (2, kv_heads, length, 3)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


@pytest.mark.usefixtures("blocks")
@every_mask
@every_cap
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
def test_values_and_gradients_equal_the_reference(
    allowed: Tensor | None, causal: bool, softcap: float | None, heads: int, kv_heads: int
) -> None:
    inputs = case(heads, kv_heads)
    options = (allowed, causal, SCALE, softcap)
    expected, found = (f(*inputs, *options) for f in (attention_logsumexp_reference, attention_logsumexp))
    torch.testing.assert_close(found, expected)
    weight = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view(expected.shape)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad((found * weight).sum(), inputs), wanted)


@pytest.mark.usefixtures("blocks")
def test_row_that_may_attend_to_nothing_is_zero_without_gradient() -> None:
    q, k = case()
    found = attention_logsumexp(q, k, some_mask(7), False, SCALE, None)
    assert (found[1, :, 2] == 0).all()
    assert (found != 0).sum() == found.numel() - 4
    grad_q, grad_k = torch.autograd.grad(found.sum(), [q, k])
    assert (grad_q[1, :, 2] == 0).all()
    assert grad_q.isfinite().all()
    assert grad_k.isfinite().all()


@pytest.mark.usefixtures("blocks")
@every_mask
@pytest.mark.parametrize(
    "varied", [{"q", "k"}, {"q"}, {"k"}, {"q", "k", "allowed"}], ids=lambda names: " ".join(sorted(names))
)
def test_vmap_over_models_gives_the_results_of_each_model(
    allowed: Tensor | None, causal: bool, varied: set[str]
) -> None:
    """Criterion: models may differ in all inputs or in some; values and gradients are those of each model alone."""
    if allowed is None and "allowed" in varied:
        varied = varied - {"allowed"}
    inputs = dict(zip(("q", "k"), (x.detach() for x in case()), strict=True))
    stacked = {name: torch.stack([x, 1.5 * x]) if name in varied else x for name, x in inputs.items()}
    mask = torch.stack([allowed, allowed.flip(-1)]) if allowed is not None and "allowed" in varied else allowed
    for x in stacked.values():
        x.requires_grad_()

    def of_one(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        return attention_logsumexp(q, k, mask, causal, SCALE, None)

    in_dims = tuple(0 if name in varied else None for name in ("q", "k", "allowed"))
    found = torch.vmap(of_one, in_dims=in_dims)(*stacked.values(), mask)
    alone = torch.stack(
        [
            of_one(
                *(x[i] if name in varied else x for name, x in stacked.items()), mask[i] if in_dims[2] == 0 else mask
            )  # type: ignore[index]
            for i in range(2)
        ]
    )
    torch.testing.assert_close(found, alone)
    wanted = torch.autograd.grad(alone.square().sum(), list(stacked.values()))
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), list(stacked.values())), wanted)


def test_no_tensor_of_the_size_of_all_logits_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: the tensors saved for the backward pass grow in proportion to the length, and no operation forms a
    tensor beyond the limit of a block."""
    monkeypatch.setattr(logsumexp, "ON_CPU", 2**10)
    sizes = []
    for length in (16, 32):
        saved: list[int] = []
        q, k = case(length=length)
        with (
            saved_tensors_hooks(lambda x, saved=saved: saved.append(x.numel()) or x, lambda x: x),
            Largest() as largest,
        ):
            attention_logsumexp(q, k, None, True, SCALE, None).sum().backward()
        sizes.append(sum(saved))
        assert largest.n_numbers <= 2**10
    assert sizes[1] == 2 * sizes[0]
