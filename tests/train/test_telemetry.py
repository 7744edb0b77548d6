"""Telemetry probes the logits and records loss spikes, and leaves the run the same to the bit."""

import math
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from attractor.errors import InputError, RunInterrupted
from attractor.models import FastSlowConfig
from attractor.runs.run_folder import RunFolder
from attractor.tasks import Batch
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.loop import Run, train
from attractor.train.telemetry import WINDOW, is_spike, of_same_segment, parameter_norm
from same_runs import Listening, newest_tensors, same, train_with_and_without_telemetry

TELEMETRY = Runtime(device="cpu", log_every=5, telemetry_every=4)


@pytest.mark.parametrize(
    "changes", [{}, {"precision": "bf16"}, {"activation_checkpointing": True, "attention": "coupled-gqa", "n_heads": 4}]
)
def test_a_run_is_the_same_to_the_bit_with_telemetry_or_without(
    config: TrainConfig, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Criterion: with dropout, the weights file, optimizer, random state and all losses are equal. The probe records a
    number for each layer and head at steps 4, 8 and 12, and the summary has their mean change."""
    config = config.replace(**changes)
    summary = train_with_and_without_telemetry(config, tmp_path, TELEMETRY)
    first, second = (newest_tensors(tmp_path / run) for run in ("with", "without"))
    assert first.pop("probe").keys() == {"blocks.0.attention"}
    assert second.pop("probe") == {}
    assert same(first, second)
    looks = [record for record in RunFolder.open(tmp_path / "with").metrics() if "max_logit" in record]
    n_heads = config.model.n_heads
    shapes = [(look["step"], len(look["max_logit"]), len(look["max_logit"][0])) for look in looks]
    assert shapes == [(step, 1, n_heads) for step in (4, 8, 12)]
    assert ["logit_change" in look for look in looks] == [False, True, True]
    changes_seen = [head for look in looks[1:] for layer in look["logit_change"] for head in layer]
    assert summary["logits"]["change"] == pytest.approx(sum(changes_seen) / len(changes_seen))


def test_a_compiled_step_is_not_compiled_again_by_telemetry(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: a compiled step never runs while taps or hooks are active, and always with the model in training
    mode."""
    seen = []
    run_step = Run.gradients

    class Watched(Run):
        def gradients(self, batch: Batch, share: float) -> Tensor:
            from attractor.attention.hooks import listening

            hooks = any(module._forward_pre_hooks for module in self.model.modules())
            seen.append((listening() or hooks, self.model.training))
            return run_step(self, batch, share)

    task = config.build_task()
    folder = RunFolder.create(tmp_path, config.identity(task))
    run = Watched(config, folder, task, replace(TELEMETRY, telemetry_every=1), Display())
    run.model.train()
    for _ in range(3):
        run.take_step()
        run.state.step += 1
        run.telemetry.look_at_logits()
    assert seen == [(False, True)] * 3


def test_the_norm_of_the_parameters_is_that_of_one_vector(config: TrainConfig) -> None:
    model = config.model.build(0)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert float(parameter_norm(model)) == pytest.approx(float(flat.norm()))


def test_the_rule_of_a_spike_at_its_edge() -> None:
    """Criterion: losses 1, 2 .. 50 have the median 25.5 and the MAD 12.5, so 150.5 is no spike and anything above
    is."""
    losses = [float(i) for i in range(1, WINDOW + 1)]
    random.Random(0).shuffle(losses)
    assert not is_spike(150.5, losses)
    assert is_spike(150.6, losses)
    assert not is_spike(150.6, losses[1:]), "a window that is not full judges nothing"
    assert not is_spike(math.nan, losses)


def test_the_first_segment_of_a_batch_is_no_spike() -> None:
    """Criterion: with four segments, a loss is compared with losses of the same segment: .9 is usual in the first one,
    and a spike in the second; without segments, .9 would always be a spike."""
    losses = [0.9, 0.2, 0.1, 0.1] * WINDOW
    assert not is_spike(0.9, of_same_segment(losses, 4))
    assert is_spike(0.9, of_same_segment([*losses, 0.9], 4))
    assert is_spike(0.9, of_same_segment(losses, 1))
    assert not is_spike(9.0, of_same_segment(losses[4:], 4)), "a window that is not full judges nothing"


def test_a_loss_close_to_zero_has_no_spikes() -> None:
    """Criterion: this holds for losses from 0 to 0.09, of which nine in ten are 0, as on a solved task."""
    losses = [0.09 if i % 10 == 9 else 0.0 for i in range(WINDOW)]
    assert not is_spike(0.09, losses)
    assert is_spike(0.11, losses)


def test_noise_is_no_spike_and_a_jump_is_one_until_it_persists() -> None:
    """Criterion: 5,000 normal, slowly falling losses have no spike; a lasting jump by 20 deviations counts for at most
    25 steps."""
    generator = random.Random(0)
    losses = [generator.gauss(4 - step / 2000, 0.1) for step in range(5000)]
    assert not [step for step in range(WINDOW, 5000) if is_spike(losses[step], losses[step - WINDOW : step])]
    jump = losses[:100] + [loss + 2 for loss in losses[100:200]]
    found = [step for step in range(WINDOW, 200) if is_spike(jump[step], jump[step - WINDOW : step])]
    assert found[0] == 100
    assert found[-1] < 100 + WINDOW // 2


def test_a_spike_is_recorded_at_its_step_and_survives_an_interruption(
    config: TrainConfig, tmp_path: Path, change_losses: Callable, interrupt_during: Callable
) -> None:
    """Criterion: this holds for a loss of 50 at step 58, which is not logged otherwise, with interruptions before and
    after it."""
    listening = Listening()
    change_losses(lambda run, loss: loss * 0 + 50 if run.state.step == 57 else loss)
    config = config.replace(n_steps=70, warmup_steps=2, eval_every=70)
    steps: Iterable[int] = [20, 57, 60]
    interrupt_during(steps)
    for _ in steps:
        with pytest.raises(RunInterrupted):
            train(config, tmp_path, TELEMETRY, listening)
    assert train(config, tmp_path, TELEMETRY, listening)["loss_spikes"] == [58]
    records = {r["step"]: r["loss_spikes"] for r in RunFolder.open(tmp_path).metrics() if "loss" in r}
    assert (records[55], records[58], records[60], records[70]) == (0, 1, 1, 1)
    (note,) = listening.notes
    assert note.startswith("loss spike at step 58: 50.000, where ")


def test_without_tensorboard_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attractor.train.config.find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"package 'tensorboard' must be installed .* pip install -e '\.\[tensorboard\]'"
    ):
        Runtime(tensorboard=True)
    assert not Runtime().tensorboard


class Tracker:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, Any] = {}
        self.finished = False

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.logged.append((step, numbers))

    def finish(self) -> None:
        self.finished = True


def test_the_tracker_of_the_page_sees_every_record(tmp_path: Path) -> None:
    """Criterion: the code of docs/training.md gives each record with its step, and of a layer its largest value."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    (code,) = [block for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "observers=" in block]
    names: dict[str, Any] = {}
    exec(code, names)
    tracker, sizes = Tracker(), {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 2, "seq_len": 16}
    (tmp_path / "text.txt").write_text("".join(f"{n} squared is {n * n}\n" for n in range(300)))
    settings = {"out": tmp_path / "run", "corpus": tmp_path / "text.txt", "n_steps": 12, "telemetry_every": 6, **sizes}
    run = names["train_tracked"](tracker, device="cpu", eval_batches=1, **settings)
    assert [step for step, _ in tracker.logged] == [record["step"] for record in run.records]
    for (_, numbers), record in zip(tracker.logged, run.records, strict=True):
        assert all(numbers[name] == value for name, value in record.items() if isinstance(value, float))
        if "max_logit" in record:
            assert [numbers[f"max_logit/{layer}"] for layer in (0, 1)] == list(map(max, record["max_logit"]))
    assert any("max_logit/1" in numbers for _, numbers in tracker.logged)
    assert tracker.finished
    assert tracker.summary["best_loss"] == run.best_loss


def test_tensorboard_holds_the_numbers_of_the_metrics(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: TensorBoard has every number of every record under its name at its step, of a list of lists the
    largest of each, and nothing else."""
    two_timescales = FastSlowConfig(d_model=16, n_heads=2, d_ff=32, max_seq_len=64, equilibrium="anderson")
    train(config.replace(model=two_timescales), tmp_path, replace(TELEMETRY, tensorboard=True))
    expected = {}
    for record in RunFolder.open(tmp_path).metrics():
        for name, value in record.items():
            entries = enumerate(value) if isinstance(value, list) else ()
            numbers = {f"{name}/{i}": max(v) if isinstance(v, list) else v for i, v in entries} or {name: value}
            expected |= {(tag, record["step"]): v for tag, v in numbers.items() if v is not None}
    expected = {key: value for key, value in expected.items() if key[0] not in ("step", "tokens")}
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = {(tag, event.step): event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}
    assert found == pytest.approx(expected, rel=1e-6)
