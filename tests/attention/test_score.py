"""The fused path equals the definition of attention, and every form of differential attention equals its formula."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.attention import PRESETS, Attention, build
from attractor.attention.hooks import capture
from attractor.attention.mask import Mask, lower_triangle
from attractor.attention.score import softmax
from attractor.attention.score.differential import FORMS, Differential
from attractor.attention.score.exclusive import Exclusive
from attractor.attention.score.sinks import Sinks
from attractor.attention.score.softmax import (
    Softmax,
    attend,
    attention_logits,
    attention_weights,
    fused_attention,
    weigh,
)
from attractor.attention.score.uniform import Uniform
from attractor.attention.stage import Scoring
from tiers import fast_alone

T, H, WIDTH = 5, 4, 16


def some_mask() -> Tensor:
    """Return a mask B 1 T S in which row 2 of the second sequence may attend to nothing."""
    mask = torch.rand(2, 1, T, T, generator=torch.Generator().manual_seed(3)) < 0.6
    mask |= torch.eye(T, dtype=torch.bool)
    mask[1, 0, 2] = False
    return mask


MASKS = {
    "none": Mask(),
    "causal": Mask(causal=True),
    "T S": Mask(allowed=some_mask()[1, 0]),
    "B 1 T S": Mask(allowed=some_mask()),
}
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


def layer_of(score: Scoring, **changes: Any) -> Attention:
    """Build a layer with this score in fp64 and move its parameters off their starting values."""
    torch.manual_seed(0)
    layer = build(PRESETS["standard"].replace(score=score), WIDTH, H, layer_index=3, **changes).double()
    with torch.no_grad():
        for parameter in layer.score.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return layer


def some_x(length: int = T) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def maps_by_hand(q: Tensor, k: Tensor) -> Tensor:
    """Compute the causal softmax maps of equally many query and key heads."""
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    return logits.masked_fill(~lower_triangle(T, T, q.device), float("-inf")).softmax(-1)


def through_output(layer: Attention, context: Tensor) -> Tensor:
    return context.transpose(1, 2).flatten(2) @ layer.output.out.weight.T


@every_mask
@pytest.mark.parametrize(("key_heads", "k_width", "v_width"), [(4, 6, 6), (2, 6, 6), (1, 6, 6), (4, 4, 7), (2, 7, 3)])
@pytest.mark.parametrize("short", [softmax.SHORT, 0], ids=["short", "long"])
def test_fused_attention_equals_the_definition(
    mask: Mask, key_heads: int, k_width: int, v_width: int, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: output and all three gradients agree within 1e-12 in fp64, for grouped keys and unequal widths, padded
    and not padded."""
    monkeypatch.setattr(softmax, "SHORT", short)
    q, k, v = tensors((2, H, T, k_width), (2, key_heads, T, k_width), (2, key_heads, T, v_width))
    fused = attend(q, k, v, mask, 0.4)
    plain = weigh(attention_weights(attention_logits(q, k, 0.4), mask), v)
    direction = torch.randn_like(plain)
    torch.testing.assert_close(fused, plain, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((out * direction).sum(), (q, k, v)) for out in (fused, plain)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", fast_alone(["mla", "phase"], "phase"))
def test_a_program_for_many_lengths_is_not_restricted_to_short_ones(name: str) -> None:
    layer = build(name, WIDTH, H).eval()
    length = torch.export.Dim("length", min=2, max=4 * softmax.SHORT)
    with torch.no_grad():
        program = torch.export.export(layer, (some_x().float(),), dynamic_shapes=({1: length},), strict=False).module()
        for x in (some_x(7).float(), some_x(softmax.SHORT + 7).float()):
            torch.testing.assert_close(program(x)[0], layer(x)[0], rtol=0, atol=1e-5)


def test_definition_is_the_formula() -> None:
    """Criterion: c_t = sum_s softmax_s(scale q_t . k_s) v_s, head by head; query head h reads key head h // 2."""
    q, k, v = tensors((2, H, T, 6), (2, 2, T, 6), (2, 2, T, 3))
    found = attend(q, k, v, Mask(causal=True), 0.4)
    for h in range(H):
        for t in range(T):
            scores = torch.exp(0.4 * (k[:, h // 2, : t + 1] @ q[:, h, t].unsqueeze(-1)))
            expected = (scores * v[:, h // 2, : t + 1]).sum(1) / scores.sum(1)
            torch.testing.assert_close(found[:, h, t], expected)


@every_mask
def test_softcap_bounds_the_weights_and_vanishes_in_the_limit(mask: Mask) -> None:
    """Criterion: weights of allowed keys in a row differ by a factor of at most e^(2 cap), and by more without a cap.
    At cap = 1e6 the result equals that without a cap within 1e-8."""
    q, k, v = tensors((2, H, T, 6), (2, 2, T, 6), (2, 2, T, 6))
    logits = attention_logits(q, k, 20.0)
    for cap, holds in ((1.5, True), (None, False)):
        weights = attention_weights(logits, mask, cap)
        smallest = weights.masked_fill(weights == 0, torch.inf).amin(-1)
        assert (weights.amax(-1) <= 1.0001 * math.exp(2 * 1.5) * smallest).all() == holds
    torch.testing.assert_close(attend(q, k, v, mask, 0.4, 1e6), attend(q, k, v, mask, 0.4), rtol=1e-8, atol=1e-8)


def test_softcap_is_the_formula() -> None:
    """Criterion: capped logits are cap tanh(L / cap); the tap shows the logits before the cap."""
    layer, x = layer_of(Softmax(softcap=0.5)), some_x()
    with capture("logits", "weights") as seen:
        layer(x)
    q, k, _ = layer.project(x)
    (logits,), (weights,) = seen["logits"], seen["weights"]
    torch.testing.assert_close(logits, q @ k.mT / 2)
    capped = (0.5 * (logits / 0.5).tanh()).masked_fill(~lower_triangle(T, T, x.device), float("-inf"))
    torch.testing.assert_close(weights, capped.softmax(-1))


ONE_MAP: dict[str, Scoring] = {"softmax": Softmax(), "softcap": Softmax(softcap=1.0), "uniform": Uniform()}
TWO_MAPS: dict[str, Scoring] = {form: Differential(form=form) for form in FORMS}
SCORES = ONE_MAP | TWO_MAPS | {"scalar softcap": Differential(softcap=1.0)}


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_dropout_acts_only_in_training(score: Scoring) -> None:
    """Criterion: in evaluation every bit equals that of a layer without dropout; in training every call differs."""
    plain, dropping = layer_of(score), layer_of(score, dropout=0.5)
    x = some_x()
    assert torch.equal(plain.eval()(x)[0], dropping.eval()(x)[0])
    dropping.train()
    assert not torch.equal(dropping(x)[0], dropping(x)[0])
    assert torch.equal(plain.train()(x)[0], plain.eval()(x)[0])


@pytest.mark.parametrize("score", ONE_MAP.values(), ids=ONE_MAP)
def test_dropout_keeps_the_mean(score: Scoring) -> None:
    """Criterion: over 4,000 sequences the mean output equals that without dropout within 5 standard errors."""
    x = some_x()[:1].expand(4000, -1, -1)
    plain, dropping = layer_of(score)(x[:1])[0][0], layer_of(score, dropout=0.3).train()(x)[0]
    error = dropping.std(0) / math.sqrt(4000)
    assert ((dropping.mean(0) - plain).abs() < 5 * error).all()
    assert (error > 0).all()


def normed(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize("form", ["scalar", "vectors"])
def test_differential_of_halves_is_the_formula(form: str) -> None:
    """Criterion: c = (1 - lambda_init) RMSNorm(A_1 v - lambda A_2 v), where the first halves of all heads give A_1 and
    the second halves give A_2."""
    layer, x = layer_of(Differential(form=form)), some_x()
    q, k, v = layer.project(x)
    lambda_init = 0.8 - 0.6 * math.exp(-0.3 * 3)
    if form == "scalar":
        subtracted, weight = layer.score.scalar.view(H, 1, 1), 1.0
    else:
        a1, b1, a2, b2 = layer.score.vectors
        subtracted, weight = torch.exp(a1.dot(b1)) - torch.exp(a2.dot(b2)) + lambda_init, layer.score.norm.weight
    first, second = maps_by_hand(q[..., :2], k[..., :2]), maps_by_hand(q[..., 2:], k[..., 2:])
    context = (1 - lambda_init) * normed(first @ v - subtracted * (second @ v)) * weight
    torch.testing.assert_close(layer(x)[0], through_output(layer, context))


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_differential_by_token_is_the_formula(n_kv_heads: int) -> None:
    """Criterion: c_h = A_2h v - sigmoid(w_h . x) A_(2h+1) v, where both query heads read the key head of head h."""
    layer, x = layer_of(Differential(form="token"), n_kv_heads=n_kv_heads), some_x()
    q, k, v = layer.project(x)
    assert q.shape[1] == 2 * H
    opened = torch.sigmoid(x @ layer.score.subtraction.weight.T)
    contexts = []
    for h in range(H):
        key = h * n_kv_heads // H
        first, second = (maps_by_hand(q[:, 2 * h + i], k[:, key]) @ v[:, key] for i in (0, 1))
        contexts.append(first - opened[..., h : h + 1] * second)
    torch.testing.assert_close(layer(x)[0], through_output(layer, torch.stack(contexts, dim=1)))


@pytest.mark.parametrize("form", FORMS)
def test_maps_are_tapped_first_then_second(form: str) -> None:
    """Criterion: of the 2 H tapped maps, the first H are A_1 of heads 0 to H - 1 and the rest are A_2."""
    layer, x = layer_of(Differential(form=form)), some_x()
    q, k, _ = layer.project(x)
    with capture("weights") as seen:
        layer(x)
    for h in range(H):
        for half in (0, 1):
            if form == "token":
                expected = maps_by_hand(q[:, 2 * h + half], k[:, h])
            else:
                part = slice(2 * half, 2 * half + 2)
                expected = maps_by_hand(q[:, h, :, part], k[:, h, :, part])
            torch.testing.assert_close(seen["weights"][0][:, half * H + h], expected)


@pytest.mark.parametrize("layer_index", [0, 1, 11])
def test_lambda_starts_as_a_function_of_depth(layer_index: int) -> None:
    expected = 0.8 - 0.6 * math.exp(-0.3 * layer_index)
    for name in ("differential", "differential-original"):
        assert build(name, WIDTH, H, layer_index=layer_index).score.lambda_init == expected
    scalar = build("differential", WIDTH, H, layer_index=layer_index).score.scalar
    torch.testing.assert_close(scalar, torch.full((H,), expected))
    assert build("differential", WIDTH, H).score.lambda_init == pytest.approx(0.2)


def mean_by_hand(v: Tensor, allowed: Tensor) -> Tensor:
    """Return for every query the mean of v (B H S V) over the keys that it may attend to (B T S), or zero without any
    key."""
    context = torch.zeros(*v.shape[:2], allowed.shape[1], v.shape[3], dtype=v.dtype)
    for b, t in allowed.any(-1).nonzero().tolist():
        context[b, :, t] = v[b][:, allowed[b, t]].mean(1)
    return context


@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.parametrize(
    "causal_mask", [True, False, some_mask()[1, 0], some_mask()], ids=["causal", "all", "T S", "B 1 T S"]
)
def test_uniform_is_the_mean_over_allowed_keys(causal_mask: bool | Tensor, n_kv_heads: int) -> None:
    layer, x = build("uniform", WIDTH, H, n_kv_heads=n_kv_heads).double(), some_x()
    spelled_out = {True: lower_triangle(T, T, x.device), False: torch.ones(T, T, dtype=torch.bool)}
    allowed = causal_mask if isinstance(causal_mask, Tensor) else spelled_out[causal_mask]
    v = layer.project(x)[2].repeat_interleave(H // n_kv_heads, dim=1)
    context = mean_by_hand(v, allowed.expand(2, 1, T, T)[:, 0])
    torch.testing.assert_close(layer(x, causal_mask)[0], through_output(layer, context))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mixed", [False, True], ids=["plain", "autocast"])
def test_training_in_half_precision_on_a_cpu_attends_in_fp32(dtype: torch.dtype, mixed: bool) -> None:
    """Criterion: output and gradients are those of fp32 attention, rounded once, inside and outside autocast."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 9, 8, generator=generator).to(dtype).requires_grad_() for _ in range(3))
    wide = [x.detach().float().requires_grad_() for x in (q, k, v)]
    mask = Mask(causal=True)
    with torch.autocast("cpu", dtype, enabled=mixed):
        out = fused_attention(q, k, v, mask, 0.3, 0.0)
    expected = fused_attention(*wide, mask, 0.3, 0.0)
    assert out.dtype == dtype
    assert torch.equal(out, expected.to(dtype))
    weight = torch.randn(out.shape, generator=generator).to(dtype)
    gradients = torch.autograd.grad(out, (q, k, v), weight), torch.autograd.grad(expected, wide, weight.float())
    for gradient, in_fp32 in zip(*gradients, strict=True):
        assert torch.equal(gradient, in_fp32.to(dtype))


def test_lambda_of_vectors_keeps_its_precision_under_autocast() -> None:
    score = Attention(PRESETS["differential-original"], 64, 2).score
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = score.subtraction()  # type: ignore[operator]
    torch.testing.assert_close(mixed, score.subtraction())  # type: ignore[operator]


@pytest.mark.parametrize("form", FORMS)
def test_a_difference_without_queries_and_keys_is_that_of_uniform_maps(form: str) -> None:
    """Criterion: with widths of zero, and an odd number of positions, the layer runs forward and backward."""
    layer = Attention(PRESETS["uniform"].replace(score=Differential(form)), 8, 2)
    layer(torch.randn(2, 5, 8, requires_grad=True))[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@every_mask
@pytest.mark.parametrize("learned", [False, True])
def test_exclusive_attention_is_softmax_attention_without_the_own_direction(mask: Mask, learned: bool) -> None:
    """Criterion: it is (1) computed from the weights; under lambda = 1 nothing is left along the own value, which then
    has no influence but by its weight, and under lambda = 0 it is softmax attention."""
    q, k, v = tensors((2, H, T, 3), (2, 2, T, 3), (2, 2, T, 4))
    layer = layer_of(Exclusive(learned=learned), n_kv_heads=2)
    layer.score.scale = 0.5
    found, own = layer.score(q, k, v, mask, q), v.repeat_interleave(2, dim=1)
    context = attend(q, k, v, mask, 0.5)
    share = layer.score.amount.tanh().view(-1, 1, 1) if learned else 1.0
    along = (context * own).sum(-1, keepdim=True) / own.square().sum(-1, keepdim=True)
    torch.testing.assert_close(found, context - share * along * own)
    if not learned:
        torch.testing.assert_close((found * own).sum(-1), torch.zeros(2, H, T, dtype=torch.float64))
    elif mask.causal:
        with torch.no_grad():
            layer.score.amount.zero_()
        torch.testing.assert_close(layer.score(q, k, v, mask, q), context)


@every_mask
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_sink_is_a_further_key_without_a_value(mask: Mask, softcap: float | None) -> None:
    """Criterion: contexts and weights are those of softmax over the logits and b, for every mask; b = -inf is softmax
    attention, and b = inf returns 0."""
    q, k, v = tensors((2, H, T, 3), (2, 2, T, 3), (2, 2, T, 4))
    score = layer_of(Sinks(softcap=softcap), n_kv_heads=2).score
    with capture("weights") as seen:
        found = score(q, k, v, mask, q)
    logits = attention_logits(q, k, score.scale)
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    allowed = mask.spelled_out(T, T, q.device)
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    weights = torch.cat([logits, score.sink.view(-1, 1, 1).expand(2, H, T, 1)], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(found, weigh(weights, v))
    torch.testing.assert_close(seen["weights"][0], weights)
    for sink, factor in ((-1e9, 1.0), (1e9, 0.0)):
        with torch.no_grad():
            score.sink.fill_(sink)
        expected = factor * attend(q, k, v, mask, score.scale, softcap)
        torch.testing.assert_close(score(q, k, v, mask, q), expected)
