"""The penalty on logits follows its formula, acts in training alone, and has gradients for queries and keys."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.attention import PRESETS, Attention, Rope, build
from attractor.attention.hooks import capture
from attractor.attention.mask import resolve_mask
from attractor.models import TransformerConfig
from attractor.train.config import TrainConfig
from attractor.train.stacked_loop import stackable
from tiers import tiered

T, H, WIDTH = 6, 4, 16
Z = 0.3
SCORED = [name for name in PRESETS if hasattr(PRESETS[name].score, "z_loss")]


def layer_of(name: str, **changes: Any) -> Attention:
    torch.manual_seed(0)
    return build(name, WIDTH, H, **changes).double()


def some_x() -> Tensor:
    return torch.randn(2, T, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def some_mask() -> Tensor:
    mask = torch.rand(2, 1, T, T, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[1, 0, 2] = False
    return mask


MASKS = {"causal": True, "all": False, "T S": some_mask()[1, 0], "B 1 T S": some_mask()}


def penalty_by_hand(layer: Attention, x: Tensor, mask: bool | Tensor, rope: Rope | None) -> Tensor:
    """Compute the penalty from the tapped logits of all maps, row by row."""
    with capture("logits") as seen:
        layer(x, mask, rope)
    (logits,) = seen["logits"]
    if (cap := layer.softcap) is not None:
        logits = cap * (logits / cap).tanh()
    allowed = resolve_mask(mask, 2, T, T, x.device).spelled_out(T, T, x.device)
    allowed = torch.ones(T, T, dtype=torch.bool) if allowed is None else allowed
    pairs = zip(logits.reshape(-1, T), allowed.expand(logits.shape).reshape(-1, T), strict=True)
    return Z * torch.stack([row[may].exp().sum().log() ** 2 for row, may in pairs if may.any()]).mean()


@pytest.mark.parametrize("name", tiered(SCORED))
def test_penalty_is_the_formula(name: str) -> None:
    """Criterion: the penalty and its gradients by every parameter and by the input are exact in fp64, under every
    mask."""
    for (kind, mask), softcap in itertools.product(MASKS.items(), (None, 0.8)):
        case = f"mask: {kind}, softcap: {softcap}"
        layer, x = layer_of(name, z_loss=Z, softcap=softcap), some_x().requires_grad_()
        rope = Rope(layer.rope_width)
        _, penalty = layer(x, mask, rope)
        expected = penalty_by_hand(layer, x, mask, rope)
        torch.testing.assert_close(penalty, expected, msg=lambda text, case=case: f"{case}: {text}")
        inputs = [x, *layer.parameters()]
        gradients = [torch.autograd.grad(loss, inputs, allow_unused=True) for loss in (penalty, expected)]
        for gradient, wanted in zip(*gradients, strict=True):
            assert (gradient is None) == (wanted is None), case
            if gradient is not None:
                torch.testing.assert_close(gradient, wanted, msg=lambda text, case=case: f"{case}: {text}")


def test_penalty_changes_the_loss_and_not_the_output() -> None:
    for name in SCORED:
        (out, penalty), (plain, nothing) = layer_of(name, z_loss=Z)(some_x()), layer_of(name)(some_x())
        assert torch.equal(out, plain), name
        assert penalty > 0, name
        assert nothing == 0, name


def test_padding_does_not_count() -> None:
    """Criterion: the penalty of a model is the same with padding on either side, and whatever token the padding has."""
    model = TransformerConfig(
        vocab_size=9, d_model=16, n_heads=4, n_layers=2, d_ff=16, max_seq_len=8, positions="rope", z_loss=Z
    ).build(seed=0)
    row, found = torch.tensor([[1, 2, 3, 4, 5]]), []
    for token, side in itertools.product((0, 7), ("left", "right")):
        padding = torch.full((1, 3), token)
        parts = [padding, row] if side == "left" else [row, padding]
        real = torch.cat([torch.full_like(part, part is row, dtype=torch.bool) for part in parts], dim=1)
        found.append(model(torch.cat(parts, dim=1), real=real)[1])
    torch.testing.assert_close(torch.stack(found), torch.stack([model(row)[1]] * 4))


def test_no_cost_outside_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: the penalty is not computed in evaluation, at a coefficient of 0, or in decoding."""

    def never(*args: object) -> Tensor:
        raise AssertionError("computed")

    monkeypatch.setattr("attractor.attention.layer.logit_penalty", never)
    layer = layer_of("standard", z_loss=Z)
    with pytest.raises(AssertionError, match="computed"):
        layer(some_x())
    assert layer(some_x(), cache=layer.new_cache())[1] == 0
    assert layer.eval()(some_x())[1] == 0
    assert layer_of("standard")(some_x())[1] == 0


ROWS = ([0, 1], [0], [1])  # the queries that attend to anything


def test_a_query_that_attends_to_nothing_does_not_count() -> None:
    """Criterion: rows that attend to nothing change neither the mean nor a gradient; without any other row the penalty
    is 0."""
    layer, x = layer_of("standard", z_loss=Z), some_x()[:1]
    whole = torch.ones(T, T, dtype=torch.bool)
    some, first, second = (whole & torch.isin(torch.arange(T), rows)[:, None] for rows in map(torch.tensor, ROWS))
    found, *each = (layer(x, mask)[1] for mask in (some, first, second))
    torch.testing.assert_close(found, sum(each) / 2)
    empty = layer(x, torch.zeros(T, T, dtype=torch.bool))[1]
    assert empty == 0
    gradients = torch.autograd.grad(empty, layer.project.parameters(), allow_unused=True)
    assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


def test_recomputed_blocks_have_the_same_penalty() -> None:
    """Criterion: loss and gradients under activation checkpointing are equal to the bit; the penalty is no zero."""
    config = TransformerConfig(vocab_size=31, d_model=16, n_heads=4, n_layers=2, d_ff=16, max_seq_len=16)
    model = config.replace(attention=PRESETS["standard"].replace(z_loss=Z)).build(seed=0)
    tokens = torch.randint(0, 31, (2, 8), generator=torch.Generator().manual_seed(0))
    assert model.loss(tokens, tokens)[1] > 0
    found = []
    for recompute in (False, True):
        model.activation_checkpointing = recompute
        loss = sum(model.loss(tokens, tokens))
        found.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])  # type: ignore[arg-type,list-item]
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_half_precision_stays_close() -> None:
    layer = layer_of("standard", z_loss=Z).float()
    x = some_x().float()
    _, wide = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, mixed = layer(x)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, wide, rtol=0.01, atol=0)


@pytest.mark.parametrize("name", ["standard", "gqa", "differential", "differential-v2", "mla"])
def test_stacked_seeds_have_the_penalty(name: str) -> None:
    config = TransformerConfig(vocab_size=31, d_model=16, n_heads=4, n_layers=1, d_ff=16, max_seq_len=16)
    model = config.replace(attention=PRESETS[name].replace(z_loss=Z))
    assert stackable(TrainConfig(model=model, seq_len=8)) is None


@pytest.mark.parametrize("shape", [(0, 4), (1, 0)], ids=["no sequence", "no position"])
@pytest.mark.parametrize("name", ["standard", "differential"])
def test_an_empty_batch_has_no_penalty(name: str, shape: tuple[int, int]) -> None:
    out, penalty = build(name, 8, 2, z_loss=0.1).train()(torch.zeros(*shape, 8))
    assert out.shape == (*shape, 8)
    assert penalty.item() == 0
