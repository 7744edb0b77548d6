"""The attention maps of whole models."""

import pytest
import torch
from torch import nn

import attractor
from attractor.errors import InputError
from attractor.models import TransformerConfig

TINY = TransformerConfig(vocab_size=11, d_model=16, n_heads=4, n_layers=3, d_ff=16, max_seq_len=8)
TOKENS = torch.arange(12).view(2, 6) % 11


@pytest.mark.parametrize(
    ("attention", "n_maps"), [("standard", 4), ("gqa", 4), ("differential", 8), ("differential-v2", 8), ("uniform", 4)]
)
def test_maps_are_a_list_over_layers(attention: str, n_maps: int) -> None:
    """Criterion: there is one map per layer, B H T T (differential: B 2H T T), which is causal with rows that sum to
    one."""
    model = TINY.replace(attention=attention).build(seed=0)
    maps = attractor.attention_maps(model, TOKENS)
    assert len(maps) == 3
    for weights in maps:
        assert weights.shape == (2, n_maps, 6, 6)
        assert (weights.triu(1) == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, n_maps, 6))


def test_maps_are_those_of_the_layers_in_order() -> None:
    """Criterion: the map of layer i follows from its own queries and keys."""
    model = TINY.build(seed=0)
    maps = attractor.attention_maps(model, TOKENS)
    with attractor.capture("q_coupled", "k_coupled") as seen:
        model(TOKENS)
    for weights, q, k in zip(maps, seen["q_coupled"], seen["k_coupled"], strict=True):
        logits = (q @ k.mT / 2).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf)
        torch.testing.assert_close(weights, logits.softmax(-1))
    assert not torch.equal(maps[0], maps[1])


def test_maps_are_seen_through_activation_checkpointing() -> None:
    model = TINY.build(seed=0)
    plain = attractor.attention_maps(model, TOKENS)
    model.activation_checkpointing = True
    model.train()
    torch.testing.assert_close(attractor.attention_maps(model, TOKENS), plain)


def test_reading_maps_changes_nothing() -> None:
    model = TINY.build(seed=0)
    before, _ = model(TOKENS)
    attractor.attention_maps(model, TOKENS)
    assert torch.equal(model(TOKENS)[0], before)


def test_model_without_taps_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^model must have attention layers of attractor to give maps, found no tapped"
    ):
        attractor.attention_maps(nn.Embedding(11, 4), TOKENS)
