"""Interventions on attention's logits as fields of a run take effect, resume exactly, or are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from same_runs import build_run

from attractor.errors import InputError, RunInterrupted
from attractor.runs.configuration import config_hash
from attractor.runs.run_folder import RunFolder
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import Run, train
from attractor.train.stacked_loop import stackable
from tiers import fast_alone

RUNTIME = Runtime(device="cpu", log_every=5, telemetry_every=4)
CASES: dict[str, dict[str, Any]] = {
    "quack": {"quack": 0.5},
    "quack, spectral": {"quack": 2.0, "quack_norm": "spectral"},
    "fixed rates": {"qk_rate": 0.1},
    "clip": {"qk_clip": 1e-3},
    "quack and clip": {"quack": 1.0, "qk_clip": 1e-3},
    "muon": {"optimizer": "muon"},
    "muon, whole matrices": {"optimizer": "muon", "muon_per_head": False},
    "muon and quack": {"optimizer": "muon", "quack": 1.0},
    "QK-norm": {"qk_norm": True},
    "soft-cap": {"softcap": 2.0},
    "sigmaReparam": {"sigma_reparam": True},
    "penalty": {"z_loss": 0.1},
}


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "checkpoints/step-00000012/model.safetensors")


@pytest.mark.parametrize("attention", ["standard", pytest.param("mla", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", fast_alone(CASES, "muon and quack", "quack and clip", "penalty"))
def test_each_changes_the_run_and_resumes_exactly(
    config: TrainConfig, tmp_path: Path, interrupt_during: Callable, case: str, attention: str
) -> None:
    """Criterion: after interruptions at steps 3 and 8 the weights are the same to the bit, and differ from a run
    without the intervention. The count of clips goes on, too."""
    config = config.replace(attention=attention)
    changed = config.replace(**CASES[case])
    train(config, tmp_path / "without", RUNTIME)
    train(changed, tmp_path / "whole", RUNTIME)
    interrupt_during([3, 8])
    for _ in range(2):
        with pytest.raises(RunInterrupted):
            train(changed, tmp_path / "parts", RUNTIME)
    train(changed, tmp_path / "parts", RUNTIME)
    without, whole, parts = (weights(tmp_path / run) for run in ("without", "whole", "parts"))
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
    assert any(name not in without or not torch.equal(value, without[name]) for name, value in whole.items())
    assert RunFolder.open(tmp_path / "whole").config == changed.identity(changed.build_task())
    whole, parts = (list(RunFolder.open(tmp_path / run).metrics()) for run in ("whole", "parts"))
    assert [record.get("clips") for record in whole] == [record.get("clips") for record in parts]


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
    train(config.replace(quack=0.1, qk_clip=1.0), tmp_path / "with", RUNTIME)
    without, changed = (weights(tmp_path / run) for run in ("without", "with"))
    assert all(torch.equal(value, changed[name]) for name, value in without.items())


def test_a_run_without_interventions_keeps_its_name(config: TrainConfig) -> None:
    """Criterion: no field is stored at its default; any other value is stored and restored."""
    stored = config.to_dict()
    for case, changes in CASES.items():
        for name in changes:
            assert name not in stored
            assert name not in stored["model"]
        changed = config.replace(**changes)
        assert config_hash(changed.to_dict()) != config_hash(stored), case
        assert TrainConfig.from_dict(changed.to_dict()) == changed


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"quack": 0.0}, "quack must be positive"),
        ({"quack": float("nan")}, "quack must be positive"),
        ({"qk_clip": -1.0}, "qk_clip must be positive"),
        ({"qk_rate": 0.0}, "qk_rate must be positive"),
        ({"quack": 1.0, "quack_norm": "nuclear"}, "unknown norm of QuacK 'nuclear'"),
        ({"quack_norm": "spectral"}, "quack_norm must be 'frobenius' without quack, got 'spectral'; give quack, too"),
        ({"muon_per_head": False}, "muon_per_head must be True without Muon, got False; give optimizer='muon', too"),
        ({"quack": 1.0, "qk_rate": 0.1}, "qk_rate must be None with quack"),
        ({"optimizer": "sgd"}, "unknown optimizer 'sgd'"),
        ({"qk_clip": 30.0, "qk_norm": True}, "QK-norm bounds the logits already"),
        ({"qk_clip": 30.0, "attention": "coupled-euler"}, "the coupling is not linear"),
        ({"qk_clip": 30.0, "sigma_reparam": True}, "sigma_reparam must be off with qk_clip"),
        ({"quack": 1.0, "sigma_reparam": True}, "sigma_reparam must be off with quack"),
        ({"softcap": 0.0}, "softcap must be positive and finite, or None"),
        ({"z_loss": -1.0}, "z_loss must be"),
    ],
)
def test_incompatible_interventions_are_refused_before_a_run_starts(
    config: TrainConfig, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        config.replace(**changes)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("quack", "the step of one optimizer"),
        ("fixed rates", "the step of one optimizer"),
        ("clip", "the step of one optimizer"),
        ("muon", "the matrices of one model"),
        ("sigmaReparam", "a state beside its parameters"),
    ],
)
def test_runs_with_such_interventions_are_not_stacked(config: TrainConfig, case: str, says: str) -> None:
    assert says in str(stackable(config.replace(dropout=0.0, **CASES[case])))


def test_a_skipped_step_leaves_no_logits_to_the_next_clip(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: a run that is resumed after the step would not know them, and must not end elsewhere."""
    run, gradients = build_run(config.replace(qk_clip=1.0), tmp_path, Runtime(device="cpu")), Run.gradients
    assert run.interventions.clip is not None
    monkeypatch.setattr(Run, "gradients", lambda run, batch, share: gradients(run, batch, share) * float("nan"))
    run.take_step()
    assert len(run.interventions.clip.maxima.unseen) == config.model.n_layers
