"""MuonAdamW equals torch's Muon and AdamW where these define the update, and orthogonalises head by head."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attractor.attention import PRESETS
from attractor.control.heads import query_key_heads
from attractor.control.views import Rows
from attractor.errors import InputError
from attractor.models import Transformer, TransformerConfig
from attractor.train import muon
from attractor.train.config import TrainConfig
from attractor.train.muon import MuonAdamW, muon_groups, orthogonalized
from attractor.train.optimizer import optimizer_groups
from attractor.train.parameters import parameter_groups
from tiers import fast_alone

MODEL = TransformerConfig(vocab_size=64, d_model=32, n_heads=4, n_layers=2, d_ff=48, max_seq_len=16)
LR, DECAY, BETAS = 3e-3, 0.1, (0.9, 0.95)


def model_of(attention: str = "standard", **changes: Any) -> Transformer:
    return MODEL.replace(attention=attention, **changes).build(seed=0)


def muon_of(model: nn.Module, decay: float = DECAY, per_head: bool = True) -> MuonAdamW:
    return MuonAdamW(model, muon_groups(model, decay, per_head), LR, BETAS, per_head)


def draw_gradients(model: nn.Module, step: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = (scale * torch.randn(parameter.shape, generator=generator)).to(parameter.dtype)


def test_matrices_of_a_batch_move_as_each_alone() -> None:
    """Criterion: the difference is one rounding of bf16 at most, and none in fp64."""
    generator = torch.Generator().manual_seed(0)
    for dtype, within in ((torch.bfloat16, 2**-7), (torch.float64, 1e-12)):
        updates = torch.randn(6, 24, 40, generator=generator).to(dtype)
        alone = torch.stack([orthogonalized(update) for update in updates])
        torch.testing.assert_close(orthogonalized(updates), alone, rtol=within, atol=within)


def with_rule(model: nn.Module, rule: str) -> list[Tensor]:
    return [p for group in muon_groups(model, DECAY, True) if group["rule"] == rule for _, p in group["params"]]


@pytest.mark.parametrize("attention", fast_alone(["standard", "mla", "gated", "differential-original"], "mla"))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_whole_matrices_move_as_under_muon_of_torch_and_all_else_as_under_adamw(
    attention: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: over five steps with a changing rate, AdamW's parameters agree to the bit, as do Muon's in bf16, in
    which torch's Muon always iterates. In fp32 each step differs by the rounding of bf16, 4% of the update's norm.
    Matrices are taken one by one, as torch's Muon takes them: some processors round a batch of products otherwise."""
    monkeypatch.setattr(muon, "MAX_BATCH", {"cpu": 1})
    model = model_of(attention, tied_embeddings=False).to(dtype)
    twin = copy.deepcopy(model)
    ours = muon_of(model, per_head=False)
    matrices, options = with_rule(twin, "muon"), {"momentum": 0.95, "adjust_lr_fn": "original"}
    hidden = torch.optim.Muon(matrices, lr=LR, weight_decay=DECAY, **options)
    groups = [group for group in muon_groups(twin, DECAY, True) if group["rule"] == "adamw"]
    others = [group | {"params": [p for _, p in group["params"]]} for group in groups]
    rest = torch.optim.AdamW(others, lr=LR, betas=BETAS, fused=True)
    for step in range(5):
        for optimizer in (ours, hidden, rest):
            for group in optimizer.param_groups:
                group["lr"] = LR / (1 + step)
        for each in (model, twin):
            draw_gradients(each, step)
        for optimizer in (ours, hidden, rest):
            optimizer.step()
    for mine, theirs in zip(with_rule(model, "adamw"), with_rule(twin, "adamw"), strict=True):
        assert torch.equal(mine, theirs)
    starts = with_rule(model_of(attention, tied_embeddings=False).to(dtype), "muon")
    for mine, theirs, start in zip(with_rule(model, "muon"), with_rule(twin, "muon"), starts, strict=True):
        difference = (mine - theirs).norm()
        assert difference <= (0.0 if dtype == torch.bfloat16 else 0.04) * (theirs - start).norm()


@pytest.mark.parametrize("attention", PRESETS)
def test_every_parameter_has_one_rule_and_decays_as_under_adamw(attention: str) -> None:
    """Criterion: decay follows `parameter_groups` by name. Muon moves the matrices inside blocks, not embeddings or the
    readout."""
    for tied in (True, False):
        model = model_of(attention, tied_embeddings=tied)
        groups = muon_groups(model, DECAY, True)
        decay = {name: g["weight_decay"] for g in groups for name, _ in g["params"]}
        assert decay == {name: g["weight_decay"] for g in parameter_groups(model, DECAY) for name, _ in g["params"]}
        rule = {name: g["rule"] for g in groups for name, _ in g["params"]}
        inside = {name for name, p in model.named_parameters() if name.startswith("blocks.") and decay[name]}
        assert {name for name in rule if rule[name] == "muon"} == inside
    assert rule["head.weight"] == "adamw"


@pytest.mark.parametrize("attention", ["standard", "gqa", "mla", "differential", "psiqrh", "coupled-mla"])
def test_every_head_is_orthogonalised_alone(attention: str) -> None:
    """Criterion: after one step from zero weights, the singular values of each head's rows are the iteration's
    polynomial of those of its gradient. They lie within its band unless those of the gradient were nearly 0."""
    model = model_of(attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    draw_gradients(model, step=0)
    muon_of(model).step()
    for view in query_key_heads(model):
        for rows in view.parts().values():
            assert rows.weight.grad is not None
            for head in range(rows.n_heads):
                gradient = rows.weight.grad.narrow(0, rows.starts[head], rows.width)
                start = torch.linalg.svdvals(gradient) / gradient.norm()
                values = torch.linalg.svdvals(rows.of(head).detach()) / LR
                values /= max(1.0, rows.width / rows.weight.shape[1]) ** 0.5
                expected = start
                for _ in range(muon.N_ITERATIONS):
                    a, b, c = muon.COEFFICIENTS
                    expected = a * expected + b * expected**3 + c * expected**5
                torch.testing.assert_close(values, expected.sort(descending=True).values, rtol=0, atol=1e-3)
                assert ((values > 0.6) & (values < 1.3))[: int((start > 0.02).sum())].all()


def test_heads_and_whole_matrices_are_different_updates() -> None:
    """Criterion: orthogonal heads form a matrix whose largest singular value is far from 1."""
    norms = []
    for per_head in (True, False):
        model = model_of()
        weight = query_key_heads(model)[0].parts()["query"].weight
        before = weight.detach().clone()
        draw_gradients(model, step=0)
        muon_of(model, 0.0, per_head=per_head).step()
        norms.append(float(torch.linalg.matrix_norm((weight.detach() - before) / LR, ord=2)))
    assert norms[0] > 1.5 > 1.25 > norms[1]


def test_permuting_heads_permutes_the_update() -> None:
    """Criterion: the updates are equal to the bit."""
    order = torch.tensor([2, 0, 3, 1])

    def moved(permute: bool) -> Tensor:
        model = model_of()
        weight = query_key_heads(model)[0].parts()["query"].weight
        draw_gradients(model, step=0)
        assert weight.grad is not None
        with torch.no_grad():
            for x in (weight, weight.grad):
                by_head = x.unflatten(0, (4, -1)).clone()
                x.copy_((by_head[order] if permute else by_head).flatten(0, 1))
        muon_of(model).step()
        return weight.detach().unflatten(0, (4, -1))

    assert torch.equal(moved(permute=True), moved(permute=False)[order])


def test_a_fused_matrix_is_split_into_its_heads_and_the_rest() -> None:
    """Criterion: rows of no head form one block, and a transposed matrix moves as the transpose does."""
    weight = nn.Parameter(torch.zeros(12, 10))
    fused = [Rows(weight, (0, 6), 2), Rows(weight, (2, 8), 2)]
    cuts = muon.blocks(fused)
    assert [(rows.tolist(), n) for rows, n, _ in cuts] == [([0, 1, 6, 7], 2), ([2, 3, 8, 9], 2), ([4, 5, 10, 11], 1)]
    transposed = nn.Parameter(weight.detach().T.clone())
    other_cuts = muon.blocks([Rows(transposed, rows.starts, rows.width, axis=1) for rows in fused])
    model = nn.Module()
    model.weight = weight
    optimizer = muon_of(model, per_head=False)
    update = torch.randn(12, 10, generator=torch.Generator().manual_seed(0))
    optimizer.blocks_of = {weight: cuts, transposed: other_cuts}
    with torch.no_grad():
        optimizer.move([weight], [update], 1.0)
        optimizer.move([transposed], [update.T], 1.0)
    torch.testing.assert_close(weight, transposed.T)
    for rows in ([0, 1], [8, 9], [4, 5, 10, 11]):
        assert torch.linalg.svdvals(weight.detach()[rows]).min() > 0.6


def test_orthogonalised_shapes_and_zero() -> None:
    """Criterion: for wide, tall and batched matrices the singular vectors stay, zero gives zero, and the scale does not
    matter."""
    x = torch.randn(3, 6, 20, generator=torch.Generator().manual_seed(0))
    for update in (x, x.mT, x[0], x[0].T):
        found = orthogonalized(update).float()
        u, _, vh = torch.linalg.svd(update, full_matrices=False)
        core = u.mT @ found @ vh.mT
        assert (core - torch.diag_embed(core.diagonal(dim1=-2, dim2=-1))).abs().max() < 0.03
        torch.testing.assert_close(orthogonalized(64 * update), orthogonalized(update), rtol=0, atol=0.01)
    assert not orthogonalized(torch.zeros(2, 4, 8)).any()


def test_parameter_without_gradient_stays_and_keeps_no_state() -> None:
    model = model_of()
    draw_gradients(model, step=0)
    still = model.layers[0].mlp.gate.weight
    still.grad, before = None, still.detach().clone()
    optimizer = muon_of(model)
    optimizer.step()
    assert torch.equal(still, before)
    assert still not in optimizer.state


def test_loss_scaling_changes_no_bit_and_skips_non_finite_steps() -> None:
    """Criterion: a GradScaler with a power of two changes no bit, and an infinite gradient changes neither weights nor
    state."""
    scaled, plain = model_of(), model_of()
    optimizers = [muon_of(model) for model in (scaled, plain)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(2):
        scaler.scale(torch.zeros((), requires_grad=True))
        draw_gradients(scaled, step, scale=scaler.get_scale())
        draw_gradients(plain, step)
        scaler.unscale_(optimizers[0])
        scaler.step(optimizers[0])
        scaler.update()
        optimizers[1].step()
    pairs = list(zip(scaled.parameters(), plain.parameters(), strict=True))
    assert all(torch.equal(one, two) for one, two in pairs)
    draw_gradients(scaled, step=2)
    assert scaled.embedding.weight.grad is not None
    scaled.embedding.weight.grad[0, 0] = torch.inf
    scaler.step(optimizers[0])
    assert all(torch.equal(one, two) for one, two in pairs)


def test_sharded_matrices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "is_spread", lambda parameter: True)
    with pytest.raises(InputError, match=r"^parallel must be ddp under Muon, .* choose parallel='ddp', or AdamW$"):
        muon_of(model_of())


def test_a_plan_lists_the_rule_of_every_parameter() -> None:
    """Criterion: every parameter occurs once, and heads are named where they are orthogonalised separately."""
    config = TrainConfig(model=MODEL, optimizer="muon", seq_len=16)
    groups = optimizer_groups(model_of(), config)
    assert [group["name"] for group in groups] == [
        "hidden matrices, by Muon, query and key matrices head by head",
        "embeddings and readout, by AdamW",
        "vectors and scalars, by AdamW",
    ]
    tensors = [name for group in groups for name, _ in group["params"]]
    assert sorted(tensors) == sorted(name for name, _ in model_of().named_parameters())
    whole, without = config.replace(muon_per_head=False), config.replace(attention="uniform")
    assert optimizer_groups(model_of(), whole)[0]["name"] == "hidden matrices, by Muon"
    assert optimizer_groups(model_of("uniform"), without)[0]["name"] == "hidden matrices, by Muon"
