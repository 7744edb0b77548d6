"""What happens to controls besides steps: deletion, conversion, wrapping, states of other ways of training."""

import gc
import io
import weakref
from typing import Any

import pytest
import torch
from subjects import assert_same, backward, give_gradients, of_family, small, take_steps, tokens, weights
from torch import nn
from torch.optim import SGD, AdamW

from attractor.control import FixedRates, QKClip, QuacK, query_key_heads


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("family", ["ours", "llama"])
def test_nothing_keeps_a_deleted_model_alive(family: str, removed: bool) -> None:
    """Criterion: model, optimizer and controls are collected whether or not they were removed, and Hugging Face's table
    of attention functions is as before."""
    from transformers.modeling_utils import AttentionInterface

    look_up = AttentionInterface.__dict__.get("get_interface")

    def train() -> list[weakref.ref[Any]]:
        model = small() if family == "ours" else of_family(family)
        optimizer = AdamW(model.parameters(), lr=1e-3)
        quack, clip = QuacK(model, optimizer), QKClip(model, optimizer, 0.5)
        backward(model, 0)
        optimizer.step()
        if removed:
            clip.remove()
            quack.remove()
        return [weakref.ref(part) for part in (model, optimizer, quack, clip)]

    alive = train()
    gc.collect()
    assert [part() for part in alive] == [None] * 4
    assert AttentionInterface.__dict__.get("get_interface") is look_up


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_do_not_depend_on_wrappers() -> None:
    """Criterion: states and maxima of a compiled model, of compiled blocks and of a wrapper have the plain names."""
    plain = [view.name for view in query_key_heads(small())]

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    blocks = small()
    for number, block in enumerate(blocks.blocks):
        blocks.blocks[number] = torch.compile(block)
    for model in (torch.compile(small()), blocks, Wrapper(small()), torch.compile(Wrapper(small()))):
        assert [view.name for view in query_key_heads(model)] == plain
        assert [*QuacK(model, SGD(model.parameters(), lr=0.1)).state_dict()["initial"]] == plain
    odd = nn.ModuleDict({"module": small(), "other": nn.Linear(1, 1)})  # a model's own name is no wrapper
    assert [view.name for view in query_key_heads(odd)] == [f"module.{name}" for name in plain]


def test_a_quack_that_joins_a_training_has_the_norms_of_a_fresh_model() -> None:
    """Criterion: also at another tau; where weights have grown threefold, the first rates are a third of tau."""
    fresh, grown = small(seed=1), small()
    norms = QuacK(fresh, SGD(fresh.parameters(), lr=0.1), 0.5).state_dict()
    with torch.no_grad():
        for parameter, initial in zip(grown.parameters(), fresh.parameters(), strict=True):
            parameter.copy_(3 * initial)
    optimizer = SGD(grown.parameters(), lr=0.1)
    quack = QuacK(grown, optimizer, initial_norms=norms)
    take_steps(grown, optimizer)
    rates = torch.cat([rates for parts in quack.rates.values() for rates in parts.values()])
    torch.testing.assert_close(rates, torch.full_like(rates, 1 / 3))


def test_bf16_keeps_the_movement_that_rounding_took() -> None:
    """Criterion: over 300 steps of fixed rates the weights lie where the sum of the scaled steps lies, within the
    spacing of bf16; without remainders they would be several times as far."""
    model = small().bfloat16()
    optimizer = SGD(model.parameters(), lr=2.0**-9)
    fixed = FixedRates(model, optimizer, tau=0.3)
    (query, *_) = (view.parts()["query"].weight for view in query_key_heads(model))
    exact, rounded_twice = query.detach().double(), query.detach().clone()
    for step in range(300):
        give_gradients(model, step % 7)
        assert query.grad is not None
        moved = (query.detach() - 2.0**-9 * query.grad).double() - query.detach().double()
        exact += 0.3 * moved
        rounded_twice = (rounded_twice.double() + 0.3 * moved).bfloat16()
        optimizer.step()
    error = (query.detach().double() - exact).abs()
    assert error.max() <= 2.0**-8 * query.detach().abs().max()
    assert (rounded_twice.double() - exact).abs().mean() > 3 * error.mean()
    assert fixed.state_dict()["remainders"]


EPS = 1e-4  # AdamW's default value is 0 in fp16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", [QuacK, FixedRates])
def test_half_precision_resumes_to_the_bit_and_starts_as_the_bare_optimizer(rule: Any, dtype: torch.dtype) -> None:
    def begin() -> tuple[nn.Module, Any, Any]:
        model = small(qkv_bias=True).to(dtype)
        optimizer = AdamW(model.parameters(), lr=1e-2, eps=EPS)
        return model, optimizer, rule(model, optimizer, 1.0 if rule is QuacK else 0.3)

    whole = begin()
    take_steps(*whole[:2])
    if rule is QuacK:
        bare = small(qkv_bias=True).to(dtype)
        take_steps(bare, AdamW(bare.parameters(), lr=1e-2, eps=EPS))
        assert_same(whole[0], bare)
    take_steps(*whole[:2], range(1, 4))
    file = io.BytesIO()
    torch.save([part.state_dict() for part in whole], file)
    take_steps(*whole[:2], range(4, 8))
    resumed = begin()
    for part, state in zip(resumed, torch.load(io.BytesIO(file.getvalue()), weights_only=True), strict=True):
        part.load_state_dict(state)
    take_steps(*resumed[:2], range(4, 8))
    assert_same(resumed[0], whole[0])


@pytest.mark.parametrize("before_a_step", [True, False])
@pytest.mark.parametrize("to", [torch.float64, torch.bfloat16])
def test_a_model_may_be_converted_after_attaching(to: torch.dtype, before_a_step: bool) -> None:
    """Criterion: a step is that of a model converted first, and the clip holds its bound."""
    converted, other = small(), small().to(to)
    pair = [SGD(model.parameters(), lr=0.5) for model in (converted, other)]
    for model, optimizer in zip((converted, other), pair, strict=True):
        FixedRates(model, optimizer, 0.3)
    clip, _ = (QKClip(model, optimizer, 0.5) for model, optimizer in zip((converted, other), pair, strict=True))
    if not before_a_step:
        converted.zero_grad()
        give_gradients(converted, 0)
        for parameter in converted.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        pair[0].step()
    converted.to(to)
    for model, optimizer in zip((converted, other), pair, strict=True):
        model(tokens(0))
        give_gradients(model, 1)
        optimizer.step()
    assert_same(converted, other)
    backward(converted, 0)
    pair[0].param_groups[0]["lr"] = 0.0
    pair[0].step()
    backward(converted, 0)
    pair[0].step()
    first = clip.last["blocks.0.attention"].logits  # the input of the first layer does not change with the clip
    assert first.max() <= 0.5 * (1 + (1e-5 if to == torch.float64 else 1e-2))


class Adam8bit(AdamW):
    """An optimizer whose state is rounded to 8 bits, as others store it; the weights stay whole."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                step = (state[name].abs().max() / 127).clamp(min=1e-30)
                state[name].copy_((state[name] / step).round() * step)


def test_optimizers_with_states_of_low_precision_are_supported() -> None:
    """Criterion: the rows of heads move by their rate times the optimizer's own step, though the step of one calls that
    of its parent class, around which torch calls all hooks a second time; and the clip acts."""
    model, bare = small(), small()
    optimizer, own = (Adam8bit(of.parameters(), lr=0.01) for of in (model, bare))
    fixed = FixedRates(model, optimizer, 0.25)
    start = weights(model)
    take_steps(model, optimizer)
    take_steps(bare, own)
    for name, weight in weights(model).items():
        rate = 0.25 if ".query." in name or ".key." in name else 1.0
        torch.testing.assert_close(weight, start[name] + rate * (weights(bare)[name] - start[name]))
    fixed.remove()
    QuacK(model, optimizer)
    clip = QKClip(model, optimizer, 0.01)
    backward(model, 0)
    optimizer.step()
    assert clip.n_clipped > 0
