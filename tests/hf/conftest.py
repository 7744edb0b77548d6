"""A fixture that writes run folders with invented results."""

import math

import pytest

from attractor.runs.run_folder import RunFolder

TOKENS = 1_000_000


@pytest.fixture
def fake_runs(tmp_path):
    """`fake_runs(standard=[1.6, 1.7])` writes a run for each seed that ends at the given validation loss.

    A loss of None leaves the run unfinished.
    """

    def write(losses=None, **by_name):
        runs = []
        for label, of_label in ((losses or {}) | by_name).items():
            for seed, loss in enumerate(of_label):
                config = {"label": label, "seed": seed, "model": {"attention": label, "d_model": 64}, "lr": 2e-3}
                run = RunFolder.create(tmp_path / f"run-{len(list(tmp_path.iterdir())):02}", config)
                runs.append(run)
                for step in range(1, 11):
                    seen = {"step": step, "tokens": TOKENS * step // 10}
                    run.append(seen | {"loss": 3.0 / step})
                    run.append(seen | {"valid_loss": (loss or 2.0) + 1 / step - 0.1})
                if loss is not None:
                    run.write_summary(_summary(loss))
        return runs

    return write


def _summary(loss):
    return {
        "metric": {"name": "perplexity", "value": math.exp(loss), "better": "lower"},
        "valid_loss": loss,
        "context_gain": 0.31,
        "n_parameters": 1_234_567,
        "tokens_per_second": 45_123.0,
        "peak_memory_bytes": 123_456_789,
        "steps": 10,
        "tokens": TOKENS,
        "skipped_steps": 0,
        "wall_seconds": 12.5,
    }
