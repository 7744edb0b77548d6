"""The probes of penalties compare their gradient with the loss's, at a run's first step and after its last one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from attractor.control.regularize import REGULARIZERS
from attractor.models import ItrSAConfig
from attractor.study.launch import Job
from attractor.study.probe import probe_runs, probes_of
from attractor.study.recorded_runs import take_over
from attractor.tasks.sudoku import Sudoku
from attractor.train.config import Runtime, TrainConfig
from invented_records import record
from papers.jacobians.probes.dynamics import DYNAMICS_PROBE
from papers.jacobians.probes.penalty import PENALTY_PROBE, penalty_of_run, trained_penalty_of_run


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    model = ItrSAConfig(vocab_size=5, d_model=8, n_heads=2, d_ff=16, max_seq_len=16, n_iterations=3, blank=None)
    task = Sudoku(n_boards=40, n_valid_boards=12, board_size=4)
    return TrainConfig(
        model=model, task=task, seq_len=16, n_steps=1, batch_size=8, warmup_steps=0, regularizer="spectral", seed=3
    )


def measured(config: TrainConfig) -> Any:
    with torch.no_grad():
        return penalty_of_run(config.model.build(config.seed), config)


def test_the_ratio_is_that_of_the_gradients_of_the_first_step(config: TrainConfig) -> None:
    """Criterion: both gradients are those of the loss of batch 0 and of w P, written out on another model whose cells
    do not start from noise."""
    model = config.model.build(config.seed).train()
    batch = config.build_task().train_batch(0, config.batch_size)
    tokens, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
    penalty = REGULARIZERS["spectral"](model)
    own = [weight for weights in penalty.layers.values() for weight in weights.values()]
    of_loss = torch.autograd.grad(model.loss(tokens, targets)[0], list(model.parameters()))
    by_parameter = dict(zip(model.parameters(), of_loss, strict=True))
    of_penalty = 1e-4 * torch.cat([g.flatten() for g in torch.autograd.grad(penalty(), own)]).norm()
    found = measured(config)["penalty"]
    assert found["weight"] == 1e-4
    assert found["gradient"] == pytest.approx(float(of_penalty))
    of_own = torch.cat([by_parameter[weight].flatten() for weight in own]).norm()
    assert found["ratio"] == pytest.approx(float(of_penalty / of_own))
    assert found["reach"] == pytest.approx(found["ratio"] * config.lr)  # of a single step
    assert found["ratio_to_all"] == pytest.approx(float(of_penalty / torch.cat([g.flatten() for g in of_loss]).norm()))


def test_the_ratio_is_proportional_to_the_weight(config: TrainConfig) -> None:
    once = measured(config)["penalty"]["ratio"]
    assert measured(config.replace(regularizer_weight=1e-1))["penalty"]["ratio"] == pytest.approx(1e3 * once)
    assert measured(config.replace(regularizer_weight=0.0))["penalty"]["ratio"] == 0


def test_a_penalty_at_its_minimum_cannot_act_until_weights_have_grown(config: TrainConfig) -> None:
    """Criterion: at a spectral norm s the gradient is 4 w s (s^2 - 1) for each matrix, which is 0 for s = 1."""
    model = config.model.build(config.seed)
    matrices = [weight for weights in REGULARIZERS["spectral"](model).layers.values() for weight in weights.values()]
    gradients = {}
    for norm in (1.0, 3.0):
        with torch.no_grad():
            for weight in matrices:
                weight.mul_(norm / torch.linalg.matrix_norm(weight, 2))
            gradients[norm] = trained_penalty_of_run(model, config)["trained_penalty"]["gradient"]
    assert gradients[1.0] == pytest.approx(0.0, abs=1e-9)
    assert gradients[3.0] == pytest.approx(1e-4 * 4 * 3 * (3**2 - 1) * len(matrices) ** 0.5, rel=1e-3)


def test_a_run_without_a_penalty_has_no_ratio(config: TrainConfig) -> None:
    assert measured(config.replace(regularizer=None)) == {}
    assert measured(config.replace(attention="uniform")) == {}


def test_probes_of_the_first_weights_measure_recorded_runs_again(config: TrainConfig, tmp_path: Path) -> None:
    """Criterion: a run of a record has no checkpoint. Its measures of trained weights stay as they are stored, and
    those that need the configuration alone are replaced."""
    stored = record({"ItrSA": [{"metric": {"value": 1.0}}]})
    probes = {"done": ["dynamics", "penalty"], "dynamics": {"kept": 1}, "penalty": {"ratio": -1.0}}
    cell = stored.cells[0]
    outcome = replace(cell.outcomes[0], key="key", probes=probes)
    stored = replace(stored, cells=(replace(cell, outcomes=(outcome,)),))
    job = Job(config, tmp_path / "key", "ItrSA")
    both = (DYNAMICS_PROBE, PENALTY_PROBE)
    assert take_over(stored, [job], [config.identity(config.build_task())], both) == (1, 0)
    for probe in both:
        probe_runs([job], probe, Runtime(device="cpu"), Console(quiet=True))
    found = probes_of(job)
    assert found["dynamics"] == {"kept": 1}
    assert found["penalty"] == measured(config)["penalty"]
    assert found["done"] == ["dynamics", "penalty"]
