"""A run whose steps are read late equals one that reads each step at once, and reads nothing in between.

A CPU would read at once, since reading is free there; these tests make it read late, as with an accelerator.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attractor.models import FastSlowConfig
from attractor.runs.run_folder import RunFolder
from attractor.train import loop
from attractor.train.config import Runtime, TrainConfig
from attractor.train.device_decisions import StepDecisions
from attractor.train.loop import MAX_UNREAD, Run, train
from attractor.train.trainer import StepResult
from same_runs import assert_same_run, build_run, newest_tensors, same, train_in_parts
from tiers import fast_alone

Spoil = Callable[[Iterable[int], str], None]

VARIANTS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "accumulated, averaged": {"accumulation": 2, "ema": 0.9, "activation_checkpointing": True},
    "unclipped": {"clip": None},
    "fp16": {"precision": "fp16"},
    "muon": {"optimizer": "muon", "d_model": 32},
    "muon, whole, fp16": {"optimizer": "muon", "muon_per_head": False, "precision": "fp16", "ema": 0.9},
    "quack": {"quack": 1.0, "optimizer": "muon"},
    "fixed rates": {"qk_rate": 0.3},
    "regularized": {"regularizer": "spectral", "attention": "coupled-euler"},
    "two timescales": {"model": FastSlowConfig(d_model=16, n_heads=2, d_ff=32, max_seq_len=64), "gate_lr": 0.1},
}


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes all further runs read late."""

    def arrange() -> None:
        monkeypatch.setattr(Run, "late", True)

    return arrange


class Reads(TorchDispatchMode):
    """Count how often the host reads a value of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += operator.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("variant", fast_alone(VARIANTS, "accumulated, averaged", "quack"))
def test_a_run_that_reads_late_equals_the_run_that_reads_at_once(
    config: TrainConfig,
    runtime: Runtime,
    tmp_path: Path,
    spoil: Spoil,
    late: Callable[[], None],
    interrupt_during: Callable[[Iterable[int]], None],
    variant: str,
) -> None:
    """Criterion: weights, optimizer, random state, metrics, best checkpoint and summary are equal in every bit,
    although the run that reads late is interrupted twice. Losses or gradients are not finite at the start, in the
    middle, just before a line of metrics and in a step that is interrupted."""
    config = config.replace(**VARIANTS[variant])
    spoil([0, 8], "gradient")
    spoil([6], "loss")
    train(config, tmp_path / "at once", runtime)
    late()
    train_in_parts(config, tmp_path / "late", runtime, interrupt_during, 2, 6)
    assert_same_run(tmp_path / "at once", tmp_path / "late")
    skipped = [r["step"] for r in RunFolder.open(tmp_path / "late").metrics() if "loss" in r]
    assert skipped == [1, 5, 7, 9, 10, 12]


def test_a_spike_is_noted_at_its_own_step(
    config: TrainConfig, tmp_path: Path, late: Callable[[], None], change_losses: Callable
) -> None:
    """Criterion: a spike that is read late is in the metrics and the summary as if it had been read at once."""
    change_losses(lambda run, loss: loss + (30.0 if run.step == 55 else 0.0))
    config = config.replace(n_steps=60, eval_every=60, dropout=0.0)
    runtime = Runtime(device="cpu", log_every=30, telemetry_every=None)
    train(config, tmp_path / "at once", runtime)
    late()
    summary = train(config, tmp_path / "late", runtime)
    assert summary["loss_spikes"] == [56]
    assert_same_run(tmp_path / "at once", tmp_path / "late")


def test_too_many_non_finite_steps_stop_the_run_at_the_same_step(
    config: TrainConfig, tmp_path: Path, spoil: Spoil, late: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: the run notices late, but after no more steps than may stay unread. It has the weights, optimizer,
    metrics and message of a run that stopped at once, although later steps are finite again."""
    spoil([3, 4, 5], "loss")
    config = config.replace(max_bad_steps=3, n_steps=40, eval_every=40, warmup_steps=3, ema=0.9)
    runtime = Runtime(device="cpu", log_every=40, telemetry_every=None)
    monkeypatch.setattr(loop, "MAX_UNREAD", 8)
    taken: list[int] = []
    take_step = Run.take_step

    def counted(run: Run) -> StepResult:
        taken.append(run.step)
        return take_step(run)

    monkeypatch.setattr(Run, "take_step", counted)
    messages = []
    for name in ("at once", "late"):
        messages.append(train(config, tmp_path / name, runtime)["diverged"].replace(name, ""))
        late()
    assert messages[0].startswith("stopped at step 6:")
    assert messages[0] == messages[1]
    assert taken == [*range(6), *range(8)]
    first, second = newest_tensors(tmp_path / "at once"), newest_tensors(tmp_path / "late")
    assert same(first["weights"], second["weights"])
    assert same(first["trained"], second["trained"])
    assert same(first["optimizer"]["state"], second["optimizer"]["state"])
    records = [RunFolder.open(tmp_path / name).metrics() for name in ("at once", "late")]
    assert [r["step"] for r in records[0]] == [r["step"] for r in records[1]] == [4, 5, 6]


def test_steps_are_applied_exactly_until_too_many_in_a_row_were_non_finite() -> None:
    def moved(finite: str, before: int = 0) -> str:
        decisions = StepDecisions(torch.device("cpu"), before, max_bad_steps=3)
        return "".join("m" if decisions.applied(torch.tensor(one == "f")) else "." for one in finite)

    assert moved("fxxfxxff") == "m..m..mm"
    assert moved("fxxxff") == "m....."
    assert moved("xf", before=2) == ".."
    assert moved("ff", before=3) == "mm"  # a run resumed after it had stopped


MORE = {"spectral quack": {"quack": 1.0, "quack_norm": "spectral"}, "differential": {"attention": "differential"}}


@pytest.mark.parametrize(
    "variant", fast_alone(VARIANTS | MORE, "accumulated, averaged", "muon", "fp16", "spectral quack")
)
def test_the_host_reads_nothing_between_logged_steps(
    config: TrainConfig, runtime: Runtime, tmp_path: Path, late: Callable[[], None], variant: str
) -> None:
    """Criterion: after a first step, which builds state, three steps that are read late read nothing; others read at
    each step."""
    counts = []
    for name in ("at once", "late"):
        run = build_run(config.replace(**(VARIANTS | MORE)[variant]), tmp_path / name, runtime)
        run.model.train()
        run.unread.append(run.take_step())
        with Reads() as reads:
            for _ in range(3):
                run.unread.append(run.take_step())
        counts.append(reads.n)
        late()
    assert counts[0] >= 3
    assert counts[1] == 0


def test_a_run_with_qk_clip_reads_at_every_step(config: TrainConfig, runtime: Runtime, tmp_path: Path) -> None:
    run = build_run(config.replace(qk_clip=100.0), tmp_path, runtime)
    run.device = torch.device("meta")
    assert not run.late


def test_at_most_the_maximum_of_steps_stays_unread(
    config: TrainConfig, tmp_path: Path, late: Callable[[], None]
) -> None:
    late()
    rarely = Runtime(device="cpu", log_every=700, telemetry_every=None, save_every=900)
    run = build_run(config.replace(n_steps=1000, eval_every=800), tmp_path, rarely)
    run.unread.append(StepResult(0.0, {}))
    while not run.due:
        run.unread.append(StepResult(0.0, {}))
    assert len(run.unread) == MAX_UNREAD
