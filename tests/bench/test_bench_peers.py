"""Peers have the shape of our models: parameters, logits at every position, causality and cached generation."""

import math
from importlib.util import find_spec

import pytest
import torch

from attractor.bench.cases import model_and_loss, our_config, prompts, tokens_of
from attractor.bench.peers import PEERS, installed_peers
from attractor.bench.shape import BenchShape

CPU = torch.device("cpu")
SHAPE = BenchShape(vocab_size=50, d_model=64, n_heads=2, n_layers=2, d_ff=96, seq_len=32, n_tokens=32)
# The parameters that a peer has beyond our equivalent model.
MORE = {
    "hf-llama": 0,
    "hf-qwen3": 0,
    "hf-diffllama": -SHAPE.n_layers * SHAPE.d_model // SHAPE.n_heads,
    "x-transformers": 2 * SHAPE.n_layers * SHAPE.d_ff,
}
INSTALLED = [
    pytest.param(name, marks=pytest.mark.skipif(not peer.installed, reason=f"{peer.package} is not installed"))
    for name, peer in PEERS.items()
]


@pytest.mark.parametrize("name", INSTALLED)
def test_parameters_are_those_of_ours_up_to_known_differences(name: str) -> None:
    model, _ = model_and_loss(name, SHAPE, CPU)
    ours = our_config(name, SHAPE).build(seed=0)
    theirs = sum(parameter.numel() for parameter in model.parameters())
    assert theirs - sum(parameter.numel() for parameter in ours.parameters()) == MORE[name]


@pytest.mark.parametrize("name", INSTALLED)
def test_an_untrained_peer_guesses_and_is_causal(name: str) -> None:
    """Criterion: the loss is close to the log of the vocabulary size, and another last token changes no earlier
    logits."""
    model, loss = model_and_loss(name, SHAPE, CPU)
    tokens = tokens_of(SHAPE, CPU)
    with torch.no_grad():
        assert float(loss(tokens)) == pytest.approx(math.log(SHAPE.vocab_size), abs=1.0)
        other = torch.cat([tokens[:, :-1], (tokens[:, -1:] + 1) % SHAPE.vocab_size], dim=1)
        before, after = (PEERS[name].logits(model, sequence)[:, :-1] for sequence in (tokens, other))
    assert torch.allclose(before, after, atol=1e-5)


@pytest.mark.parametrize("name", INSTALLED)
def test_a_peer_generates_the_requested_number_of_tokens(name: str) -> None:
    """The result of a peer's `generate` may begin with the prompt."""
    model, _ = model_and_loss(name, SHAPE, CPU)
    prompt = prompts(SHAPE.vocab_size, 2, CPU)
    with torch.no_grad():
        spoken = PEERS[name].generate(model.eval(), prompt, 5)
    assert spoken.shape in {(2, 5), (2, prompt.shape[1] + 5)}


def test_a_peer_without_its_package_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attractor.bench.peers.find_spec", lambda name: None)
    assert installed_peers() == {}
    monkeypatch.setattr("attractor.bench.peers.find_spec", find_spec)
    assert set(installed_peers()) <= set(PEERS)
