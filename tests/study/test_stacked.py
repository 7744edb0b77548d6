"""Seeds trained as a stack end as each would alone, and a disturbance of one seed affects no other."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attractor.attention import PRESETS, Whole
from attractor.attention.config import AttentionConfig
from attractor.attention.stage import Coupling, HeadLayout
from attractor.errors import InputError, RunInterrupted
from attractor.kernels import cross_entropy
from attractor.models import FastSlowConfig, RecursiveConfig, Transformer
from attractor.runs.run_folder import RunFolder
from attractor.study.launch import Job
from attractor.study.stacked import groups, launch, prefer_stacked, stackable, train_stacked
from attractor.tasks import Batch
from attractor.tasks.recall import Recall
from attractor.train import checkpoint, trainer
from attractor.train import stacked as train_module
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import Run, train
from attractor.train.optimizer import build_optimizer
from attractor.train.stacked import Stack, side_by_side
from attractor.train.stacked_loop import StackedTraining
from attractor.train.start import chosen_checkpoint
from tiers import fast_alone

RUNTIME = Runtime(device="cpu", log_every=1, telemetry_every=20)
# Batched products round differently, and AdamW divides small gradients by their own size.
LOSSES, WEIGHTS = {"rel": 1e-4, "abs": 1e-5}, {"atol": 2e-4, "rtol": 1e-3}


@pytest.fixture(scope="module")
def text(base: TrainConfig) -> TrainConfig:
    return base.replace(n_heads=4, n_steps=50, seq_len=16, warmup_steps=5, clip=0.5, eval_every=25)


@pytest.fixture(scope="module")
def recall(text: TrainConfig) -> TrainConfig:
    return text.replace(task=Recall(length=16, n_pairs=2, symbols=16), vocab_size=16)


def jobs_of(config: TrainConfig, root: Path, seeds: Sequence[int] = (0, 1)) -> list[Job]:
    return [Job(config.replace(seed=seed), root / f"seed{seed}") for seed in seeds]


def weights(path: Path, config: TrainConfig) -> Transformer:
    """Return the weights of the newest checkpoint."""
    model = config.model.build(seed=99)
    checkpoint.load_weights(checkpoint.list_checkpoints(path / "checkpoints")[-1], model)
    return model


def same(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(same, value, wanted))
    return value is None if wanted is None else value == pytest.approx(wanted, **LOSSES)


def assert_same_run(one: Path, other: Path, config: TrainConfig) -> None:
    """Check that records, weights and AdamW's state agree to rounding, and that steps, counters and fields agree
    exactly."""
    records, expected = (RunFolder.open(path).metrics() for path in (one, other))
    assert [list(record) for record in records] == [list(record) for record in expected]
    for record, wanted in zip(records, expected, strict=True):
        for name in record.keys() - {"tokens_per_second"}:
            assert same(record[name], wanted[name]), (name, wanted["step"])
    found, wanted = weights(one, config), weights(other, config)
    for (name, w), v in zip(found.named_parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(w, v, **WEIGHTS, msg=lambda text, name=name: f"{name}: {text}")
    states = [
        torch.load(chosen / "optimizer.pt", weights_only=True)
        for chosen in (checkpoint.list_checkpoints(path / "checkpoints")[-1] for path in (one, other))
    ]
    assert states[0]["optimizer"]["param_groups"] == states[1]["optimizer"]["param_groups"]
    assert torch.equal(states[0]["random"], states[1]["random"])
    moments, others = (state["optimizer"]["state"] for state in states)
    assert moments.keys() == others.keys()
    for key, moment in moments.items():
        shapes = [{k: (v.shape, v.dtype) for k, v in of.items()} for of in (moment, others[key])]
        assert shapes[0] == shapes[1]
        assert moment["step"] == others[key]["step"]
        torch.testing.assert_close(moment["exp_avg"], others[key]["exp_avg"], atol=1e-4, rtol=1e-2)


@pytest.mark.parametrize("task", ["text", pytest.param("recall", marks=pytest.mark.slow)])
@pytest.mark.parametrize("attention", fast_alone(PRESETS, "coupled-euler"))
def test_stacked_runs_are_those_of_the_ordinary_loop(
    attention: str, task: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Criterion: over 50 steps every record, the weights and the optimizer's state agree, for every mechanism; over 12
    under the delta rule."""
    config = request.getfixturevalue(task).replace(attention=attention)
    if attention == "gated-deltanet":  # with heads of width 4, rounding grows a thousandfold in 14 steps (LOG.md)
        config = config.replace(n_steps=12, eval_every=6)
    assert stackable(config) is None
    jobs = jobs_of(config, tmp_path / "stacked")
    train_stacked(jobs, RUNTIME)
    for job in jobs:
        train(job.config, tmp_path / job.path.name, RUNTIME)
        assert_same_run(job.path, tmp_path / job.path.name, config)
    norms = [record["grad_norm"] for record in RunFolder.open(jobs[0].path).metrics() if "grad_norm" in record]
    assert max(norms) > 0.5, "clipping was at work"


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["standard", "coupled-gqa", "differential", "differential-v2", "psiqrh", "mla"])
def test_a_traced_step_equals_the_untraced_step(attention: str, text: TrainConfig, tmp_path: Path) -> None:
    """Criterion: with micro-batches, eight steps replayed from a trace give the same records and weights."""
    config = text.replace(attention=attention, n_steps=8, eval_every=4, warmup_steps=1, accumulation=2)
    for name, traced in (("eager", False), ("traced", True)):
        train_stacked(jobs_of(config, tmp_path / name), RUNTIME, traced=traced)
    for seed in (0, 1):
        assert_same_run(tmp_path / f"traced/seed{seed}", tmp_path / f"eager/seed{seed}", config)


@pytest.mark.slow
def test_a_compiled_stack_equals_the_ordinary_loop(
    text: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: with `compile` the step of a stack is compiled once, and its records and weights are those of runs
    without it. A backend that only traces stands in for the compiler; its seconds are none of the steps'."""
    graphs = []

    def stand_in(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        time.sleep(0.5)
        return graph.forward

    config = text.replace(attention="coupled-euler", n_steps=8, eval_every=4, warmup_steps=1, accumulation=2)
    jobs = jobs_of(config.replace(compile=True), tmp_path / "stacked")
    for job in jobs:
        train(job.config.replace(compile=False), tmp_path / job.path.name, RUNTIME)
    monkeypatch.setattr(trainer, "compiler", lambda *_: lambda loss: torch.compile(loss, backend=stand_in))
    train_stacked(jobs, RUNTIME)
    assert len(graphs) == 1
    for job in jobs:
        assert_same_run(job.path, tmp_path / job.path.name, config)
        assert (RunFolder.open(job.path).summary() or {})["compile_seconds"] >= 0.5 / len(jobs)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"accumulation": 2}, {"clip": None}, {"precision": "bf16"}, {"weight_decay": 5.0}])
def test_other_ways_of_training_agree_as_well(changes: dict[str, Any], text: TrainConfig, tmp_path: Path) -> None:
    config = text.replace(n_steps=12, eval_every=6, attention="coupled-gated", **changes)
    train_stacked(jobs_of(config, tmp_path / "stacked"), RUNTIME)
    if config.precision == "bf16":
        train(config, tmp_path / "seed0", RUNTIME)
        a, b = (RunFolder.open(tmp_path / path).summary() or {} for path in ("stacked/seed0", "seed0"))
        assert a["valid_loss"] == pytest.approx(b["valid_loss"], rel=0.01)
        return
    for seed in (0, 1):
        train(config.replace(seed=seed), tmp_path / f"seed{seed}", RUNTIME)
        assert_same_run(tmp_path / f"stacked/seed{seed}", tmp_path / f"seed{seed}", config)


def stack_of(
    config: TrainConfig, traced: bool = False, compiler: Callable[..., Any] | None = None
) -> tuple[Stack, list[Transformer]]:
    models = [config.model.build(seed) for seed in range(3)]
    optimizers = [build_optimizer(model, config) for model in models]
    given = (nullcontext, config.clip, config.max_bad_steps, [0] * 3, traced, compiler)
    return Stack(models, optimizers, *given), models


def alone(config: TrainConfig, model: Transformer, batch: Batch, accumulation: int) -> float:
    """Take one step of one model without the library's loop; return its loss."""
    optimizer = build_optimizer(model, config)
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 0.01
    n_scored, total = (batch.targets != -100).sum(), 0.0
    for part in batch.split(accumulation):
        share = (part.targets != -100).sum() / n_scored
        if share:
            real = None if part.real is None else torch.from_numpy(part.real)
            loss, _ = model.loss(torch.from_numpy(part.inputs), torch.from_numpy(part.targets), real)
            (loss * share).backward()
            total += float(loss.detach() * share)
    torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or 1e9)
    optimizer.step()
    return total


def assert_rows(models: Sequence[Transformer], wanted: Sequence[Transformer]) -> None:
    for model, other in zip(models, wanted, strict=True):
        for (name, w), v in zip(model.named_parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(w, v, atol=1e-4, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_model_counts_its_own_scored_targets(text: TrainConfig, accumulation: int) -> None:
    """Criterion: of three models, one has all targets scored, one a few, and one none in its first half."""
    stack, models = stack_of(text)
    draw = np.random.default_rng(0)
    batches = [Batch(draw.integers(0, 300, (4, 8)), draw.integers(0, 300, (4, 8))) for _ in models]
    batches[1].targets[draw.random((4, 8)) < 0.7] = -100
    batches[2].targets[:2] = -100
    found = stack.take_step(batches, accumulation, rate=0.01)
    wanted = [text.model.build(seed) for seed in range(3)]
    losses = [alone(text, model, batch, accumulation) for model, batch in zip(wanted, batches, strict=True)]
    torch.testing.assert_close(found[0], torch.tensor(losses))
    assert_rows(models, wanted)


def test_a_model_without_scored_targets_does_not_move(text: TrainConfig) -> None:
    stack, _ = stack_of(text)
    before = stack.weights.clone()
    batches = [Batch(np.ones((2, 8), np.int64), np.full((2, 8), 3 if i else -100)) for i in range(3)]
    found = stack.take_step(batches, 1, rate=0.01)
    assert found[0, 0] == 0
    assert found[3].tolist() == [1, 1, 1]
    assert torch.equal(stack.weights[0], before[0])
    assert not torch.equal(stack.weights[1], before[1])
    states = [next(iter(optimizer.state.values())) for optimizer in stack.optimizers]
    assert [state["step"].item() for state in states] == [0, 1, 1]


def never(operations: Callable[..., Any]) -> Callable[..., Any]:
    raise AssertionError("padded batches have many lengths, each of which would be compiled")


@pytest.mark.parametrize(("n_classes", "compiler"), [(1, None), (3, None), (3, never)])
def test_padding_to_the_longest_of_all_models_changes_nothing(
    n_classes: int, compiler: Callable[..., Any] | None, text: TrainConfig
) -> None:
    config = text.replace(n_classes=n_classes, causal=False)
    stack, models = stack_of(config, compiler=compiler)
    draw, batches = np.random.default_rng(0), []
    for length in (3, 8, 5):
        real = np.arange(length) < draw.integers(1, length + 1, (4, 1))
        targets = draw.normal(size=4) if n_classes == 1 else draw.integers(0, n_classes, 4)
        batches.append(Batch(draw.integers(0, 300, (4, length)), targets, real))
    found = stack.take_step(batches, 1, rate=0.01)
    wanted = [config.model.build(seed) for seed in range(3)]
    losses = [alone(config, model, batch, 1) for model, batch in zip(wanted, batches, strict=True)]
    torch.testing.assert_close(found[0], torch.tensor(losses))
    assert_rows(models, wanted)
    assert side_by_side(batches).inputs.shape == (3, 4, 8)


@pytest.mark.parametrize("traced", [False, True])
def test_large_logits_are_computed_model_by_model(
    traced: bool, text: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: the step is the same by the loss that never holds all logits, which vmap does not support."""
    stack, models = stack_of(text, traced)
    draw = np.random.default_rng(0)
    batches = [Batch(draw.integers(0, 300, (4, 8)), draw.integers(0, 300, (4, 8))) for _ in models]
    wanted = [text.model.build(seed) for seed in range(3)]
    losses = [alone(text, model, batch, 1) for model, batch in zip(wanted, batches, strict=True)]
    for module in (cross_entropy, train_module):
        monkeypatch.setattr(module, "SMALL", 100)
    torch.testing.assert_close(stack.take_step(batches, 1, rate=0.01)[0], torch.tensor(losses))
    assert_rows(models, wanted)


def test_rows_of_models_are_aligned_and_independent(text: TrainConfig) -> None:
    """Criterion: another batch for one model changes no bit of the others."""
    (one, _), (other, _) = stack_of(text), stack_of(text)
    assert one.weights.shape[1] % 64 == 0
    batches = [Batch(np.full((2, 8), i), np.full((2, 8), i)) for i in range(3)]
    changed = [*batches[:2], Batch(np.full((2, 8), 9), np.full((2, 8), 5))]
    for _ in range(3):
        one.take_step(batches, 1, 0.01)
        other.take_step(changed, 1, 0.01)
    assert torch.equal(one.weights[:2], other.weights[:2])
    assert not torch.equal(one.weights[2], other.weights[2])


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, set[int]], None]:
    """Make the loss of one seed NaN in these steps, counted from 0, in either loop."""

    def arrange(seed: int, steps: set[int]) -> None:
        losses, gradients, step = Stack.losses_of, Run.gradients, StackedTraining.take_step
        now = 0

        def at_step(together: StackedTraining) -> None:
            nonlocal now
            now = together.step
            step(together)

        def poisoned_losses(stack: Stack, *data: Any) -> tuple[Tensor, Tensor]:
            found, aux = losses(stack, *data)
            bad = (torch.arange(len(found), device=found.device) == seed) & (now in steps)
            return found + torch.where(bad, float("nan"), 0.0), aux

        def poisoned_gradients(run: Run, *data: Any) -> Tensor:
            loss = gradients(run, *data)
            bad = run.config.seed == seed and run.state.step in steps
            return loss * float("nan") if bad else loss

        monkeypatch.setattr(StackedTraining, "take_step", at_step)
        monkeypatch.setattr(Stack, "losses_of", poisoned_losses)
        monkeypatch.setattr(Run, "gradients", poisoned_gradients)

    return arrange


def test_a_non_finite_step_is_skipped_by_its_seed_alone(
    text: TrainConfig, tmp_path: Path, poisoned: Callable[[int, set[int]], None]
) -> None:
    """Criterion: both seeds end as in the ordinary loop, which skips the same step of the same seed. AdamW counts one
    step less for it, and the records have the loss and the skip."""
    poisoned(1, {3})
    config = text.replace(n_steps=12, eval_every=6)
    jobs = jobs_of(config, tmp_path / "stacked")
    runtime = Runtime(device="cpu", log_every=5)
    train_stacked(jobs, runtime)
    for job in jobs:
        train(job.config, tmp_path / job.path.name, runtime)
        assert_same_run(job.path, tmp_path / job.path.name, config)
    (skipped,) = [record for record in RunFolder.open(jobs[1].path).metrics() if record["step"] == 4]
    assert (skipped["loss"], skipped["skipped_steps"]) == (None, 1)
    newest = checkpoint.list_checkpoints(jobs[1].path / "checkpoints")[-1]
    state = torch.load(newest / "optimizer.pt", weights_only=True)["optimizer"]["state"]
    assert {int(values["step"]) for values in state.values()} == {11}


def test_a_seed_that_diverges_for_good_stops_alone(
    text: TrainConfig, tmp_path: Path, poisoned: Callable[[int, set[int]], None]
) -> None:
    """Criterion: it stops where the ordinary loop would, with the weights from before, although steps are read later.
    The other seed finishes as if alone."""
    poisoned(1, {4, 5, 6})
    config = text.replace(n_steps=12, eval_every=12, max_bad_steps=3)
    jobs = jobs_of(config, tmp_path / "stacked")
    runtime = Runtime(device="cpu", log_every=10)
    train_stacked(jobs, runtime)
    assert [RunFolder.open(job.path).state for job in jobs] == ["finished", "diverged"]
    reason = (RunFolder.open(jobs[1].path).summary() or {})["diverged"]
    assert reason.startswith("stopped at step 7: loss or gradient was not finite 3 steps in a row")
    assert [path.name for path in checkpoint.list_checkpoints(jobs[1].path / "checkpoints")] == ["step-00000007"]
    train(config, tmp_path / "seed0", runtime)
    assert_same_run(jobs[0].path, tmp_path / "seed0", config)
    assert train(jobs[1].config, tmp_path / "seed1", runtime)["diverged"] == reason
    stood, wanted = (weights(path, config) for path in (jobs[1].path, tmp_path / "seed1"))
    for w, v in zip(stood.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(w, v, **WEIGHTS)


@pytest.fixture
def interrupted_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def arrange(step: int) -> None:
        take_step = StackedTraining.take_step

        def interrupted(together: StackedTraining) -> None:
            if together.step == step:
                monkeypatch.setattr(StackedTraining, "take_step", take_step)
                signal.raise_signal(signal.SIGTERM)
            take_step(together)

        monkeypatch.setattr(StackedTraining, "take_step", interrupted)

    return arrange


def test_after_an_interrupt_either_loop_continues(
    text: TrainConfig, tmp_path: Path, interrupted_in: Callable[[int], None]
) -> None:
    """Criterion: SIGTERM in the eighth of twelve steps saves all seeds there. The ordinary loop continues one and the
    stacked loop two, and all end as undisturbed runs."""
    config = text.replace(n_steps=12, eval_every=5, attention="coupled-euler")
    jobs = jobs_of(config, tmp_path / "stacked", (0, 1, 2))
    whole = jobs_of(config, tmp_path / "whole", (0, 1, 2))
    train_stacked(whole, RUNTIME)
    interrupted_in(7)
    with pytest.raises(RunInterrupted, match="interrupted after step 8, saved: 3 runs") as caught:
        train_stacked(jobs, RUNTIME)
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert {checkpoint.list_checkpoints(job.path / "checkpoints")[-1].name for job in jobs} == {"step-00000008"}
    train(jobs[0].config, jobs[0].path, RUNTIME)
    train_stacked(jobs, RUNTIME)
    for job, uninterrupted in zip(jobs, whole, strict=True):
        assert_same_run(job.path, uninterrupted.path, config)


def test_checkpoints_of_the_ordinary_loop_can_be_stacked(text: TrainConfig, tmp_path: Path) -> None:
    """Criterion: two runs that the ordinary loop left at the same step end as it would have ended them."""
    config = text.replace(n_steps=12, eval_every=4)
    jobs = jobs_of(config, tmp_path / "stacked")
    runtime = Runtime(device="cpu", log_every=1, save_every=4, keep=9)
    for job in jobs:
        train(job.config, job.path, runtime)
        train(job.config, tmp_path / job.path.name, runtime)
        (job.path / "summary.json").unlink()
        for late in checkpoint.list_checkpoints(job.path / "checkpoints")[1:]:
            late.rename(job.path / late.name)
    train_stacked(jobs, runtime)
    for job in jobs:
        assert_same_run(job.path, tmp_path / job.path.name, config)


def test_runs_at_different_steps_are_not_stacked(
    text: TrainConfig, tmp_path: Path, interrupted_in: Callable[[int], None]
) -> None:
    config = text.replace(n_steps=12, eval_every=6)
    jobs = jobs_of(config, tmp_path, (0, 1, 2, 3))
    interrupted_in(3)
    with pytest.raises(RunInterrupted):
        train_stacked(jobs[:2], RUNTIME)
    assert groups(jobs) == [jobs[:2], jobs[2:]]
    with pytest.raises(InputError, match=r"must stand at the same step, got seed 0 at 4, .*seed 2 at 0"):
        train_stacked(jobs, RUNTIME)
    newest = checkpoint.list_checkpoints(jobs[0].path / "checkpoints")[-1]
    (newest / "model.safetensors").write_bytes(b"")
    assert groups(jobs) == [[jobs[0]], [jobs[1]], jobs[2:]]


def test_a_stacked_run_is_read_as_any_other_and_marked_as_stacked(text: TrainConfig, tmp_path: Path) -> None:
    """Criterion: summary and environment have the usual fields and `stacked`. The seconds of all runs sum to at most
    the time passed. Best weights, generation and a second call work as usual."""
    config = text.replace(n_steps=12, eval_every=5)
    jobs = jobs_of(config, tmp_path / "stacked", (0, 1, 2))
    started = time.perf_counter()
    train_stacked(jobs, RUNTIME)
    passed = time.perf_counter() - started
    ordinary = train(config, tmp_path / "alone", RUNTIME)
    summaries = [RunFolder.open(job.path).summary() or {} for job in jobs]
    for job, summary in zip(jobs, summaries, strict=True):
        assert summary.keys() == ordinary.keys() | {"stacked"}
        assert summary["stacked"] == RunFolder.open(job.path).environment["stacked"] == 3
        assert summary["tokens_per_second"] == pytest.approx(summary["tokens"] / summary["wall_seconds"])
        assert job.finished
        model = config.model.build()
        checkpoint.load_weights(chosen_checkpoint(job.path), model)
        assert len(model.generate([[72, 101]], max_new_tokens=3, temperature=0.0)[0]) == 5
        assert train(job.config, job.path, RUNTIME) == summary
    assert 0 < sum(summary["wall_seconds"] for summary in summaries) < passed
    for name in ("valid_loss", "best_loss", "accuracy", "metric", "measures", "steps", "tokens", "n_parameters"):
        assert json.dumps(summaries[0][name])[:6] == json.dumps(ordinary[name])[:6]
    folders = (jobs[0].path, tmp_path / "alone")
    files = [{path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} for folder in folders]
    assert files[0] == files[1]
    newest = [checkpoint.list_checkpoints(folder / "checkpoints")[-1] for folder in folders]
    sizes = [(path / "optimizer.pt").stat().st_size for path in newest]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02), "the moments of one run, not of all"


FAST_SLOW = FastSlowConfig(d_model=16, n_heads=2, d_ff=32, max_seq_len=64)
RECURSIVE = RecursiveConfig(d_model=16, n_heads=2, d_ff=32, max_seq_len=64, blank=None, n_iterations=6, n_segments=3)


@dataclass(frozen=True)
class Peeking(Coupling):
    """A coupling that reads a value of a tensor, which vmap does not allow."""

    def build(self, layout: HeadLayout) -> nn.Module:
        return PeekingCoupling()


class PeekingCoupling(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return (q, k) if (q.sum() > 0).item() else (k, q)


class OfTheCPU(nn.Linear):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        assert x.device.type == "cpu"
        return super().forward(x)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dropout": 0.1}, "dropout"),
        ({"attention": AttentionConfig(dropout=0.1)}, "dropout"),
        ({"precision": "fp16"}, "fp16"),
        ({"activation_checkpointing": True}, "checkpointing"),
        ({"d_ff": 10_000_000}, "parameters is too large to stack"),
        ({"ema": 0.9}, "an average of the weights is that of one model"),
        ({"quack": 0.5}, "the step of one optimizer"),
        ({"qk_rate": 0.1}, "the step of one optimizer"),
        ({"qk_clip": 1.0}, "the step of one optimizer"),
        ({"optimizer": "muon"}, "the matrices of one model"),
        ({"sigma_reparam": True}, "a state beside its parameters"),
        ({"regularizer": "spectral"}, "the gradients of one model"),
        ({"model": FAST_SLOW}, None),
        ({"model": FAST_SLOW, "gate_lr": 0.1}, "rate of their own"),
        ({"model": FAST_SLOW, "frozen": True}, "not trained"),
        ({"model": FAST_SLOW, "equilibrium": "deq"}, "vmap"),
        ({"model": RECURSIVE}, "each run carries the states of its own batch from step to step"),
        ({"attention": AttentionConfig(couple=Peeking())}, "cannot be vmapped: RuntimeError: vmap"),
        ({"attention": Whole(OfTheCPU)}, "cannot be vmapped: AssertionError"),
        ({"n_classes": 2}, None),
        ({"precision": "bf16"}, None),
        ({"compile": True}, None),
        ({"positions": "learned"}, None),
    ],
)
def test_runs_that_cannot_be_stacked_have_a_reason(
    changes: dict[str, Any], reason: str | None, text: TrainConfig
) -> None:
    why = stackable(text.replace(**changes))
    assert (why is None) if reason is None else (why is not None and reason in why)


def test_runs_of_a_group_differ_only_in_the_seed(text: TrainConfig, recall: TrainConfig, tmp_path: Path) -> None:
    kinds = [text, text.replace(lr=1e-3), text.replace(attention="gated"), recall]
    jobs = [Job(kind.replace(seed=s), tmp_path / f"{k}{s}") for s in range(10) for k, kind in enumerate(kinds)]
    found = groups(jobs)
    assert sorted(len(group) for group in found) == [2, 2, 2, 2, 8, 8, 8, 8]
    assert all(len({job.config.replace(seed=0) for job in group}) == 1 for group in found)
    assert sorted(job.path.name for group in found for job in group) == sorted(job.path.name for job in jobs)
    with pytest.raises(InputError, match="differ by their seed alone"):
        train_stacked(jobs[:2], RUNTIME)
    assert not prefer_stacked("cpu")


def test_launch_stacks_the_runs_that_it_can_and_launches_the_others_separately(
    text: TrainConfig, tmp_path: Path
) -> None:
    """Criterion: two seeds run in one process, are interrupted, and continue. A single run and two with dropout run
    separately, for reported reasons. All finish, and only the first two are marked as stacked."""
    config = text.replace(n_steps=200, eval_every=100)
    short = config.replace(n_steps=6, eval_every=6, warmup_steps=1)
    pair = jobs_of(config, tmp_path / "pair")
    jobs = [*pair, Job(short.replace(lr=1e-3), tmp_path / "lone")]
    jobs += [Job(short.replace(dropout=0.1, seed=seed), tmp_path / f"dropout{seed}") for seed in (0, 1)]

    stopped = False

    def stop(running: Sequence[Job], ended: Sequence[Job]) -> None:
        nonlocal stopped
        if not stopped and all((job.path / "metrics.jsonl").exists() for job in pair):
            stopped = True
            signal.raise_signal(signal.SIGINT)

    said: list[str] = []
    runtime = Runtime(device="cpu", threads=1)
    state = "interrupted: 0 of 5 runs ended; under way: 2, of these with a checkpoint: 2"
    with pytest.raises(RunInterrupted, match=state):
        launch(jobs, 1, runtime, stop, say=said.append)
    assert said == [
        "not stacked: standard seed 0: no other run has the same configuration and step",
        "not stacked: standard seeds 0 1: dropout draws random numbers, of which each run has its own",
    ]
    steps = {checkpoint.list_checkpoints(job.path / "checkpoints")[-1].name for job in pair}
    assert len(steps) == 1
    assert "step-00000200" not in steps
    seen: list[tuple[int, int]] = []
    failures = launch(jobs, 1, runtime, lambda now, done: seen.append((len(now), len(done))), say=said.append)
    assert failures == {}
    assert all(job.finished for job in jobs)
    assert seen[-1] == (0, 5)
    assert [("stacked" in (RunFolder.open(job.path).summary() or {})) for job in jobs] == [True] * 2 + [False] * 3
    train(pair[1].config, tmp_path / "alone", runtime)
    alone, together = (RunFolder.open(path).summary() or {} for path in (tmp_path / "alone", pair[1].path))
    assert together["valid_loss"] == pytest.approx(alone["valid_loss"], rel=0.02)


def test_failures_in_a_stack_are_reported_by_run(text: TrainConfig, tmp_path: Path) -> None:
    """Criterion: runs that diverge end without a failure, each with a reason. If another process holds one run, the
    ordinary launch reports that one and finishes the other."""
    config = text.replace(n_steps=8, eval_every=8, warmup_steps=0)
    lost = jobs_of(config.replace(lr=1e38, max_bad_steps=2), tmp_path / "lost")
    held = jobs_of(config, tmp_path / "held")
    folder = RunFolder.create(held[0].path, held[0].config.identity(held[0].config.build_task()))
    said: list[str] = []
    with folder.hold():
        failures = launch([*lost, *held], 1, Runtime(device="cpu", threads=1), lambda *_: None, say=said.append)
    assert list(failures) == [held[0].name]
    assert "another process" in failures[held[0].name]
    states = [RunFolder.open(job.path).state for job in (*lost, *held)]
    assert states == ["diverged", "diverged", "not begun", "finished"]
    assert said == ["not stacked: another process carries out one of standard seeds 0 1"]
