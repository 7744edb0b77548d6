"""The gated delta rule: its chunks equal the recurrence, its limits are known, and documents and padding begin anew."""

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.attention import Attention, build
from attractor.attention.mask import Mask, lower_triangle
from attractor.attention.score.delta import context_under_mask, delta_weights, recurrent_delta, unit_length
from attractor.errors import InputError
from attractor.kernels.delta import delta_attention, delta_attention_on_gpu

B, H, K, V, WIDTH = 2, 3, 4, 5, 16


def inputs(length: int, dtype: torch.dtype = torch.float64, least_decay: float = -3.0) -> list[Tensor]:
    """Return q, k, v, log a, b and a first state that is not zero."""
    generator = torch.Generator().manual_seed(length)
    q, k, v, state = (
        torch.randn(B, H, *size, generator=generator, dtype=torch.float64)
        for size in [(length, K)] * 2 + [(length, V)] + [(K, V)]
    )
    log_decay, rate = (torch.rand(B, H, length, generator=generator, dtype=torch.float64) for _ in range(2))
    parts = [unit_length(q), unit_length(k), v, least_decay * log_decay**3, rate, state]
    return [part.to(dtype).requires_grad_() for part in parts]


@pytest.mark.parametrize("length", [1, 7, 64, 131])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_chunks_equal_the_recurrence(length: int, dtype: torch.dtype, tolerance: float) -> None:
    """Criterion: contexts, the last state and all gradients agree, from a state that is not zero, for decays from 1 to
    e^-3, also where a sequence begins anew, and for chunks of 64 and of 5."""
    for anew in ([], [length // 2]):
        parts = inputs(length, dtype)
        q, k, v, given, rate, state = parts
        results = []
        for compute, more in ((recurrent_delta, ()), (delta_attention, ()), (delta_attention, (5,))):
            log_decay = given.index_fill(2, torch.tensor(anew, dtype=torch.long), float("-inf"))
            context, last = compute(q, k, v, log_decay, rate, 0.5, state, *more)
            gradients = torch.autograd.grad((context * v.detach().flip(2)).sum() + last.square().sum(), parts)
            results.append([context, last, *gradients])
        for result in results[1:]:
            for part, expected in zip(result, results[0], strict=True):
                scale = expected.abs().amax().clamp(min=1)
                torch.testing.assert_close(part / scale, expected / scale, rtol=0, atol=tolerance)


def test_limits() -> None:
    """Criterion: b = 0 lets the state fade by a and writes nothing; a = b = 1 answers each key with its value; with
    orthogonal keys and a = 1, the rule is linear attention."""
    q, k, v, log_decay, rate, state = inputs(6)
    none, one = torch.zeros_like(rate), torch.ones_like(rate)
    _, last = recurrent_delta(q, k, v, log_decay, none, 1.0, state)
    torch.testing.assert_close(last, log_decay.sum(2).exp()[..., None, None] * state)
    unit = k / k.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(recurrent_delta(unit, unit, v, none, one, 1.0, state)[0], v)
    axes = torch.eye(K, dtype=torch.float64).expand(B, H, K, K)
    q, v, none, rate = (x[:, :, :K] for x in (q, v, none, rate))
    context, _ = recurrent_delta(q, axes, v, none, rate, 1.0, torch.zeros_like(state))
    torch.testing.assert_close(context, (q @ axes.mT * rate[..., None, :]).tril() @ v)


@pytest.mark.parametrize(
    "mask",
    [Mask(causal=True), Mask(), Mask(lower_triangle(6, 6, torch.device("cpu"))[None, None].flip(-1))],
    ids=["causal", "none", "other"],
)
def test_weights_times_values_are_the_context(mask: Mask) -> None:
    q, k, v, log_decay, rate, state = inputs(6)
    weights = delta_weights(q, k, log_decay, rate, mask, 0.5)
    if mask.causal:
        expected, _ = recurrent_delta(q, k, v, log_decay, rate, 0.5, torch.zeros_like(state))
        assert (weights.triu(1) == 0).all()
    else:
        expected = context_under_mask(q, k, v, log_decay, rate, mask, 0.5)
    torch.testing.assert_close(weights @ v, expected)


def layer_and_input(length: int) -> tuple[Attention, Tensor]:
    torch.manual_seed(0)
    return build("gated-deltanet", WIDTH, 4).double(), torch.randn(1, length, WIDTH, dtype=torch.float64)


def in_documents(beginnings: list[int], length: int) -> Tensor:
    document = torch.zeros(length, dtype=torch.long)
    document[torch.tensor(beginnings)] = 1
    document = document.cumsum(0)
    return lower_triangle(length, length, document.device) & (document[:, None] == document)


def test_documents_in_a_row_are_those_alone() -> None:
    """Criterion: at 1e-12, in one pass and with a cache that takes the row in parts."""
    layer, x = layer_and_input(140)
    mask = in_documents([0, 3, 70, 71], 140)
    alone = torch.cat([layer(part)[0] for part in x.split([3, 67, 1, 69], dim=1)], dim=1)
    assert_in_parts(layer, x, mask, alone, real=torch.ones(140, dtype=torch.bool))


@pytest.mark.parametrize("queries_too", [False, True])
def test_padding_anywhere_takes_no_time(queries_too: bool) -> None:
    """Criterion: at 1e-12, the rest is as without the padding at the start, in the middle and at the end, whether or
    not the padding may attend to the rest; in one pass and with a cache."""
    layer, x = layer_and_input(140)
    layer.project.convolution.kernel.data[1:] = 0  # or else the padding parts what the convolution joins
    real = torch.ones(140, dtype=torch.bool)
    real[[0, 1, 40, 99, 100, 139]] = False
    mask = lower_triangle(140, 140, x.device) & real
    if queries_too:
        mask = mask & real[:, None]
    assert_in_parts(layer, x, mask, layer(x[:, real])[0], real)


def assert_in_parts(layer: Attention, x: Tensor, mask: Tensor, expected: Tensor, real: Tensor) -> None:
    cache = layer.new_cache()
    cuts = (0, 2, 3, 41, 100, 139, 140)
    parts = [layer(x[:, a:b], mask[a:b, :b], None, cache)[0] for a, b in pairwise(cuts)]
    for out in (layer(x, mask)[0], torch.cat(parts, dim=1)):
        torch.testing.assert_close(out[:, real], expected, rtol=1e-12, atol=1e-12)


def test_any_other_mask_is_exact_without_cache_and_refused_with_one() -> None:
    """Criterion: a query that skips one position sees the sequence without it; what the memory holds stays told."""
    layer, x = layer_and_input(9)
    layer.project.convolution.kernel.data[1:] = 0
    mask, real = lower_triangle(9, 9, x.device).clone(), torch.arange(9) != 4
    mask[7, 4] = False
    out, alone = layer(x, mask)[0], layer(x[:, real])[0]
    torch.testing.assert_close(out[:, 7], alone[:, 6], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out[:, 8], layer(x)[0][:, 8], rtol=1e-12, atol=1e-12)
    cache = layer.new_cache()
    layer(x[:, :7], cache=cache)
    for rows, part in ((mask[7:8, :8], x[:, 7:8]), (mask[7:], x[:, 7:])):
        with pytest.raises(InputError, match=r"^causal_mask must be that of padding and of documents in a row"):
            layer(part, rows, None, cache)


def test_the_cache_has_one_size_and_cannot_be_cropped_and_nothing_is_rotated() -> None:
    layer, x = layer_and_input(12)
    assert layer.rope_width == 0
    cache, sizes = layer.new_cache(), set()
    for t in range(12):
        layer(x[:, t : t + 1], cache=cache)
        sizes.add(cache.n_numbers)
    assert sizes == {4 * 4 * 4 + 3 * 3 * WIDTH + 2}  # H K V, three inputs of the convolutions, two counts
    with pytest.raises(InputError, match="keeps a state of its past"):
        cache.crop(6)


def test_the_kernel_of_another_package_is_given_its_own_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: a stand-in with the signature of flash-linear-attention, B T H ., gives what the recurrence gives."""

    def chunk_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **more: Any) -> Any:
        assert more.pop("output_final_state")
        context, state = recurrent_delta(
            *(x.transpose(1, 2) for x in (q, k, v, g, beta)), more.pop("scale"), more.pop("initial_state")
        )
        assert not more
        return context.transpose(1, 2), state

    ops = ModuleType("fla.ops.gated_delta_rule")
    ops.chunk_gated_delta_rule = chunk_gated_delta_rule  # type: ignore[attr-defined]
    for name, module in (("fla", ModuleType("fla")), ("fla.ops", ModuleType("fla.ops")), (ops.__name__, ops)):
        monkeypatch.setitem(sys.modules, name, module)
    *parts, state = inputs(7)
    found, expected = (f(*parts, 0.5, state) for f in (delta_attention_on_gpu, recurrent_delta))
    torch.testing.assert_close(found, expected)
