"""Linear attention with decay equals its recurrence; tests cover survival, shared decays and the initial memory."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.analysis.memory import decay_length, effective_memory
from attractor.attention import Attention, Rope, build
from attractor.attention.hooks import capture
from attractor.attention.mask import Mask, lower_triangle
from attractor.attention.score.decayed import log_survival
from attractor.kernels.decay import PIECE
from tiers import fast_alone

WIDTH, H, B, T = 16, 4, 2, 9
K = WIDTH // H


def layer_of(openness: float = 0.0, **changes: Any) -> Attention:
    """Build a layer in fp64 whose decays differ between tokens and heads: z is about 3 + openness."""
    torch.manual_seed(0)
    layer = build("decay", WIDTH, H, **{"initial_memory": 21.0} | changes).double()
    with torch.no_grad():
        layer.project.decay.weight.normal_()
        layer.project.decay.bias.add_(openness + torch.linspace(-2, 0, layer.layout.n_kv_heads))
    return layer


def some_x(length: int = T, batch: int = B) -> Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def recurrent(layer: Attention, x: Tensor, rope: Rope | None = None) -> Tensor:
    """Compute the layer step by step, S_t = a_t S_(t-1) + k_t v_t', with one state per key head and no sum over
    pairs."""
    q, k, v = layer.project(x)
    v, a = v[..., :-1], v[..., -1].exp()
    if rope is not None:
        q, k = (rope.at(torch.arange(x.shape[1]))(y) for y in (q, k))
    group = H // k.shape[1]
    state, contexts = x.new_zeros(x.shape[0], k.shape[1], K, K), []
    for t in range(x.shape[1]):
        state = a[:, :, t, None, None] * state + k[:, :, t, :, None] * v[:, :, t, None, :]
        read = state.repeat_interleave(group, dim=1)
        contexts.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], read) / K**0.5)
    c = torch.stack(contexts, dim=2)
    return layer.output(c / (c.square().mean(-1, keepdim=True) + 1).sqrt(), x)


@pytest.mark.parametrize("n_kv_heads", fast_alone([4, 2, 1], 2))
@pytest.mark.parametrize("with_rope", [False, True])
@pytest.mark.parametrize("openness", [-40.0, 0.0, 40.0])
@pytest.mark.parametrize("length", [T, 2 * PIECE + 3])
def test_the_layer_equals_the_recurrence(n_kv_heads: int, with_rope: bool, openness: float, length: int) -> None:
    """Criterion: output and all gradients agree to 1e-12 in fp64, for decays a from almost 0 to almost 1."""
    layer, x = layer_of(openness, n_kv_heads=n_kv_heads), some_x(length).requires_grad_()
    rope = Rope(layer.rope_width) if with_rope else None
    wanted = [x, *layer.parameters()]
    probe = some_x(length).flip(0)
    found, expected = layer(x, rope=rope)[0], recurrent(layer, x, rope)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    ours, theirs = (torch.autograd.grad((out * probe).sum(), wanted) for out in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_padding_within_a_sequence_takes_no_time() -> None:
    """Criterion: the output equals, within 1e-12, that of the sequence without the masked positions at its start,
    middle and end."""
    real = torch.tensor([False, True, True, False, False, True, True, True, False])
    layer, x = layer_of(), some_x()
    mask = lower_triangle(T, T, x.device) & real
    alone = layer(x[:, real])[0]
    torch.testing.assert_close(layer(x, mask)[0][:, real], alone, rtol=1e-12, atol=1e-12)
    batched = mask.expand(B, 1, -1, -1).clone()
    torch.testing.assert_close(layer(x, batched)[0][:, real], alone, rtol=1e-12, atol=1e-12)


def test_survival_is_the_product_of_the_decays_between_two_positions() -> None:
    """Criterion: survival equals the products by hand for causal, full and arbitrary masks, and for the last queries
    alone."""
    log_decay = -torch.rand(B, 2, T, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    anything = torch.rand(T, T, generator=torch.Generator().manual_seed(1)) < 0.6
    everything = torch.ones(T, T, dtype=torch.bool)
    for mask, allowed in ((Mask(anything), anything), (Mask(), everything), (Mask(causal=True), everything)):
        found = log_survival(log_decay, T, mask)
        for t in range(T):
            for s in range(t + 1 if mask.causal else T):
                between = [r for r in range(min(s, t) + 1, max(s, t) + 1) if allowed[t, r]]
                torch.testing.assert_close(found[:, :, t, s], log_decay[..., between].sum(-1))
    last = log_survival(log_decay, 2, Mask(allowed=anything[-2:]))
    torch.testing.assert_close(last, log_survival(log_decay, T, Mask(anything))[:, :, -2:])


def test_without_causality_a_mirrored_sequence_is_seen_mirrored() -> None:
    """Criterion: with one decay for all positions, past and future are treated alike within 1e-12."""
    layer, x = layer_of(), some_x()
    torch.nn.init.zeros_(layer.project.decay.weight)
    torch.testing.assert_close(layer(x.flip(1), False)[0], layer(x, False)[0].flip(1), rtol=1e-12, atol=1e-12)


def test_far_positions_cost_near_ones_no_precision() -> None:
    """Criterion: in fp32 the survival over one step is exact to 1e-6 after 2,000 positions whose logarithms sum to
    -100,000. A difference of running sums would be off by 1e-3."""
    log_decay = torch.cat([torch.full((1, 1, 2000), -50.0), torch.full((1, 1, 10), -0.01)], dim=-1)
    found = log_survival(log_decay, 10, Mask(allowed=lower_triangle(10, 2010, log_decay.device)))
    torch.testing.assert_close(found[0, 0, -1, -2], torch.tensor(-0.01), rtol=1e-6, atol=0)
    assert (found <= 0).all()
    running = log_decay.cumsum(-1)[0, 0]
    assert abs(running[-1] - running[-2] + 0.01) > 1e-3


def test_decays_of_one_and_zero_are_the_known_limits() -> None:
    """Criterion: a = 1 is linear attention without decay; with a = 0 each position sees only its own value, up to a
    factor."""
    x = some_x()
    for openness in (80.0, -80.0):
        layer = layer_of(openness)
        q, k, v = layer.project(x)
        products = q @ k.mT / K**0.5
        context = (products.tril() if openness > 0 else products * torch.eye(T)) @ v[..., :-1]
        normed = context / (context.square().mean(-1, keepdim=True) + 1).sqrt()
        torch.testing.assert_close(layer(x)[0], layer.output(normed, x))


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 1e3])
def test_norm_bounds_and_never_magnifies(size: float) -> None:
    """Criterion: the norm lengthens no vector, keeps every root mean square below 1, and leaves small vectors as they
    are. Hence it cannot amplify the small product of a nearly orthogonal query and key."""
    context = size * some_x()
    found = build("decay", WIDTH, H, head_dim=WIDTH).score.norm(context)
    assert (found.abs() <= context.abs()).all()
    assert (found.square().mean(-1) < 1).all()
    if size < 1e-2:
        torch.testing.assert_close(found, context, rtol=1e-4, atol=0)


@pytest.mark.parametrize("memory", [2.0, 256.0, 100_000.0])
def test_training_starts_with_the_requested_memory(memory: float) -> None:
    """Criterion: in fp32 the tapped decays of every head and token give the requested memory within 0.1%; after 3,000
    tokens the effective memory has reached it, too."""
    layer = build("decay", WIDTH, H, n_kv_heads=2, initial_memory=memory)
    with capture("log_decay") as seen, torch.no_grad():
        layer.project(some_x(3000).float())
    (log_decay,) = seen["log_decay"]
    assert log_decay.shape == (B, 2, 3000)
    torch.testing.assert_close(decay_length(log_decay), torch.full_like(log_decay, memory), rtol=1e-3, atol=0)
    if memory < 1000:
        torch.testing.assert_close(effective_memory(log_decay)[..., -1], torch.full((B, 2), memory), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("mixed", "within"), [(False, 0.015), (True, 0.004)], ids=["bf16", "autocast"])
def test_long_memories_survive_half_precision(mixed: bool, within: float) -> None:
    """Criterion: cached bf16 decays give a memory of 256 positions within 0.4%, or 1.5% if the bias is bf16 as well.
    The decay a itself would round to 1 - 1/256 or 1."""
    layer, x = build("decay", WIDTH, H), some_x().float()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        _, _, v = layer.project(x) if mixed else layer.bfloat16().project(x.bfloat16())
    assert v.dtype == torch.bfloat16
    length = decay_length(v[..., -1])
    torch.testing.assert_close(length, torch.full_like(length, 256.0), rtol=within, atol=0)


def test_sums_beyond_the_range_of_fp16_stay_finite() -> None:
    """Criterion: large keys and values give a sum above 65,504; under the norm, fp16 differs from fp32 by rounding."""
    score = build("decay", WIDTH, H).score
    decay, size = -0.01 * torch.ones(B, H, 9, 1), 100 * torch.ones(B, H, 9, 4)
    q, k, v = size, size, torch.cat([size * torch.randn(B, H, 9, 4), decay], dim=-1)
    exact = score(q, k, v, Mask(causal=True), q)
    half = score(q.half(), k.half(), v.half(), Mask(causal=True), q)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), exact, rtol=0.01, atol=0.01)


def test_a_decay_for_each_key_head() -> None:
    """Criterion: beyond standard attention, each key head has D + 1 more parameters and caches one more number a
    position."""
    for n_kv_heads in (1, 2, 4):
        layer, plain = (build(name, WIDTH, H, n_kv_heads=n_kv_heads) for name in ("decay", "standard"))
        more = sum(p.numel() for p in layer.parameters()) - sum(p.numel() for p in plain.parameters())
        assert more == n_kv_heads * (WIDTH + 1)
        caches = [each.new_cache() for each in (layer, plain)]
        for each, cache in zip((layer, plain), caches, strict=True):
            each(some_x().float(), cache=cache)
        assert caches[0].n_numbers - caches[1].n_numbers == T * n_kv_heads


def test_tapped_weights_are_shares_of_the_summed_products() -> None:
    """Criterion: the tapped weights are the absolute products of queries, keys and survival, divided by their sum per
    row."""
    layer, x = layer_of(), some_x()
    with capture("weights", "logits") as seen:
        layer(x)
    q, k, v = layer.project(x)
    products = (q @ k.mT) * log_survival(v[..., -1], T, Mask(causal=True)).exp().tril()
    torch.testing.assert_close(seen["weights"][0], products.abs() / products.abs().sum(-1, keepdim=True))
    assert seen["logits"] == []


def test_dropout_falls_on_the_weights_in_training_alone() -> None:
    plain, dropping, x = layer_of(), layer_of(dropout=0.5), some_x()
    assert torch.equal(plain(x)[0], dropping.eval()(x)[0])
    assert not torch.equal(dropping.train()(x)[0], dropping(x)[0])


def test_taps_change_nothing_and_decoding_continues_after_any_chunk() -> None:
    """Criterion: taps keep the output bit for bit. Decoding equals the full pass within 1e-10 in fp64; with a cache,
    the layer sums over all positions at once."""
    layer, x = layer_of(), some_x(2 * PIECE + 3)
    whole = layer(x)[0]
    with capture("weights") as seen:
        assert torch.equal(layer(x)[0], whole)
    assert seen["weights"][0].shape == (B, H, x.shape[1], x.shape[1])
    cache = layer.new_cache()
    parts = [layer(part, cache=cache)[0] for part in x.split((PIECE - 1, PIECE, 1, 3), dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)
