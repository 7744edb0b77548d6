"""Deep supervision: a batch stays for its segments, each of which starts where the one before ended."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attractor.models import ItrSAConfig, RecursiveConfig
from attractor.tasks.sudoku import Sudoku
from attractor.train.config import Runtime, TrainConfig
from attractor.train.distributed import World
from attractor.train.loop import Run, train
from attractor.train.plan import plan_run
from attractor.train.segments import Segments
from same_runs import build_run, newest_tensors

SHAPE: dict[str, Any] = {"d_model": 8, "n_heads": 2, "max_seq_len": 16, "blank": None, "vocab_size": 5}
MODEL = RecursiveConfig(**SHAPE, d_ff=12, n_layers=1, n_inner=2, n_iterations=6, n_segments=3)
TASK = Sudoku(board_size=4, n_boards=12, n_valid_boards=4, augment=True)
CONFIG = TrainConfig(MODEL, TASK, n_steps=7, batch_size=4, seq_len=16, warmup_steps=2, eval_every=7)
RUNTIME = Runtime(device="cpu", threads=1, telemetry_every=None)


def test_a_batch_stays_for_its_segments_and_the_state_is_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: step k receives the boards of batch k // 3, and the state that step k - 1 returned, or none."""
    run = build_run(CONFIG, tmp_path, RUNTIME)
    received: list[tuple[Tensor, ...]] = []
    returned: list[Tensor] = []
    loss = run.loss

    def observed(tokens: Tensor, targets: Tensor, real: None, *carried: Tensor) -> tuple[Tensor, ...]:
        result = loss(tokens, targets, real, *carried)
        received.append((tokens, *carried))
        returned.append(result[2])
        return result

    monkeypatch.setattr(run, "loss", observed)
    for _ in range(7):
        run.unread.append(run.take_step())
    for step, (tokens, *carried) in enumerate(received):
        assert np.array_equal(tokens.numpy(), run.task.train_batch(step // 3, 4).inputs)
        assert len(carried) == (step % 3 > 0)
        assert all(torch.equal(state, returned[step - 1]) for state in carried)
    assert not torch.equal(received[0][0], received[3][0])


def test_steps_do_not_depend_on_the_accumulation(tmp_path: Path) -> None:
    weights = []
    for accumulation in (1, 4):
        train(CONFIG.replace(accumulation=accumulation), tmp_path / str(accumulation), RUNTIME)
        weights.append(newest_tensors(tmp_path / str(accumulation))["weights"])
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-3, atol=1e-5)


def test_a_checkpoint_within_a_batch_holds_the_state_and_those_of_other_families_hold_none(tmp_path: Path) -> None:
    train(CONFIG, tmp_path / "recursive", RUNTIME)
    segments = newest_tensors(tmp_path / "recursive")["segments"]
    assert segments["number"] == 2
    assert [tuple(state.shape) for state in segments["states"]] == [(4, 16, 16)]
    train(CONFIG.replace(model=ItrSAConfig(**SHAPE, n_iterations=2)), tmp_path / "itrsa", RUNTIME)
    assert "segments" not in newest_tensors(tmp_path / "itrsa")


def test_a_state_is_carried_within_its_batch_alone() -> None:
    segments, state = Segments(3, World()), torch.ones(2, 3)
    segments.begin(4)
    assert segments.carried() == ()
    segments.keep([state])
    segments.keep([2 * state])
    segments.begin(4)
    assert torch.equal(segments.carried()[0], state)
    segments.keep([state])
    assert torch.equal(segments.carried()[0], 2 * state), "the second micro-batch"
    segments.keep([torch.tensor([[1.0, torch.nan, torch.inf]])])
    segments.begin(4)
    segments.keep([state])
    assert torch.equal(segments.carried()[0], torch.tensor([[1.0, 0.0, 0.0]])), "what is not finite is left behind"
    segments.begin(6)  # a rollback has skipped data
    assert segments.carried() == ()


def test_processes_share_the_rows_of_a_stored_state() -> None:
    stored = {"segments": {"number": 5, "states": [torch.arange(8.0).view(4, 2)]}}
    for rank in range(2):
        segments = Segments(3, World(rank, 2))
        segments.load_state_dict(stored, torch.device("cpu"))
        segments.begin(5)
        assert torch.equal(segments.carried()[0], torch.arange(8.0).view(4, 2)[2 * rank : 2 * rank + 2])
    segments.load_state_dict({}, torch.device("cpu"))  # a checkpoint of another family
    segments.begin(0)
    assert segments.carried() == ()


def test_a_rollback_skips_whole_batches_of_a_recursive_model(tmp_path: Path, change_losses: Callable) -> None:
    """Criterion: the loss of batch 1, which stays for steps 3 to 5, is NaN. The run goes on with batch 2."""
    read: list[int] = []

    def spoiled(run: Run, loss: Tensor) -> Tensor:
        read.append(run.number_of_batch(run.step))
        return loss * float("nan") if read[-1] == 1 else loss

    change_losses(spoiled)
    runtime = replace(RUNTIME, save_every=3, on_divergence="rollback", log_every=1)
    summary = train(CONFIG.replace(n_steps=9, max_bad_steps=2), tmp_path, runtime)
    assert summary["data_skipped"] == [[3, 3, 6]]
    assert read == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3]


def test_epochs_count_the_steps_for_which_a_batch_stays() -> None:
    """Criterion: 9 steps are 3 batches of 4 boards, which is one pass over 12 boards."""
    assert plan_run(CONFIG.replace(n_steps=9), CONFIG.build_task()).epochs == pytest.approx(1.0)
