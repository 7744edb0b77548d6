"""Fixtures: small boards, a small fp64 model of each recurrent family, and short training runs on such boards."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attractor.models import AKOrNConfig, ItrSAConfig, PreNormItrSAConfig, RecursiveConfig, TransformerConfig
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel
from attractor.tasks.sudoku import Sudoku, generate
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train

SHAPE = {"vocab_size": 5, "d_model": 16, "n_heads": 2, "max_seq_len": 16}
LAYERS = {"n_iterations": 3, "n_segments": 3, "n_inner": 2, "n_layers": 1}
TRANSFORMER = TransformerConfig(**SHAPE, n_layers=1, d_ff=32, causal=False)
RECURRENT: dict[str, ModelConfig[RecurrentModel]] = {
    "itrsa": ItrSAConfig(**SHAPE, n_iterations=3),
    "itrsa-energy": ItrSAConfig(**SHAPE, n_iterations=3, energy="multi"),
    "akorn": AKOrNConfig(**SHAPE, n_iterations=3, d_ff=32),
    "itrsa-prenorm": PreNormItrSAConfig(**SHAPE, n_iterations=3, d_ff=32),
    "recursive": RecursiveConfig(**SHAPE, **LAYERS, d_ff=32, stable_softmax=True, halting=True),
}
TASK = Sudoku(board_size=4, n_boards=48, n_valid_boards=20)


@pytest.fixture(scope="session", params=RECURRENT)
def model(request: pytest.FixtureRequest) -> RecurrentModel:
    return RECURRENT[request.param].build(seed=0).double().eval()


@pytest.fixture(scope="session")
def itrsa() -> RecurrentModel:
    """Build a model that starts from noise, so that its votes differ."""
    return RECURRENT["itrsa"].build(seed=0).double().eval()


@pytest.fixture(scope="session")
def transformer() -> LanguageModel:
    return TRANSFORMER.build(seed=0)


@pytest.fixture(scope="session")
def boards() -> tuple[np.ndarray, np.ndarray]:
    return generate(7, 6, seed=3, size=4)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that trains a short run of a model family and returns its folder."""
    folder = tmp_path_factory.mktemp("runs")

    def run(family: str) -> Path:
        model = (RECURRENT | {"transformer": TRANSFORMER})[family]
        config = TrainConfig(model, TASK, n_steps=8, batch_size=8, seq_len=16, warmup_steps=2)
        train(config.replace(eval_every=4, eval_batches=2), folder / family, Runtime("cpu", telemetry_every=None))
        return folder / family

    return run
