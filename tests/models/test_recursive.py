"""Recursive models: the written-out recursion, segments that carry a constant state, exact sizes, halting."""

import gc
from typing import Any
from weakref import WeakSet

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.attention import PRESETS
from attractor.attention.hooks import capture
from attractor.errors import InputError
from attractor.models import SIZES, Recursive, RecursiveConfig
from attractor.models.recursive import stable_logits
from attractor.train.parts import forward_flops, training_flops
from tiers import tiered

SHAPE: dict[str, Any] = {"d_model": 8, "n_heads": 2, "d_ff": 12, "max_seq_len": 16, "n_layers": 2, "n_inner": 2}
CONFIG = RecursiveConfig(**SHAPE, n_iterations=6, n_segments=3)
TRM = SIZES["recursive"].replace(positions="grid", halting=True)


def built(**changes: Any) -> Recursive:
    return CONFIG.replace(**changes).build(seed=0).double().train()


def boards(seed: int = 0) -> Tensor:
    return torch.randint(0, 10, (3, 16), generator=torch.Generator().manual_seed(seed))


def gradients(model: Recursive, loss: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def written_out(weights: dict[str, Tensor], tokens: Tensor, y: Tensor, z: Tensor, n: int) -> Tensor:
    """Return the logits after n iterations, with plain products and sums alone."""

    def norm(x: Tensor) -> Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt()

    def net(h: Tensor) -> Tensor:
        for number in range(2):

            def of(part: str, number: int = number) -> Tensor:
                return weights[f"blocks.{number}.{part}.weight"].mT

            q, k, v = ((h @ of(f"attention.project.{name}")).split(4, -1) for name in ("query", "key", "value"))
            heads = [torch.softmax(q[i] @ k[i].mT / 2, dim=-1) @ v[i] for i in range(2)]
            h = norm(h + torch.cat(heads, -1) @ of("attention.output.out"))
            gate, up = h @ of("mlp.gate"), h @ of("mlp.up")
            h = norm(h + (gate * torch.sigmoid(gate) * up) @ of("mlp.down"))
        return h

    c = weights["embedding.weight"][tokens] + weights["positions.weight"]
    for _ in range(n):
        for _ in range(2):
            z = net(z + y + c)
        y = net(y + z)
    return y @ weights["head.weight"].mT


def test_a_segment_with_full_gradient_is_the_written_out_recursion() -> None:
    model, tokens = built(full_gradient=True, blank=None), boards()
    weights = dict(model.named_parameters())
    y, z = model.start(tokens).chunk(2, dim=-1)
    logits = written_out(weights, tokens, y, z, n=2)
    expected = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss, aux_loss, state = model.segment_loss(tokens, tokens)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(model.read_out(state), logits, rtol=1e-10, atol=1e-12)
    assert aux_loss == 0
    torch.testing.assert_close(gradients(model, loss), gradients(model, expected), rtol=1e-9, atol=1e-12)


def test_gradients_pass_through_the_last_iteration_of_a_segment_alone() -> None:
    """Criterion: they are those of one iteration from the state before it, as a constant; full ones differ."""
    model, tokens = built(blank=None), boards()
    before_last = list(model.states(tokens, 1))[-1]
    one_iteration = built(blank=None, n_iterations=3)
    last = gradients(one_iteration, one_iteration.segment_loss(tokens, tokens, None, before_last)[0])
    full = built(blank=None, full_gradient=True)
    of_all = gradients(full, full.segment_loss(tokens, tokens)[0])
    found = gradients(model, model.segment_loss(tokens, tokens)[0])
    torch.testing.assert_close(found, last, rtol=0, atol=0)
    assert not torch.allclose(found["embedding.weight"], of_all["embedding.weight"], rtol=1e-3)


@pytest.mark.parametrize("full_gradient", [False, True])
def test_a_segment_has_no_gradient_from_the_segments_before(full_gradient: bool) -> None:
    model, tokens = built(full_gradient=full_gradient), boards()
    source = model.start(tokens).requires_grad_()
    first, _, state = model.segment_loss(tokens, tokens, None, source)
    assert state.grad_fn is None
    assert torch.autograd.grad(first, source, allow_unused=True) == (None,)
    starts = state, state.clone()
    second, as_constant = (gradients(model, model.segment_loss(tokens, tokens, None, start)[0]) for start in starts)
    torch.testing.assert_close(second, as_constant, rtol=0, atol=0)


@pytest.mark.parametrize("mixer", ["attention", "mlp"])
def test_carried_segments_are_one_evaluation(mixer: str) -> None:
    """Criterion: bit for bit, state by state; each loss is the cross-entropy of the evaluation cut off there."""
    model, tokens = built(mixer=mixer, stable_softmax=True).eval(), boards()
    with torch.no_grad():
        states, carried = list(model.states(tokens)), ()
        for segment in range(1, 4):
            loss, _, state = model.segment_loss(tokens, tokens, None, *carried)
            assert torch.equal(state, states[2 * segment])
            logits = model(tokens, n_iterations=2 * segment)[0]
            torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), tokens.flatten()))
            carried = (state,)
        losses, likeliest = model.judge(tokens, tokens)
    torch.testing.assert_close(losses.mean(), loss)
    assert torch.equal(likeliest, model.read_out(state).argmax(-1))


def test_the_energy_is_half_the_squared_distance_to_the_next_state() -> None:
    """Criterion: up to the constant of both spheres, D for each latent of a position."""
    model, tokens = built().eval(), boards()
    with torch.no_grad():
        state, stimulus = model.start(tokens), model.stimulus(tokens)
        distance = (state - model.step(state, stimulus)).square().sum((1, 2)) / 2
        constant = 2 * CONFIG.d_model * tokens.shape[1]
        torch.testing.assert_close(model.energy(state, stimulus), distance - constant)


def test_the_start_is_the_same_for_all_cells_models_and_seeds_but_for_noise_in_blanks() -> None:
    tokens = boards()
    starts = [CONFIG.replace(blank=None).build(seed).eval().start(tokens) for seed in (0, 1)]
    assert torch.equal(*starts)
    assert torch.equal(starts[0], starts[0][:1, :1].expand_as(starts[0]))
    assert torch.equal((built().float().eval().start(tokens) != starts[0]).any(-1), tokens == 0)


def test_stable_softmax_is_its_definition() -> None:
    logits = torch.tensor([-3.0, -0.5, 0.0, 0.25, 4.0], dtype=torch.float64, requires_grad=True)
    s = torch.where(logits < 0, 1 / (1 - logits), 1 + logits)
    torch.testing.assert_close(stable_logits(logits).softmax(-1), s / s.sum())
    (slope,) = torch.autograd.grad(stable_logits(logits).sum(), logits)
    torch.testing.assert_close(slope, 1 / (1 + logits.detach().abs())), "1 at 0"


def test_the_halting_head_learns_whether_all_scored_positions_are_right() -> None:
    model, tokens = built(halting=True).eval(), boards()
    targets = model.read_out(model.segment_loss(tokens, tokens)[2]).argmax(-1)
    targets[1, 3] = (targets[1, 3] + 1) % 10  # one wrong position
    targets[2, 5] = -100
    loss, aux_loss, state = model.segment_loss(tokens, targets)
    never = torch.full((3,), -5.0, dtype=torch.float64)
    assert torch.equal(model.halt_logits(state), never), "at the start nothing halts"
    right = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(aux_loss, 0.5 * F.binary_cross_entropy_with_logits(never, right), check_dtype=False)
    torch.testing.assert_close(loss, built().eval().segment_loss(tokens, targets)[0])
    assert gradients(model, aux_loss + loss)["halting.weight"].abs().max() > 0
    with pytest.raises(InputError, match="halting must be True"):
        built().halt_logits(state)


def test_padding_changes_no_halting_logit() -> None:
    model, tokens = built(halting=True, max_seq_len=19, blank=None).eval(), boards()
    torch.nn.init.normal_(model.halting.weight)  # type: ignore[union-attr]
    real = F.pad(torch.ones_like(tokens, dtype=torch.bool), (3, 0))
    padded = F.pad(tokens, (3, 0), value=4)
    _, _, state = model.segment_loss(tokens, tokens)
    _, _, with_padding = model.segment_loss(padded, F.pad(tokens, (3, 0), value=-100), real)
    torch.testing.assert_close(model.halt_logits(with_padding, real), model.halt_logits(state))


def test_the_published_sizes_come_out() -> None:
    """TRM's public code: a vocabulary of 11, 16 positions of a puzzle's embedding, no learned positions, a halting
    head of two outputs. That makes 5,028,866 parameters with MLPs over positions and 6,828,034 with attention."""
    with torch.device("meta"):
        count = {m: sum(p.numel() for p in TRM.replace(mixer=m).build().parameters()) for m in ("attention", "mlp")}
    width, cells, vocabulary = 512, 81, 10
    positions = 3 * 9 * width  # of rows, columns and boxes
    outer = 2 * vocabulary * width + positions + width + 1
    assert count["attention"] == outer + 2 * (4 * width**2 + 3 * width * 1536)
    assert count["mlp"] == outer + 2 * (3 * cells * 512 + 3 * width * 1536)
    ours = positions - 2 * width - (width + 1)
    assert count["attention"] == 6_828_034 + ours
    assert count["mlp"] == 5_028_866 + ours - 2 * 3 * 16 * 512


def test_a_step_costs_a_segment_forwards_and_one_iteration_backwards() -> None:
    config = CONFIG.replace(n_iterations=12)
    whole, (forward, backward) = forward_flops(config, 16), training_flops(config, 16)
    for part in ("project", "score", "mlp"):
        assert forward[part] == pytest.approx(whole[part] / 3)
        assert backward[part] == pytest.approx(2 * whole[part] / 12)
        full = training_flops(config.replace(full_gradient=True), 16)[1]
        assert full[part] == pytest.approx(2 * whole[part] / 3)
    assert whole["mlp"] == pytest.approx(12 * 3 * 2 * 2 * 3 * 8 * 12), "iterations, calls, layers, products"


@pytest.mark.parametrize("attention", tiered([x for x in PRESETS if x != "value-residual"]))  # of Transformers
def test_every_mechanism_serves(attention: str) -> None:
    model = built(attention=attention, d_model=32, n_heads=4).float()
    with capture("weights") as seen:
        loss, aux_loss, state = model.segment_loss(boards(), boards())
    (loss + aux_loss).backward()
    assert state.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert len(seen["weights"]) == 2 * 3 * 2, "iterations of a segment, updates, layers"


def test_mlps_over_positions_refuse_boards_of_another_size() -> None:
    with pytest.raises(InputError, match="max_seq_len must be 9, the sequence's length, under mixer='mlp', got 16"):
        CONFIG.replace(mixer="mlp").require_length(9)


class Kept:
    """What autograd keeps of an operation for the backward pass."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def test_a_segment_keeps_what_one_iteration_needs() -> None:
    """Criterion: with an auxiliary loss, too, 12 iterations keep no more for the backward pass than two."""

    def kept(n_iterations: int) -> int:
        attention = PRESETS["standard"].replace(z_loss=1e-3)
        model = built(n_iterations=n_iterations, n_segments=1, attention=attention)
        alive: WeakSet[Kept] = WeakSet()

        def keep(value: Tensor) -> Kept:
            alive.add(entry := Kept(value.detach()))  # the value itself would keep its own graph
            return entry

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda entry: entry.value):
            loss, aux_loss, _ = model.segment_loss(boards(), boards(1))
            total = loss + aux_loss
        gc.collect()
        assert total.requires_grad
        return sum(entry.value.numel() for entry in alive)

    assert kept(12) == kept(2)
