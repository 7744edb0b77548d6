"""A sliding window is defined by a mask; computation in blocks and the rolling cache must equal that mask."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attractor.attention import PRESETS, Attention, AttentionConfig, Cache, Rope, build
from attractor.attention.couple.euler import Euler
from attractor.attention.mask import Mask, lower_triangle
from attractor.attention.score import window as windows
from attractor.attention.score.softmax import attend, logit_penalty
from attractor.attention.score.window import block_sizes, by_flex, in_blocks, pairs_computed, pairs_seen, tiles_seen
from attractor.errors import InputError
from attractor.kernels.vmap_attention import attention_under_vmap
from several_processes import together
from tiers import tiered

WINDOWED = [name for name, config in PRESETS.items() if hasattr(config.score, "window")]
with_window = pytest.mark.parametrize("name", tiered(WINDOWED))
WIDTH, HEADS = 16, 4
# Windows and lengths cover dense attention, one or several further blocks, an unfinished block, and a longer past.
SIZES = [(1, 40), (2, 64), (5, 6), (16, 90), (33, 130), (64, 128), (70, 200), (96, 250)]


def layer_of(name: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Attention:
    torch.manual_seed(0)
    layer = build(name, WIDTH, HEADS, layer_index=1, **changes).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return layer


def inputs(length: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def outputs_and_gradients(layer: Attention, x: Tensor, mask: bool | Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out, aux_loss = layer(x, mask, Rope(layer.rope_width))
    return [out, *torch.autograd.grad(out.square().sum() + aux_loss, [x, *layer.parameters()])]


@pytest.mark.parametrize(("window", "length"), SIZES, ids=str)
def test_blocks_equal_the_mask(window: int, length: int) -> None:
    """Criterion: outputs and gradients agree to 1e-12 in fp64, also after cached positions and with a soft-cap."""
    torch.manual_seed(0)
    for n_queries in (length, length - window // 2):
        shapes = ((2, 4, n_queries, 8), (2, 2, length, 8), (2, 2, length, 6))
        q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
        masks = Mask(window=window), Mask(allowed=lower_triangle(n_queries, length, q.device, window))
        for softcap in (None, 3.0):
            contexts = [attend(q, k, v, mask, 0.3, softcap) for mask in masks]
            in_block, reference = ((c, *torch.autograd.grad(c.square().sum(), (q, k, v))) for c in contexts)
            torch.testing.assert_close(in_block, reference, rtol=1e-12, atol=1e-12)
            penalties = [logit_penalty(q, k, mask, 0.3, softcap) for mask in masks]
            torch.testing.assert_close(*penalties, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("n_queries", "n_keys", "window"),
    [(700, 700, 200), (128, 128, 1), (300, 900, 129), (1000, 1001, 257), (5, 700, 3), (1024, 1024, 4000)],
)
def test_tiles_are_those_in_which_a_query_sees_a_key(n_queries: int, n_keys: int, window: int) -> None:
    """Criterion: no tile of the mask is left out, and no other is computed."""
    seen = lower_triangle(n_queries, n_keys, torch.device("cpu"), window)
    tile = windows.TILE
    padded = torch.nn.functional.pad(seen, (0, -n_keys % tile, 0, -n_queries % tile))
    expected = padded.unflatten(0, (-1, tile)).unflatten(2, (-1, tile)).any(3).any(1)
    found = tiles_seen(n_queries, n_keys, window, torch.device("cpu")).to_dense()
    assert torch.equal(found[0, 0].bool(), expected)


@pytest.mark.slow
def test_flex_attention_equals_the_mask() -> None:
    """Criterion: contexts agree to 1e-5 in fp32, with shared keys and cached positions, in one graph. A CPU has no
    backward pass of FlexAttention. The shape checks that conftest adds to signatures cannot be traced."""
    together(1, compare_flex_with_the_mask)


def compare_flex_with_the_mask() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 150, 16), *torch.randn(2, 2, 2, 200, 16)
    for softcap in (None, 3.0):
        flex = partial(by_flex, window=70, scale=0.3, softcap=softcap)
        found = torch.compile(flex, backend="eager", fullgraph=True)(q, k, v)
        expected = attend(q, k, v, Mask(allowed=lower_triangle(150, 200, q.device, 70)), 0.3, softcap)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not windows.suits_flex(q.requires_grad_(), dropout=0.0), "on a CPU blocks are computed"


@with_window
def test_a_mechanism_with_a_window_equals_itself_with_the_mask(name: str) -> None:
    """Criterion: outputs and all gradients agree to 1e-10 in fp64."""
    x = inputs(90, batch=1)
    windowed = outputs_and_gradients(layer_of(name, window=16, z_loss=0.1), x, True)
    masked = outputs_and_gradients(layer_of(name, z_loss=0.1), x, lower_triangle(90, 90, x.device, 16))
    torch.testing.assert_close(windowed, masked, rtol=1e-10, atol=1e-10)


@with_window
def test_the_window_ends_exactly(name: str) -> None:
    """Criterion: the gradient of out_t by x_(t - W) and x_(t + 1) is exactly zero, and by x_(t - W + 1) and x_t it is
    not."""
    layer, x = layer_of(name, window=16), inputs(90, batch=1).requires_grad_()
    before = 3 if name == "short-conv" else 0  # positions that its convolution reads before the first key
    out, _ = layer(x)
    for t in (20, 40, 89):
        (gradient,) = torch.autograd.grad((out[:, t] * torch.randn(WIDTH)).sum(), x, retain_graph=True)
        reached = gradient[0].abs().amax(-1) > 0
        assert torch.equal(reached.nonzero().flatten(), torch.arange(t - 15 - before, t + 1))


@with_window
def test_a_window_over_all_positions_is_no_window(name: str) -> None:
    x, plain = inputs(12), layer_of(name)
    for window in (12, 100):
        assert torch.equal(layer_of(name, window=window)(x)[0], plain(x)[0])


def test_a_window_of_one_sees_only_its_own_position() -> None:
    """Criterion: at lengths of one and of several blocks, every context is the value of its own position."""
    layer = layer_of("standard", window=1)
    for length in (5, 100):
        x = inputs(length)
        torch.testing.assert_close(layer(x)[0], layer.output(layer.project(x)[2], x))


@with_window
@pytest.mark.parametrize("chunks", [[1] * 12 + [18], [25, 1, 1, 3]], ids=["steps", "long prompt"])
def test_rolling_cache_equals_the_full_pass(name: str, chunks: list[int]) -> None:
    """Criterion: both agree to 1e-10 in fp64 far beyond the window, and the cache never holds more than W positions."""
    layer, x = layer_of(name, window=6), inputs(30)
    rope = Rope(layer.rope_width)
    whole, _ = layer(x, True, rope)
    one, cache, parts = layer.new_cache(), layer.new_cache(), []
    layer(x[:, :1], cache=one)
    for chunk in x.split(chunks, dim=1):
        parts.append(layer(chunk, True, rope, cache)[0])
        n_state = sum(x[0].numel() for x in cache.state)  # of a short convolution
        assert cache.n_numbers - n_state == min(cache.length, 6) * (one.n_numbers - n_state)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)


def test_a_long_chunk_after_a_past_is_computed_in_blocks() -> None:
    layer, x = layer_of("gqa", window=8), inputs(120)
    whole, _ = layer(x)
    cache = layer.new_cache()
    parts = [layer(chunk, cache=cache)[0] for chunk in x.split([11, 109], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-10, atol=1e-10)


def test_the_memory_of_a_rolling_cache_does_not_grow() -> None:
    """Criterion: after a long prompt and many steps, the storage, all of which is pickled, is that of W positions."""
    cache, of_window = Cache(window=4), Cache(window=4)
    of_window.append(torch.zeros(2, 3, 4, 5))
    for n in (50, 1, 1, 3, 1):
        cache.append(torch.zeros(2, 3, n, 5))
        assert len(pickle.dumps(cache)) == len(pickle.dumps(of_window))
    assert cache.length == 56
    assert cache.n_numbers == 3 * 4 * 5


def test_a_rolling_cache_forgets_positions_only_before_the_window_is_full() -> None:
    """Criterion: before the window is full, decoding continues as if the forgotten positions had never been cached."""
    layer, x = layer_of("standard", window=6), inputs(8)
    cache = layer.new_cache()
    layer(x[:, :5], cache=cache)
    cache.crop(3)
    found, _ = layer(x[:, 3:], cache=cache)
    torch.testing.assert_close(found, layer(x)[0][:, 3:])
    with pytest.raises(InputError, match=r"^window must be at least the 8 cached positions to forget some .* got 6: "):
        cache.crop(7)


def test_several_models_are_computed_at_once() -> None:
    """Criterion: under vmap, as seeds are stacked, every model's output and gradient are its own."""
    layers, x = [build("gqa", WIDTH, HEADS, window=16).double() for _ in range(2)], inputs(90)
    weights, _ = torch.func.stack_module_state(layers)  # type: ignore[arg-type]
    with attention_under_vmap():
        found = torch.vmap(lambda weights: torch.func.functional_call(layers[0], weights, (x,))[0])(weights)
    for output, layer in zip(found, layers, strict=True):
        torch.testing.assert_close(output, layer(x)[0])


def test_pairs_are_counted_exactly() -> None:
    """Criterion: the count of visible pairs is that of the mask, and the count of computed pairs is that of
    `in_blocks`."""
    for window, length in SIZES:
        assert pairs_seen(length, window) == int(lower_triangle(length, length, torch.device("cpu"), window).sum())
        counted = []

        def count(q: Tensor, k: Tensor, v: Tensor, mask: Mask, counted: list[int] = counted) -> Tensor:
            counted.append(q.shape[0] * q.shape[2] * k.shape[2])
            return q

        x = torch.zeros(1, 1, length, 2)
        in_blocks(count, x, x, x, window)
        assert sum(counted) == pairs_computed(length, window), (window, length)
    assert pairs_seen(7, None) == 28
    assert pairs_computed(10_000, 64) < 10_000 * 2 * 64 < 10_000**2 / 10


def test_blocks_reach_as_far_back_as_the_window() -> None:
    for window in (1, 2, 31, 32, 33, 64, 65, 1000, 5000):
        rows, first = block_sizes(window)
        assert first % rows == 0
        assert window - 1 <= first < max(window + rows, 2 * rows)


ALL, PAST = torch.ones(6, 6, dtype=torch.bool), "a window holds only past positions"
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: build("standard", 16, 4, window=0), r"^window must be an integer of at least 1, or None, got 0; "),
    (lambda: build("differential", 16, 4, window=-3), r"^window must be an integer of at least 1, or None, got -3; "),
    (lambda: build("standard", 16, 4, window=True), r"^window must be an integer, or None, got True$"),
    (lambda: build("uniform", 16, 4, window=8), r"^window must be left out under score Uniform, got 8; only attention"),
    (lambda: build("decay", 16, 4, window=8), r"^window must be left out under score Decayed, got 8; only attention"),
    (lambda: of_four(False), rf"^causal_mask must be True or a causal tensor under window=4, got False; {PAST}"),
    (lambda: of_four(ALL), rf"^causal_mask must allow no later key under window=4, got one that does; {PAST}"),
    (lambda: of_four(cache=Cache()), r"^cache must be of window=4, .* got None; make it by layer.new_cache\(\)$"),
]


def of_four(*given: Any, **more: Any) -> Any:
    return layer_of("standard", window=4)(inputs(6), *given, **more)


@pytest.mark.parametrize(("attempt", "message"), WRONG, ids=[message[1:40] for _, message in WRONG])
def test_unsupported_uses_of_a_window_are_refused_in_one_line(attempt: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        attempt()
    assert "\n" not in str(error.value)


def test_a_mask_is_checked_once_and_again_after_a_change_in_place() -> None:
    """Criterion: layers read the values of a mask once, and a mask that is changed to contradict the window is refused.
    The mask has 2 or 3 dimensions, and is made in inference mode or not."""
    layer, x = layer_of("standard", window=4), inputs(6)
    for shape in ((6, 6), (2, 6, 6)):
        mask = lower_triangle(6, 6, x.device).expand(shape).clone()
        with counted_reads() as reads:
            for _ in range(3):
                layer(x, mask)
        assert len(reads) == 1
        mask[..., 2, 5] = True
        with pytest.raises(InputError, match="causal_mask must allow no later key under window=4"):
            layer(x, mask)
    with torch.inference_mode(), pytest.raises(InputError, match="causal_mask must allow no later key under window=4"):
        layer(x, ALL.clone())


@contextmanager
def counted_reads() -> Iterator[list[str]]:
    """Record the operations that make the host wait for a value."""
    reads: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if operation.name() in ("aten::_local_scalar_dense", "aten::is_nonzero"):
                reads.append(str(operation))
            return operation(*args, **(kwargs or {}))

    with Watch():
        yield reads


def test_a_config_with_a_window_survives_storage_and_one_without_is_stored_as_before() -> None:
    config = AttentionConfig(couple=Euler()).replace(window=7)
    assert AttentionConfig.from_dict(config.to_dict()) == config
    assert config.window == 7
    assert "window" not in AttentionConfig().to_dict()["score"]
