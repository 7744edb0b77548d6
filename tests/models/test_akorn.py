"""AKOrN: oscillators rotate, the coupling pulls them along the sphere, and a symmetric coupling lets them settle."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.attention import build
from attractor.attention.position import GridMatrices, GridRope
from attractor.errors import InputError
from attractor.models import AKOrN, AKOrNConfig
from attractor.models.akorn import kuramoto_step, tangent

SHAPE: dict[str, Any] = {"d_model": 32, "n_heads": 4, "max_seq_len": 16, "n_iterations": 5, "d_ff": 24}
WIDTHS = [2, 4, 8, 32]


def built(**changes: Any) -> AKOrN:
    model = AKOrNConfig(**SHAPE | changes).build(seed=0)
    assert isinstance(model, AKOrN)
    return model.eval()


def boards(batch: int = 3) -> Tensor:
    return torch.randint(0, 10, (batch, 16), generator=torch.Generator().manual_seed(0))


def on_spheres(*shape: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(drawn, dim=-1)


def lengths(model: AKOrN, state: Tensor) -> Tensor:
    return model.oscillators.grouped(state).norm(dim=-1)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_group_stays_on_its_sphere(width: int) -> None:
    model = built(oscillator_width=width)
    with torch.no_grad():
        for state in model.states(boards(), 20):
            torch.testing.assert_close(lengths(model, state), torch.ones(3, 16, 32 // width))


def test_with_trainable_scales_groups_have_the_learned_lengths() -> None:
    model = built(rms_norm=True)
    with torch.no_grad():
        torch.testing.assert_close(model(boards())[0], built()(boards())[0])  # scales start at 1
        model.oscillators.scale.fill_(1.7)
        *_, state = model.states(boards())
    torch.testing.assert_close(lengths(model, state), torch.full((3, 16, 8), 1.7))


@pytest.mark.parametrize("width", WIDTHS)
def test_omega_is_exactly_antisymmetric_before_and_after_training(width: int) -> None:
    model = built(oscillator_width=width).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = model.oscillators.omega().detach().clone()
    model.loss(boards(), boards())[0].backward()
    optimizer.step()
    omega = model.oscillators.omega()
    assert torch.equal(omega, -omega.mT)
    assert not torch.allclose(omega, before)


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_an_oscillator_alone_turns_by_arctan_of_its_frequency(gamma: float) -> None:
    """Criterion: with N = 2, no coupling and no stimulus, one step turns by arctan(gamma omega), and angles of steps
    add up."""
    frequency = torch.tensor([0.3, -1.2], dtype=torch.float64)
    omega = torch.zeros(2, 2, 2, dtype=torch.float64)
    omega[:, 1, 0], omega[:, 0, 1] = frequency, -frequency
    x = start = on_spheres(5, 2, 2)
    for _ in range(7):
        x = kuramoto_step(x, torch.zeros_like(x), omega, gamma)
    angles = 7 * (gamma * frequency).atan()
    (a, b), cos, sin = start.unbind(-1), angles.cos(), angles.sin()
    torch.testing.assert_close(x, torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_pull_is_tangent_to_the_sphere(width: int) -> None:
    x, y = on_spheres(50, width), 3 * on_spheres(50, width, seed=1)
    pull = tangent(x, y)
    assert (x * pull).sum(-1).abs().max() < 1e-14
    torch.testing.assert_close(tangent(x, pull), pull)
    assert tangent(x, 5 * x).abs().max() < 1e-14, "what already agrees does not pull"


@pytest.mark.parametrize("width", WIDTHS)
def test_energy_falls_under_a_symmetric_coupling_and_small_steps(width: int) -> None:
    """Criterion: this holds for any symmetric linear coupling among all channels of all cells, not for an antisymmetric
    one."""
    n_groups = 12
    drawn = on_spheres(n_groups * width, n_groups * width, seed=2)
    still = torch.zeros(n_groups, width, width, dtype=torch.float64)

    def energies(coupling: Tensor) -> Tensor:
        x, seen = on_spheres(20, n_groups, width), []
        for _ in range(60):
            y = (x.flatten(-2) @ coupling.T).unflatten(-1, (n_groups, width))
            seen.append(-(x * y).sum((-2, -1)))
            x = kuramoto_step(x, y, still, gamma=0.05)
        return torch.stack(seen)

    symmetric = energies(drawn + drawn.T)
    assert (symmetric.diff(dim=0) < 1e-12).all()
    assert (symmetric[-1] < symmetric[0] - 0.1).all()
    assert (energies(drawn + drawn.T + 20 * (drawn - drawn.T)).diff(dim=0) > 0).any()


def test_step_and_energy_are_the_papers_equations() -> None:
    model, tokens = built(gamma=0.6), boards()
    with torch.no_grad():
        x, c = model.start(tokens), model.stimulus(tokens)
        y = model.attention(x, causal_mask=False)[0] + c
        torch.testing.assert_close(model.coupling(x) + c, y)
        torch.testing.assert_close(model.energy(x, c), -(x * y).sum((1, 2)))
        groups, pulls = model.oscillators.grouped(x), model.oscillators.grouped(y)
        turned = (model.oscillators.omega() @ groups.unsqueeze(-1)).squeeze(-1)
        change = turned + pulls - (groups * pulls).sum(-1, keepdim=True) * groups
        expected = F.normalize(groups + 0.6 * change, dim=-1).flatten(-2)
        torch.testing.assert_close(model.step(x, c), expected)


def test_the_readout_depends_on_lengths_of_mixed_vectors_alone() -> None:
    """Criterion: a rotation of the mixed vectors changes no logit."""
    model = built()
    with torch.no_grad():
        *_, state = model.states(boards())
        before = model.read_out(state)
        turn = torch.linalg.qr(torch.randn(4, 4))[0]
        rows = model.lengths.mixture.weight
        rows.copy_((turn @ rows.unflatten(0, (-1, 4))).flatten(0, 1))
        torch.testing.assert_close(model.read_out(state), before, atol=1e-5, rtol=1e-4)


def test_a_convolution_reaches_one_cell_further_with_each_iteration() -> None:
    """Criterion: a 3 x 3 convolution on a board of 4 x 4 or another shape carries a change from a corner to adjacent
    cells only."""
    for width, reached in ((None, {0, 1, 4, 5}), (8, {0, 1, 8, 9}), (16, {0, 1})):
        model = built(coupling="conv", grid_width=width)
        state = model.start(boards(1)).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model.coupling(state)[0, 0].sum(), state)
        assert {int(cell) for cell in gradient[0].abs().sum(-1).nonzero()} == reached


@pytest.mark.parametrize(("width", "rule"), [(None, "a square number"), (5, "a multiple of grid_width=5")])
def test_a_board_that_is_no_grid_is_refused(width: int | None, rule: str) -> None:
    config = AKOrNConfig(**SHAPE, coupling="conv", grid_width=width)
    message = f"seq_len must be {rule} under coupling='conv', got 12; give a grid_width that fits"
    with pytest.raises(InputError, match=message):
        config.require_length(12)
    with pytest.raises(InputError, match=message):
        config.build(0)(boards()[:, :12])
    with torch.no_grad():
        assert math.isfinite(float(built(coupling="conv", grid_width=4)(boards()[:, :12])[0].sum()))


PUBLISHED: dict[str, Any] = {"positions": "grid-rope", "qkv_bias": True, "out_bias": True, "as_published": True}


def test_the_published_model_is_the_written_out_one() -> None:
    """Criterion: logits of the digits equal those of the authors' equations, written cell by cell in fp64."""
    model, tokens = built(**PUBLISHED, gamma=0.7).double(), boards()
    p = {name: parameter.detach() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for name in ("query", "key", "value", "output"):  # other matrices than those of the start
            p[f"rope.{name}"] += 0.1 * torch.randn(16, 4, 2, 2, generator=torch.Generator().manual_seed(0))
        logits, _ = model(tokens)

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def mapped(name: str, x: Tensor) -> Tensor:
        """Multiply the pairs (j, j + 4) of each head of 8 coordinates by the matrices of the cell."""
        pairs = x.unflatten(-1, (4, 2, 4)).transpose(-1, -2)  # B T heads pairs 2
        return torch.einsum("tnij,bthnj->bthni", p[f"rope.{name}"], pairs).transpose(-1, -2).flatten(-2)

    c = p["embedding.weight"][tokens]
    blank = (tokens == 0).unsqueeze(-1)
    x = F.normalize(torch.where(blank, p["standing_start.weight"], c).unflatten(-1, (8, 4)), dim=-1)
    omega = p["oscillators.frequencies"].norm()
    assert omega == pytest.approx(0.1)
    for _ in range(5):
        names = ("query", "key", "value")
        q, k, v = (mapped(name, linear(f"attention.project.{name}", x.flatten(-2))) for name in names)
        weights = (torch.einsum("bihk,bjhk->bhij", q, k) / 8**0.5).softmax(-1)
        context = mapped("output", torch.einsum("bhij,bjhk->bihk", weights, v).flatten(-2))
        y = (linear("attention.output.out", context.flatten(-2)) + c).unflatten(-1, (8, 4))
        turned = omega * torch.stack([x[..., 1], -x[..., 0], x[..., 3], -x[..., 2]], dim=-1)
        dx = turned + y - (x * y).sum(-1, keepdim=True) * x
        x = F.normalize(x + 0.7 * dx, dim=-1)
    m = linear("lengths.mixture", x.flatten(-2)).unflatten(-1, (32, 4)).norm(dim=-1) + p["lengths.bias"]
    m = m + linear("lengths.down", linear("lengths.up", m.relu()).relu())
    torch.testing.assert_close(logits[..., 1:], linear("head", linear("lengths.last", m.relu()).relu()))
    assert (logits.float().softmax(-1)[..., 0] == 0).all()


def test_the_published_model_trains_gamma_and_rotations_and_neither_omega_nor_the_start() -> None:
    model = built(**PUBLISHED).train()
    model.loss(boards(), boards().clamp(min=1))[0].backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert without == {"oscillators.frequencies", "standing_start.weight"}
    assert model.oscillators.gamma.grad != 0
    assert all(getattr(model.rope, name).grad.norm() > 0 for name in ("query", "key", "value", "output"))


def test_trained_rotations_start_as_rotations_by_row_and_column() -> None:
    layer, x = build("differential", d_model=32, n_heads=2), torch.randn(2, 16, 32)
    turns = [rope.at(torch.arange(16)) for rope in (GridRope(8, 16), GridMatrices(8, 16))]
    with torch.no_grad():
        fixed, trained = (layer(x, False, turn)[0] for turn in turns)
    torch.testing.assert_close(trained, fixed)


def test_the_published_model_takes_no_more_cells_than_it_stores_starts_of() -> None:
    model = built(**PUBLISHED | {"positions": "rope", "max_seq_len": 16})
    with pytest.raises(InputError, match="seq_len must be at most max_seq_len=16 under as_published"):
        model.config.require_length(20)
    with pytest.raises(InputError, match="max_seq_len must be at least the sequence's length, got 16 for"):
        model(torch.zeros(1, 20, dtype=torch.long))


def test_the_start_of_blanks_is_stored_with_the_published_model() -> None:
    """Criterion: a board of blanks starts from the stored noise in evaluation, and from other noise in training."""
    model = built(**PUBLISHED)
    blanks = torch.zeros(2, 16, dtype=torch.long)
    stored = model.normalised(model.state_dict()["standing_start.weight"])
    assert torch.equal(model.start(blanks), stored.expand(2, -1, -1))
    assert not torch.equal(model.train().start(blanks)[0], stored)
