"""Every stage with a kernel is timed with its least work, and a stage that fails is left out."""

from collections.abc import Callable
from typing import NoReturn

import pytest
import torch

from attractor.attention import PRESETS
from attractor.bench.stages import StageCase, stage_cases, timed_stages
from attractor.bench.trial import BenchSetting
from attractor.kernels.differential import IMPLEMENTATIONS

N, H, K, SIZE = 32, 4, 8, 4  # positions, heads, head width, bytes of a number in fp32
PARAMETERS = 2 * K * K


@pytest.fixture
def cases(setting: BenchSetting) -> dict[str, Callable[[], StageCase]]:
    return stage_cases(setting.shape, "fp32", setting.device)


def test_every_kind_of_stage_occurs_once(cases: dict[str, Callable[[], StageCase]]) -> None:
    moving = {(c.project, c.couple) for c in PRESETS.values() if c.couple.moves}
    scoring = {(c.project, c.couple.parts, c.score) for c in PRESETS.values()}
    assert sum(name.startswith("couple, ") for name in cases) == len(moving)
    assert sum(name.startswith("score, ") for name in cases) == len(scoring)
    assert {f"differential by {way}" for way in IMPLEMENTATIONS} <= set(cases)
    assert {"couple, phase", "couple, psiqrh", "couple, coupled-gqa", "readout, linear cross-entropy"} <= set(cases)


def test_tensors_that_a_stage_leaves_alone_count_no_bytes(cases: dict[str, Callable[[], StageCase]]) -> None:
    """MLP-only leaves the keys alone, Euler moves both queries and keys, and phase writes both at twice the width."""
    one = N * H * K
    for name, n_read, n_written, n_parameters in (
        ("mlp-only", one, one, PARAMETERS),
        ("coupled-euler", 2 * one, 2 * one, PARAMETERS + H),
        ("coupled-gqa", one + one // 4, one + one // 4, PARAMETERS + H),
        ("phase", 2 * one, 4 * one, K * K),
    ):
        case = cases[f"couple, {name}"]()
        assert case.forward.n_bytes == SIZE * (n_read + n_written + n_parameters), name
        assert case.both.n_bytes == SIZE * (3 * n_read + 2 * n_written + 3 * n_parameters), name


def test_every_stage_can_be_differentiated(small_bench: None, cases: dict[str, Callable[[], StageCase]]) -> None:
    """Criterion: stages that run on this device have gradients for their inputs and their parameters."""
    for time in timed_stages(cases, "fp32", torch.device("cpu")):
        taken = time.left_out is None
        assert taken or time.left_out == "not available on this device", (time.name, time.left_out)
        assert not taken or (time.median_seconds > 0 and not time.as_one)


def test_a_stage_that_fails_is_left_out(small_bench: None, cases: dict[str, Callable[[], StageCase]]) -> None:
    def fails() -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory")

    name = "couple, coupled-euler"
    first, *others = timed_stages({"too large": fails, name: cases[name]}, "fp32", torch.device("cpu"))
    assert "out of memory" in str(first.left_out)
    assert [(time.name, time.backward) for time in others] == [(name, False), (name, True)]
