"""Validation equals its definition, computed token by token."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.kernels.cross_entropy import NOT_SCORED
from attractor.models import Transformer
from attractor.tasks import Batch
from attractor.train.config import TrainConfig
from attractor.train.evaluate import Evaluation, validate


class Batches:
    """A task that consists of the given validation batches."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = batches

    def valid_batches(self, batch_size: int, max_batches: int | None = None, part: str = "valid") -> Iterator[Batch]:
        return iter(self.batches)


def numbers(seed: int, rows: int, length: int) -> Batch:
    tokens = np.random.default_rng(seed).integers(0, 320, (rows, length + 1))
    return Batch(tokens[:, :-1].copy(), tokens[:, 1:].copy())


@pytest.fixture
def model(config: TrainConfig) -> Transformer:
    """Return a model with confident predictions, so that losses differ widely between tokens."""
    built = config.model.build(3)
    with torch.no_grad():
        built.embedding.weight.mul_(20)
    return built


def directly(model: Transformer, *batches: Batch) -> tuple[Tensor, Tensor]:
    """Compute the loss (NaN where not scored) and the correctness of every token from the logits."""
    model.eval()
    losses, hits = [], []
    for tokens, targets, _ in batches:
        with torch.no_grad():
            logits, _ = model(torch.from_numpy(tokens))
        wanted = torch.from_numpy(targets)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.clamp(min=0).flatten(), reduction="none").view_as(wanted)
        losses.append(torch.where(wanted == NOT_SCORED, math.nan, loss).double())
        hits.append(logits.argmax(-1) == wanted)
    return torch.cat(losses), torch.cat(hits)


def measure(model: Transformer, *batches: Batch) -> Evaluation:
    return validate(model, Batches(*batches), TrainConfig())  # type: ignore[arg-type]


def test_loss_accuracy_and_gain_follow_their_definitions(model: Transformer) -> None:
    """Criterion: loss is the mean negative log-likelihood over scored tokens, accuracy the share of them where the
    likeliest is right. The gain is the loss on the first 16 positions minus that on the last half. Batches of unequal
    size and with unscored targets count by their scored tokens."""
    batches = [numbers(seed, rows, 40) for seed, rows in ((0, 4), (1, 4), (2, 1))]
    batches[1][1][:, 5:30] = NOT_SCORED
    batches[0][1][1] = NOT_SCORED
    model.eval()
    with torch.no_grad():  # makes some answers right, so that the accuracy is not 0
        right = model(torch.from_numpy(batches[0][0]))[0].argmax(-1).numpy()
    batches[0][1][2:, ::3] = right[2:, ::3]
    losses, hits = directly(model, *batches)
    result = measure(model, *batches)
    assert result.loss == pytest.approx(float(losses.nanmean()), rel=1e-5)
    assert result.accuracy == pytest.approx(float(hits.sum() / (~losses.isnan()).sum()))
    assert 0.05 < result.accuracy < 0.5
    gain = losses[:, :16].nanmean() - losses[:, 20:].nanmean()
    assert result.context_gain == pytest.approx(float(gain), abs=1e-5)


def test_no_gain_is_reported_where_the_two_ranges_overlap_or_are_empty(model: Transformer) -> None:
    assert measure(model, numbers(0, 4, 31)).context_gain is None
    assert measure(model, numbers(0, 4, 32)).context_gain is not None
    for stretch in (slice(0, 16), slice(16, None)):
        tokens, targets, _ = numbers(0, 4, 32)
        targets[:, stretch] = NOT_SCORED
        result = measure(model, Batch(tokens, targets))
        assert result.context_gain is None
        assert math.isfinite(result.loss)


def test_the_size_of_batches_changes_nothing(config: TrainConfig, model: Transformer) -> None:
    task = config.task.build(16, 0)
    configs = [config.replace(batch_size=size, eval_batches=None) for size in (1, 7, 64)]
    results = [validate(model, task, each) for each in configs]
    assert [r.accuracy for r in results] == [results[0].accuracy] * 3
    assert [r.loss for r in results] == pytest.approx([results[0].loss] * 3, rel=1e-6)


def test_dropout_is_off_the_mode_is_restored_and_no_gradient_is_left(model: Transformer) -> None:
    batch = numbers(0, 4, 32)
    for training in (True, False):
        model.train(training)
        assert measure(model, batch) == measure(model, batch)
        assert model.training is training
    assert all(p.grad is None for p in model.parameters())


def test_the_metric_is_the_tasks_own_and_a_diverged_loss_is_a_large_perplexity() -> None:
    result = Evaluation(loss=2.0, accuracy=0.25, context_gain=None)
    assert result.metric("perplexity") == {"name": "perplexity", "value": math.exp(2.0), "better": "lower"}
    assert result.metric("accuracy") == {"name": "accuracy", "value": 0.25, "better": "higher"}
    values = [Evaluation(loss, 0.0, None).metric("perplexity")["value"] for loss in (1e6, math.inf, math.nan)]
    assert values[0] == values[1] > 1e300
    assert math.isnan(values[2])  # type: ignore[arg-type]
