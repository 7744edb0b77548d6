"""The least work of a stage: products as torch counts them, and pairs and numbers as a loop counts them."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attractor.attention import PRESETS, build
from attractor.attention.score.decayed import Decayed
from attractor.attention.score.differential import Differential
from attractor.attention.score.softmax import Softmax
from attractor.attention.score.uniform import Uniform
from attractor.bench.least_work import coupling_flops, n_trained, readout_flops, scoring_flops, work_of

B, H, T, K, V = 2, 4, 6, 8, 10
MOVING = [name for name, config in PRESETS.items() if config.couple.moves]


@pytest.mark.parametrize("name", MOVING)
def test_products_of_coupling_are_those_that_torch_counts(name: str) -> None:
    """Torch counts the plain path on the meta device."""
    with torch.device("meta"):
        layer = build(name, d_model=64, n_heads=4)
        layout = layer.layout
        q = torch.empty(B, layout.n_queries, T, layout.free)
        k = torch.empty(B, layout.n_kv_heads, T, layout.free)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer.couple(q, k)
    assert coupling_flops(layer.config.couple, q, k) == counter.get_total_flops() > 0


def pairs() -> int:
    return sum(1 for t in range(T) for s in range(T) if s <= t)


def test_scores_are_counted_pair_by_pair() -> None:
    """Criterion: two FLOPs for each product of a query's number with a key's, and of a weight with a value's."""
    q, k, context = torch.empty(B, H, T, K), torch.empty(B, H, T, K), torch.empty(B, H, T, V)
    assert scoring_flops(Softmax(), q, k, context) == 2 * B * H * pairs() * (K + V)
    assert scoring_flops(Uniform(), q, k, context) == 0


def test_a_state_is_written_by_every_key_and_read_by_every_query() -> None:
    """Criterion: as in the recurrence, each position takes K V products for k v' and K V for q' S."""
    q, k, context = torch.empty(B, H, T, K), torch.empty(B, H // 2, T, K), torch.empty(B, H, T, V)
    by_hand = sum(2 * K * V * (H + H // 2) for _ in range(B) for _ in range(T))
    assert scoring_flops(Decayed(), q, k, context) == by_hand


def test_a_difference_multiplies_with_the_values_once() -> None:
    q, k, context = torch.empty(B, 2 * H, T, K), torch.empty(B, 2 * H, T, K), torch.empty(B, H, T, V)
    assert scoring_flops(Differential(), q, k, context) == 2 * B * H * pairs() * (2 * K + V)


def test_the_readout_is_one_product() -> None:
    hidden, weight = torch.empty(7, K, device="meta"), torch.empty(11, K, device="meta")
    with FlopCounterMode(display=False) as counter:
        hidden @ weight.mT
    assert readout_flops(hidden, weight) == counter.get_total_flops()


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_those_of_tensors_read_and_written(size: int) -> None:
    """A forward pass reads inputs and parameters and writes outputs. A backward pass reads inputs, parameters and the
    gradients of outputs, and writes the gradients of inputs and parameters."""
    linear = nn.Linear(5, 3)
    inputs, outputs, parameters = 7 * 5, 7 * 3, n_trained(linear)
    assert parameters == 5 * 3 + 3
    forward = work_of(inputs, outputs, parameters, 100.0, size, backward=False)
    assert (forward.n_bytes, forward.flops) == (size * (inputs + parameters + outputs), 100)
    read_back, written_back = inputs + outputs + parameters, inputs + parameters
    both = work_of(inputs, outputs, parameters, 100.0, size, backward=True)
    assert both.n_bytes == forward.n_bytes + size * (read_back + written_back)
    assert both.flops == 3 * forward.flops
