"""The arithmetic of the roofline, and the rates measured for it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attractor.bench import roofline
from attractor.bench.roofline import Ceilings, Work, measured_ceilings

CEILINGS = Ceilings(100.0, {"fp32": 1000.0, "bf16": 4000.0})
positive = st.floats(1e-3, 1e6)


@given(positive, positive)
def test_work_in_its_least_time_reaches_the_roofline(n_bytes: float, flops: float) -> None:
    work = Work(n_bytes, flops)
    least = CEILINGS.least_seconds(work, "fp32")
    assert CEILINGS.fraction(work, "fp32", least) == pytest.approx(1)
    assert CEILINGS.fraction(work, "fp32", 4 * least) == pytest.approx(0.25)
    assert least >= n_bytes / 100
    assert least >= flops / 1000


def test_the_lower_ceiling_decides() -> None:
    """Criterion: below 10 FLOPs a byte the memory bounds the rate, above it the products. A faster format moves this
    point."""
    assert CEILINGS.least_seconds(Work(10, 50), "fp32") == CEILINGS.least_seconds(Work(10, 50), "bf16") == 0.1
    assert CEILINGS.least_seconds(Work(10, 400), "fp32") == 0.4
    assert CEILINGS.least_seconds(Work(10, 400), "bf16") == 0.1
    assert Work(10, 50).intensity == 5


def test_a_copy_counts_twice_and_a_product_twice_its_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(roofline.COPIED, "cpu", 1000)
    monkeypatch.setitem(roofline.WIDTH, "cpu", 10)
    monkeypatch.setattr(roofline, "best_seconds", lambda run, device: run() is None or 0.5)
    found = measured_ceilings(("fp32", "bf16"), torch.device("cpu"))
    assert found.bytes_per_second == 2 * 1000 / 0.5
    assert found.flops_per_second == {"fp32": 2 * 10**3 / 0.5, "bf16": 2 * 10**3 / 0.5}


def test_the_fastest_try_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch:
        def __init__(self, device: torch.device) -> None: ...
        def mark(self) -> None: ...
        def seconds(self) -> list[float]:
            return [3.0, 1.0, 2.0]

    calls: list[int] = []
    monkeypatch.setattr(roofline, "Stopwatch", Watch)
    assert roofline.best_seconds(lambda: calls.append(1), torch.device("cpu")) == 1.0
    assert len(calls) == roofline.N_TRIES + 1  # one further call warms up
