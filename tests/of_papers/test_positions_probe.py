"""The probe of positions: octaves cover every position once, and a model that sees no further gains nothing further."""

import math

import pytest

from attractor.train.config import TrainConfig
from attractor.train.evaluate import Evaluation, validate
from papers.fast_slow.probes import positions
from papers.fast_slow.probes.positions import octaves, positions_of_run


@pytest.mark.parametrize(
    ("length", "starts"), [(1, [0]), (16, [0]), (17, [0, 16]), (64, [0, 16, 32]), (100, [0, 16, 32, 64])]
)
def test_octaves_begin_at_powers_of_two(length: int, starts: list[int]) -> None:
    assert octaves(length) == starts


def test_losses_by_octave_average_to_the_loss(base: TrainConfig) -> None:
    """Every position of text is scored, so the octaves' losses, weighted by their lengths, are the loss of the run."""
    model = base.model.build(0)
    measured = positions_of_run(model, base)["positions"]
    starts, losses = [int(start) for start in measured["loss"]], list(measured["loss"].values())
    lengths = [end - start for start, end in zip(starts, [*starts[1:], base.seq_len], strict=True)]
    total = sum(n * loss for n, loss in zip(lengths, losses, strict=True))
    assert total / base.seq_len == pytest.approx(validate(model, base.build_task(), base).loss, rel=1e-6)
    gains = {start: loss - losses[-1] for start, loss in measured["loss"].items()}
    assert measured["gain"] == pytest.approx(gains)


def test_an_octave_without_a_scored_position_has_no_loss(base: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    by_position = (*[math.nan] * 16, *[2.0] * 8, *[math.nan] * 8, *[1.5] * 32)
    monkeypatch.setattr(
        positions, "validate", lambda *given: Evaluation(1.7, 0.5, None, by_position=tuple(by_position))
    )
    measured = positions_of_run(base.model.build(0), base)["positions"]
    assert measured == {
        "loss": {"0": None, "16": 2.0, "32": 1.5},
        "gain": {"0": None, "16": 0.5, "32": 0.0},
    }
