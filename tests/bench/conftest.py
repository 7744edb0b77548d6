"""Fixtures that make a bench take seconds: small products, few rounds, and trials in the test's process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attractor.bench import decoding, matrix_rate, trial
from attractor.bench.shape import BenchShape
from attractor.bench.trial import BenchSetting

CPU = torch.device("cpu")
TINY = BenchShape(vocab_size=32, d_model=32, n_heads=4, n_layers=1, d_ff=48, seq_len=16, n_tokens=32)


@pytest.fixture
def small_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(function: Callable[..., Any], *given: Any, patience: float) -> Any:
        assert patience > 0
        return function(*given)

    monkeypatch.setitem(matrix_rate.WIDTH, "cpu", 32)
    monkeypatch.setattr(matrix_rate, "N_TRIES", 2)
    monkeypatch.setattr(decoding, "N_ROUNDS", 1)
    monkeypatch.setattr(trial, "run_in_subprocess", here)
    monkeypatch.setattr(trial, "_initialise", lambda name, setting: None)


@pytest.fixture
def setting() -> BenchSetting:
    return BenchSetting(TINY, "fp32", False, CPU)
