"""The profile of a step loses no time, counts none twice, and assigns each second to the part that took it."""

import gzip
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from attractor.bench import profile as profiling
from attractor.bench.profile import MARK, REST, STEP, PartSeconds, profile_step, profile_table, seconds_by_part
from attractor.errors import InputError
from attractor.models import FastSlowConfig, TransformerConfig
from attractor.train.config import TrainConfig
from attractor.train.trainer import Trainer

CPU = torch.device("cpu")
CONFIG = TrainConfig(
    model=TransformerConfig(
        vocab_size=320,
        d_model=32,
        n_heads=4,
        n_layers=2,
        d_ff=64,
        max_seq_len=32,
        positions="rope",
        attention="coupled-euler",
    ),
    n_steps=8,
    batch_size=4,
    seq_len=32,
    warmup_steps=0,
)
DIFFERENTIATED = {"embedding", "norms", "project", "couple", "score", "output", "mlp", "loss"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"accumulation": 2, "activation_checkpointing": True, "optimizer": "muon"},
        {"model": FastSlowConfig(d_model=16, n_heads=2, d_ff=32, max_seq_len=32, n_rounds=1)},
    ],
    ids=["recomputed", "two timescales"],
)
def test_the_parts_add_up_to_the_step(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: the times of all parts sum to that of the step within 5%, every differentiated part has time in both
    passes, and the trace names the ranges of the parts."""
    monkeypatch.setattr(profiling, "WARM_UP", 1)
    found = profile_step(CONFIG.replace(**changes), CPU, tmp_path / "deep" / "trace.json.gz", n_steps=2)
    assert found.accounted_seconds == pytest.approx(found.step_seconds, rel=0.05)
    assert found.idle_seconds is None
    assert set(found.parts) >= DIFFERENTIATED | {"data", "clip", "optimizer", REST, "gradients"}
    for name in DIFFERENTIATED:
        assert found.parts[name].forward > 0, name
        assert found.parts[name].backward > 0, name
    two_timescales = {"slow path", "injection"} if "model" in changes else set()
    assert {name for name in ("slow path", "injection") if name in found.parts} == two_timescales
    assert all(min(found.parts[name].forward, found.parts[name].backward) > 0 for name in two_timescales)
    for name in ("data", "clip", "optimizer"):
        assert found.parts[name].backward == 0, name
    assert found.unwatched_seconds > 0
    events = json.loads(gzip.decompress(found.trace.read_bytes()))["traceEvents"]
    names = {event.get("name") for event in events}
    assert {STEP, f"{MARK}couple", "aten::mm"} <= names


class Sleeping(torch.autograd.Function):
    """An identity that takes longer than the rest of a step, and three times as long in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(0.3)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        time.sleep(0.9)
        return gradient.clone()


@pytest.mark.slow
@pytest.mark.parametrize(("place", "part"), [("mlp.down", "mlp"), ("attention.score", "score"), ("mlp_norm", "norms")])
def test_each_second_belongs_to_the_part_that_took_it(
    place: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Trainer.__init__

    def slowed(run: Trainer, *arguments: Any) -> None:
        built(run, *arguments)
        module = run.model.blocks[0].get_submodule(place)
        forward = module.forward
        module.forward = lambda *args: Sleeping.apply(forward(*args))

    monkeypatch.setattr(Trainer, "__init__", slowed)
    monkeypatch.setattr(profiling, "WARM_UP", 1)
    profile = profile_step(CONFIG, CPU, tmp_path / "trace.json.gz", n_steps=1)
    assert profile.parts[part].forward >= 0.3
    assert profile.parts[part].backward >= 0.9
    # Counted in another part as well, they would make the sum exceed the step.
    assert profile.accounted_seconds == pytest.approx(profile.step_seconds, abs=0.1)


def test_profiling_does_not_change_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Trainer] = []
    built = Trainer.__init__

    def noted(run: Trainer, *arguments: Any) -> None:
        built(run, *arguments)
        runs.append(run)

    monkeypatch.setattr(Trainer, "__init__", noted)
    profile_step(CONFIG, CPU, tmp_path / "trace.json.gz", n_steps=1)
    (run,) = runs
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in run.model.modules())
    assert not {"clip_gradients", "move"} & vars(run).keys()
    assert run.loss == run.model.loss
    assert "train_batch" not in vars(run.task)
    assert "hidden" not in vars(run.model)


def event(name: str, start: float, *children: Any, thread: int = 1, number: int = -1, **others: Any) -> Any:
    made = SimpleNamespace(
        name=name,
        device_type=torch.autograd.DeviceType.CPU,
        time_range=SimpleNamespace(start=start),
        cpu_parent=None,
        cpu_children=list(children),
        thread=thread,
        sequence_nr=number,
        fwd_thread=others.get("fwd_thread"),
        self_cpu_time_total=1e6,
        kernels=[SimpleNamespace(name=kernel, duration=us) for kernel, us in others.get("kernels", ())],
    )
    for child in children:
        child.cpu_parent = made
    return made


def below(root: Any) -> list[Any]:
    return [root, *(found for child in root.cpu_children for found in below(child))]


def test_on_a_gpu_kernels_count_and_the_backward_pass_has_a_thread_of_its_own() -> None:
    """Criterion: on invented events in the profiler's form, a kernel counts for the part that launched it, or for the
    part whose operation it differentiates, by its number. The copy of a range on the device is no kernel."""
    forward = event("attractor::operator", 2, number=7, kernels=[("gemm", 3e6)])
    passed_on = event("aten::empty", 1.5, number=7)
    mlp = event(f"{MARK}mlp", 1, passed_on, forward, kernels=[(f"{MARK}mlp", 5e6)])
    step = event(STEP, 0, event(f"{MARK}data", 0.5), mlp, event("aten::add", 3, number=8, kernels=[("add", 1e6)]))
    step.time_range.end = 10
    evaluate = profiling.BACKWARD
    backward = event(f"{evaluate}MmBackward0", 4, event("aten::mm", 4.5, thread=2, kernels=[("gemm", 4e6)]), thread=2)
    backward.sequence_nr, backward.fwd_thread = 7, 1
    summed = event(f"{evaluate}torch::autograd::AccumulateGrad", 6, thread=2, kernels=[("add", 2e6)])
    later = event("aten::mm", 11, kernels=[("gemm", 9e6)])
    events = [found for root in (step, backward, summed, later) for found in below(root)]
    parts = seconds_by_part(events, 1, on_gpu=True)
    assert parts["mlp"] == PartSeconds(3.0, 4.0)
    assert parts[REST] == PartSeconds(1.0, 0.0)
    assert parts["gradients"] == PartSeconds(0.0, 2.0)
    assert sum(part.both for part in parts.values()) == 10.0


def test_the_table_has_every_part_and_ends_with_the_step(tmp_path: Path) -> None:
    parts = {"mlp": PartSeconds(0.001, 0.002), REST: PartSeconds(0.0005, 0.0)}
    found = profiling.Profile("gated", "a GPU", 3, parts, 0.004, 0.0037, 0.0005, tmp_path / "trace.json.gz")
    console = Console(width=100)
    with console.capture() as captured:
        console.print(profile_table(found))
    lines = [line.split() for line in captured.get().splitlines() if line.strip() and "─" not in line]
    assert lines[1:] == [
        ["mlp", "1.000", "2.000", "3.000", "75.0%"],
        ["rest", "0.500", "·", "0.500", "12.5%"],
        ["idle", "0.500", "12.5%"],
        ["step", "4.000", "100.0%"],
        ["without", "the", "profiler", "3.700"],
    ]


def test_a_trace_under_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"out must be a file that ends in \.json\.gz, got '.*trace\.txt'"):
        profile_step(CONFIG, CPU, tmp_path / "trace.txt")
