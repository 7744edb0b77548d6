"""A classifier reads its label from the right position, ignores padding, and attends in both directions."""

import pytest
import torch
from torch import Tensor

from attractor.attention import PRESETS
from attractor.errors import InputError
from attractor.models import TransformerConfig
from tiers import tiered

SMALL = TransformerConfig(20, 16, n_heads=4, n_layers=2, d_ff=24, max_seq_len=16, positions="rope", n_classes=3)
every_preset = pytest.mark.parametrize("attention", tiered(PRESETS))
both_pools = pytest.mark.parametrize("pool", ["last", "mean"])
both_ways = pytest.mark.parametrize("causal", [True, False])


def padded(lengths: list[int], width: int, filler: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.full((len(lengths), width), filler)
    real = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.randint(0, 20, (length,), generator=generator)
        real[row, :length] = True
    return tokens, real


@every_preset
@both_pools
@both_ways
def test_padding_changes_nothing(attention: str, pool: str, causal: bool) -> None:
    """Criterion: the tokens at padded positions, the amount of padding and the rest of the batch leave every logit
    unchanged."""
    model = SMALL.replace(attention=attention, pool=pool, causal=causal).build(0).double().eval()
    lengths = [5, 8, 1]
    tokens, real = padded(lengths, 8, 0)
    expected, _ = model(tokens, None, real)
    for width, filler in ((8, 7), (13, 3)):
        other, where = padded(lengths, width, filler)
        torch.testing.assert_close(model(other, None, where)[0], expected)
    for row, length in enumerate(lengths):
        alone, _ = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(alone[0], expected[row])
    # No real position sees padding on its right under a causal mask, so no mask of T x T is made.
    assert (model.placement(tokens, None, real).mask is True) == causal
    assert model.placement(tokens, None, real.flip(1)).mask is not True


@every_preset
@both_pools
def test_no_gradient_reaches_padding(attention: str, pool: str) -> None:
    """Criterion: the gradient is exactly zero at every padded position's embedding and nonzero at every real one."""
    model = SMALL.replace(attention=attention, pool=pool, causal=False).build(0)
    tokens, real = padded([5, 8, 2], 11, 0)
    embedded: list[Tensor] = []

    def keep(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    model.embedding.register_forward_hook(keep)
    model.loss(tokens, torch.tensor([0, 1, 2]), real)[0].backward()
    grad = embedded[0].grad
    assert grad is not None
    assert (grad[~real] == 0).all()
    assert (grad[real].abs().amax(-1) > 0).all()


@both_ways
def test_a_position_attends_to_later_ones_unless_the_model_is_causal(causal: bool) -> None:
    model = SMALL.replace(n_classes=None, causal=causal).build(0).eval()
    tokens = torch.arange(8).unsqueeze(0)
    changed = tokens.clone()
    changed[0, -1] = 19
    with torch.no_grad():
        same = torch.equal(model(tokens)[0][:, 0], model(changed)[0][:, 0])
    assert same is causal


def test_loss_and_prediction_follow_from_the_logits() -> None:
    tokens, real = padded([5, 8, 2], 8, 0)
    targets = torch.tensor([2, 0, 1])
    model = SMALL.build(0).eval()
    logits, _ = model(tokens, None, real)
    losses, likeliest = model.judge(tokens, targets, real)
    torch.testing.assert_close(losses, torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
    assert torch.equal(likeliest, logits.argmax(-1))
    torch.testing.assert_close(model.loss(tokens, targets, real)[0], losses.mean())


def test_one_class_means_regression_with_a_squared_error() -> None:
    tokens, real = padded([5, 8, 2], 8, 0)
    targets = torch.tensor([0.5, 4.0, 2.25], dtype=torch.float64)
    model = SMALL.replace(n_classes=1).build(0).eval()
    numbers = model(tokens, None, real)[0].flatten()
    losses, given = model.judge(tokens, targets, real)
    torch.testing.assert_close(given, numbers)
    torch.testing.assert_close(losses, (numbers - targets.float()).square())
    torch.testing.assert_close(model.loss(tokens, targets, real)[0], losses.mean())
    # A column of targets is not set against every number.
    torch.testing.assert_close(model.loss(tokens, targets[:, None], real)[0], losses.mean())
    torch.testing.assert_close(model.judge(tokens, targets[:, None], real)[0], losses[:, None])


@pytest.mark.parametrize(
    "real", [torch.ones(2, 8, dtype=torch.long), torch.ones(2, 8), torch.ones(2, 7, dtype=torch.bool)]
)
def test_what_marks_no_padding_is_refused_by_its_own_name(real: Tensor) -> None:
    with pytest.raises(InputError, match=r"real must be boolean and of shape \(2, 8\).*give attention_mask.bool\(\)"):
        SMALL.build(0)(torch.zeros(2, 8, dtype=torch.long), None, real)
