"""FastSlow's gate has its own learning rate on the schedule of the run, and no weight decay."""

from pathlib import Path

import pytest
import torch

from attractor.models import FastSlowConfig
from attractor.train.config import TrainConfig
from attractor.train.loop import train
from attractor.train.optimizer import build_optimizer, optimizer_groups, set_rate
from same_runs import newest_tensors

MODEL = FastSlowConfig(d_model=16, n_heads=2, d_ff=32, max_seq_len=64)


@pytest.fixture
def fast_slow(config: TrainConfig) -> TrainConfig:
    return config.replace(model=MODEL, lr=1e-3)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_gate_alone_is_in_a_group_with_its_own_rate(fast_slow: TrainConfig, optimizer: str) -> None:
    config = fast_slow.replace(optimizer=optimizer, gate_lr=0.05)
    model = config.model.build(0)
    built = build_optimizer(model, config)
    set_rate(built, 0.5e-3)  # the rate half way through a warm-up
    gate = model.get_parameter("injection.gate")
    (of_the_gate,) = [group for group in built.param_groups if group["params"][0] is gate]
    assert of_the_gate["lr"] == pytest.approx(0.025)
    assert of_the_gate["weight_decay"] == 0
    assert len(of_the_gate["params"]) == 1
    assert {group["lr"] for group in built.param_groups if group is not of_the_gate} == {0.5e-3}
    n_grouped = sum(p.numel() for group in built.param_groups for p in group["params"])
    assert n_grouped == sum(p.numel() for p in model.parameters())
    assert "gates at 0.05" in {group["name"].split(",")[0] for group in optimizer_groups(model, config)}


@pytest.mark.slow
def test_a_gate_moves_by_about_the_sum_of_its_rates_at_most(fast_slow: TrainConfig, tmp_path: Path) -> None:
    """AdamW moves a parameter by at most about its rate in a step, so at the run's rate the gate stays almost closed.
    Of the slow path, only the gate has a gradient in the first step, and this gradient is never zero."""
    gates = {}
    for name, rate in {"own": 0.5, "the run's": None}.items():
        config = fast_slow.replace(gate_lr=rate, schedule="constant", warmup_steps=0)
        train(config, tmp_path / name)
        gates[name] = abs(float(newest_tensors(tmp_path / name)["weights"]["injection.gate"]))
    assert 0 < gates["the run's"] <= 1.1 * 12 * 1e-3
    assert 12 * 1e-3 < gates["own"] <= 1.1 * 12 * 0.5


def test_the_gate_of_a_frozen_model_stays_shut(fast_slow: TrainConfig, tmp_path: Path) -> None:
    config = fast_slow.replace(frozen=True)
    train(config, tmp_path)
    model = config.model.build(0)
    assert not any(p.requires_grad for name, p in model.named_parameters() if name.startswith(("slow", "injection")))
    assert torch.equal(model.get_parameter("injection.gate"), torch.zeros(1))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_weights_that_mix_streams_learn_at_the_rate_of_the_gate(fast_slow: TrainConfig, optimizer: str) -> None:
    """At the rate of matrices they would hardly leave their starting values, and a study would find no effect."""
    config = fast_slow.replace(streams=4, optimizer=optimizer, gate_lr=0.05)
    model = config.model.build(0)
    mixing = {id(p) for name, p in model.named_parameters() if "_mixing." in name}
    assert len(mixing) == 3 * 2 * 4  # numbers of kinds of weights, branches and blocks
    built = build_optimizer(model, config)
    set_rate(built, 1e-3)
    own = {id(p): group["lr"] for group in built.param_groups for p in group["params"] if group["lr"] != 1e-3}
    assert mixing | {id(model.get_parameter("injection.gate"))} == own.keys()
    assert list(own.values()) == pytest.approx([0.05] * len(own))
    assert sum(len(group["params"]) for group in built.param_groups) == len(list(model.parameters()))
