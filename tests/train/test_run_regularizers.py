"""Regularizers as fields of a run take effect on any number of processes, resume exactly, and are recorded or refused.

Two processes run all cases together, and this process runs their counterparts alone.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from attractor.control.regularize import REGULARIZERS
from attractor.errors import InputError, RunInterrupted
from attractor.models import AKOrNConfig, ItrSAConfig, TransformerConfig
from attractor.runs.configuration import config_hash
from attractor.runs.run_folder import RunFolder
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.distributed import World
from attractor.train.interventions import Interventions, Penalty, regularizer_weight
from attractor.train.loop import train
from attractor.train.optimizer import build_optimizer
from attractor.train.stacked_loop import stackable
from several_processes import together

RUNTIME = Runtime(device="cpu", log_every=1, telemetry_every=None)
CASES: dict[str, dict[str, Any]] = {
    "spectral": {"regularizer": "spectral", "regularizer_weight": 0.1, "qkv_bias": True},
    "spectral, mla": {"regularizer": "spectral", "regularizer_weight": 0.1, "attention": "mla"},
    "spectral, muon": {"regularizer": "spectral", "regularizer_weight": 0.1, "optimizer": "muon"},
    "spectral, fp16": {"regularizer": "spectral", "regularizer_weight": 0.1, "precision": "fp16"},
    "spectral and quack": {"regularizer": "spectral", "regularizer_weight": 0.1, "quack": 0.5},
    "single": {"regularizer": "energy-single", "n_heads": 1},
    "multi": {"regularizer": "energy-multi", "regularizer_weight": 0.1},
}
SPREAD = ("spectral", "single")  # regularizers that run on two processes


def newest(path: Path) -> Path:
    return max((path / "checkpoints").glob("step-*"))


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(newest(path) / "model.safetensors")


def penalties(path: Path) -> list[float]:
    return [record["penalty"] for record in RunFolder.open(path).metrics() if "penalty" in record]


@pytest.mark.parametrize("case", CASES)
def test_each_changes_the_run_and_resumes_exactly(
    config: TrainConfig, tmp_path: Path, interrupt_during: Callable, case: str
) -> None:
    """Criterion: after interruptions at steps 3 and 8 the weights and every record of the penalty are the same to the
    bit, and the weights differ from a run without a penalty."""
    changed = config.replace(**CASES[case])
    without = changed.replace(regularizer=None, regularizer_weight=None)
    train(without, tmp_path / "without", RUNTIME)
    train(changed, tmp_path / "whole", RUNTIME)
    interrupt_during([3, 8])
    for _ in range(2):
        with pytest.raises(RunInterrupted):
            train(changed, tmp_path / "parts", RUNTIME)
    train(changed, tmp_path / "parts", RUNTIME)
    bare, whole, parts = (weights(tmp_path / run) for run in ("without", "whole", "parts"))
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
    assert any(not torch.equal(value, bare[name]) for name, value in whole.items())
    assert penalties(tmp_path / "parts") == penalties(tmp_path / "whole")
    assert len(penalties(tmp_path / "whole")) == config.n_steps
    assert not penalties(tmp_path / "without")


@pytest.mark.parametrize("regularizer", ["spectral", "energy-multi"])
def test_a_penalty_of_weight_0_is_recorded_and_changes_nothing(
    config: TrainConfig, tmp_path: Path, regularizer: str
) -> None:
    """Criterion: weights and optimizer are the same to the bit."""
    train(config, tmp_path / "without", RUNTIME)
    train(config.replace(regularizer=regularizer, regularizer_weight=0.0), tmp_path / "watched", RUNTIME)
    bare, watched = (weights(tmp_path / run) for run in ("without", "watched"))
    assert all(torch.equal(value, watched[name]) for name, value in bare.items())
    states = [torch.load(newest(tmp_path / run) / "optimizer.pt")["optimizer"] for run in ("without", "watched")]
    torch.testing.assert_close(states[0]["state"], states[1]["state"], rtol=0, atol=0)
    assert all(value > 0 for value in penalties(tmp_path / "watched"))


@pytest.mark.parametrize("case", ["spectral", "single", "multi"])
def test_gradients_are_those_of_the_loss_with_the_penalty_added(config: TrainConfig, case: str) -> None:
    """Criterion: gradients agree to rounding for all parameters, and frozen parameters have none."""
    changed = config.replace(**CASES[case], dropout=0.0)
    tokens = torch.randint(320, (2, 17), generator=torch.Generator().manual_seed(0))
    models = [changed.model.build(seed=0) for _ in range(2)]
    weight = regularizer_weight(changed)
    regularizers = [REGULARIZERS[str(changed.regularizer)](model) for model in models]
    for model in models:
        model.layers[0].attention.project.value.weight.requires_grad_(False)
    losses = [model.loss(tokens[:, :-1], tokens[:, 1:])[0] for model in models]
    losses[0].backward()
    value = Penalty(regularizers[0], weight).add_gradients()
    penalty = regularizers[1]()
    assert torch.equal(value, penalty.detach())
    (losses[1] + weight * penalty).backward()
    for found, wanted in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert (found.grad is None) == (not found.requires_grad)
        if found.grad is not None and wanted.grad is not None:
            torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-5, atol=1e-7)


def test_a_step_does_not_depend_on_its_micro_batches(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: the first penalties and losses are the same to rounding with 1, 2 and 4 micro-batches."""
    found = []
    for accumulation in (1, 2, 4):
        changed = config.replace(**CASES["spectral"], dropout=0.0, accumulation=accumulation, optimizer="adamw")
        train(changed, tmp_path / str(accumulation), RUNTIME)
        found.append(torch.tensor(penalties(tmp_path / str(accumulation))))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=0)
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=0)


def test_singular_values_move_towards_1(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: after 60 steps on a toy, all four singular values are within 0.02 of 1 with the penalty; without it at
    least one is more than 0.2 away."""
    toy = config.replace(n_steps=60, lr=1e-2, eval_every=60, regularizer="spectral")
    distances = {}
    for weight in (0.0, 10.0):
        path = tmp_path / str(weight)
        train(toy.replace(regularizer_weight=weight), path, RUNTIME)
        norms = [
            torch.linalg.matrix_norm(value, ord=2).item()
            for name, value in weights(path).items()
            if ".attention." in name and value.ndim == 2
        ]
        assert len(norms) == 4
        distances[weight] = max(abs(norm - 1) for norm in norms)
    assert distances[10.0] < 0.02
    assert distances[0.0] > 0.2
    assert penalties(tmp_path / "10.0")[-1] < 1e-2 * penalties(tmp_path / "10.0")[0]


def test_the_default_weights_are_the_published_ones(config: TrainConfig) -> None:
    models = {"itrsa": ItrSAConfig, "akorn": AKOrNConfig}
    shape = {"vocab_size": 320, "d_model": 16, "max_seq_len": 16, "n_heads": 1}
    found = {
        (family, name): regularizer_weight(config.replace(model=kind(**shape), regularizer=name))
        for family, kind in models.items()
        for name in REGULARIZERS
    }
    assert found == {
        ("itrsa", "spectral"): 1e-6,
        ("itrsa", "energy-single"): 1e-4,
        ("itrsa", "energy-multi"): 1e-4,
        ("akorn", "spectral"): 1e-6,
        ("akorn", "energy-single"): 1e-5,
        ("akorn", "energy-multi"): 1e-5,
    }
    assert regularizer_weight(config.replace(regularizer="energy-multi", regularizer_weight=0.0)) == 0.0


def test_a_run_without_a_regularizer_keeps_its_name(config: TrainConfig) -> None:
    """Criterion: neither field is stored at its default; other values are stored and restored."""
    stored = config.to_dict()
    assert not {"regularizer", "regularizer_weight"} & stored.keys()
    changed = config.replace(**CASES["multi"])
    assert config_hash(changed.to_dict()) != config_hash(stored)
    assert TrainConfig.from_dict(changed.to_dict()) == changed


RECURRENT = {"vocab_size": 320, "d_model": 16, "max_seq_len": 16, "n_heads": 2}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"regularizer": "spectal"}, "unknown regularizer 'spectal'; did you mean 'spectral'"),
        ({"regularizer_weight": 1e-3}, "regularizer_weight must be None without a regularizer, got 0.001"),
        ({"regularizer": "spectral", "regularizer_weight": -1.0}, "regularizer_weight must be at least 0 and finite"),
        ({"regularizer": "spectral", "regularizer_weight": float("nan")}, "regularizer_weight must be at least 0"),
        ({"regularizer": "spectral", "sigma_reparam": True}, "divided by their norm"),
        ({"regularizer": "energy-single"}, "there are 2 heads"),
        ({"regularizer": "energy-multi", "attention": "mqa"}, "share the values of 1"),
        (
            {"regularizer": "spectral", "model": AKOrNConfig(**RECURRENT, coupling="conv")},
            "regularizer must be None for a model without attention, got 'spectral'; leave it out",
        ),
        (
            {"regularizer": "energy-multi", "model": ItrSAConfig(**RECURRENT, energy="multi")},
            "regularizer must be None where attention has an energy by construction",
        ),
    ],
)
def test_a_meaningless_regularizer_is_refused_before_a_run_starts(
    config: TrainConfig, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        config.replace(**changes)


def test_the_control_of_a_comparison_trains_without_a_penalty(config: TrainConfig) -> None:
    control = config.replace(regularizer="spectral", attention="uniform")
    model = control.model.build(0)
    assert Interventions(control, model, build_optimizer(model, control)).penalty is None


def test_a_run_with_a_regularizer_is_not_stacked(config: TrainConfig) -> None:
    assert "the gradients of one model" in str(stackable(config.replace(dropout=0.0, regularizer="spectral")))


def spread_config(case: str, corpus: str) -> TrainConfig:
    model = TransformerConfig(
        vocab_size=320, d_model=32, n_heads=4, n_layers=2, d_ff=48, max_seq_len=64, positions="rope"
    )
    base = TrainConfig(
        model=model,
        task=Text(corpus),
        n_steps=4,
        batch_size=8,
        accumulation=2,
        seq_len=16,
        warmup_steps=3,
        eval_every=4,
        eval_batches=2,
    )
    return base.replace(**CASES[case])


@pytest.fixture(scope="module")
def spread(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spread")
    for case in SPREAD:
        train(spread_config(case, corpus), root / "one" / case, RUNTIME)
    together(2, train_all, root, corpus)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("case", SPREAD)
def test_two_processes_compute_what_one_computes(spread: Path, case: str, parallel: str) -> None:
    """Criterion: weights agree as vectors to 1e-4 and penalties to 1e-5, since Adam magnifies the rounding of single
    entries. Both processes record the same penalties to the bit."""
    one, two = weights(spread / "one" / case), weights(spread / parallel / case)
    assert one.keys() == two.keys()
    for name, wanted in one.items():
        assert float((two[name] - wanted).norm()) <= 1e-4 * float(wanted.norm()), name
    alone = penalties(spread / "one" / case)
    assert penalties(spread / parallel / case) == pytest.approx(alone, rel=1e-5)
    said = [(spread / f"{parallel}-{case}-{rank}.txt").read_text() for rank in range(2)]
    assert said[0] == said[1]


def train_all(root: Path, corpus: str) -> None:
    """Run all cases as one of two processes."""
    rank, add_gradients = World.from_environment().rank, Penalty.add_gradients
    found: list[str] = []

    def noted(penalty: Penalty) -> torch.Tensor:
        value = add_gradients(penalty)
        found.append(value.item().hex())
        return value

    Penalty.add_gradients = noted  # type: ignore[method-assign]
    for parallel in ("ddp", "fsdp"):
        for case in SPREAD:
            found.clear()
            train(spread_config(case, corpus), root / parallel / case, replace(RUNTIME, parallel=parallel, threads=1))
            (root / f"{parallel}-{case}-{rank}.txt").write_text("\n".join(found))
