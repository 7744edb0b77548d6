"""The probe of two timescales gives known numbers for known models, and also those of the initial weights."""

from functools import partial

import pytest
import torch

from attractor.models import FastSlow, FastSlowConfig
from attractor.models.diagnostics import Diagnostics
from attractor.train.config import TrainConfig
from papers.fast_slow.probes.timescales import N_SEQUENCES, jacobian, timescales_of_run

MODEL = FastSlowConfig(vocab_size=320, d_model=16, n_heads=2, d_ff=32, max_seq_len=64)


@pytest.fixture
def fast_slow(base: TrainConfig) -> TrainConfig:
    return base.replace(model=MODEL)


def built(config: TrainConfig, gamma: float = 1.0) -> FastSlow:
    model = config.model.build(config.seed)
    assert isinstance(model, FastSlow)
    with torch.no_grad():
        model.injection.gate.fill_(gamma)
    return model.eval()


def test_an_untrained_run_has_the_numbers_of_its_start(fast_slow: TrainConfig) -> None:
    found = timescales_of_run(built(fast_slow, gamma=0.0), fast_slow)["timescales"]
    assert found.pop("at_start") == found
    names = {"gate", "slow_memory", "residual", "contraction", "lumpability", "column_sums"}
    assert found.keys() >= names
    assert len(found["lumpability"]["by_call"]["defect"]) == 3  # one call of Pre, and one of Post in each of two rounds
    assert len(found["fast_change"]) == 3


def test_a_post_that_changes_nothing_is_a_step_of_a_generator(fast_slow: TrainConfig) -> None:
    """Criterion: its Jacobian is the identity, so all columns sum to 1; those of a random Post do not."""
    model = built(fast_slow)
    with torch.no_grad():
        for block in model.blocks_of(model.post):
            block.attention.output.out.weight.zero_()
            block.mlp.down.weight.zero_()
    found = timescales_of_run(model, fast_slow)["timescales"]
    assert found["column_sums"] == {"lowest": 1.0, "mean": 1.0, "largest": 1.0}
    assert found["contraction"] == found["residual"] == 0
    start = found["at_start"]["column_sums"]
    assert start["lowest"] < 0.9 < 1.1 < start["largest"]


def test_column_sums_are_those_of_the_whole_jacobian(fast_slow: TrainConfig) -> None:
    """Criterion: the sums equal those of the dense Jacobian over all outputs of an entry, at u of each round."""
    model = built(fast_slow)
    tokens = torch.randint(320, (1, 9), generator=torch.Generator().manual_seed(0))
    sums = []
    for post, u in Diagnostics(model, partial(model.hidden, tokens)).posts():
        formed = torch.autograd.functional.jacobian(post, u.detach())
        sums.append(formed.reshape(u.numel(), u.numel()).sum(0))
    expected = torch.cat(sums)
    found = jacobian(model, tokens)["column_sums"]
    wanted = [float(x) for x in (expected.min(), expected.mean(), expected.max())]
    assert [found[name] for name in ("lowest", "mean", "largest")] == pytest.approx(wanted, rel=1e-4)


def test_lumpability_is_that_of_the_fast_paths_maps_over_blocks(fast_slow: TrainConfig) -> None:
    """Criterion: uniform causal attention sends all weight that leaves a block to the same blocks, so defect (4) is 0
    and the whole defect is within blocks."""
    config = fast_slow.replace(attention="uniform")
    found = timescales_of_run(built(config), config)["timescales"]["lumpability"]["by_call"]
    assert found["of_departures"] == pytest.approx([0.0] * 3, abs=1e-6)
    assert min(found["defect"]) > 0.01


def test_under_deq_the_unsolved_tokens_are_recorded_as_a_share(fast_slow: TrainConfig) -> None:
    config = fast_slow.replace(equilibrium="deq", n_iterations=2)
    found = timescales_of_run(built(config), config)["timescales"]
    assert 0 < found["unsolved"] <= 1
    assert (found["unsolved"] * 2 * N_SEQUENCES * config.seq_len) % 1 == pytest.approx(0, abs=1e-6)


def test_other_models_have_one_timescale(base: TrainConfig) -> None:
    assert timescales_of_run(base.model.build(0), base) == {"timescales": {}}
