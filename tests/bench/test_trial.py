"""A trial makes real passes of a tiny model, in this process and in a subprocess."""

import pytest
import torch

from attractor.bench import passes
from attractor.bench.passes import PASSES, Passes
from attractor.bench.trial import BenchSetting, Trial, tried, warmed_up


def test_passes_train_the_model_and_leave_no_gradient(setting: BenchSetting) -> None:
    run = Passes("coupled-euler", setting.shape, "fp32", False, setting.device)
    before = [parameter.clone() for parameter in run.model.parameters()]
    laps = run()
    assert tuple(laps) == PASSES
    assert 0 < laps["forward+backward"] < laps["step"]
    assert any(not torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_compile_time_is_separate_from_the_time_of_passes(
    monkeypatch: pytest.MonkeyPatch, setting: BenchSetting
) -> None:
    """Criterion: the loss is compiled once for fixed shapes, and the additional time of the first call is not in the
    warm seconds."""
    asked: list[dict[str, object]] = []

    def compile(loss, **how):  # type: ignore[no-untyped-def]
        asked.append(how)
        return loss

    monkeypatch.setattr(torch, "compile", compile)
    run = Passes("standard", setting.shape, "fp32", True, setting.device)
    run()
    assert asked == [{"dynamic": False}]
    slow, warm = ({"forward": s, "forward+backward": s, "step": s} for s in (10.0, 1.0))
    trial = Trial((slow, warm, warm), peak_memory=0)
    assert (trial.first_seconds, trial.compile_seconds, trial.seconds("step")) == (20, 18, 1)
    assert passes.RECOMPILE_LIMIT > 8  # torch's default, which this many models would exceed


def test_a_subprocess_measures_the_memory_of_the_step(setting: BenchSetting) -> None:
    """Criterion: the memory is at least that of weights, moments and gradients, and two calls are measured."""
    from dataclasses import replace

    wide = replace(setting, shape=replace(setting.shape, d_model=512, n_heads=8, d_ff=2048, n_layers=2))
    trial = tried("standard", wide, 2, patience=120)
    n_parameters = warmed_up("standard", wide, 1)[0].n_parameters
    assert 12 * n_parameters < trial.peak_memory < 40 * n_parameters
    assert len(trial.calls) == 2
