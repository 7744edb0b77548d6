"""Muon for matrices and AdamW for the rest, in any order, equal the same update done by hand, head by head."""

import warnings

import pytest
import torch
from subjects import backward, of_family, small
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Muon, Optimizer

from attractor.control import QKClip, QuacK, query_key_heads
from attractor.control.qk_clip import clipped_rows
from attractor.control.quack import gains, scale
from tiers import fast_alone

BIASED = ["hf qwen2", "hf gpt2", "hf gpt-neox", "hf llama-biased", "ours"]
TAU, THRESHOLD = 0.7, 0.6
STEPS = ("muon first", "adamw first")


def build(case: str) -> nn.Module:
    return small(qkv_bias=True) if case == "ours" else of_family(case.removeprefix("hf "))


def optimizers(model: nn.Module) -> tuple[Optimizer, Optimizer]:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    return Muon(matrices, lr=0.02), AdamW(others, lr=0.02)


class ByHand:
    """The update without hooks: all rows of all heads are copied, both optimizers step, then every head is moved."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.optimizers = model, optimizers(model)
        self.views = query_key_heads(model)
        self.initial = self.gains()

    def gains(self) -> list[dict[str, Tensor]]:
        norms = [
            {
                part: torch.stack([rows.of(head).norm() for head in range(rows.n_heads)])
                for part, rows in view.parts().items()
            }
            for view in self.views
        ]
        return [gains(view, of_view) for view, of_view in zip(self.views, norms, strict=True)]

    @torch.no_grad()
    def step(self, order: tuple[int, ...], maxima: list[Tensor]) -> None:
        now, before = self.gains(), {p: p.detach().clone() for p in self.model.parameters()}
        for number in order:
            self.optimizers[number].step()
        for view, initial, gain in zip(self.views, self.initial, now, strict=True):
            for part, rows in view.parts().items():
                rates = scale(TAU, initial[part], gain[part])
                for parameter, axis in ((rows.weight, rows.axis), (rows.bias, 0)):
                    for head, start in enumerate(rows.starts if parameter is not None else ()):
                        assert parameter is not None
                        new, old = (tensor.narrow(axis, start, rows.width) for tensor in (parameter, before[parameter]))
                        new.copy_(old + rates[head] * (new - old))
        for view, largest in zip(self.views, maxima, strict=True):
            gamma = torch.where(largest > THRESHOLD, THRESHOLD / largest, 1.0)
            for clipped in clipped_rows(view):
                clipped.apply(gamma)


def assert_close(model: nn.Module, wanted: nn.Module) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("case", fast_alone(BIASED, "hf gpt2", "hf qwen2"))
def test_muon_and_adamw_equal_the_update_by_hand(case: str, first: str) -> None:
    """Criterion: after each of four steps with QuacK and the clip all weights agree to rounding, whatever the order;
    rates and clips both matter, and biases are moved by another optimizer than their weights."""
    model, hand = build(case), ByHand(build(case))
    mine = optimizers(model)
    quack, clip = QuacK(model, [*mine], TAU), QKClip(model, mine, THRESHOLD)
    order = (0, 1) if first == "muon first" else (1, 0)
    for seed in range(4):
        n_clipped = clip.n_clipped
        hand.model.load_state_dict(model.state_dict())  # or Muon, which computes in bf16, would magnify the rounding
        backward(model, seed)
        backward(hand.model, seed)
        for number in order:
            assert clip.n_clipped == n_clipped
            mine[number].step()
        hand.step(order, [of.logits for of in clip.last.values()])
        assert_close(model, hand.model)
    assert clip.n_clipped > 0
    moved = torch.cat([rates / TAU - 1 for parts in quack.rates.values() for rates in parts.values()])
    assert moved.abs().max() > 0.01
    biases = [rows.bias for view in query_key_heads(model) for rows in view.parts().values()]
    assert any(bias is not None for bias in biases)


def test_norms_are_those_before_the_first_step_of_a_round() -> None:
    """Criterion: keys that the first optimizer doubles do not change the rates that the second one takes its step at;
    in the next round they halve the rates of queries."""
    model = small(n_layers=1)
    (view,) = query_key_heads(model)
    query, key = (view.parts()[part].weight for part in ("query", "key"))
    pair = SGD([key], lr=1.0), SGD([query], lr=1.0)
    quack = QuacK(model, pair)
    before = query.detach().clone()
    key.grad, query.grad = -key.detach().clone(), torch.ones_like(query)
    pair[0].step()
    pair[1].step()
    torch.testing.assert_close(query.detach(), before - 1)
    key.grad = torch.zeros_like(key)
    pair[0].step()
    torch.testing.assert_close(quack.rates[view.name]["query"], torch.full((4,), 0.5))


RARELY: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {  # steps of two optimizers, after each of two batches
    "every second batch": ((0,), (0, 1)),
    "skipped by a loss scaler": ((1,), (0, 1)),
}


@pytest.mark.parametrize("case", RARELY)
def test_an_optimizer_that_steps_more_rarely_neither_stops_the_clip_nor_warns(case: str) -> None:
    """Criterion: over twelve batches no maximum stays above the threshold for more than one step of the optimizer that
    steps most often, observations are read once, and there is no warning."""
    model = build("hf gpt2")
    pair = optimizers(model)
    for optimizer in pair:
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.param_groups[0]["weight_decay"] = 0.0
    QuacK(model, pair)
    clip = QKClip(model, pair, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in range(12):
            backward(model, 0)
            for number in RARELY[case][batch % 2]:
                pair[number].step()
    first = clip.last[query_key_heads(model)[0].name].logits  # its input does not change with the clip
    assert clip.n_clipped > 0
    assert (first <= 0.1 * (1 + 1e-5)).all()


def test_rates_are_measured_again_where_an_optimizer_steps_twice() -> None:
    """Criterion: two steps of the optimizer that holds all matrices, without the other's, are at two rates."""
    model = small(n_layers=1, qkv_bias=True)
    pair = optimizers(model)
    quack = QuacK(model, pair, TAU)
    rates = []
    for seed in range(2):
        backward(model, seed)
        pair[0].step()
        rates.append(quack.rates["blocks.0.attention"]["query"])
    assert torch.equal(rates[0], torch.full((4,), TAU))
    assert (rates[1] != rates[0]).all()
