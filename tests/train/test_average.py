"""The average of a run's weights: its formula, and when it replaces the weights."""

from pathlib import Path

import pytest
import torch
from torch import nn

from attractor.runs.run_folder import RunFolder
from attractor.train.average import Average
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import Run, train
from same_runs import newest_tensors


def test_the_average_is_the_weighted_mean_of_all_weights_since_the_start() -> None:
    """Criterion: e_n = sum_t w_t (1 - d_t) prod_{s > t} d_s + w_start prod d_s in fp64."""
    model = nn.Linear(3, 2).double()
    average = Average(model, decay=0.8)
    seen = [model.weight.detach().clone()]
    for step in range(60):
        with torch.no_grad():
            model.weight.add_(torch.randn_like(model.weight))
        average.update(step)
        seen.append(model.weight.detach().clone())
    decays = [min(0.8, (1 + step) / (10 + step)) for step in range(60)]
    assert decays[0] == 0.1
    assert decays[-1] == 0.8
    shares = [1.0, *(1 - decay for decay in decays)]
    for step, decay in enumerate(decays, start=1):
        shares[:step] = [share * decay for share in shares[:step]]
    assert sum(shares) == pytest.approx(1)
    wanted = sum(share * weights for share, weights in zip(shares, seen, strict=True))
    torch.testing.assert_close(average.means["weight"], wanted)


def test_an_average_of_every_tenth_step_is_the_average_of_those_steps_alone() -> None:
    """Criterion: steps 0, 10, 20, .. update it with the decays of steps 0, 1, 2, .., and others change no bit."""
    model = nn.Linear(3, 2).double()
    tenth, each = Average(model, decay=0.8, every=10), Average(model, decay=0.8)
    for step in range(200):
        before = tenth.means["weight"].clone()
        with torch.no_grad():
            model.weight.add_(torch.randn_like(model.weight))
        tenth.update(step)
        if step % 10:
            assert torch.equal(tenth.means["weight"], before)
        else:
            each.update(step // 10)
            assert torch.equal(tenth.means["weight"], each.means["weight"])


def test_the_average_replaces_the_weights_for_a_while_and_restores_them_bit_for_bit() -> None:
    model = nn.Linear(3, 2)
    average = Average(model, decay=0.9)
    nn.init.normal_(model.weight)
    trained = model.weight.detach().clone()
    with average.in_place():
        assert torch.equal(model.weight, average.means["weight"])
        assert not torch.equal(model.weight, trained)
    assert torch.equal(model.weight, trained)


def test_checkpoints_and_validation_use_the_average(config: TrainConfig, runtime: Runtime, tmp_path: Path) -> None:
    averaged = config.replace(ema=0.9)
    summary, _ = train(averaged, tmp_path / "averaged", runtime), train(config, tmp_path / "plain", runtime)
    found, usual = newest_tensors(tmp_path / "averaged"), newest_tensors(tmp_path / "plain")
    assert usual["trained"] == {}
    for name, weights in usual["weights"].items():
        assert torch.equal(found["trained"][name], weights)  # the average changes nothing in training
        assert not torch.equal(found["weights"][name], weights)
    run = Run(averaged, RunFolder.open(tmp_path / "averaged"), averaged.build_task(), runtime, display=None)  # type: ignore[arg-type]
    run.model.load_state_dict(found["weights"])
    run.average = None
    assert run.evaluation("valid").loss == summary["valid_loss"]
