"""Untrained iterations have the properties known in closed form, and the probe needs no model."""

import json
import math
from typing import Any

import pytest
import torch

from attractor.analysis import jacobian
from attractor.errors import InputError
from attractor.study.iteration_maps import (
    N_TOKENS,
    iteration_maps_of_run,
    norm_by_tokens,
    on_circle,
    random_map,
    skew_symmetric,
    slope,
    turning,
)
from attractor.study.probe import probe_named
from attractor.study.study import PROBES
from attractor.train.config import TrainConfig


@pytest.fixture(scope="module")
def found(base: TrainConfig) -> dict[str, Any]:
    measured = iteration_maps_of_run(base.model.build(0), base)
    json.dumps(measured, allow_nan=False)
    return measured["iteration_maps"]


def test_the_seed_alone_determines_the_result(base: TrainConfig, found: dict[str, Any]) -> None:
    assert turning(base.seed) == found["turning"] != turning(base.seed + 1)


def test_every_probe_has_a_name_that_studies_may_use() -> None:
    assert all(callable(probe_named(name)) for name in PROBES)


def test_the_jacobian_grows_with_the_number_of_tokens_only_without_a_norm(found: dict[str, Any]) -> None:
    """Criterion: growth as sqrt(T) is that of a matrix whose rows all attend to one token."""
    growth = found["tokens"]["growth"]
    assert 0.3 < growth["none"] < 0.6
    assert abs(growth["unit"]) < 0.1
    assert max(found["tokens"]["unit"].values()) < 4 < min(found["tokens"]["none"].values())


def test_the_norm_is_that_of_the_whole_jacobian() -> None:
    step, x = random_map(N_TOKENS[0], 4, "unit", 2.0, seed=1)
    for _ in range(8):
        x = step(x)
    expected = float(torch.linalg.matrix_norm(jacobian(step, x), 2))
    assert norm_by_tokens(N_TOKENS[0], "unit", seed=1) == pytest.approx(expected, rel=1e-3)


def test_random_maps_of_a_seed_differ_only_as_requested() -> None:
    """Criterion: each seed has one start and, for a norm and a number of heads, one map."""
    starts = [random_map(8, heads, norm, 1.0, seed=3).start for heads, norm in ((1, "unit"), (4, "unit"), (4, "none"))]
    assert torch.equal(starts[0], starts[1])
    assert torch.equal(starts[1], starts[2])
    assert not torch.equal(starts[0], random_map(8, 1, "unit", 1.0, seed=4).start)
    with pytest.raises(InputError, match="norm"):
        random_map(8, 1, "layer", 1.0, seed=3)


def test_under_a_norm_the_eigenvalues_of_a_rotation_move_inside_the_unit_circle(found: dict[str, Any]) -> None:
    """Criterion: before the norm all have modulus sqrt(1 + omega^2) > 1. With the norm, some are outside at the start
    and none much later."""
    before, one, rows = (found["turning"][name] for name in ("before", "one", "rows"))
    assert before["outside"] == 1
    assert 0 < one["start"]["outside"] < 1
    assert one["later"]["outside"] == 0
    assert one["later"]["radius"] < 1
    assert rows["later"]["outside"] < rows["start"]["outside"]
    assert rows["later"]["radius"] < before["radius"]


def test_the_spectral_radius_of_a_rotation_is_known() -> None:
    """Criterion: it is that of x + eta A x for the matrix A of a rotation by 90 degrees, and 1 / sqrt(1 + eta^2) with
    the norm."""
    a = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    x = torch.tensor([[0.6], [0.8]], dtype=torch.float64)
    plain = on_circle(lambda x: x + 0.5 * a @ x, x)
    assert plain == {"radius": pytest.approx(math.sqrt(1.25)), "outside": 1.0}
    normed = on_circle(lambda x: (x + 0.5 * a @ x) / (x + 0.5 * a @ x).norm(), x)
    assert normed == {"radius": pytest.approx(1 / math.sqrt(1.25)), "outside": 0.0}
    skew = skew_symmetric(5, torch.Generator().manual_seed(0))
    assert torch.equal(skew, -skew.T)


def test_the_fitted_slope_of_a_power_is_its_exponent() -> None:
    assert slope({str(n): 3 * n**0.5 for n in (2, 8, 64)}, log=True) == pytest.approx(0.5)
    assert slope({str(n): 2 * math.log(n) for n in (1, 2, 16)}) == pytest.approx(2.0)
