"""Untrained iterations have the properties known in closed form, and the probe needs no model."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attractor.analysis import jacobian
from attractor.attention.hooks import capture
from attractor.errors import InputError
from attractor.train.config import TrainConfig
from papers.jacobians.probes import iteration_maps as probe
from papers.jacobians.probes.iteration_maps import (
    GAINS,
    N_TOKENS,
    after,
    iteration_maps_of_run,
    norm_of,
    on_circle,
    random_map,
    skew_symmetric,
    slope,
    turning,
)


@pytest.fixture(scope="module")
def found(base: TrainConfig) -> Iterator[dict[str, Any]]:
    """Measure shorter sequences, fewer heads and fewer steps than the probe does by default."""
    with pytest.MonkeyPatch.context() as patch:
        shorter = {"N_TOKENS": (8, 32), "MEASURED_AT": (0, 4), "HEADS": (1, 4), "HEADS_TOKENS": 8, "N_STEPS": 4}
        shorter |= {"STEP_SIZES": (1.0, 256.0, 1024.0), "STEPS_TOKENS": 8}
        for name, value in shorter.items():
            patch.setattr(probe, name, value)
        probe.iteration_maps.cache_clear()
        measured = iteration_maps_of_run(base.model.build(0), base)
        json.dumps(measured, allow_nan=False)
        yield measured["iteration_maps"]
    probe.iteration_maps.cache_clear()


def test_the_seed_alone_determines_the_result(base: TrainConfig, found: dict[str, Any]) -> None:
    assert turning(base.seed) == found["turning"] != turning(base.seed + 1)


def test_attention_of_the_maps_is_not_uniform(found: dict[str, Any]) -> None:
    """Criterion: with unit rows q'k / sqrt(K) has the standard deviation gain^2 at the start. So attention becomes
    sharper with the gain, and every Jacobian has its entropy beside it."""
    by_gain = [found["tokens"][f"gain-{gain:g}"]["unit"] for gain in GAINS]
    entropies = [of["mean_entropy"] for of in by_gain]
    assert 0.95 > entropies[0] > entropies[1] > entropies[2] > 0
    for part, measure in (("tokens", "norm"), ("steps", "norm"), ("heads", "exponent")):
        for of in found[part].values():
            for columns in of.values() if measure == "norm" else [of]:
                assert columns["entropy"].keys() == columns[measure].keys()
                assert columns["mean_entropy"] == pytest.approx(
                    sum(columns["entropy"].values()) / len(columns[measure])
                )
    step, x = random_map(64, 1, "unit", 2.0, seed=0)
    with torch.no_grad(), capture("logits") as seen:
        step(x)
    assert float(seen["logits"][0].std()) == pytest.approx(4.0, rel=0.2)


def test_a_norm_holds_the_jacobian_down_and_sharp_attention_makes_it_grow(found: dict[str, Any]) -> None:
    """Criterion: at gain 1 the norm's Jacobian is the same for any number of tokens, and without the norm it is larger
    and grows. At gain 4 it grows under the norm, too."""
    gentle, sharp = found["tokens"]["gain-1"], found["tokens"]["gain-4"]["unit"]
    assert abs(gentle["unit"]["growth"]) < 0.1 < 0.25 < gentle["none"]["growth"]
    assert max(gentle["unit"]["norm"].values()) < 2 < min(gentle["none"]["norm"].values())
    assert sharp["growth"] > 0.1
    assert min(sharp["norm"].values()) > max(gentle["unit"]["norm"].values())


def test_under_a_norm_the_jacobian_has_a_limit_as_steps_grow(found: dict[str, Any]) -> None:
    """Criterion: Norm(x + eta y) tends to Norm(y), so |J| tends to a limit; without the norm it grows as eta."""
    unit, none = (found["steps"]["gain-1"][norm] for norm in ("unit", "none"))
    assert unit["norm"]["1024"] == pytest.approx(unit["norm"]["256"], rel=0.02)
    assert none["norm"]["1024"] == pytest.approx(4 * none["norm"]["256"], rel=0.02)
    assert unit["largest"] == max(unit["norm"].values()) < 4


def test_the_norm_is_that_of_the_whole_jacobian() -> None:
    """Criterion: it is the geometric mean over the states of the dense Jacobian's norm."""
    step, x = random_map(N_TOKENS[0], 4, "unit", 2.0, seed=1)
    logs = [torch.linalg.matrix_norm(jacobian(step, after(step, x, t)), 2).log() for t in probe.MEASURED_AT]
    measured = norm_of(random_map(N_TOKENS[0], probe.N_HEADS, "unit", 2.0, seed=1), probe.MEASURED_AT)
    assert measured.value == pytest.approx(float(torch.stack(logs).mean().exp()), rel=1e-3)
    assert 0 < measured.entropy < 0.95


def test_without_a_norm_rounding_makes_no_ties_of_logits() -> None:
    """Criterion: logits of 1e18 differ by far more than 1, so attention is one token and |J| that of two matrices. In
    fp32 some are equal by rounding, and |J| is 2e6."""
    assert 10 < norm_of(random_map(8, probe.N_HEADS, "none", 4.0, seed=0), probe.MEASURED_AT).value < 1e3


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
