"""The computations behind the cost of two timescales, without real timings, which would test the machine."""

from itertools import count
from typing import Any

import pytest
from time_predictions import in_words, predictions

from attractor.bench import costs
from attractor.errors import InputError
from attractor.models import SIZES, FastSlowConfig
from attractor.runs.study_record import StudyRecord
from attractor.train.calibrate import RunCosts
from attractor.train.config import RECIPES, Runtime
from attractor.train.parts import forward_flops
from five_papers import CLAIMS
from invented_records import record
from papers.fast_slow import two_timescales

COUNTED = {"dense": (4.0, 1.6e6), "P=4": (3.25, 1.57e6), "P=8": (3.1, 1.4e6), "P=2": (4.0, 2.2e6)}


def timed(seconds: dict[str, float], jitter: float = 0.0) -> StudyRecord:
    """Return one timing of nine rounds, in which a step of each row takes these seconds."""

    def summary(row: str, of_step: float) -> dict[str, Any]:
        rounds = tuple(of_step * (1 + jitter * (-1) ** i) for i in range(9))
        layers, flops = COUNTED[row]
        counts = {"layer_equivalents": layers, "forward_flops_per_token": flops}
        return counts | {"step_seconds": rounds, "step_cpu_seconds": rounds}

    return record({row: [summary(row, of_step)] for row, of_step in seconds.items()}, control=None)


def test_times_proportional_to_flops_are_predicted_by_flops_on_any_machine() -> None:
    for machine in (1e-9, 1e-6):
        exact = predictions(timed({row: machine * flops for row, (_, flops) in COUNTED.items()}, jitter=0.01))
        assert exact["FLOPs"].error == pytest.approx(0, abs=1e-12)  # all rows have the same jitter
        assert exact["FLOPs"].order == pytest.approx(1)
        assert exact["FLOPs"].seconds_per_count == pytest.approx(machine, rel=0.02)
        assert exact["layers over all positions"].error > 0.05
        assert exact["layers over all positions"].order < 1


def test_times_proportional_to_layers_are_predicted_by_layers() -> None:
    found = timed({row: layers for row, (layers, _) in COUNTED.items()})
    assert in_words(found).splitlines()[-1] == "processor time: layers over all positions is nearer"


def test_too_few_rows_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="three timed rows, got 1") as error:
        predictions(timed({"dense": 1.0}))
    assert "\n" not in str(error.value)


def test_freezing_saves_the_slow_path_and_the_injection() -> None:
    """Criterion: this is exact in FLOPs, so that a measured share of time can be compared with the predicted one."""
    config = two_timescales.COUPLED
    parts = forward_flops(config, 64)
    saved = sum(parts.values()) - sum(forward_flops(config.replace(frozen=True), 64).values())
    assert saved == pytest.approx(parts["slow path"] + parts["injection"])


def test_the_dense_model_differs_from_the_coupled_one_only_in_the_timescales() -> None:
    assert two_timescales.DENSE.to_dict() == SIZES["dense-minimind"].replace(mlp="gelu").to_dict()
    ours, dense = (config.build(seed=0) for config in (two_timescales.COUPLED, two_timescales.DENSE))
    for block in ours.layers + dense.layers:
        assert {name: p.shape for name, p in block.named_parameters()} == {
            name: p.shape for name, p in dense.layers[0].named_parameters()
        }


@pytest.mark.slow
def test_every_comparison_runs_with_the_gate_open_and_two_equal_cases_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock that advances by one tick at each reading, all cases take the same time."""
    monkeypatch.setattr(two_timescales, "TOKENS", 32)
    small = FastSlowConfig(vocab_size=17, d_model=16, n_heads=4, d_ff=24)
    monkeypatch.setattr(two_timescales, "COUPLED", small)
    monkeypatch.setattr(two_timescales, "DENSE", SIZES["dense-minimind"].replace(d_model=16, d_ff=24, vocab_size=17))
    model = two_timescales.with_open_gate(small)
    assert model.get_parameter("injection.gate").item() == two_timescales.OPEN
    clock = count().__next__
    assert two_timescales.step_time(16, 3, clock).measured == 1
    assert two_timescales.slow_share(16, 3, clock).measured == 0
    assert two_timescales.decoding_speed(2, 6, 3, clock).measured == 1


def test_a_timing_has_as_many_seconds_on_a_core_as_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm-up does not count, and memory is measured elsewhere."""
    nothing = RunCosts("cpu", 1, 2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7)
    monkeypatch.setattr(costs, "calibrate", lambda config, runtime: nothing)
    config = RECIPES["fast-slow"].replace(d_model=16, d_ff=24, vocab_size=320, batch_size=1, seq_len=16)
    (found,) = costs.timings({"coupled": config}, Runtime(device="cpu"), n_rounds=3).values()
    assert len(found["step_cpu_seconds"]) == len(found["step_seconds"]) == 3
    assert found["layer_equivalents"] == 3.25
    assert found["peak_memory_bytes"] == 7


@pytest.mark.parametrize(
    ("speed", "layers", "status"), [(1 / 0.97, 3.25, "holds"), (0.9, 3.25, "fails"), (1.03, 3.5, "fails")]
)
def test_the_claim_on_cost_can_come_out_either_way(speed: float, layers: float, status: str) -> None:
    (claim,) = (claim for claim in CLAIMS if claim.id == "F4")
    assert claim.rule is not None

    def run(speed: float, layers: float, jitter: float) -> dict[str, Any]:
        seconds = tuple((1 + jitter * (i % 3 - 1)) / speed for i in range(9))
        times = {"tokens_per_second": speed, "step_seconds": seconds}
        return times | {"layer_equivalents": layers, "peak_memory_bytes": 1e8}

    dense, ours = [run(1.0, 4.0, 0.0)], [run(speed, layers, 0.01)]
    judged = record({"dense-minimind": dense, "dense": dense, "fast-slow": ours}, control=None)
    assert claim.rule.judge(judged).status == status
