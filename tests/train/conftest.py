"""Fixtures: a run that takes a tenth of a second, and functions that disturb it."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from attractor.models import TransformerConfig
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import Run
from same_runs import Interrupt, interrupting

MODEL = TransformerConfig(
    vocab_size=320, d_model=16, n_heads=2, n_layers=1, d_ff=32, max_seq_len=64, positions="rope", dropout=0.1
)


STEPS: dict[str, Any] = {"n_steps": 12, "batch_size": 4, "seq_len": 16, "warmup_steps": 3}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write one text file that is neither constant nor random."""
    path = tmp_path_factory.mktemp("corpus") / "squares.txt"
    path.write_text("".join(f"{i} squared is {i * i}\n" for i in range(400)))
    return str(path)


@pytest.fixture(scope="session")
def config(corpus: str) -> TrainConfig:
    """Return a run of 12 steps with dropout, evaluated after steps 5, 10 and 12."""
    return TrainConfig(MODEL, Text(corpus), **STEPS, eval_every=5, eval_batches=2)


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    return Runtime(device="cpu", log_every=5)


@pytest.fixture
def interrupt_during(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    return interrupting(monkeypatch)


@pytest.fixture
def change_losses(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Run, Tensor], Tensor]], None]:
    """Give each micro-batch of further runs the loss that a function returns for the run and the real loss."""

    def arrange(changed: Callable[[Run, Tensor], Tensor]) -> None:
        gradients = Run.gradients
        monkeypatch.setattr(Run, "gradients", lambda run, batch, share: changed(run, gradients(run, batch, share)))

    return arrange


@pytest.fixture
def spoil(change_losses: Callable[[Callable[[Run, Tensor], Tensor]], None]) -> Callable[[Iterable[int], str], None]:
    """Make the loss NaN, or one entry of the gradient infinite, in these steps, counted from 0."""

    def arrange(steps: Iterable[int], what: str) -> None:
        chosen = set(steps)

        def spoiled(run: Run, loss: Tensor) -> Tensor:
            if run.step in chosen and what == "gradient":
                grad = run.model.embedding.weight.grad
                assert grad is not None
                grad[0, 0] = math.inf
            return loss * math.nan if run.step in chosen and what == "loss" else loss

        change_losses(spoiled)

    return arrange


@pytest.fixture(scope="session")
def files() -> Callable[[Path], dict[str, bytes]]:
    """Return the path and content of every file below a folder, for comparison with a later state."""
    return lambda folder: {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
