"""ItrSA: its equation, its norms, the effects of injection and state length, and its learning."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.attention.presets import preset
from attractor.models import ItrSA, ItrSAConfig, PreNormItrSA, PreNormItrSAConfig
from attractor.tasks.sudoku import generate

SHAPE: dict[str, Any] = {"vocab_size": 5, "d_model": 64, "n_heads": 4, "max_seq_len": 16, "n_iterations": 8, "d_ff": 64}


def built(**changes: Any) -> ItrSA:
    model = ItrSAConfig(**SHAPE | changes).build(seed=0)
    assert isinstance(model, ItrSA)
    return model.eval()


def boards(batch: int = 4) -> Tensor:
    return torch.randint(0, 5, (batch, 16), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("norm", "factor"), [("unit", 1.0), ("rms", 8.0), ("none", None)])
def test_a_step_is_the_papers_equation(norm: str, factor: float | None) -> None:
    model = built(norm=norm, eta=0.7)
    tokens = boards()
    with torch.no_grad():
        if factor is not None:
            torch.nn.init.uniform_(model.state_norm.weight, 0.5, 2.0)
        state, stimulus = model.start(tokens), model.stimulus(tokens)
        moved = state + 0.7 * (stimulus + model.attention(state, causal_mask=False)[0])
        if factor is not None:
            moved = factor * model.state_norm.weight * moved / moved.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(model.step(state, stimulus), moved)
        expected = F.embedding(tokens, model.embedding.weight) + model.positions.weight
        torch.testing.assert_close(stimulus, expected)


def test_the_readout_of_akorn_sees_lengths_of_mixtures_alone() -> None:
    model = built(readout_width=4)
    with torch.no_grad():
        *_, state = model.states(boards())
        mixtures = (state @ model.lengths.mixture.weight.T).view(4, 16, 64, 4)
        lengths = mixtures.square().sum(-1).sqrt() + model.lengths.bias
        expected = model.head((lengths + model.lengths.mlp(lengths)).relu())
        torch.testing.assert_close(model(boards())[0], expected)


def test_prenorm_is_the_other_papers_equation() -> None:
    model = PreNormItrSAConfig(**SHAPE).build(seed=0)
    assert isinstance(model, PreNormItrSA)
    block, tokens = model.block, boards()
    with torch.no_grad():
        x = F.embedding(tokens, model.embedding.weight) + model.positions.weight
        for _ in range(8):
            x = x + block.attention(block.attention_norm(x), causal_mask=False)[0]
        x = x + block.mlp(block.mlp_norm(x))
        torch.testing.assert_close(model(tokens)[0], model.head(model.norm(x)))


def test_the_stimulus_acts_at_every_step_with_injection_and_only_at_the_start_without() -> None:
    for inject in (True, False):
        model = built(inject=inject, blank=None)
        state = model.start(boards())
        one, other = (model.step(state, stimulus) for stimulus in (state, -state))
        assert torch.equal(one, other) == (not inject)


def test_logits_at_the_start_are_those_of_ordinary_attention_at_any_width() -> None:
    """Without the scale for unit states, logits would be D times as small, and attention would be close to a mean."""
    spread = {}
    for d_model in (32, 128):
        for norm in ("unit", "rms"):
            model = built(d_model=d_model, norm=norm)
            with torch.no_grad():
                q, k, _ = model.attention.project(model.start(boards(8)))
            spread[d_model, norm] = float((q @ k.mT * model.attention.scale).std())
    for d_model in (32, 128):
        assert spread[d_model, "unit"] == pytest.approx(spread[d_model, "rms"], rel=1e-4)
    assert all(0.1 < value < 1.0 for value in spread.values())


@pytest.mark.parametrize(
    ("name", "options"),
    [("mla", {}), ("mla", {"latent_norm": True}), *((name, {"sigma_reparam": True}) for name in ("mla", "standard"))],
)
def test_latent_and_reparametrised_logits_start_as_under_rms(name: str, options: dict[str, bool]) -> None:
    spread = []
    for norm in ("unit", "rms"):
        model = built(attention=preset(name).replace(**options), norm=norm)
        with torch.no_grad():
            q, k, _ = model.attention.project(model.start(boards(8)))
        spread.append(float((q @ k.mT).std()))
    assert spread[0] == pytest.approx(spread[1], rel=1e-3)


def test_orthogonal_values_and_energies_run_in_half_precision() -> None:
    orthogonal = preset("standard").replace(orthogonal_values=True)
    for model in (built(attention=orthogonal), built(energy="multi")):
        assert model.bfloat16()(boards())[0].isfinite().all()


@pytest.mark.parametrize("changes", [{}, {"eta": 0.3}, {"positions": "grid"}, {"inject": False, "blank": None}])
def test_unit_rows_and_rms_rows_of_one_seed_start_as_one_model_in_other_units(changes: dict[str, Any]) -> None:
    """Criterion: all states under "rms" are those under "unit" times sqrt(D), so Jacobians and logits are equal."""
    unit, rms = (built(norm=norm, **changes).double() for norm in ("unit", "rms"))
    with torch.no_grad():
        for ours, theirs in zip(unit.states(boards(), 8), rms.states(boards(), 8), strict=True):
            torch.testing.assert_close(ours * SHAPE["d_model"] ** 0.5, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"norm": "rms"}, {"positions": "rope"}])
def test_the_stimulus_starts_as_large_as_the_state(changes: dict[str, Any]) -> None:
    model = built(**changes)
    with torch.no_grad():
        stimulus, state = model.stimulus(boards(16)), model.start(boards(16))
    assert float(stimulus.norm(dim=-1).mean() / state.norm(dim=-1).mean()) == pytest.approx(1.0, rel=0.2)


@pytest.mark.slow
def test_small_sudoku_is_learned_within_200_steps() -> None:
    """Criterion: accuracy on the blanks of unseen boards exceeds 70%; guessing among four digits would reach 25%."""
    drawn = generate(1200, (6, 8), seed=0, size=4)
    given, solved = (torch.as_tensor(part.reshape(len(part), -1)).long() for part in drawn)
    model = built(n_iterations=6).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    torch.manual_seed(0)
    for step in range(200):
        chosen = torch.arange(32 * step, 32 * (step + 1)) % 1000
        loss, _ = model.loss(given[chosen], solved[chosen])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    _, likeliest = model.judge(given[1000:], solved[1000:])
    blank = given[1000:] == 0
    assert float((likeliest == solved[1000:])[blank].float().mean()) > 0.7
