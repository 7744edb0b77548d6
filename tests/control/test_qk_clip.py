"""After a clip no logit exceeds the threshold, and heads that did not exceed it keep every bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from subjects import FAMILIES, assert_same, of_family, small, tokens, weights
from torch import Tensor, nn

from attractor.attention import PRESETS
from attractor.attention.score.differential import Differential
from attractor.control.heads import query_key_heads
from attractor.control.logit_maxima import LogitMaxima
from attractor.control.qk_clip import QKClip, clipped_rows
from attractor.errors import InputError
from attractor.hf import replace_attention

Loss = Callable[[int], Tensor]  # maps a seed to the loss of that batch

OURS: dict[str, dict[str, Any]] = {
    "standard": {},
    "standard with bias": {"qkv_bias": True},
    "gqa": {"n_kv_heads": 2},
    "mqa": {"attention": "mqa"},
    "mla": {"attention": "mla"},
    "mla normed": {"attention": PRESETS["mla"].replace(latent_norm=True)},
    "mla differential": {"attention": PRESETS["mla"].replace(score=Differential())},
    "mla differential-v2": {"attention": PRESETS["mla"].replace(score=Differential(form="token"))},
    "differential": {"attention": "differential"},
    "differential gqa": {"attention": "differential", "n_kv_heads": 2},
    "differential-v2": {"attention": "differential-v2"},
    "soft-capped": {"attention": PRESETS["standard"].replace(softcap=0.2)},
    "coupled-linear": {"attention": "coupled-linear"},
    "gated": {"attention": "gated"},
}
THEIRS = [family for family in FAMILIES if family != "qwen3"]
REPLACED = ["llama gated", "llama differential", "llama-biased coupled-linear"]  # with another attention, in place
CASES = [*OURS, *(f"hf {family}" for family in (*THEIRS, *REPLACED))]


def subject(case: str, n_layers: int = 1) -> tuple[nn.Module, Loss]:
    """Return a model and its loss on a batch."""
    if case.startswith("hf "):
        field = "n_layer" if case == "hf gpt2" else "num_hidden_layers"
        family, _, attention = case.removeprefix("hf ").partition(" ")
        theirs = of_family(family, "sdpa" if attention else "eager", **{field: n_layers})
        if attention:
            replace_attention(theirs, attention, gate=None)
        return theirs, lambda seed: theirs(tokens(seed), use_cache=False).logits.square().mean()
    ours = small(n_layers=n_layers, **OURS[case])
    for parameter in ours.parameters():  # the logits of a new model are almost equal
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return ours, lambda seed: ours.loss(tokens(seed), tokens(seed + 1))[0]


def still(model: nn.Module, threshold: float) -> QKClip:
    """Attach a clip to an optimizer whose steps move nothing."""
    return QKClip(model, torch.optim.SGD(model.parameters(), lr=0.0), threshold)


def stepped(model: nn.Module, loss: Loss, threshold: float, *seeds: int) -> QKClip:
    """Attach a clip, and return it after a step that only clips, for the batches of the seeds."""
    clip = still(model, threshold)
    for seed in seeds or (0,):
        loss(seed).backward()
    clip.optimizers[0].step()
    return clip


def amid(values: Tensor) -> float:
    """Return a value with half of the values above it and none close to it."""
    values = values.sort().values
    return float(values[len(values) // 2 - 1 : len(values) // 2 + 1].mean())


def maxima(model: nn.Module, loss: Loss, *seeds: int) -> list[Tensor]:
    """Return the maxima of each layer, one per head."""
    recording = LogitMaxima(query_key_heads(model))
    for seed in seeds or (0,):
        loss(seed)
    read = recording.read()
    recording.remove()
    return [of.logits for of in read.values()]


def assert_only_over_heads_moved(model: nn.Module, before: dict[str, Tensor], over: list[Tensor]) -> None:
    """Check that every entry in the rows of a head over the threshold moved, and that every other entry keeps its
    bits."""
    may_move = {name: torch.zeros_like(values, dtype=torch.bool) for name, values in before.items()}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for view, over_heads in zip(query_key_heads(model), over, strict=True):
        for part in clipped_rows(view):
            for head, (of, power) in enumerate(zip(part.of, part.power, strict=True)):
                if power and over_heads[of]:
                    rows = slice(part.rows.starts[head], part.rows.starts[head] + part.rows.width)
                    may_move[names[id(part.rows.weight)]].narrow(part.rows.axis, rows.start, part.rows.width)[:] = True
                    if part.rows.bias is not None:
                        may_move[names[id(part.rows.bias)]][rows] = True
    for name, parameter in model.named_parameters():
        moved = parameter.detach() != before[name]
        assert not (moved & ~may_move[name]).any(), name
        assert moved[may_move[name]].all(), name


@pytest.mark.parametrize("case", CASES)
def test_no_head_exceeds_the_threshold_and_others_keep_every_bit(case: str) -> None:
    """Criterion: on the same two batches, heads over a median threshold come down to it (1e-5), the others keep their
    maxima, and no weight outside the clipped rows moves. The model has one layer."""
    model, loss = subject(case)
    (was,) = maxima(model, loss, 0, 1)
    threshold = amid(was)
    assert threshold > 0
    over, before = was > threshold, weights(model)
    clip = stepped(model, loss, threshold, 0, 1)
    (last,) = clip.last.values()
    assert last.exact[over].all()
    torch.testing.assert_close(last.logits[over], was[over])
    assert clip.n_clipped == over.sum()
    clip.remove()
    (now,) = maxima(model, loss, 0, 1)
    torch.testing.assert_close(now[over], torch.full_like(now[over], threshold), rtol=1e-5, atol=0)
    torch.testing.assert_close(now[~over], was[~over])
    assert_only_over_heads_moved(model, before, [over])


@pytest.mark.parametrize("case", ["standard", "gqa", "mla", "differential", "hf llama", "hf gpt2"])
def test_each_of_several_layers_is_clipped_for_its_own_input(case: str) -> None:
    """Criterion: on its recorded input, no layer exceeds the threshold. (The whole model may: a clipped layer changes
    the input of later layers, whose logits are bounded only at the next step.)"""
    model, loss = subject(case, n_layers=3)
    calls: dict[nn.Module, tuple[Any, Any]] = {}
    views = query_key_heads(model)

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        calls[module] = args, kwargs

    hooks = [view.module.register_forward_pre_hook(note, with_kwargs=True) for view in views]
    threshold = amid(torch.cat(maxima(model, loss)))
    clip = stepped(model, loss, threshold)
    clip.remove()
    for hook in hooks:
        hook.remove()
    assert clip.n_clipped > 0
    again = LogitMaxima(views)
    for module, (args, kwargs) in list(calls.items()):
        module(*args, **kwargs)
    now = torch.cat([of.logits for of in again.read().values()])
    again.remove()
    assert (now <= threshold * (1 + 1e-5)).all()
    assert (now >= threshold * (1 - 1e-5)).sum() == clip.n_clipped


@pytest.mark.parametrize("case", ["standard", "gqa", "mla", "hf qwen2", "hf gpt-neox"])
def test_clipping_again_changes_nothing(case: str) -> None:
    """Criterion: a second step on the same batch moves weights by rounding at most."""
    model, loss = subject(case)
    clip = stepped(model, loss, 0.5 * float(maxima(model, loss)[0].max()))
    once = weights(model)
    loss(0).backward()
    clip.optimizers[0].step()
    torch.testing.assert_close(weights(model), once, rtol=1e-5, atol=0)
    clip.remove()


@pytest.mark.parametrize("case", ["standard", "gqa", "mla", "hf gpt2"])
def test_below_the_threshold_no_bit_changes(case: str) -> None:
    """Criterion: a run whose logits stay below the threshold, or one after `remove`, equals the run without a clip."""

    def run(threshold: float | None, removed: bool = False) -> nn.Module:
        model, loss = subject(case, n_layers=2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        clip = None if threshold is None else QKClip(model, optimizer, threshold)
        if clip is not None and removed:
            clip.remove()
        for seed in range(3):
            optimizer.zero_grad()
            loss(seed).backward()
            optimizer.step()
        assert clip is None or removed or (clip.n_clipped == 0 and len(clip.last) == 2)
        return model

    plain = run(None)
    assert_same(run(1e6), plain)
    assert_same(run(1e-6, removed=True), plain)


def test_negative_maxima_are_left_alone() -> None:
    """Criterion: a head whose logits are all negative, and whose maximum is exact, keeps its bits; no weight becomes
    NaN."""
    model, loss = subject("standard")
    project = model.blocks[0].attention.project
    view = query_key_heads(model)[0]
    recording = LogitMaxima([view])
    model.positions = model.rope = None
    model.embedding.weight.data.copy_(model.embedding.weight.data[:1] + 1e-3 * model.embedding.weight.data)
    project.query.weight.data[:8] = -project.key.weight.data[:8]  # the inputs are nearly equal, so q = -k
    loss(0)
    assert recording.read()[view.name].logits[0] < 0
    recording.remove()
    before = weights(model)
    clip = stepped(model, loss, 1e-3)
    (last,) = clip.last.values()
    assert last.exact[0]
    assert last.logits[0] < 0
    assert_only_over_heads_moved(model, before, [last.logits > 1e-3])
    clip.remove()


def test_only_a_key_that_no_other_head_reads_is_scaled() -> None:
    """Criterion: the power of gamma for each part follows (2) to (4)."""

    def powers(case: str) -> dict[str, tuple[float, ...]]:
        (view,) = query_key_heads(subject(case)[0])
        return {part.name: part.power for part in clipped_rows(view)}

    assert powers("standard") == {"query": (0.5,) * 4, "key": (0.5,) * 4}
    assert powers("gqa") == powers("mqa") == {"query": (1.0,) * 4}
    assert powers("differential") == {"query": (0.5,) * 8, "key": (0.5,) * 8}
    assert powers("differential-v2") == {"query": (1.0,) * 8}
    assert powers("mla") == {"uq": (0.5,) * 4, "uk": (0.5,) * 4, "qr": (1.0,) * 4}
    assert powers("mla normed") == powers("mla"), "no norm stands behind these rows, and its gains are not scaled"
    assert powers("mla differential-v2") == {"uq": (1.0,) * 8, "qr": (1.0,) * 8}


def test_the_clip_comes_after_the_step() -> None:
    """Criterion: the weights are gamma times those of the step without a clip, where S is that of the batch before the
    step."""
    (model, loss), (other, other_loss) = subject("mqa"), subject("mqa")
    threshold = 0.5 * float(maxima(model, loss)[0].min())
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, other)]
    clip = QKClip(model, optimizers[0], threshold)
    for one, optimizer in zip((loss, other_loss), optimizers, strict=True):
        one(0).backward()
        optimizer.step()
    (last,) = clip.last.values()
    clip.remove()
    queries, plain = (m.blocks[0].attention.project.query.weight.detach() for m in (model, other))
    torch.testing.assert_close(queries, plain * (threshold / last.logits).repeat_interleave(8).unsqueeze(1))


def test_recorded_logits_count_for_one_step() -> None:
    """Criterion: large logits before one step do not cause a clip after the next."""
    model, loss = subject("standard")
    norm = model.blocks[0].attention_norm.weight.data
    norm.mul_(10)
    clip = stepped(model, loss, 1e6)
    first = clip.last["blocks.0.attention"].logits
    norm.div_(10)
    loss(0).backward()
    clip.optimizers[0].step()
    assert (clip.last["blocks.0.attention"].logits < 0.1 * first).all()
    clip.remove()


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_neither_clips_twice_nor_forgets(fused: bool) -> None:
    """Criterion: when a GradScaler skips a step with overflow, heads over the threshold are clipped exactly once,
    whether the batch was that of the skipped step or of the next. Infinities of the skipped step do not count. (A fused
    optimizer skips inside its kernel, so its hook runs and the clip happens then.)"""
    model, loss = subject("standard")
    (was,) = maxima(model, loss, 0)
    threshold = 0.5 * float(was.min())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    clip = QKClip(model, optimizer, threshold)

    def take_step(batch: int, overflows: bool) -> None:
        optimizer.zero_grad()
        scaler.scale(loss(batch) * (float("inf") if overflows else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()

    before = weights(model)
    take_step(0, overflows=True)
    if not fused:
        assert_same(model, before)
        assert clip.n_clipped == 0
    take_step(0, overflows=False)
    assert (maxima(model, loss, 0)[0] <= threshold * (1 + 1e-5)).all()
    assert (maxima(model, loss, 0)[0] >= threshold * (1 - 1e-5)).all()
    once = weights(model)
    take_step(0, overflows=False)
    torch.testing.assert_close(weights(model), once, rtol=1e-5, atol=0)
    clip.remove()


def test_an_evaluation_between_steps_does_not_count() -> None:
    """Criterion: a layer that trains unseen is refused, and one without gradients did not run and keeps its weights."""
    model, loss = subject("standard")
    clip = still(model, 0.5 * float(maxima(model, loss)[0].min()))
    (optimizer,), before = clip.optimizers, weights(model)
    model.eval()
    loss(0).backward()
    model.train()
    with pytest.raises(InputError, match=r"of 'blocks.0.attention', but saw none .* it has gradients: .*model.train"):
        optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    assert clip.n_clipped == 0
    assert_same(model, before)


def test_weights_that_are_frozen_later_are_refused_and_not_scaled() -> None:
    model, loss = subject("standard")
    clip, project = still(model, 1e-3), model.blocks[0].attention.project
    before = project.query.weight.detach().clone()
    project.requires_grad_(False)
    loss(0).backward()
    with pytest.raises(InputError, match=r"^model must train all weights that QKClip may scale, but .* are frozen"):
        clip.optimizers[0].step()
    assert torch.equal(project.query.weight, before)


def test_in_half_precision_no_head_is_clipped_for_the_rounding_of_its_weights() -> None:
    """Criterion: without learning, the logits stay at the threshold within rounding, and the count does not grow."""
    model, loss = subject("standard")
    model.bfloat16()
    clip = stepped(model, loss, 0.5 * float(maxima(model, loss)[0].min()))
    assert clip.n_clipped == 4
    counts = []
    for _ in range(4):
        loss(0).backward()
        clip.optimizers[0].step()
        counts.append(clip.n_clipped)
    assert counts == [counts[0]] * 4
    (last,) = clip.last.values()
    assert (last.logits <= clip.threshold * 1.02).all()
