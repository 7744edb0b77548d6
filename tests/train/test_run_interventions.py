"""Interventions on attention as fields of a run take effect, and resume exactly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attractor.control.regularize import REGULARIZERS
from attractor.models import AKOrNConfig, ItrSAConfig
from attractor.runs.configuration import config_hash
from attractor.runs.run_folder import RunFolder
from attractor.train.config import Runtime, TrainConfig
from attractor.train.interventions import Penalty, regularizer_weight
from attractor.train.loop import train
from same_runs import assert_same_run, build_run, newest_tensors, same, train_in_parts
from tiers import fast_alone

RUNTIME = Runtime(device="cpu", log_every=1, telemetry_every=4)
CASES: dict[str, dict[str, Any]] = {
    "quack": {"quack": 0.5},
    "quack, spectral": {"quack": 2.0, "quack_norm": "spectral"},
    "fixed rates": {"qk_rate": 0.1},
    "clip": {"qk_clip": 1e-3},
    "quack and clip": {"quack": 1.0, "qk_clip": 1e-3},
    "quack and clip, mla": {"quack": 1.0, "qk_clip": 1e-3, "attention": "mla"},
    "fixed rates, mla": {"qk_rate": 0.1, "attention": "mla"},
    "muon": {"optimizer": "muon"},
    "muon, whole matrices": {"optimizer": "muon", "muon_per_head": False},
    "muon and spectral quack, mla": {"optimizer": "muon", "quack": 1.0, "quack_norm": "spectral", "attention": "mla"},
    "muon and quack": {"optimizer": "muon", "quack": 1.0},
    "QK-norm": {"qk_norm": True},
    "soft-cap": {"softcap": 2.0},
    "sigmaReparam": {"sigma_reparam": True},
    "penalty": {"z_loss": 0.1},
    "spectral": {"regularizer": "spectral", "regularizer_weight": 0.1, "qkv_bias": True},
    "spectral, mla": {"regularizer": "spectral", "regularizer_weight": 0.1, "attention": "mla"},
    "spectral, muon": {"regularizer": "spectral", "regularizer_weight": 0.1, "optimizer": "muon"},
    "spectral, fp16": {"regularizer": "spectral", "regularizer_weight": 0.1, "precision": "fp16"},
    "spectral and quack": {"regularizer": "spectral", "regularizer_weight": 0.1, "quack": 0.5},
    "single": {"regularizer": "energy-single", "n_heads": 1},
    "multi": {"regularizer": "energy-multi", "regularizer_weight": 0.1},
}


def weights(path: Path) -> dict[str, torch.Tensor]:
    return dict(newest_tensors(path)["weights"])


def penalties(path: Path) -> list[float]:
    return [record["penalty"] for record in RunFolder.open(path).metrics() if "penalty" in record]


@pytest.mark.parametrize("case", fast_alone(CASES, "muon and quack", "quack and clip", "penalty", "spectral"))
def test_each_changes_the_run_and_resumes_exactly(
    config: TrainConfig, tmp_path: Path, interrupt_during: Callable, case: str
) -> None:
    """Criterion: after interruptions at steps 3 and 8 the run is the same to the bit, with its records of clips and
    penalties. Its weights differ from those of a run without the intervention."""
    changed, without = config.replace(**CASES[case]), config.replace(attention=CASES[case].get("attention", "standard"))
    if "regularizer" in CASES[case]:
        without = changed.replace(regularizer=None, regularizer_weight=None)
    train(without, tmp_path / "without", RUNTIME)
    train(changed, tmp_path / "whole", RUNTIME)
    train_in_parts(changed, tmp_path / "parts", RUNTIME, interrupt_during, 3, 8)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert not same(weights(tmp_path / "without"), weights(tmp_path / "whole"))
    assert RunFolder.open(tmp_path / "whole").config == changed.identity(changed.build_task())
    assert len(penalties(tmp_path / "whole")) == (config.n_steps if "regularizer" in CASES[case] else 0)


def test_metrics_record_the_effect_of_interventions(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: the records have rates head by head under QuacK, and a count of clips per head, which never falls."""
    train(config.replace(quack=1.0, qk_clip=1e-3), tmp_path, RUNTIME)
    looks = [record for record in RunFolder.open(tmp_path).metrics() if "max_logit" in record]
    assert all(len(look["query_rate"][0]) == config.model.n_heads for look in looks)
    clips = [look["clips"] for look in looks]
    assert clips == sorted(clips)
    assert clips[-1] > clips[0] > 0


def test_a_model_without_scores_trains_as_without_the_intervention(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: the control of a study has the same weights to the bit."""
    config = config.replace(attention="uniform")
    train(config, tmp_path / "without", RUNTIME)
    train(config.replace(quack=0.1, qk_clip=1.0, regularizer="spectral"), tmp_path / "with", RUNTIME)
    assert same(weights(tmp_path / "without"), weights(tmp_path / "with"))
    assert not penalties(tmp_path / "with")


def test_a_run_without_interventions_keeps_its_name(config: TrainConfig) -> None:
    """Criterion: no field is stored at its default; any other value is stored and restored."""
    stored = config.to_dict()
    for case, changes in CASES.items():
        for name in changes.keys() - {"attention", "precision", "n_heads", "qkv_bias"}:  # always stored
            assert name not in stored
            assert name not in stored["model"]
        changed = config.replace(**changes)
        assert config_hash(changed.to_dict()) != config_hash(stored), case
        assert TrainConfig.from_dict(changed.to_dict()) == changed


def test_a_skipped_step_leaves_no_logits_to_the_next_clip(
    config: TrainConfig, tmp_path: Path, change_losses: Callable
) -> None:
    """Criterion: a run that is resumed after the step would not know them, and must not end elsewhere."""
    run = build_run(config.replace(qk_clip=1.0), tmp_path, Runtime(device="cpu"))
    assert run.interventions.clip is not None
    change_losses(lambda run, loss: loss * float("nan"))
    run.take_step()
    assert len(run.interventions.clip.maxima.unseen) == config.model.n_layers


@pytest.mark.parametrize("regularizer", ["spectral", "energy-multi"])
def test_a_penalty_of_weight_0_is_recorded_and_changes_nothing(
    config: TrainConfig, tmp_path: Path, regularizer: str
) -> None:
    """Criterion: weights and optimizer are the same to the bit."""
    train(config, tmp_path / "without", RUNTIME)
    train(config.replace(regularizer=regularizer, regularizer_weight=0.0), tmp_path / "watched", RUNTIME)
    bare, watched = (newest_tensors(tmp_path / run) for run in ("without", "watched"))
    assert same(bare["weights"], watched["weights"])
    assert same(bare["optimizer"]["state"], watched["optimizer"]["state"])
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
        maps = [value for name, value in weights(path).items() if ".attention." in name and value.ndim == 2]
        norms = [torch.linalg.matrix_norm(value, ord=2).item() for value in maps]
        assert len(norms) == 4
        distances[weight] = max(abs(norm - 1) for norm in norms)
    assert distances[10.0] < 0.02
    assert distances[0.0] > 0.2
    assert penalties(tmp_path / "10.0")[-1] < 1e-2 * penalties(tmp_path / "10.0")[0]


def test_the_default_weights_are_the_published_ones(config: TrainConfig) -> None:
    shape = {"vocab_size": 320, "d_model": 16, "max_seq_len": 16, "n_heads": 1}
    found = {
        family: {name: regularizer_weight(config.replace(model=model, regularizer=name)) for name in REGULARIZERS}
        for family, model in {"itrsa": ItrSAConfig(**shape), "akorn": AKOrNConfig(**shape)}.items()
    }
    of_energies = {"energy-single": 1e-6, "energy-multi": 1e-4}
    assert found == {"itrsa": of_energies | {"spectral": 1e-4}, "akorn": of_energies | {"spectral": 1e-5}}
    assert regularizer_weight(config.replace(regularizer="energy-multi", regularizer_weight=0.0)) == 0.0
