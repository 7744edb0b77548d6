"""The result of a run does not depend on interruptions or on non-finite steps."""

import json
import math
import os
import shlex
import signal
import subprocess
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.attention import PRESETS
from attractor.errors import InputError, RunInterrupted
from attractor.kernels.cross_entropy import NOT_SCORED
from attractor.models import FastSlowConfig, RecursiveConfig
from attractor.runs.run_folder import RunFolder
from attractor.tasks import Batch
from attractor.train import checkpoint
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import Run, train
from attractor.train.trainer import StepResult
from in_process import without_heartbeat
from processes import in_fresh_process
from same_runs import Listening, assert_same_run, build_run, newest_tensors, same, train_in_parts, without_measured
from stress.commands import forked, typed
from tiers import fast_alone

ATTRACTOR = str(Path(sysconfig.get_path("scripts")) / "attractor")
Interrupt = Callable[[Iterable[int]], None]
Spoil = Callable[[Iterable[int], str], None]
Snapshots = list[tuple[dict[str, Any], dict[str, Any]]]  # of weights and optimizer state, before and after each step

FAST_SLOW = FastSlowConfig(d_model=16, n_heads=2, d_ff=32, max_seq_len=64, dropout=0.1)
SIZES: dict[str, Any] = {"vocab_size": 320, "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_seq_len": 64}
RECURSIVE = RecursiveConfig(**SIZES, causal=True, dropout=0.1, n_inner=2, n_iterations=10, n_segments=5, halting=True)
VARIANTS = {
    **{name: {"attention": name, "d_model": 32, "n_heads": 4} for name in PRESETS},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fast-slow": {"model": FAST_SLOW, "gate_lr": 0.1},
    "fast-slow, implicit, by Muon": {
        "model": FAST_SLOW.replace(equilibrium="deq", dropout=0.0, slow_attention="decay"),
        "optimizer": "muon",
        "gate_lr": 0.1,
    },
    "deep supervision": {"model": RECURSIVE, "accumulation": 2, "ema": 0.9},  # Ctrl-C comes within a batch
    "averaged": {"ema": 0.9},
    "accumulated and checkpointed": {"accumulation": 2, "activation_checkpointing": True, "schedule": "constant"},
}


@pytest.mark.parametrize(
    "variant", fast_alone(VARIANTS, "standard", "fp16", "fast-slow", "deep supervision", "averaged")
)
def test_an_interrupted_run_ends_bit_for_bit_as_an_uninterrupted_one(
    config: TrainConfig, runtime: Runtime, tmp_path: Path, interrupt_during: Interrupt, variant: str
) -> None:
    """Criterion: weights, optimizer state, random state, metrics, best checkpoint and summary are equal in every bit.
    Dropout is on, and Ctrl-C comes at steps that are neither logged, evaluated nor saved, between two looks at the
    probe."""
    config, runtime = config.replace(**VARIANTS[variant]), replace(runtime, telemetry_every=4)
    train(config, tmp_path / "whole", runtime)
    train_in_parts(config, tmp_path / "parts", runtime, interrupt_during, 2, 7)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_dropout_draws_new_numbers_at_every_step(config: TrainConfig, runtime: Runtime, tmp_path: Path) -> None:
    """Otherwise the comparison above would not notice a random state that is not restored."""
    run = build_run(config, tmp_path, runtime)
    batch = run.task.train_batch(0, 4)
    assert float(run.gradients(batch, 1.0)) != float(run.gradients(batch, 1.0))


@contextmanager
def crash_at(step: int) -> Iterator[None]:
    """Let the run inside fail before the step after this one."""
    take_step = Run.take_step

    def crash(run: Run) -> StepResult:
        if run.step == step:
            raise MemoryError
        return take_step(run)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "take_step", crash)
        with pytest.raises(MemoryError):
            yield


def test_a_run_repeats_the_steps_that_a_crash_lost(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: records after the last checkpoint are dropped, so that no step is twice in the metrics. The outcome
    equals that of a run without a crash."""
    runtime = Runtime(device="cpu", log_every=1, save_every=4)
    train(config, tmp_path / "whole", runtime)
    with crash_at(7):
        train(config, tmp_path / "crashed", runtime)
    assert RunFolder.open(tmp_path / "crashed").metrics()[-1]["step"] == 7
    train(config, tmp_path / "crashed", runtime)
    assert_same_run(tmp_path / "whole", tmp_path / "crashed")


def test_a_change_of_what_rounds_the_sums_is_said(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: a session with another number of threads says so once, and a session with the same number does not."""
    listening, runtime = Listening(), Runtime(device="cpu", log_every=1, save_every=2)
    for step, n_threads in ((3, 2), (5, 2), (7, 1), (None, 1)):
        with crash_at(step) if step else nullcontext():
            train(config, tmp_path, replace(runtime, threads=n_threads), listening)
    (note,) = listening.notes
    assert "were computed on cpu with 2 threads, torch " in note
    assert "and now it is cpu with 1 thread, torch " in note


def test_metrics_are_on_disk_before_the_checkpoint_that_a_run_continues_from(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: whenever a checkpoint gets its final name, the metrics up to its step have been flushed, so that a
    power cut leaves both or neither."""
    flushed: list[tuple[str, int]] = []

    def note(path: Path) -> None:
        if path.name in ("checkpoints", "metrics.jsonl"):
            flushed.append((path.name, max((r["step"] for r in RunFolder.open(tmp_path).metrics()), default=0)))

    monkeypatch.setattr(checkpoint, "flush_to_disk", note)
    monkeypatch.setattr("attractor.runs.run_folder.flush_to_disk", note)
    train(config, tmp_path, Runtime(device="cpu", log_every=1, save_every=4))
    named = [index for index, (name, _) in enumerate(flushed) if name == "checkpoints"]
    assert {flushed[index][1] for index in named} >= {4, 8, 12}
    for index in named:
        assert flushed[index - 1] == ("metrics.jsonl", flushed[index][1])


@pytest.mark.parametrize("minutes", [None, 1e-9, 0.002])
def test_checkpoints_by_time_change_nothing_and_are_written(
    config: TrainConfig, tmp_path: Path, minutes: float | None
) -> None:
    """Criterion: whenever the clock asks for checkpoints, weights, optimizer, random state, metrics and summary equal
    those of a run without them, and a run that crashes continues from the last of them."""
    config = config.replace(n_steps=9)
    train(config, tmp_path / "whole", Runtime(device="cpu", log_every=2, save_every_minutes=None))
    runtime = Runtime(device="cpu", log_every=2, save_every_minutes=minutes)
    with crash_at(4):
        train(config, tmp_path / "timed", runtime)
    if minutes != 0.002:
        expected = [] if minutes is None else ["step-00000003", "step-00000004"]
        assert [path.name for path in checkpoint.list_checkpoints(tmp_path / "timed/checkpoints")] == expected
    train(config, tmp_path / "timed", runtime)
    assert_same_run(tmp_path / "whole", tmp_path / "timed")


def test_a_run_whose_metrics_end_before_its_checkpoint_reports_it(config: TrainConfig, tmp_path: Path) -> None:
    runtime = Runtime(device="cpu", log_every=1, save_every=4)
    train(config, tmp_path, runtime)
    (tmp_path / "summary.json").unlink()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= 3))
    listening = Listening()
    train(config, tmp_path, runtime, listening)
    assert "damaged: metrics.jsonl: its content changed; it is kept as metrics.jsonl.damaged" in listening.notes
    assert "metrics end at step 0, before the checkpoint of step 12" in "".join(listening.notes)


def test_a_run_that_was_logged_more_rarely_before_has_lost_no_lines(
    config: TrainConfig, tmp_path: Path, interrupt_during: Callable
) -> None:
    listening = Listening()
    interrupt_during([7])
    with pytest.raises(RunInterrupted):
        train(config, tmp_path, Runtime(device="cpu", log_every=1000, telemetry_every=None))
    train(config, tmp_path, Runtime(device="cpu", log_every=2, telemetry_every=None), listening)
    assert not [note for note in listening.notes if "lost" in note]


def test_a_crash_before_the_summary_loses_only_the_summary(
    config: TrainConfig, runtime: Runtime, tmp_path: Path
) -> None:
    summary = train(config, tmp_path, runtime)
    metrics = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "summary.json").unlink()
    assert without_measured(train(config, tmp_path, runtime)) == without_measured(summary)
    assert (tmp_path / "metrics.jsonl").read_text() == metrics


def test_the_folder_records_the_config_the_data_and_each_kind_of_metrics_once(
    config: TrainConfig, runtime: Runtime, tmp_path: Path
) -> None:
    config = config.replace(attention="gated")
    summary = train(config, tmp_path, runtime)
    stored = RunFolder.open(tmp_path).config
    assert stored["label"] == summary["label"] == "gated"
    assert stored["data"] == config.build_task().fingerprint
    assert TrainConfig.from_dict(stored) == config
    records = RunFolder.open(tmp_path).metrics()
    assert all(record["tokens"] == record["step"] * config.batch_size * config.seq_len for record in records)
    assert {r["step"] for r in records if "loss" in r} == {5, 10, 12}
    assert {r["step"] for r in records if "valid_loss" in r} == {5, 10, 12}
    assert max(Counter((r["step"], "loss" in r, "valid_loss" in r) for r in records).values()) == 1


def test_other_data_under_the_same_name_is_another_run(config: TrainConfig, runtime: Runtime, tmp_path: Path) -> None:
    for number in (1, 2):
        corpus = tmp_path / f"{number}" / "text.txt"
        corpus.parent.mkdir()
        corpus.write_text(f"the {number} text\n" * 100)
    path = tmp_path / "corpus.txt"
    path.symlink_to(tmp_path / "1" / "text.txt")
    config = config.replace(corpus=str(path), n_steps=4)
    train(config, tmp_path / "run", runtime)
    path.unlink()
    path.symlink_to(tmp_path / "2" / "text.txt")
    with pytest.raises(InputError, match="holds a run with another configuration: data is"):
        train(config, tmp_path / "run", runtime)


def test_a_finished_run_is_not_run_again(
    config: TrainConfig, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Callable
) -> None:
    listening = Listening()
    summary = train(config, tmp_path, runtime)
    before = files(tmp_path)
    monkeypatch.setattr(Run, "take_step", None)
    assert train(config, tmp_path, runtime, listening) == summary
    assert files(tmp_path) == before
    assert listening.notes == [f"'{tmp_path}' is finished already"]


def test_a_vocabulary_smaller_than_the_tasks_is_refused_before_a_folder_is_made(
    config: TrainConfig, runtime: Runtime, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="vocab_size must be at least the task's 320, got 256; give vocab_size=320"):
        train(config.replace(vocab_size=256), tmp_path / "run", runtime)
    assert not (tmp_path / "run").exists()


def test_a_predictable_text_is_learned(config: TrainConfig, runtime: Runtime, tmp_path: Path) -> None:
    """Criterion: the loss falls from ln 320 = 5.8 nats to below 0.1 on a text that repeats seven letters."""
    (tmp_path / "text.txt").write_text("abcdefg" * 400)
    config = config.replace(corpus=str(tmp_path / "text.txt"), n_steps=80, lr=2e-2, dropout=0.0, eval_every=80)
    summary = train(config, tmp_path / "run", Runtime(device="cpu", log_every=1))
    assert RunFolder.open(tmp_path / "run").metrics()[0]["loss"] == pytest.approx(math.log(320), abs=0.3)
    assert summary["valid_loss"] < 0.1
    assert summary["metric"]["value"] == pytest.approx(math.exp(summary["valid_loss"]))


def gradients_of_a_step(run: Run) -> dict[str, Tensor]:
    """Return the gradients that the optimizer gets."""
    seen: dict[str, Tensor] = {}

    def look(*_: object) -> None:
        seen.update({name: p.grad.clone() for name, p in run.model.named_parameters() if p.grad is not None})

    hook = run.optimizer.register_step_pre_hook(look)
    run.take_step()
    hook.remove()
    assert seen
    return seen


class Masked:
    """A text task in which later sequences of a batch have fewer scored targets."""

    def __init__(self, run: Run) -> None:
        self.task = run.task

    def train_batch(self, step: int, batch_size: int) -> Batch:
        inputs, targets, _ = self.task.train_batch(step, batch_size)
        for row in range(batch_size):
            targets[row, : 3 * row] = NOT_SCORED
        return Batch(inputs, targets)


@pytest.mark.parametrize("masked", [False, True], ids=["all scored", "unevenly scored"])
def test_accumulated_micro_batches_give_the_gradient_of_the_whole_batch(
    config: TrainConfig, runtime: Runtime, tmp_path: Path, masked: bool
) -> None:
    """Criterion: 2 or 4 micro-batches differ from one batch by rounding alone, also with unequal numbers of scored
    positions. (The loss is computed in fp32, so fp64 weights leave an error of about 1e-7.)"""
    gradients = {}
    for n in (1, 2, 4):
        run = build_run(config.replace(accumulation=n, dropout=0.0, clip=None), tmp_path / str(n), runtime)
        run.model.double()
        if masked:
            run.task = Masked(run)  # type: ignore[assignment]
        gradients[n] = gradients_of_a_step(run)
    for n in (2, 4):
        for name, whole in gradients[1].items():
            torch.testing.assert_close(gradients[n][name], whole, rtol=1e-5, atol=1e-7 * float(whole.norm()))


def test_clipping_bounds_the_norm_and_none_leaves_it(config: TrainConfig, runtime: Runtime, tmp_path: Path) -> None:
    norms = {}
    for clip in (None, 1e-3):
        run = build_run(config.replace(clip=clip), tmp_path / str(clip), runtime)
        norms[clip] = float(torch.stack([g.norm() for g in gradients_of_a_step(run).values()]).norm())
    assert norms[1e-3] == pytest.approx(1e-3, rel=1e-3)
    assert norms[None] > 0.1


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_and_keeps_fp32_master_weights(
    config: TrainConfig, runtime: Runtime, tmp_path: Path, precision: str
) -> None:
    """Criterion: products run in half precision, the loss falls as in fp32, and weights and optimizer state stay fp32.
    The checkpoint holds the scaler's state if and only if there is a scaler."""
    config = config.replace(precision=precision, n_steps=40, lr=5e-3, dropout=0.0, eval_every=40)
    run = build_run(config, tmp_path / "probe", runtime)
    seen = []
    run.model.blocks[0].mlp.register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    run.take_step()
    assert seen == [{"bf16": torch.bfloat16, "fp16": torch.float16}[precision]]
    whole = train(config.replace(precision="fp32"), tmp_path / "fp32", runtime)
    half = train(config, tmp_path / "half", runtime)
    assert half["valid_loss"] == pytest.approx(whole["valid_loss"], abs=0.05)
    assert half["valid_loss"] < 4.5
    tensors = newest_tensors(tmp_path / "half")
    moments = [value for state in tensors["optimizer"]["state"].values() for value in state.values()]
    assert {t.dtype for t in [*tensors["weights"].values(), *moments]} == {torch.float32}
    assert ("scale" in tensors["scaler"]) == (precision == "fp16")


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    taken: Snapshots = []
    take_step = Run.take_step

    def state(run: Run) -> dict[str, Any]:
        return deepcopy({"weights": run.model.state_dict(), "optimizer": run.optimizer.state_dict()["state"]})

    def observed(run: Run) -> StepResult:
        before, result = state(run), take_step(run)
        taken.append((before, state(run)))
        return result

    monkeypatch.setattr(Run, "take_step", observed)
    return taken


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_non_finite_step_changes_nothing_and_is_counted(
    config: TrainConfig, runtime: Runtime, tmp_path: Path, spoil: Spoil, snapshots: Snapshots, what: str, precision: str
) -> None:
    """Criterion: steps 4 and 7 keep every bit of weights and optimizer state, and all other steps change them. Both are
    in the summary and, although not logged otherwise, in the metrics. The run continues to a finite end."""
    spoil([3, 6], what)
    summary = train(config.replace(precision=precision), tmp_path, runtime)
    for step, (before, after) in enumerate(snapshots):
        assert same(before, after) == (step in (3, 6)), f"step {step}"
    assert len(snapshots) == config.n_steps
    assert summary["skipped_steps"] == 2
    assert math.isfinite(summary["valid_loss"])
    records = {r["step"]: r for r in RunFolder.open(tmp_path).metrics() if "loss" in r}
    assert {step: r["skipped_steps"] for step, r in records.items()} == {4: 1, 5: 1, 7: 2, 10: 2, 12: 2}
    assert records[4]["loss" if what == "loss" else "grad_norm"] is None


def test_too_many_non_finite_steps_stop_the_run_with_its_last_good_weights(
    config: TrainConfig, runtime: Runtime, tmp_path: Path, spoil: Spoil, snapshots: Snapshots
) -> None:
    """Criterion: the run stops after the third in a row. The message has the count and the field to change, and the
    weights are those before the first of them."""
    spoil(range(4, 12), "loss")
    message = train(config.replace(max_bad_steps=3), tmp_path, runtime)["diverged"]
    assert message.startswith("stopped at step 7: loss or gradient was not finite 3 steps in a row (max_bad_steps=3)")
    assert "lower lr" in message
    assert "\n" not in message
    assert same(newest_tensors(tmp_path)["weights"], dict(snapshots[4][0]["weights"]))


def test_a_finite_step_resets_the_count(config: TrainConfig, runtime: Runtime, tmp_path: Path, spoil: Spoil) -> None:
    spoil([2, 3, 5, 6, 8, 9], "gradient")
    assert train(config.replace(max_bad_steps=3), tmp_path, runtime)["skipped_steps"] == 6


def test_the_count_in_a_row_survives_an_interruption(
    config: TrainConfig, runtime: Runtime, tmp_path: Path, spoil: Spoil, interrupt_during: Interrupt
) -> None:
    spoil([3, 4, 5], "loss")
    interrupt_during([4])
    with pytest.raises(RunInterrupted):
        train(config.replace(max_bad_steps=3), tmp_path, runtime)
    assert "stopped at step 6" in train(config.replace(max_bad_steps=3), tmp_path, runtime)["diverged"]


@contextmanager
def started(words: list[str], folder: Path, fresh: bool) -> Iterator[subprocess.Popen]:
    """Start `attractor WORDS` with readable standard error, and end it when the context ends."""
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    if fresh:
        process = subprocess.Popen([ATTRACTOR, *words], cwd=folder, **streams)
    else:
        process = forked(typed(*words), folder, **streams)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until_lines(path: Path, n_lines: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and len(path.read_bytes().splitlines()) > n_lines):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.slow
def test_signals_save_and_the_printed_command_resumes(config: TrainConfig, runtime: Runtime, tmp_path: Path) -> None:
    """Criterion: `stop_and_resume` states what must hold. The run ends with the weights of an uninterrupted run."""
    folder = tmp_path / "a run"  # the printed command must quote the blank
    config = config.replace(n_steps=500, warmup_steps=50, eval_every=250)
    in_fresh_process(stop_and_resume, config, folder)
    assert TrainConfig.from_dict(RunFolder.open(folder).config) == config
    train(config, tmp_path / "whole", runtime)
    assert same(newest_tensors(folder), newest_tensors(tmp_path / "whole"))


def stop_and_resume(config: TrainConfig, folder: Path) -> None:
    """Stop a run by four signals: each time it exits with 128 plus the signal's number, leaves a checkpoint of the
    current step, and prints one line with the command that continues it. The last command ends the run. The first
    process is fresh, and the others are forked from this one."""
    sizes = ("d_model", "n_heads", "n_layers", "d_ff", "dropout", "max_seq_len")
    names = ("n_steps", "batch_size", "seq_len", "warmup_steps", "eval_every", "eval_batches")
    settings = {name: getattr(config.model, name) for name in sizes} | {name: getattr(config, name) for name in names}
    options = [f"--{name}={value}" for name, value in settings.items()]
    words = ["train", *options, f"--corpus={config.task.corpus}", f"--out={folder}"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)):
        done = RunFolder.open(folder).metrics()[-1]["step"] if folder.exists() else 0
        with started([*words, "--log-every=2", "--threads=1"], folder.parent, fresh=done == 0) as process:
            until_lines(folder / "metrics.jsonl", done // 2 + 3, process)
            os.kill(process.pid, number)
            said = process.communicate(timeout=60)[1]
        assert process.returncode == code
        (line,) = without_heartbeat(said).splitlines()
        step, resume = line.removeprefix("interrupted after step ").split(", saved. Resume: ")
        assert (folder / "checkpoints" / f"step-{int(step):08d}" / "manifest.json").exists()
        assert done < int(step) < config.n_steps
        program, *words = shlex.split(resume)
        assert program == "attractor"
    with started(words, folder.parent, fresh=False) as process:
        process.communicate(timeout=60)
    assert process.returncode == 0
