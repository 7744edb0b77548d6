"""Sharded checkpoints hold what plain ones hold, are written while training goes on, and lose nothing on the way."""

import json
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from same_runs import same

from attractor.errors import InputError, RunInterrupted, WritingError
from attractor.models import TransformerConfig
from attractor.runs.run_folder import RunFolder
from attractor.tasks.text import Text
from attractor.train import checkpoint, sharded
from attractor.train.config import Runtime, TrainConfig
from attractor.train.finished import finished_run
from attractor.train.learner import StepResult
from attractor.train.loop import Run, train
from attractor.train.sharded import convert_run
from attractor.train.shards import read_shards, write_shards
from several_processes import together

SHARDED = Runtime(device="cpu", log_every=5, save_every=3, checkpoint_format="sharded")


def checkpoints(run: Path) -> list[Path]:
    return checkpoint.list_checkpoints(run / "checkpoints")


def content(path: Path) -> list[object]:
    """Return the weights and other tensors of a checkpoint; seconds are measured, so the state is left out."""
    checkpoint.verify(path)
    return list(checkpoint.read_checkpoint(path)[:2])


@pytest.mark.parametrize(
    "changes",
    [{}, {"ema": 0.9, "regularizer": "spectral"}, {"optimizer": "muon", "quack": 0.1}, {"precision": "fp16"}],
    ids=["AdamW", "average", "Muon", "fp16"],
)
def test_a_sharded_run_equals_a_plain_one_and_resumes(
    config: TrainConfig, tmp_path: Path, interrupt_during: Callable[[Iterable[int]], None], changes: dict
) -> None:
    """Criterion: interrupted twice, and resumed once in the other format, the run ends with the same bits."""
    config = config.replace(**changes)
    train(config, tmp_path / "plain", replace(SHARDED, checkpoint_format="plain"))
    interrupt_during([1, 7])
    for checkpoint_format in ("sharded", "plain"):
        with pytest.raises(RunInterrupted):
            train(config, tmp_path / "parts", replace(SHARDED, checkpoint_format=checkpoint_format))
    train(config, tmp_path / "parts", SHARDED)
    (*_, whole), (*_, last) = checkpoints(tmp_path / "plain"), checkpoints(tmp_path / "parts")
    assert checkpoint.is_sharded(last)
    assert same(content(whole), content(last))
    best = [finished_run(tmp_path / name, torch.device("cpu")).model.state_dict() for name in ("plain", "parts")]
    assert same(dict(best[0]), dict(best[1]))


def test_conversion_there_and_back_gives_the_same_files(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: weights and optimizer of all checkpoints are the same bytes after both conversions, and in between a
    folder holds safetensors, JSON, and one file that is loaded with weights_only, but no index that is a pickle."""
    train(config, tmp_path, replace(SHARDED, checkpoint_format="plain"))
    before = [content(path) for path in checkpoints(tmp_path)]
    weights = [(path / "model.safetensors").read_bytes() for path in checkpoints(tmp_path)]
    assert convert_run(tmp_path, "sharded") == [path.name for path in checkpoints(tmp_path)]
    assert convert_run(tmp_path, "sharded") == []
    for path, expected in zip(checkpoints(tmp_path), before, strict=True):
        assert same(content(path), expected)
        assert sorted(file.name for file in path.iterdir()) == [
            "manifest.json", "optimizer.pt", "shard-00001-model-00001-of-00001.safetensors", "state.json"
        ]  # fmt: skip
    with pytest.raises(InputError, match="attractor runs convert"):
        train(config.replace(start=str(tmp_path), seed=1), tmp_path / "next", SHARDED)
    assert convert_run(tmp_path, "plain") == [path.name for path in checkpoints(tmp_path)]
    assert weights == [(path / "model.safetensors").read_bytes() for path in checkpoints(tmp_path)]
    with pytest.raises(InputError, match="checkpoint format 'zip'"):
        convert_run(tmp_path, "zip")


def test_a_flipped_byte_of_a_shard_is_named(config: TrainConfig, tmp_path: Path) -> None:
    train(config, tmp_path, SHARDED)
    (shard,) = checkpoints(tmp_path)[-1].glob("shard-*")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(checkpoint.DamagedCheckpointError, match=r"shard-00001.*checksum"):
        checkpoint.verify(checkpoints(tmp_path)[-1])


def test_shards_are_written_without_a_copy_in_python(tmp_path: Path) -> None:
    """Criterion: writing 16 MB allocates less than 1 MB in Python, where a copy holds the interpreter's lock and so the
    training thread. What is read equals what was written."""
    shards = {"model.a": torch.randn(2**21), "model.b": torch.randn(2**10, 2**11)}
    write_shards(tmp_path, {"model.b": shards["model.b"]}, None)  # imports allocate, too
    tracemalloc.start()
    try:
        write_shards(tmp_path, shards, None)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    torch.save({"model": {name: f"tensor of the shards: model.{name}" for name in "ab"}}, tmp_path / "optimizer.pt")
    assert same(read_shards(tmp_path)["model"], {name: shards[f"model.{name}"] for name in "ab"})


def test_training_goes_on_while_a_checkpoint_is_written(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: step 5 is taken while the checkpoint of step 3 is being written. Until that has its name there is none
    but the one before, and it holds the weights of step 3 although they have changed since."""
    written, write = threading.Event(), sharded.write_shards
    seen: list[list[str]] = []
    weights = []

    def slowly(folder: Path, shards: dict, group: object) -> None:
        if "00000003" in folder.name:
            assert written.wait(60)
        write(folder, shards, group)

    take_step = Run.take_step

    def stepping(run: Run) -> StepResult:
        if run.step == 3:
            weights.append({name: tensor.clone() for name, tensor in run.model.state_dict().items()})
        if run.step == 5:
            seen.append([path.name for path in checkpoints(tmp_path)])
            written.set()
        return take_step(run)

    monkeypatch.setattr(sharded, "write_shards", slowly)
    monkeypatch.setattr(Run, "take_step", stepping)
    train(config.replace(eval_every=12), tmp_path, replace(SHARDED, keep=9))
    assert seen == [[]]
    assert [path.name[-2:] for path in checkpoints(tmp_path)] == ["03", "06", "09", "12"]
    assert same(checkpoint.read_checkpoint(checkpoints(tmp_path)[0])[0], weights[0])


def test_a_write_that_fails_keeps_the_checkpoint_before_and_ends_in_a_line(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = sharded.write_shards

    def failing(folder: Path, shards: dict, group: object) -> None:
        write(folder, shards, group)
        if "00000006" in folder.name:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(sharded, "write_shards", failing)
        with pytest.raises(WritingError, match=r"could not save the checkpoint of step 6 .* make room, then resume"):
            train(config.replace(eval_every=12), tmp_path, SHARDED)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000003"]
    checkpoint.verify(checkpoints(tmp_path)[0])
    assert not list((tmp_path / "checkpoints").glob(".*"))
    train(config.replace(eval_every=12), tmp_path, SHARDED)


def config_of(corpus: str) -> TrainConfig:
    model = TransformerConfig(
        vocab_size=320, d_model=16, n_heads=2, n_layers=1, d_ff=32, max_seq_len=64, positions="rope"
    )
    return TrainConfig(
        model, Text(corpus), n_steps=12, batch_size=4, seq_len=16, warmup_steps=3, eval_every=12, eval_batches=2
    )


def be_killed(path: Path, corpus: str) -> None:
    """Train, and end between the shards and the name of the checkpoint of step 6."""
    finish = checkpoint.finish_writing

    def killed(folder: Path, temporary: Path, state: Any, number: int) -> Path:
        if state.step == 6:
            os._exit(9)
        return finish(folder, temporary, state, number)

    checkpoint.finish_writing = killed
    train(config_of(corpus), path, SHARDED)


@pytest.mark.slow
def test_a_kill_inside_a_save_loses_nothing(corpus: str, tmp_path: Path) -> None:
    """Criterion: a process that ends between the shards and the name of the checkpoint of step 6 leaves that of step 3,
    and the resumed run equals an undisturbed one."""
    together(1, be_killed, tmp_path / "killed", corpus, ends_with=9)
    assert [path.name for path in checkpoints(tmp_path / "killed")] == ["step-00000003"]
    for name in ("killed", "whole"):
        train(config_of(corpus), tmp_path / name, SHARDED)
    assert same(*(content(checkpoints(tmp_path / name)[-1]) for name in ("killed", "whole")))
    assert not list((tmp_path / "killed/checkpoints").glob(".*"))


def until(step: int, path: Path, corpus: str) -> None:
    """Train up to a step, as one of several processes, and be interrupted there."""
    take_step = Run.take_step

    def stopping(run: Run) -> StepResult:
        if run.step == step - 1:
            os.kill(os.getpid(), 15)
        return take_step(run)

    Run.take_step = stopping  # type: ignore[method-assign]
    runtime = replace(SHARDED, threads=1, log_every=1, parallel="fsdp", save_every_minutes=1e-9)
    with suppress(RunInterrupted):
        train(config_of(corpus), path, runtime)


@pytest.mark.slow
def test_a_run_continues_on_any_number_of_processes(corpus: str, tmp_path: Path) -> None:
    """Criterion: steps on 1, 2, 4, 2 and 1 processes have the losses of one process to 1e-5; every process writes a
    shard, and a checkpoint that four processes wrote converts to the plain format."""
    for n_processes, step in ((1, 3), (2, 5), (4, 7), (2, 9), (1, 100)):
        together(n_processes, until, step, tmp_path / "spread", corpus)
        last = checkpoints(tmp_path / "spread")[-1]
        assert len(list(last.glob("shard-*"))) == n_processes
        checkpoint.verify(last)
        if n_processes == 4:
            loaded = content(last)
            convert_run(tmp_path / "spread", "plain")
            assert same(content(last), loaded)
            convert_run(tmp_path / "spread", "sharded")
    train(config_of(corpus), tmp_path / "one", replace(SHARDED, log_every=1))
    losses = [
        [record["loss"] for record in RunFolder.open(tmp_path / name).metrics() if "loss" in record]
        for name in ("spread", "one")
    ]
    assert len(losses[0]) == 12
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert json.loads((tmp_path / "spread/summary.json").read_text())["steps"] == 12
