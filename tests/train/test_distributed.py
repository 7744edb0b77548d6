"""Several processes carry out one run and compute what one process computes with the same batch.

One torchrun runs all cases on two processes, and this process runs their counterparts alone.
"""

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from attractor.errors import InputError, RankLostError, RunInterrupted
from attractor.kernels.cross_entropy import NOT_SCORED
from attractor.models import FastSlowConfig, RecursiveConfig, TransformerConfig
from attractor.runs.run_folder import RunFolder
from attractor.tasks import Batch
from attractor.tasks.text import Text, TextTask
from attractor.train.checkpoint import read_checkpoint
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.distributed import OPEN_RENDEZVOUS, STORE, World, end_process
from attractor.train.loop import Run, train
from attractor.train.trainer import StepResult

N_PROCESSES = 2
RUNTIME = Runtime(device="cpu", threads=1, log_every=1, telemetry_every=5)
PRESETS = ("standard", "coupled-euler", "coupled-hamiltonian", "differential", "gated")
SIZES: dict[str, Any] = {"vocab_size": 320, "d_model": 32, "n_heads": 4, "d_ff": 48, "max_seq_len": 64}
LAYERS: dict[str, Any] = {"n_layers": 1, "n_inner": 2, "n_iterations": 6, "n_segments": 3}
RECURSIVE = RecursiveConfig(**SIZES, **LAYERS, causal=True, blank=None, halting=True)
STEPS: dict[str, Any] = {"n_steps": 12, "batch_size": 8, "seq_len": 16, "warmup_steps": 3}
TWO = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
WRONG_WORLDS = {
    "RANK must be a whole number of at least 0 and below 1, got 'abc'": {"RANK": "abc"},
    "RANK must be a whole number of at least 0 and below 1, got ''": {"RANK": ""},
    "RANK must be a whole number of at least 0 and below 2, got '2'": TWO | {"RANK": "2"},
    "WORLD_SIZE must be a whole number of at least 1, got '0'": {"WORLD_SIZE": "0"},
    "LOCAL_WORLD_SIZE must be a whole number of at least 1 and below 3, got '0'": TWO | {"LOCAL_WORLD_SIZE": "0"},
    "LOCAL_RANK must be a whole number of at least 0 and below 1, got '-1'": TWO | {"LOCAL_RANK": "-1"},
    "MASTER_ADDR must be an address, got ''": TWO | {"MASTER_ADDR": ""},
    "MASTER_PORT must be a whole number of at least 0 and below 65536, got ''": {"WORLD_SIZE": "2"},
}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"attention": name} for name in PRESETS},
    "accumulated": {"accumulation": 2, "ema": 0.9},
    "uneven": {"accumulation": 2, "attention": "coupled-euler"},
    "recomputed": {"activation_checkpointing": True, "attention": "coupled-euler"},
    "untied": {"tied_embeddings": False, "precision": "fp16"},
    "two timescales": {"model": FastSlowConfig(d_model=32, d_ff=48, max_seq_len=64), "gate_lr": 0.1},
    "two timescales, frozen": {"model": FastSlowConfig(d_model=32, d_ff=48, max_seq_len=64, frozen=True)},
    "regularized": {"regularizer": "spectral", "regularizer_weight": 0.1, "accumulation": 2},
    "regularized by energy": {"regularizer": "energy-single", "n_heads": 1, "accumulation": 2},
    "read late": {"ema": 0.9},
    "deep supervision": {"model": RECURSIVE, "accumulation": 2},
    "interrupted": {"ema": 0.9},
    "interrupted between segments": {"model": RECURSIVE},
}
INTERRUPTED = [case for case in CASES if case.startswith("interrupted")]


@pytest.mark.parametrize("message", WRONG_WORLDS)
def test_a_wrong_environment_is_refused_in_a_line(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", *TWO, STORE):
        monkeypatch.delenv(name, raising=False)
    for name, value in WRONG_WORLDS[message].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=re.escape(message)):
        World.from_environment()


def config_of(case: str, corpus: str) -> TrainConfig:
    model = TransformerConfig(**SIZES, n_layers=2, positions="rope")
    return TrainConfig(model, Text(corpus), **STEPS, eval_every=6, eval_batches=2).replace(**CASES[case])


def score_unevenly() -> None:
    """Give later sequences of all further batches fewer scored targets, and the last two sequences none."""
    drawn = TextTask.train_batch

    def train_batch(task: TextTask, step: int, batch_size: int) -> Batch:
        inputs, targets, real = drawn(task, step, batch_size)
        targets = targets.copy()
        for row in range(batch_size):
            targets[row, : 3 * row - 2 if row < batch_size - 2 else None] = NOT_SCORED
        return Batch(inputs, targets, real)

    TextTask.train_batch = train_batch  # type: ignore[method-assign]


def read_late() -> None:
    """Make the loss of step 4, counted from 0, non-finite; several processes read it late."""
    gradients = Run.gradients

    def spoiled(run: Run, batch: Batch, share: float) -> torch.Tensor:
        return gradients(run, batch, share) * (math.nan if run.step == 4 else 1)

    Run.gradients = spoiled  # type: ignore[method-assign]
    Run.late = World.from_environment().size > 1  # type: ignore[assignment]


def stop_during(step: int, rank: int) -> None:
    """Send SIGTERM to one process in the middle of this step, counted from 0."""
    take_step = Run.take_step

    def stopped(run: Run) -> StepResult:
        if run.step == step and run.world.rank == rank:
            signal.raise_signal(signal.SIGTERM)
        return take_step(run)

    Run.take_step = stopped  # type: ignore[method-assign]


def carry_out(root: Path, corpus: str, cases: Iterable[str], parallel: str) -> dict[str, Any]:
    """Run each case with its disturbance; return the summary or message of each case."""
    said: dict[str, Any] = {}
    for case in cases:
        undisturbed = TextTask.train_batch, Run.take_step, Run.gradients, Run.late
        if case == "uneven":
            score_unevenly()
        if case == "read late":
            read_late()
        if case in INTERRUPTED:
            stop_during(7, rank=N_PROCESSES - 1)
        try:
            said[case] = train(config_of(case, corpus), root / case, replace(RUNTIME, parallel=parallel))
        except RunInterrupted as interrupted:
            said[case] = [str(interrupted), interrupted.exit_code]
        finally:
            TextTask.train_batch, Run.take_step, Run.gradients, Run.late = undisturbed  # type: ignore[method-assign]
    return said


def speak_and_learn(corpus: str, world: World) -> tuple[list[list[int]], list[float]]:
    """Generate tokens with weights sharded over the processes; return the tokens and the losses of two later steps."""
    model = config_of("standard", corpus).model.build(0)
    loss = world.spread(model, "fsdp", lambda loss: loss)
    spoken = model.generate([[1, 2, 3], [4]], max_new_tokens=4, temperature=0.0)
    losses = []
    for _ in range(2):
        found, _ = loss(spoken[:, :-1], spoken[:, 1:])
        found.backward()
        losses.append(found.item())
    return spoken.tolist(), losses


class Notes(Display):
    """Print the notes of a run on standard output."""

    def note(self, text: str) -> None:
        print(text)


def torchrun(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={N_PROCESSES}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=timeout, env=environment)


@pytest.fixture(scope="module")
def runs(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all cases by one process, by two with a model each, and by two that share one."""
    root = tmp_path_factory.mktemp("runs")
    carry_out(root / "one", corpus, [case for case in CASES if case not in INTERRUPTED], "ddp")
    for case in INTERRUPTED:
        train(config_of(case, corpus), root / "one" / case, RUNTIME)
    with pytest.MonkeyPatch.context() as patched:  # one process begins the run, and two continue it
        patched.setattr(Run, "take_step", Run.take_step)
        stop_during(5, rank=0)
        with pytest.raises(RunInterrupted):
            train(config_of("standard", corpus), root / "fsdp" / "standard", RUNTIME)
    done = torchrun(str(Path(__file__)), str(root), corpus)
    assert done.returncode == 0, done.stderr[-3000:]
    return root


def newest(path: Path) -> Path:
    return max((path / "checkpoints").glob("step-*"))


def assert_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float, name: str) -> None:
    """Compare as vectors, since Adam divides a small gradient by its own size and so magnifies the rounding of single
    entries. One process with other micro-batches has the same effect."""
    assert found.shape == wanted.shape, name
    assert float((found - wanted).norm()) <= tolerance * float(wanted.norm()), name


def assert_close_runs(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    """Criterion: weights, optimizer state and logged numbers agree up to rounding relative to their size, since sums
    have another order. Checkpoints have the same names and shapes."""
    first, second = load_file(newest(one) / "model.safetensors"), load_file(newest(other) / "model.safetensors")
    assert first.keys() == second.keys()
    for name, weights in first.items():
        assert_close(second[name], weights, tolerance, name)
    states = [torch.load(newest(p) / "optimizer.pt", weights_only=True)["optimizer"] for p in (one, other)]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    for index, values in states[0]["state"].items():
        for name, value in values.items():
            assert_close(states[1]["state"][index][name], value, tolerance, f"{name} of {index}")
    half = RunFolder.open(one).config["precision"] == "fp16"
    records = [RunFolder.open(path).metrics() for path in (one, other)]
    assert [r["step"] for r in records[0]] == [r["step"] for r in records[1]]
    for ours, theirs in zip(*records, strict=True):
        for name in ours.keys() - {"tokens_per_second", "context_gain"}:
            if ours[name] is None:  # the number was not finite
                assert theirs[name] is None, name
                continue
            # The rounding of a logit near 0 is as large as that of the other logits.
            rounding = tolerance * np.abs(ours[name]).max() if isinstance(ours[name], list) else 0.0
            if half and name == "logit_change":  # the difference of two logits, which are larger and were rounded
                rounding = max(rounding, torch.finfo(torch.float16).eps * np.abs(ours["max_logit"]).max())
            np.testing.assert_allclose(theirs[name], ours[name], rtol=tolerance, atol=rounding, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("case", [case for case in CASES if case not in INTERRUPTED])
def test_two_processes_compute_what_one_computes(runs: Path, case: str, parallel: str) -> None:
    """One process began and interrupted the case `standard` under `fsdp`."""
    tolerance = 1e-2 if "precision" in CASES[case] else 1e-4 if "regularizer" in CASES[case] else 1e-5
    assert_close_runs(runs / "one" / case, runs / parallel / case, tolerance)
    summary = RunFolder.open(runs / parallel / case).summary()
    assert summary is not None
    assert (summary["processes"], summary["parallel"]) == (2, parallel)
    assert summary["n_parameters"] == (RunFolder.open(runs / "one" / case).summary() or {})["n_parameters"]


@pytest.mark.slow
def test_a_sharded_model_generates_and_continues_training(runs: Path, corpus: str) -> None:
    spoken, losses = speak_and_learn(corpus, World())
    for rank in range(N_PROCESSES):
        theirs, their_losses = json.loads((runs / f"spoken-{rank}.json").read_text())
        assert theirs == spoken
        assert their_losses == pytest.approx(losses, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("case", INTERRUPTED)
def test_a_signal_to_one_process_stops_all_and_one_alone_resumes(
    runs: Path, corpus: str, case: str, parallel: str
) -> None:
    """Criterion: both report the same exit code of the signal and the same command, which continues on as many
    processes. One process can continue, too, and ends at the weights of an uninterrupted run."""
    path = runs / parallel / case
    said = [json.loads((runs / f"{parallel}-{rank}.json").read_text())[case] for rank in range(N_PROCESSES)]
    command = f"torchrun --nproc-per-node 2 --no-python attractor train --resume {shlex.quote(str(path))} --device cpu"
    assert said == [[f"interrupted after step 8, saved. Resume: {command}", 143]] * N_PROCESSES
    assert newest(path).name == "step-00000008"
    train(config_of(case, corpus), path, RUNTIME)
    assert_close_runs(runs / "one" / case, path)


def train_shards(before: int, path: Path, corpus: str) -> None:
    """Train with shared weights, save after every step, and interrupt each process during a step, if it comes."""
    stop_during(before, World.from_environment().rank)
    with suppress(RunInterrupted):
        train(config_of("interrupted", corpus), path, replace(RUNTIME, parallel="fsdp", save_every=1))


@pytest.mark.slow
def test_shards_of_two_processes_are_saved_whole_and_resume_bit_for_bit(corpus: str, tmp_path: Path) -> None:
    """Criterion: under FSDP2, a run that is interrupted twice ends with the bits of an uninterrupted one: weights,
    their average, moments and random state. Every checkpoint holds whole tensors, and losses are those of one process.
    """
    from same_runs import same
    from several_processes import together

    for name, steps in (("whole", [99]), ("parts", [3, 8, 99])):
        for before in steps:
            together(N_PROCESSES, train_shards, before, tmp_path / name, corpus)
            assert newest(tmp_path / name).name == f"step-{min(before + 1, 12):08}"
    weights, others = read_checkpoint(newest(tmp_path / "whole"))[:2]
    assert same([weights, others], list(read_checkpoint(newest(tmp_path / "parts"))[:2]))
    parameters = dict(config_of("interrupted", corpus).model.build(0).named_parameters())
    assert all(weights[name].shape == parameter.shape for name, parameter in parameters.items())
    moments = [values["exp_avg"].shape for values in others["optimizer"]["state"].values()]
    assert sorted(moments) == sorted(parameter.shape for parameter in parameters.values())
    train(config_of("interrupted", corpus), tmp_path / "one", RUNTIME)
    assert_close_runs(tmp_path / "one", tmp_path / "parts")


@pytest.mark.slow
def test_a_run_continues_on_any_number_of_processes(corpus: str, tmp_path: Path) -> None:
    """Criterion: steps on 1, 2, 4, 2 and 1 processes end at the weights of one process."""
    from several_processes import together

    for n_processes, before in ((1, 2), (2, 4), (4, 6), (2, 8), (1, 99)):
        together(n_processes, train_shards, before, tmp_path / "spread", corpus)
        assert newest(tmp_path / "spread").name == f"step-{min(before + 1, 12):08}"
    train(config_of("interrupted", corpus), tmp_path / "one", RUNTIME)
    assert_close_runs(tmp_path / "one", tmp_path / "spread")


@pytest.mark.slow
def test_an_error_in_one_process_ends_all(tmp_path: Path, corpus: str) -> None:
    """Criterion: torchrun ends by itself with an error. Before that, one process has warned of torchrun's open
    store."""
    done = torchrun(str(Path(__file__)), str(tmp_path), corpus, "break", timeout=120)
    assert done.returncode != 0
    assert "MemoryError" in done.stderr
    assert done.stdout.splitlines() == [OPEN_RENDEZVOUS]


@pytest.mark.slow
def test_a_process_of_several_ends_without_taking_the_interpreter_apart() -> None:
    """Criterion: exit functions run, the output is written and the exit code is kept; destructors do not run."""
    script = (
        "import atexit\n"
        "from attractor.train.distributed import end_process\n"
        "class Held:\n    def __del__(self): print('taken apart')\n"
        "held = Held()\n"
        "atexit.register(print, 'left the group')\n"
        "print('ended well')\n"
        "end_process(3)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stdout.split("\n")) == (3, ["ended well", "left the group", ""])


def test_only_a_rendezvous_that_others_can_reach_causes_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: torchrun's store causes a warning even at a loopback address, since it listens on all interfaces; a
    file store does not."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert World(0, 2).warning == OPEN_RENDEZVOUS
    assert World(0, 2, store="/tmp/private/store").warning is None
    assert World().warning is None


def test_a_batch_that_does_not_divide_among_processes_is_refused(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Criterion: the error is one line with exit code 2, before the processes connect to each other."""
    from in_process import command_in_process  # the ranks run this file without the folder of tests

    for name, value in (TWO | {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "run"
    options = [f"--corpus={corpus}", "--batch-size=6", "--accumulation=2", f"--out={out}", "--device=cpu"]
    code, _, errors = command_in_process(monkeypatch, capsys)("train", *options)
    assert code == 2
    assert errors == (
        "error: batch_size / accumulation must be divisible by the number of processes, 2, got 6 / 2; "
        "change one of them, or start torchrun with another --nproc-per-node\n"
    )


def test_a_world_of_one_process_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: a batch in one part is the whole batch with weight 1, and no random state changes."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", STORE):
        monkeypatch.delenv(name, raising=False)
    world = World.from_environment()
    assert world == World()
    assert (world.is_first, world.program) == (True, "attractor")
    batch = Batch(np.arange(8).reshape(4, 2), np.arange(8).reshape(4, 2))
    ((rows, share),) = world.parts(batch, 1)
    assert share == 1
    assert np.array_equal(rows.inputs, batch.inputs)
    before = torch.get_rng_state()
    world.seed(0, 1)
    assert torch.equal(torch.get_rng_state(), before)
    world.refuse_uneven(7, 1)


@pytest.mark.parametrize(("size", "accumulation"), [(2, 1), (2, 2), (4, 2), (8, 1)])
def test_the_parts_of_all_processes_are_the_batch(size: int, accumulation: int) -> None:
    """Criterion: every row occurs once, and the weights of scored parts, averaged over processes, sum to one. A process
    without scored targets gets some at weight 0, so that its mean loss exists."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 9, (8, 5))
    targets = np.where(rng.random((8, 5)) < 0.3, inputs, NOT_SCORED)
    targets[-1] = NOT_SCORED
    batch = Batch(inputs, targets, inputs > 0)
    parts = [World(rank, size).parts(batch, accumulation) for rank in range(size)]
    by_micro_batch = [rows for number in range(accumulation) for rows, _ in (mine[number] for mine in parts)]
    assert np.array_equal(np.concatenate([rows.inputs for rows in by_micro_batch]), inputs)
    assert sum(share for mine in parts for _, share in mine) / size == pytest.approx(1)
    for rows, share in (part for mine in parts for part in mine):
        assert (rows.targets != NOT_SCORED).any()
        assert rows.real is not None
        n_scored = (targets != NOT_SCORED).sum()
        assert share in (0, pytest.approx(size * (rows.targets != NOT_SCORED).sum() / n_scored))


def test_steps_and_processes_draw_different_random_numbers_and_the_same_again() -> None:
    def drawn(rank: int, step: int) -> float:
        World(rank, 2).seed(0, step)
        return float(torch.rand(()))

    before = torch.get_rng_state()
    numbers = [drawn(rank, step) for rank in (0, 1) for step in (0, 1)]
    assert len(set(numbers)) == 4
    assert numbers == [drawn(rank, step) for rank in (0, 1) for step in (0, 1)]
    torch.set_rng_state(before)


def test_a_rank_that_never_starts_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: one line names the time limit instead of a traceback of torch."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    alone = World(rank=0, size=2, local_size=2, store=str(tmp_path / "store"))
    rule = r"the 2 processes .* within 0.5 s \(collective_timeout\)"
    with pytest.raises(RankLostError, match=rule), alone.joined(torch.device("cpu"), 0.5):
        raise AssertionError("nobody else is there")
    assert not torch.distributed.is_initialized()


def main(root: Path, corpus: str, what: Callable[..., Any] | str | None = None) -> None:
    """Run all cases inside a process that torchrun has started."""
    world = World.from_environment()
    if what == "break":
        take_step = Run.take_step

        def broken(run: Run) -> dict[str, Any]:
            if run.state.step == 3 and run.world.rank == 1:
                raise MemoryError
            return take_step(run)

        Run.take_step = broken  # type: ignore[method-assign]
        train(config_of("standard", corpus), root / "run", RUNTIME, Notes())
        return
    for parallel in ("ddp", "fsdp"):
        said = carry_out(root / parallel, corpus, CASES, parallel)
        (root / f"{parallel}-{world.rank}.json").write_text(json.dumps(said))
    (root / f"spoken-{world.rank}.json").write_text(json.dumps(speak_and_learn(corpus, world)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    end_process(0)
