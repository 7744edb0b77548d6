"""Layers whose coupling runs by the interpreted kernel equal plain layers, wherever the kernel may be used."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.attention import PRESETS, Attention, Rope, build
from attractor.attention.couple import fused as dispatch
from attractor.attention.couple.norm_and_position import NormalisingCoupling
from attractor.attention.hooks import capture
from attractor.kernels.fallback import functorch_active
from attractor.kernels.vmap_attention import attention_under_vmap
from tiers import fast_alone

D_MODEL, N_HEADS = 64, 4
COUPLED = [name for name in PRESETS if isinstance(build(name, D_MODEL, N_HEADS).couple, NormalisingCoupling)]


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Use the kernel as on a GPU unless there is a reason against it; return the list of reasons, one per decision."""
    asked: list[str | None] = []

    def on_gpu(kernel: str, x: Tensor, unsupported: str | None = None) -> bool:
        asked.append(unsupported or ("transformed" if functorch_active() else None))
        return asked[-1] is None

    monkeypatch.setattr(dispatch, "use_kernel", on_gpu)
    return asked


def layer_of(name: str, **changes: Any) -> Attention:
    torch.manual_seed(0)
    layer = build(name, D_MODEL, N_HEADS, **changes)
    with torch.no_grad():
        for parameter in layer.parameters():  # a gate that starts at 0 would hide the operations behind it
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def output_and_gradients(layer: Attention) -> list[Tensor]:
    """Run a forward and a backward pass with rope; return the output, the input's gradient and the parameters'
    gradients."""
    x = torch.linspace(-2, 2, 2 * 7 * D_MODEL).sin().view(2, 7, D_MODEL).requires_grad_()
    out = layer(x, rope=Rope(layer.rope_width))[0]
    loss = (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum()
    return [out, *torch.autograd.grad(loss, [x, *layer.parameters()])]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for x, y in zip(found, expected, strict=True):
        assert (x - y).detach().abs().max() <= 1e-5 * y.detach().abs().max().clamp(min=1e-2)


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"zero_start": True}], ids=["as it is", "normed", "gated"])
@pytest.mark.parametrize("name", fast_alone(COUPLED, "coupled-euler", "coupled-gqa"))
def test_a_layer_is_the_same_by_the_kernel(
    name: str, changes: dict[str, bool], fused: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "mlp-only" and "zero_start" in changes:
        pytest.skip("it has no gate")
    layer = layer_of(name, **changes)
    with capture("q_coupled", "k_coupled") as seen:
        found = output_and_gradients(layer)
    assert fused
    assert not any(fused)
    monkeypatch.undo()
    with capture("q_coupled", "k_coupled") as plain:
        assert_same(found, output_and_gradients(layer))
    for tap in plain:
        torch.testing.assert_close(seen[tap], plain[tap], rtol=1e-5, atol=1e-5)


def test_under_autocast_scored_queries_are_fp16_and_the_state_is_wider(fused: list[str | None]) -> None:
    """Criterion: under autocast the queries are closer to those of fp32 than 64 steps with a state in fp16 would leave
    them."""
    layer = layer_of("coupled-linear", n_steps=8, dt=2e-4)
    x = torch.randn(1, 3, D_MODEL)
    with torch.no_grad(), capture("q", "q_coupled") as seen:
        layer(x)
        with torch.autocast("cpu", torch.float16):
            layer(x)
    (_, narrow), (start, end), (half_start, half_end) = (
        seen["q_coupled"],
        *zip(seen["q"], seen["q_coupled"], strict=True),
    )
    assert narrow.dtype == torch.float16
    assert half_start.dtype == torch.float16
    torch.testing.assert_close(half_end.float(), end, rtol=2**-9, atol=2**-9)
    assert (end - start).abs().max() > 0


def test_transforms_of_functions_get_plain_operations(fused: list[str | None]) -> None:
    """Criterion: vmap over models and torch.func.grad give the plain results; only direct calls use the kernel."""
    layer = layer_of("coupled-euler")
    x, along = torch.randn(2, 3, 5, D_MODEL)
    stacks = {name: torch.stack([p.detach(), p.detach() * 1.1]) for name, p in layer.named_parameters()}

    def output(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, weights, (x,))[0]

    with attention_under_vmap():
        side_by_side = torch.func.vmap(output, in_dims=(0, None))(stacks, x)
    for number in range(2):
        alone = output({name: stack[number] for name, stack in stacks.items()}, x)
        torch.testing.assert_close(side_by_side[number], alone, rtol=1e-4, atol=1e-5)
    gradient = torch.func.grad(lambda x: (output({}, x) * along).sum())(x)
    x.requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(output({}, x), x, along)[0], rtol=1e-4, atol=1e-5)
    assert {against is None for against in fused} == {True, False}


@pytest.mark.parametrize(
    ("reason", "changes", "dtype"),
    [
        ("one network moves both", {"shared_force": True}, torch.float32),
        ("260 wide", {"head_dim": 260}, torch.float32),
        ("130 wide", {"head_dim": 130, "force": "linear"}, torch.float32),
        ("fp64", {}, torch.float64),
        ("12 forces", {"n_steps": 12}, torch.float32),
    ],
)
def test_inputs_that_the_kernel_does_not_support_are_computed_plainly(
    reason: str, changes: dict[str, Any], dtype: torch.dtype, fused: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = layer_of("coupled-euler", **changes).to(dtype)
    x = torch.randn(1, 3, D_MODEL, dtype=dtype)
    found = layer(x)[0]
    assert all(against is not None and reason in against for against in fused)
    monkeypatch.undo()
    assert torch.equal(found, layer(x)[0])
