"""The recorded maxima are the largest logits of every form of attention, and recording changes no result."""

import contextlib
import copy
import gc
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from subjects import FAMILIES, SCORING, B, T, of_family, small, tokens
from torch import Tensor, nn

import attractor
from attractor.attention.mask import lower_triangle
from attractor.control import logit_maxima
from attractor.control.heads import query_key_heads
from attractor.control.logit_maxima import HeadMaxima, LogitMaxima, exact_maxima, logit_bound
from attractor.control.score_inputs import ScoreInputs, masked_inputs
from saved_tensors import Largest
from several_processes import together
from tiers import fast_alone, tiered


@contextmanager
def recorded(model: nn.Module, threshold: float | None = None, **rest: Any) -> Iterator[LogitMaxima]:
    recording = LogitMaxima(query_key_heads(model), threshold, **rest)
    yield recording
    recording.remove()


def plain_maxima(logits: Tensor, allowed: Tensor, attention: str = "standard") -> Tensor:
    """Return the maximum per head of tapped logits B H T S; `differential-v2` taps all first maps before all second
    ones."""
    largest = logits.detach().masked_fill(~allowed, float("-inf")).amax((0, 2, 3))
    return largest.view(2, -1).T.flatten() if attention == "differential-v2" else largest


def tapped(model: nn.Module, batches: list[Tensor], attention: str, allowed: Tensor, **given: Any) -> list[Tensor]:
    """Return the maxima per layer, over batches, from tapped logits."""
    with attractor.capture("logits") as seen:
        for batch in batches:
            model(batch, **given)
    by_call = [plain_maxima(logits, allowed, attention) for logits in seen["logits"]]
    return [torch.stack(by_call[layer :: len(by_call) // len(batches)]).amax(0) for layer in range(2)]


@pytest.mark.parametrize("attention", tiered(SCORING))
@pytest.mark.parametrize("at_once", [True, False])
def test_maxima_are_those_of_the_tapped_logits(attention: str, at_once: bool) -> None:
    """Criterion: over two micro-batches all maxima are exact without a threshold. With a threshold, those above it are
    exact, and the others are bounds between the maximum and the threshold."""
    model = small(attention)
    batches = [tokens(0), tokens(1, batch=2)]
    wanted = torch.cat(tapped(model, batches, attention, lower_triangle(T, T, torch.device("cpu"))))

    def record(threshold: float | None) -> tuple[Tensor, Tensor]:
        with recorded(model, threshold, at_once=at_once) as recording:
            for batch in batches:
                model(batch)
            read = recording.read()
        assert list(read) == [f"blocks.{layer}.attention" for layer in range(2)]
        return torch.cat([of.logits for of in read.values()]), torch.cat([of.exact for of in read.values()])

    found, exact = record(None)
    assert exact.all()
    torch.testing.assert_close(found, wanted)
    bounds, exact = record(1e9)
    assert not exact.any()
    assert (bounds >= wanted).all()
    middle = float(bounds.quantile(0.2))
    found, exact = record(middle)
    assert exact.any()
    assert not exact.all()
    torch.testing.assert_close(found[exact], wanted[exact])
    assert (exact | (found >= wanted) & (found <= middle)).all()
    assert (exact | (wanted <= middle)).all()


def test_keys_outside_the_window_do_not_count() -> None:
    model = small("standard", window=3)
    windowed, whole = (lower_triangle(T, T, torch.device("cpu"), window) for window in (3, None))
    wanted = torch.cat(tapped(model, [tokens(0)], "standard", windowed))
    with recorded(model, None) as recording:
        model(tokens(0))
        found = torch.cat([layer.logits for layer in recording.read().values()])
    torch.testing.assert_close(found, wanted)
    assert not torch.equal(wanted, torch.cat(tapped(model, [tokens(0)], "standard", whole)))


@pytest.mark.parametrize("attention", ["standard", "gqa", "differential", "mla"])
def test_padding_does_not_count(attention: str) -> None:
    """Criterion: left or right padding by tokens with huge logits leaves the maxima of the real tokens unchanged."""
    model = small(attention)
    batch = tokens(0)
    real = torch.ones(B, T, dtype=torch.bool)
    real[0, :6] = False
    real[1, -4:] = False
    model.embedding.weight.data[7] = 100 * torch.randn(32, generator=torch.Generator().manual_seed(0))
    batch = batch.where((batch != 7) & real, torch.tensor(8)).where(real, torch.tensor(7))
    pairs = real[:, None, None, :] & lower_triangle(T, T, batch.device)
    wanted = tapped(model, [batch], attention, pairs, real=real)
    with recorded(model) as recording:
        model(batch, real=real)
        read = recording.read()
    for of, largest in zip(read.values(), wanted, strict=True):
        torch.testing.assert_close(of.logits, largest)


@pytest.mark.parametrize("rows", [1, 7, 16, 64])
@pytest.mark.parametrize("form", ["causal", "everything", "tensor", "by head", "rule"])
def test_the_maximum_over_blocks_is_that_of_the_matrix(rows: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: this holds for every block size and every form of the mask."""
    generator = torch.Generator().manual_seed(0)
    n_queries, n_keys = 53, 53 if form == "causal" else 59
    q, k = torch.randn(2, 6, n_queries, 8, generator=generator), torch.randn(2, 3, n_keys, 8, generator=generator)
    by_head = torch.rand(2, 6, n_queries, n_keys, generator=generator) < 0.1
    by_head[:, :, 5] = False  # a query that attends to nothing
    window = torch.arange(n_queries)[:, None] - torch.arange(n_keys)
    window = (window >= 0) & (window < 3)
    allowed, said = {
        "causal": (lower_triangle(n_queries, n_keys, q.device), None),
        "everything": (torch.ones(n_queries, n_keys, dtype=torch.bool), None),
        "tensor": (window, window[None, None]),
        "by head": (by_head, by_head),
        "rule": (window, lambda b, h, t, s: (t >= s) & (t - s < 3)),
    }[form]
    whole = (0.3 * (q @ k.repeat_interleave(2, 1).mT)).masked_fill(~allowed, float("-inf")).amax((0, 2, 3))
    monkeypatch.setattr(logit_maxima, "CPU_BLOCK", rows * 2 * 6 * n_keys)
    scored = ScoreInputs(q, k, 0.3, causal=form == "causal", allowed=said)
    for heads in (torch.arange(6), torch.tensor([4, 1])):
        torch.testing.assert_close(exact_maxima(scored, heads), whole[heads])
    assert (logit_bound(scored) >= whole).all()


@pytest.mark.parametrize("fill", [-math.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
def test_an_added_mask_counts_whatever_number_masks(fill: float) -> None:
    q, k = torch.randn(2, 1, 4, 16, 8, generator=torch.Generator().manual_seed(0))
    masked = torch.full((1, 1, 16, 16), fill).triu(1)
    causal = exact_maxima(ScoreInputs(q, k, 0.3, causal=True, allowed=None), torch.arange(4))
    added = exact_maxima(ScoreInputs(q, k, 0.3, causal=False, allowed=masked), torch.arange(4))
    torch.testing.assert_close(added, causal)


def test_a_bound_is_never_below_the_maximum_when_it_is_attained() -> None:
    """Criterion: where queries equal keys, the largest logit equals the product of the norms, and rounding keeps the
    bound above it."""
    for width in (1, 8, 64, 192, 576):
        q = torch.randn(1, 16, 5, width, generator=torch.Generator().manual_seed(width))
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            scored = ScoreInputs(q.to(dtype), q.to(dtype), 0.5, causal=True)
            assert (logit_bound(scored) >= exact_maxima(scored, torch.arange(16))).all()


def test_no_tensor_is_ever_heads_by_queries_by_keys() -> None:
    """Criterion: at a length of 3000 no tensor has more than a sixth of B H T S entries."""
    length = 3000
    scored = ScoreInputs(torch.randn(1, 2, length, 4), torch.randn(1, 2, length, 4), 1.0, causal=True)
    with Largest() as largest:
        exact_maxima(scored, torch.arange(2))
    assert largest.n_numbers <= 2 * length * length / 6


@pytest.mark.parametrize("attention", ["standard", "differential", "coupled-euler", "mla"])
def test_recording_changes_no_bit(attention: str) -> None:
    """Criterion: outputs, gradients and the tensors that autograd saves are the same with and without recording."""

    def run(model: nn.Module) -> list[Tensor]:
        model.zero_grad()
        out = model(tokens(0))[0]
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    model = small(attention)
    before = run(model)
    with recorded(model), recorded(model, 0.01):
        assert all(torch.equal(a, b) for a, b in zip(before, run(model), strict=True))


def test_only_forward_passes_that_train_are_counted() -> None:
    """Criterion: evaluation mode and copies of the model do not count; a training forward pass does, also one without
    gradients, of which models that repeat their layers have several a step."""
    model = small()
    with recorded(model) as recording:
        model.eval()(tokens(0))
        copy.deepcopy(model).train()(tokens(0))
        assert recording.unseen == ["blocks.0.attention", "blocks.1.attention"]
        assert all(of.logits.isneginf().all() for of in recording.read().values())
        for context in (torch.no_grad, torch.enable_grad):
            with context():
                model.train()(tokens(0))
            assert recording.unseen == []
            assert all(of.logits.isfinite().all() for of in recording.read().values())
            recording.reset()
            assert len(recording.unseen) == 2


def test_logits_that_are_not_finite_are_left_out() -> None:
    """Criterion: a micro-batch with NaN or infinite logits leaves the maxima of the other micro-batches unchanged."""
    model = small()
    weight = model.blocks[0].attention.project.query.weight
    with recorded(model, 0.01) as recording:
        model(tokens(0))
        before = recording.read()
        kept = weight.detach().clone()
        for value in (float("nan"), float("inf")):
            weight.data.fill_(value)
            model(tokens(0))
        weight.data.copy_(kept)
        assert_same(recording.read(), before)


def test_nan_in_padding_hides_no_maximum() -> None:
    """Criterion: a bound that is NaN leads to the exact maximum, which excludes padding."""
    layer = attractor.attention.build("standard", d_model=32, n_heads=4).train()
    x = torch.randn(1, T, 32, generator=torch.Generator().manual_seed(0))
    mask = lower_triangle(T, T, x.device)
    mask[:, :3] = False

    def record(padding: float) -> dict[str, HeadMaxima]:
        with recorded(layer, 1e9 if math.isnan(padding) else None) as recording:
            layer(torch.cat([torch.full_like(x[:, :3], padding), x[:, 3:]], dim=1), mask)
            return recording.read()

    assert_same(record(math.nan), record(0.0))


def assert_same(found: dict[str, HeadMaxima], wanted: dict[str, HeadMaxima], tolerance: float = 1e-6) -> None:
    assert found.keys() == wanted.keys()
    for name, of in wanted.items():
        torch.testing.assert_close(found[name].logits, of.logits, rtol=tolerance, atol=tolerance)
        assert torch.equal(found[name].exact, of.exact)


def test_recomputation_changes_no_maximum() -> None:
    """Criterion: activation checkpointing, which runs each block again in the backward pass, gives the same maxima and
    gradients."""
    model = small("differential")

    def run() -> tuple[dict[str, HeadMaxima], list[Tensor]]:
        model.zero_grad()
        with recorded(model, 0.3) as recording:
            model.loss(tokens(0), tokens(1))[0].backward()
            return recording.read(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain, gradients = run()
    model.activation_checkpointing = True
    recomputed, same = run()
    assert_same(recomputed, plain)
    assert all(torch.equal(a, b) for a, b in zip(gradients, same, strict=True))


def test_under_autocast_the_logits_are_formed_in_fp32() -> None:
    """Criterion: the maxima of bf16 queries and keys are those of a product in fp32, to the rounding of fp32."""
    model = small()
    with torch.autocast("cpu", torch.bfloat16), recorded(model) as recording, attractor.capture("q_coupled") as q:
        with attractor.capture("k_coupled") as k:
            model(tokens(0))
        read = recording.read()
    assert q["q_coupled"][0].dtype == torch.bfloat16
    for of, queries, keys in zip(read.values(), q["q_coupled"], k["k_coupled"], strict=True):
        logits = queries.float() @ keys.float().mT * 8**-0.5
        torch.testing.assert_close(of.logits, plain_maxima(logits, lower_triangle(T, T, logits.device)))


@pytest.mark.slow
def test_compiled_models_are_recorded() -> None:
    """The test has a process of its own, since the shape checks that conftest adds to signatures cannot be traced."""
    together(1, record_compiled)


def record_compiled() -> None:
    """Criterion: models that are recorded and then compiled, ours and Hugging Face's, have the maxima and loss of eager
    ones."""
    ours = small(n_layers=1)
    compare_compiled(ours, lambda: ours.loss(tokens(0), tokens(1))[0])
    with contextlib.suppress(pytest.skip.Exception):
        theirs = of_family("llama", "sdpa", num_hidden_layers=1)
        compare_compiled(theirs, lambda: theirs(tokens(0), use_cache=False).logits.square().sum())


def compare_compiled(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    with recorded(model, 0.3) as recording:
        plain = loss()
        wanted = recording.read()
        recording.reset()
        compiled = torch.compile(loss, backend="aot_eager")()
        compiled.backward()
        assert not recording.unseen
        assert_same(recording.read(), wanted, 1e-5)
    torch.testing.assert_close(compiled, plain)


def test_the_queue_of_undecided_bounds_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: queries and keys of all layers and micro-batches wait until the maxima are read, or at most as many
    bytes of them as a limit allows; the maxima are the same."""
    model = small()

    def run() -> tuple[int, dict[str, HeadMaxima]]:
        with recorded(model, 0.3, at_once=False) as recording:
            for seed in range(3):
                model(tokens(seed))
            waiting = sum(type(thing) is ScoreInputs for thing in gc.get_objects())  # isinstance fails on dead proxies
            return waiting, recording.read()

    n_all, at_the_end = run()
    assert n_all == 3 * 2
    monkeypatch.setattr(logit_maxima, "MAX_WAITING", 3 * 2 * 4 * B * T * 32 - 1)
    n_limited, earlier = run()
    assert n_limited < n_all
    assert_same(earlier, at_the_end)


def padded(side: str | None) -> dict[str, Tensor]:
    batch = tokens(0).clamp(min=3)
    if side is None:
        return {"input_ids": batch}
    mask = torch.ones_like(batch)
    mask[0, slice(0, 6) if side == "left" else slice(-6, None)] = 0
    return {"input_ids": batch, "attention_mask": mask}


@contextmanager
def formed_by_eager(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, Tensor]]:
    """Collect by layer the largest logit of each head in the family's own eager attention function."""
    largest: dict[int, Tensor] = {}
    home = sys.modules[type(query_key_heads(model)[0].module).__module__]
    eager: Callable[..., Any] = home.eager_attention_forward

    def forming(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **rest: Any) -> Any:
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scaling = rest["scaling"] if rest.get("scaling") is not None else query.shape[-1] ** -0.5
        logits = query.detach() @ keys.detach().mT * scaling
        if mask is not None:
            logits = logits.masked_fill(mask[..., : key.shape[2]] < -1e9, float("-inf"))
        largest[module.layer_idx] = logits.amax((0, 2, 3))
        return eager(module, query, key, value, mask, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(home, "eager_attention_forward", forming)
        yield largest


@pytest.mark.parametrize("side", fast_alone([None, "left", "right"], "left"))
@pytest.mark.parametrize("family", FAMILIES)
def test_maxima_of_other_models(family: str, side: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: the maxima are those of the eager function, recorded through eager and sdpa; no bit of the output
    changes, and nothing stays registered."""
    model = of_family(family)
    from transformers.modeling_utils import AttentionInterface

    untouched = AttentionInterface.__dict__["get_interface"]
    given = padded(side)
    with formed_by_eager(model, monkeypatch) as wanted:
        model(**given)
    for implementation in ("eager",) if family == "gemma2" else ("eager", "sdpa"):  # sdpa does not support a soft-cap
        model.set_attn_implementation(implementation)
        before = model(**given).logits
        with recorded(model) as recording:
            during = model(**given).logits
            read = recording.read()
        assert AttentionInterface.__dict__["get_interface"] is untouched
        assert torch.equal(before, during)
        assert len(read) == len(wanted) == 2
        for layer, of in enumerate(read.values()):
            assert of.exact.all()
            torch.testing.assert_close(of.logits, wanted[layer], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", fast_alone(["llama", "gemma2", "mistral"], "llama"))
def test_maxima_under_flex_attention(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: the maxima equal those of eager. (Flex attention cannot train on a CPU, so the model is frozen and not
    compiled.)"""
    model = of_family(family).requires_grad_(False)
    given = padded("left")
    with formed_by_eager(model, monkeypatch) as wanted:
        model(**given)
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from transformers import masking_utils
    from transformers.integrations import flex_attention as theirs

    def mask(*given: Any, _compile: bool, **rest: Any) -> Any:
        return create_block_mask(*given, **rest)

    def attend(q: Tensor, k: Tensor, v: Tensor, training: bool = False, **rest: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*without torch.compile")
            return flex_attention(q, k, v, **rest)

    monkeypatch.setattr(masking_utils, "create_block_mask", mask)
    monkeypatch.setattr(theirs, "compile_friendly_flex_attention", attend)
    model.set_attn_implementation("flex_attention")
    with recorded(model) as recording:
        model(**given)
        read = recording.read()
    for layer, of in enumerate(read.values()):
        torch.testing.assert_close(of.logits, wanted[layer], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_other_models_recompute(use_reentrant: bool) -> None:
    model = of_family("llama", "sdpa")
    with recorded(model) as recording:
        model(**padded(None)).logits.sum().backward()
        wanted = recording.read()
        recording.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer versions have another name for it
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
        model.enable_input_require_grads()
        model(**padded(None), use_cache=False).logits.sum().backward()
        assert_same(recording.read(), wanted)


def test_only_the_recorded_model_is_counted() -> None:
    """Criterion: another model of the family calls the same function and is not counted."""
    watched, other = of_family("llama"), of_family("llama")
    with recorded(watched) as recording:
        other(**padded(None))
        assert len(recording.unseen) == 2
        watched(**padded(None))
        assert not recording.unseen


def test_padding_and_window_of_flash_attention() -> None:
    """Criterion: padding (B S) and a window as flash attention receives them give the mask of sdpa."""
    q, k = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8)
    real = torch.ones(2, 9)
    real[1, :3] = 0
    module = nn.Module()
    module.is_causal = True
    positions = torch.arange(9)
    wanted = positions[:, None] - positions
    wanted = ((wanted >= 0) & (wanted < 4))[None, None] & (real[:, None, None, :] > 0) & (real[:, None, :, None] > 0)
    scored = masked_inputs("flash_attention_2", module, q, k, 1.0, real, {"sliding_window": 4})
    spelled_out = ScoreInputs(q, k, 1.0, allowed=wanted)
    heads = torch.arange(4)
    assert torch.equal(exact_maxima(scored, heads), exact_maxima(spelled_out, heads))
