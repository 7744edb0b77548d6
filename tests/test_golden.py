"""Golden losses: twenty optimizer steps of every preset on artificial data, so that no refactor changes training
unnoticed.

After a change that is meant to alter training, raise the version of the changed computation in
`attractor/train/formulas.py`, so that older runs do not count as new ones. Then write the losses again with `python
tests/test_golden.py [NAME ...]`, and give the reason in the commit.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from attractor.attention import PRESETS
from attractor.models import TransformerConfig
from attractor.train.config import TrainConfig
from attractor.train.optimizer import build_optimizer

GOLDEN = Path(__file__).with_name("golden.json")
N_STEPS, VOCABULARY = 20, 61


def batch(step: int) -> torch.Tensor:
    """Return sequences with a random start in which each token follows from the two before it; four batches repeat."""
    raw = np.random.Philox(key=np.array([0, step % 4], dtype=np.uint64)).random_raw(8)
    tokens = np.zeros((4, 25), dtype=np.int64)
    tokens[:, :2] = (raw % VOCABULARY).astype(np.int64).reshape(4, 2)
    for t in range(2, tokens.shape[1]):
        tokens[:, t] = (3 * tokens[:, t - 1] + tokens[:, t - 2] + 7) % VOCABULARY
    return torch.from_numpy(tokens)


def losses(attention: str) -> list[float]:
    model = TransformerConfig(VOCABULARY, 32, 4, n_layers=2, d_ff=64, max_seq_len=32, attention=attention).build(seed=0)
    optimizer = build_optimizer(model, TrainConfig(lr=2e-3))
    measured = []
    for step in range(N_STEPS):
        tokens = batch(step)
        loss, aux_loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        (loss + aux_loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        measured.append(loss.item())
    return measured


@pytest.mark.parametrize("attention", PRESETS)
def test_losses_of_twenty_steps_are_the_golden_ones(attention: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert attention in golden, f"no golden losses of '{attention}' yet: run `python {Path(__file__).name}` in tests/"
    np.testing.assert_allclose(losses(attention), golden[attention], rtol=1e-3)


def test_presets_that_compute_different_things_have_different_losses() -> None:
    """Otherwise the golden numbers would protect nothing."""
    last = {name: values[-1] for name, values in json.loads(GOLDEN.read_text()).items()}
    # Presets gqa and mqa coincide here, since a quarter of four heads is one.
    last.pop("mqa")
    assert len({round(value, 5) for value in last.values()}) == len(last)


if __name__ == "__main__":
    golden = json.loads(GOLDEN.read_text())
    golden |= {name: [round(x, 6) for x in losses(name)] for name in sys.argv[1:] or PRESETS}
    rows = (f'  "{name}": {json.dumps(golden[name])}' for name in PRESETS if name in golden)
    GOLDEN.write_text("{\n" + ",\n".join(rows) + "\n}\n")
