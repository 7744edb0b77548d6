"""The probe of attention's logits agrees with the logits themselves and does not affect training."""

import pytest
import torch
from subjects import SCORING
from torch import nn

from attractor import capture
from attractor.control import LogitProbe, QuacK
from attractor.errors import InputError
from attractor.models import Transformer, TransformerConfig
from tiers import tiered

SMALL = TransformerConfig(
    vocab_size=23, d_model=32, n_heads=4, n_layers=2, d_ff=32, max_seq_len=32, positions="rope", dropout=0.1
)
TOKENS = torch.arange(2 * 12).view(2, 12) % 23


def probed(name: str) -> tuple[Transformer, LogitProbe]:
    model = SMALL.replace(attention=name).build(0)
    return model, LogitProbe(model, lambda: model(TOKENS))


def logits(model: nn.Module) -> list[torch.Tensor]:
    training = model.training
    with capture("logits") as seen, torch.no_grad():
        model.eval()(TOKENS)
    model.train(training)
    return seen["logits"]


@pytest.mark.parametrize("name", tiered(SCORING))
def test_maxima_and_changes_are_those_of_the_logits(name: str) -> None:
    """Criterion: they agree over all heads of a layer, in any order, and over pairs s <= t, after every parameter has
    moved."""
    model, probe = probed(name)
    first, before = probe.look(), logits(model)
    assert "logit_change" not in first
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    second, after = probe.look(), logits(model)
    allowed = torch.ones(12, 12, dtype=torch.bool).tril()
    for layer in range(2):
        for look, found in ((first, before), (second, after)):
            expected = found[layer][..., allowed].amax((0, 2)).sort().values
            assert sorted(look["max_logit"][layer]) == pytest.approx(expected.tolist(), abs=1e-5)
        change = (after[layer] - before[layer])[..., allowed].abs().mean((0, 2)).sort().values
        assert sorted(second["logit_change"][layer]) == pytest.approx(change.tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["standard", "mla", "differential"])
def test_norms_are_those_of_the_heads(name: str) -> None:
    _, probe = probed(name)
    look = probe.look()
    for layer, view in enumerate(probe.views):
        for part, rows in view.parts().items():
            expected = [rows.of(head).norm().item() for head in range(rows.n_heads)]
            assert look[f"{part}_norm"][layer] == pytest.approx(expected)


def test_a_probe_does_not_affect_the_model_and_reports_the_rates_of_quack() -> None:
    """Criterion: random state, modes, gradients and hooks stay as before; after a step the probe reports one rate per
    head."""
    model, probe = probed("standard")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    quack = QuacK(model, optimizer, tau=0.5)
    model.train()
    model.blocks[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    model(TOKENS)[0].sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    state = torch.get_rng_state()
    assert "query_rate" not in probe.look(quack)
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: module.training for name, module in model.named_modules()} == modes
    for name, gradient in gradients.items():
        assert torch.equal(dict(model.named_parameters())[name].grad, gradient)
    assert not any(module._forward_pre_hooks for module in model.modules())
    optimizer.step()
    assert probe.look(quack)["query_rate"] == [pytest.approx([0.5] * 4)] * 2


def test_the_last_logits_are_restored_from_its_state() -> None:
    model, probe = probed("mla")
    probe.look()
    again = LogitProbe(model, lambda: model(TOKENS))
    again.load_state_dict(probe.state_dict())
    with torch.no_grad():
        model.embedding.weight.mul_(2)
    assert again.look() == probe.look()


@pytest.mark.parametrize("other", [TOKENS[:1], TOKENS[:, :7]])
def test_a_batch_of_another_shape_is_refused(other: torch.Tensor) -> None:
    """Criterion: a row alone, which torch would broadcast, and a shorter batch are refused. A new probe takes them."""
    model, batches = SMALL.build(0), [TOKENS, other]
    probe = LogitProbe(model, lambda: model(batches[0]))
    probe.look()
    del batches[0]
    with pytest.raises(InputError, match=r"the batch of a probe must keep its shape, .* had \(4, 2, 12, 12\) at the"):
        probe.look()
    assert "logit_change" not in LogitProbe(model, lambda: model(other)).look()


def test_a_model_whose_logits_cannot_be_seen_is_refused() -> None:
    _, probe = probed("uniform")
    assert probe.views == []
    with pytest.raises(InputError, match="model must have attention that scores queries against keys"):
        probe.look()
    idle = LogitProbe(probed("standard")[0], lambda: None)
    with pytest.raises(InputError, match=r"must attend through .* but 'blocks\.0\.attention' did neither"):
        idle.look()
