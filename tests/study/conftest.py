"""The run for the tests of launchers: a tiny model that learns squares."""

import pytest

from attractor.models import TransformerConfig
from attractor.tasks.text import Text
from attractor.train.config import TrainConfig


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("".join(f"{i} squared is {i * i}\n" for i in range(400)))
    model = TransformerConfig(
        vocab_size=320, d_model=16, n_heads=2, n_layers=1, d_ff=32, max_seq_len=64, positions="rope"
    )
    return TrainConfig(
        model=model,
        task=Text(str(path)),
        n_steps=12,
        batch_size=4,
        seq_len=32,
        warmup_steps=1,
        eval_every=6,
        eval_batches=2,
    )
