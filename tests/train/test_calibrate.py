"""The estimates of calibration match the run itself, and each way in which a measurement can end is handled."""

import os
import signal
import tempfile
import threading
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from pathlib import Path

import pytest
from torch import nn

from attractor.attention.config import AttentionConfig
from attractor.attention.stage import Coupling, HeadLayout
from attractor.errors import RunInterrupted
from attractor.models import TransformerConfig
from attractor.runs.run_folder import RunFolder
from attractor.study.launch import Job, launch
from attractor.tasks.text import Text
from attractor.train.calibrate import CalibrationError, calibrate, occasions
from attractor.train.config import Runtime, TrainConfig
from tiers import fast_alone

RUNTIME = Runtime(device="cpu", threads=1)
# The model is so wide and long that activations outweigh the rest.
MODEL = TransformerConfig(vocab_size=320, d_model=128, n_heads=4, n_layers=2, d_ff=384, max_seq_len=128)
MEASURED = ("standard", "coupled-euler", "differential", "mla", "uniform")


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files, in which calibration must leave nothing."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("name", fast_alone(MEASURED, "standard", "differential"))
def test_the_estimated_memory_is_that_of_the_run(name: str, corpus: str, tmp_path: Path, temporary: Path) -> None:
    """Criterion: the estimate is within 20% of the summary of a run in a process of its own. The run has two steps,
    which are measured however slow the machine is."""
    model = MODEL.replace(attention=name)
    config = TrainConfig(model, Text(corpus), n_steps=2, batch_size=8, seq_len=128, warmup_steps=0, eval_batches=1)
    job = Job(config, tmp_path / name)
    assert launch([job], 1, RUNTIME, lambda running, ended: None) == {}
    summary = RunFolder.open(job.path).summary()
    assert summary is not None
    estimate = calibrate(config, RUNTIME)
    assert estimate.peak_memory_bytes == pytest.approx(summary["peak_memory_bytes"], rel=0.2)
    assert (estimate.device, estimate.threads, estimate.measured_steps) == ("cpu", 1, 2)
    assert not list(temporary.glob("attractor-*"))


def test_the_total_time_is_the_sum_over_steps_evaluations_and_saves(config: TrainConfig) -> None:
    """The run has 12 steps. It evaluates after steps 5, 10 and 12, each of which may be the best and is saved, and it
    saves after steps 4 and 8."""
    estimate = calibrate(config, replace(RUNTIME, save_every=4))
    assert occasions(config, replace(RUNTIME, save_every=4)) == (3, 5)
    assert occasions(config, RUNTIME) == (3, 3)
    assert estimate.total_seconds == pytest.approx(
        estimate.start_seconds
        + estimate.first_step_seconds
        + 11 * estimate.step_seconds
        + 3 * estimate.evaluation_seconds
        + 5 * estimate.save_seconds
    )


def test_the_error_names_a_lack_of_memory(config: TrainConfig, temporary: Path) -> None:
    with pytest.raises(CalibrationError, match=r"out of memory \(.+\); try more accumulation or a smaller batch_size"):
        calibrate(config.replace(batch_size=2**45), RUNTIME)
    assert not list(temporary.glob("attractor-*"))


@dataclass(frozen=True)
class Killing(Coupling):
    """A stage that kills the fresh process which builds it, as the system does where memory runs out."""

    def build(self, layout: HeadLayout) -> nn.Module:
        if parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.Identity()


def test_the_error_names_a_process_that_died(config: TrainConfig) -> None:
    with pytest.raises(CalibrationError, match="ended from outside, as happens where memory runs out; try"):
        calibrate(config.replace(attention=AttentionConfig(couple=Killing())), RUNTIME)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_calibration_and_leaves_no_files(
    config: TrainConfig, temporary: Path, number: signal.Signals
) -> None:
    timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
    timer.start()
    with pytest.raises(RunInterrupted) as caught:
        calibrate(config.replace(n_steps=10**6), RUNTIME)
    timer.join()
    assert caught.value.exit_code == 128 + number
    assert not list(temporary.glob("attractor-*"))
