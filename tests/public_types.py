"""Types of public names, as users of the package see them. `make check` proves them; nothing here is run."""

from pathlib import Path
from typing import assert_type

from torch import Tensor

import attractor
from attractor.attention import Attention, AttentionConfig
from attractor.attention.whole import WholeLayer
from attractor.models import Transformer, TransformerConfig
from attractor.train.config import TrainConfig


def types_of_results() -> None:
    run = attractor.load("runs/one")
    assert_type(run, attractor.RunResult | attractor.StudyResult | attractor.RunsResult)
    assert isinstance(run, attractor.RunResult)
    assert_type(run.config, TrainConfig)
    assert_type(run.best_loss, float | None)
    assert_type(attractor.compare([Path("runs/one"), run]), attractor.StudyResult)


def types_of_models() -> None:
    assert_type(attractor.attention.PRESETS, dict[str, AttentionConfig])
    assert_type(attractor.attention.build("gated", d_model=8, n_heads=2), Attention | WholeLayer)
    assert_type(TransformerConfig().replace(n_layers=2), TransformerConfig)
    assert_type(TransformerConfig().build(), Transformer)
    assert_type(attractor.tap("name", Tensor()), Tensor)
