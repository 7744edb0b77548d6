"""QuacK and fixed rates are compared with the bare optimizer and with one optimizer group per head; misuse is
refused."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from subjects import SCORING, assert_same, give_gradients, small, take_steps, weights
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import SGD, AdamW, Optimizer

from attractor.control.heads import query_key_heads
from attractor.control.layouts import register_view
from attractor.control.norms import NORMS
from attractor.control.quack import QuacK
from attractor.control.rates import FixedRates
from attractor.control.views import DotProduct, LatentHeads, Rows
from attractor.errors import InputError
from tiers import tiered


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.ndim == 2]


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda model: AdamW(model.parameters(), lr=0.01, foreach=False),
    "adamw foreach": lambda model: AdamW(model.parameters(), lr=0.01, foreach=True),
    "adamw fused": lambda model: AdamW(model.parameters(), lr=0.01, fused=True),
    "muon": lambda model: torch.optim.Muon(matrices(model), lr=0.01),
}


def controlled_rows(model: nn.Module) -> dict[str, Tensor]:
    """Return for each parameter a mask of the rows that QuacK controls."""
    names = {p: name for name, p in model.named_parameters()}
    found = {name: torch.zeros(len(p), dtype=torch.bool) for name, p in model.named_parameters()}
    for view in query_key_heads(model):
        for rows in view.parts().values():
            for parameter in (rows.weight, rows.bias):
                if parameter is not None:
                    found[names[parameter]][rows.index] = True
    return found


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attention", tiered(SCORING))
def test_the_first_step_at_tau_1_is_the_bare_optimizers_to_the_bit(attention: str, norm: str) -> None:
    model, bare = small(attention), small(attention)
    optimizer = OPTIMIZERS["adamw fused"](model)
    QuacK(model, optimizer, norm=norm)
    take_steps(model, optimizer)
    take_steps(bare, OPTIMIZERS["adamw fused"](bare))
    assert_same(model, bare)


@pytest.mark.parametrize("attention", ["gqa", "mla"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_only_query_and_key_rows_differ_from_the_bare(make: Callable[[nn.Module], Optimizer], attention: str) -> None:
    """Criterion: at tau = 1 the first of five steps equals that of the bare optimizer. After the others, every
    controlled row differs and every other row is the same to the bit."""
    biased = attention == "gqa" and make is not OPTIMIZERS["muon"]  # Muon takes no biases
    model, bare = small(attention, qkv_bias=biased), small(attention, qkv_bias=biased)
    optimizers = make(model), make(bare)
    QuacK(model, optimizers[0])
    take_steps(model, optimizers[0])
    take_steps(bare, optimizers[1])
    assert_same(model, bare)
    take_steps(model, optimizers[0], range(1, 5))
    take_steps(bare, optimizers[1], range(1, 5))
    for name, is_controlled in controlled_rows(model).items():
        rows = zip(dict(model.named_parameters())[name], dict(bare.named_parameters())[name], strict=True)
        same = torch.tensor([torch.equal(ours, theirs) for ours, theirs in rows])
        assert torch.equal(same, ~is_controlled), name


@pytest.mark.parametrize("attention", ["standard", "mla"])
def test_after_removal_the_optimizer_is_bare_again(attention: str) -> None:
    model, bare = small(attention), small(attention)
    optimizer = OPTIMIZERS["adamw"](model)
    QuacK(model, optimizer, tau=0.5).remove()
    take_steps(model, optimizer, range(2))
    take_steps(bare, OPTIMIZERS["adamw"](bare), range(2))
    assert_same(model, bare)
    QuacK(model, optimizer)  # a second one may be attached now


def paper_factors(view: DotProduct | LatentHeads, w: dict[str, list[Tensor]]) -> dict[str, list[float]]:
    """Compute algorithms 1 and 2 as printed, one head after the other."""
    n = {part: [float(head.detach().norm()) for head in heads] for part, heads in w.items()}
    every = range(view.n_heads)
    if isinstance(view, DotProduct):
        readers = [[h for h in every if view.reads[h] == g] for g in range(view.key.n_heads)]
        return {
            "query": [1 / n["key"][view.reads[h]] for h in every],
            "key": [1 / max(n["query"][h] for h in group) for group in readers],
        }
    (dq,), (dkv,), (kr,) = n["dq"], n["dkv"], n["kr"]
    both = max(n["uq"][h] * n["uk"][h] for h in every)
    return {
        "uq": [1 / (dq * n["uk"][h] * dkv) for h in every],
        "uk": [1 / (n["uq"][h] * dq * dkv) for h in every],
        "qr": [1 / (dq * kr) for h in every],
        "dq": [min(1 / (both * dkv), 1 / (max(n["qr"]) * kr))],
        "dkv": [1 / (both * dq)],
        "kr": [1 / (max(n["qr"]) * dq)],
    }


class OneGroupPerHead:
    """A model whose heads are separate parameters, each in its own SGD group, so that every head has an exact rate."""

    def __init__(self, model: nn.Module, lr: float, tau: float) -> None:
        self.model, self.lr, self.tau = model, lr, tau
        self.names = {p: name for name, p in model.named_parameters()}
        self.views = query_key_heads(model)
        self.heads = [
            {part: [nn.Parameter(rows.of(h).detach().clone()) for h in range(rows.n_heads)] for part, rows in parts}
            for parts in (view.parts().items() for view in self.views)
        ]
        controlled = {rows.weight for view in self.views for rows in view.parts().values()}
        self.rest = {name: nn.Parameter(p.detach().clone()) for p, name in self.names.items() if p not in controlled}
        groups = [{"params": [head], "lr": lr} for layer in self.heads for heads in layer.values() for head in heads]
        self.optimizer = SGD([*groups, {"params": [*self.rest.values()]}], lr=lr, momentum=0.5, weight_decay=0.05)
        self.initial = self.factors()

    def factors(self) -> list[float]:
        """Return the factors of all heads in the order of the groups."""
        found = [(layer, paper_factors(view, layer)) for view, layer in zip(self.views, self.heads, strict=True)]
        return [factor for layer, factors in found for part in layer for factor in factors[part]]

    def assembled(self) -> dict[str, Tensor]:
        whole: dict[str, Tensor] = dict(self.rest)
        for view, layer in zip(self.views, self.heads, strict=True):
            for part, rows in view.parts().items():
                assert rows.starts == tuple(range(0, len(rows.weight), rows.width)), "heads in a row"
                whole[self.names[rows.weight]] = torch.cat(list(layer[part]))
        return whole

    def step(self, tokens: Tensor) -> None:
        next_token_loss(functional_call(self.model, self.assembled(), (tokens,)), tokens).backward()
        for group, now, initial in zip(self.optimizer.param_groups, self.factors(), self.initial, strict=False):
            group["lr"] = self.tau * self.lr * now / initial
        self.optimizer.step()
        self.optimizer.zero_grad()


def next_token_loss(output: Any, tokens: Tensor) -> Tensor:
    logits, aux = output
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()) + aux


@pytest.mark.parametrize("attention", ["standard", "gqa", "mqa", "mla", "gated"])
def test_equals_one_group_per_head_with_the_papers_rates(attention: str) -> None:
    """Criterion: they agree to fp32 rounding over six steps in which rates move by more than 5 percent."""
    tau, lr = 0.7, 2.0
    sizes = {"positions": "learned", "d_ff": 24, "max_seq_len": 16}
    model = small(attention, **sizes)
    reference = OneGroupPerHead(small(attention, **sizes), lr, tau)
    optimizer = SGD(model.parameters(), lr=lr, momentum=0.5, weight_decay=0.05)
    quack = QuacK(model, optimizer, tau)
    for step in range(6):
        tokens = torch.randint(40, (4, 16), generator=torch.Generator().manual_seed(step))
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        reference.step(tokens)
    moved = torch.cat([scales / tau - 1 for parts in quack.rates.values() for scales in parts.values()]).abs()
    assert moved.max() > 0.05, "the rates hardly moved, so this shows little"
    torch.testing.assert_close(dict(model.named_parameters()), reference.assembled(), rtol=1e-4, atol=2e-6)


def test_fixed_rates_are_tau_for_all_query_and_key_weights() -> None:
    """Criterion: the result equals SGD with one group of those weights at tau times the rate, to fp32 rounding."""
    model, reference = small("mla"), small("mla")
    optimizer = SGD(model.parameters(), lr=0.5)
    fixed = FixedRates(model, optimizer, tau=0.25)
    parts = [rows.weight for view in query_key_heads(reference) for rows in view.parts().values()]
    assert len(parts) == 12, "six in each of two layers"
    rest = [p for p in reference.parameters() if all(p is not part for part in parts)]
    take_steps(model, optimizer, range(3))
    take_steps(reference, SGD([{"params": parts, "lr": 0.125}, {"params": rest}], lr=0.5), range(3))
    torch.testing.assert_close(weights(model), weights(reference))
    assert all((scales == 0.25).all() for layer in fixed.rates.values() for scales in layer.values())


class Fused(nn.Module):
    """Attention whose queries, keys and values lie in one matrix head by head, possibly transposed, with a bias."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn((36, 10), generator=generator))
        if transposed:
            self.weight = nn.Parameter(self.weight.detach().T.contiguous())
        self.bias = nn.Parameter(torch.randn(36, generator=generator))
        self.axis = int(transposed)

    def rows(self, offset: int) -> Rows:
        return Rows(self.weight, tuple(range(offset, 36, 12)), 4, self.bias, self.axis)


@pytest.mark.parametrize("transposed", [False, True])
def test_heads_of_a_fused_matrix_move_at_their_own_rates_with_their_biases(transposed: bool) -> None:
    """Criterion: in the second SGD step each head's rows and bias move by its rate times the bare step, and values by
    the bare step."""

    def view(name: str, module: nn.Module) -> DotProduct | None:
        if not isinstance(module, Fused):
            return None
        return DotProduct(name, module, module.rows(0), module.rows(4), (0, 1, 2))

    register_view(view)
    model = Fused(transposed)
    optimizer = SGD(model.parameters(), lr=0.3)
    quack = QuacK(nn.Sequential(model), optimizer, tau=0.5)
    take_steps(model, optimizer)
    before, bias_before = model.weight.detach().clone(), model.bias.detach().clone()
    take_steps(model, optimizer, range(1, 2))
    assert model.weight.grad is not None
    assert model.bias.grad is not None
    rates = quack.rates["0"]
    assert rates["query"].unique().numel() == 3
    scale = torch.ones(36)
    for head in range(3):
        scale[12 * head : 12 * head + 4] = rates["query"][head]
        scale[12 * head + 4 : 12 * head + 8] = rates["key"][head]
    shaped = scale if transposed else scale[:, None]
    torch.testing.assert_close(model.weight.detach(), before - 0.3 * shaped * model.weight.grad)
    torch.testing.assert_close(model.bias.detach(), bias_before - 0.3 * scale * model.bias.grad)


def test_a_frozen_part_does_not_move_but_its_norm_counts() -> None:
    model = small()
    keys = [view.parts()["key"].weight for view in query_key_heads(model)]
    for key in keys:
        key.requires_grad_(False)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad])
    quack = QuacK(model, optimizer)
    before = [key.detach().clone() for key in keys]
    take_steps(model, optimizer)
    assert all(torch.equal(*pair) for pair in zip(keys, before, strict=True))
    assert all(set(parts) == {"query"} for parts in quack.rates.values())
    with torch.no_grad():
        keys[0].mul_(4)
    take_steps(model, optimizer, range(1, 2))
    first, second = quack.rates.values()
    torch.testing.assert_close(first["query"], torch.full((4,), 0.25))
    torch.testing.assert_close(second["query"], torch.ones(4))


def test_a_part_unfrozen_later_is_controlled_from_then_on() -> None:
    model = small()
    keys = [view.parts()["key"].weight for view in query_key_heads(model)]
    optimizer = SGD(model.parameters(), lr=0.5)
    for key in keys:
        key.requires_grad_(False)
    QuacK(model, optimizer, tau=0.5)
    take_steps(model, optimizer)
    for key in keys:
        key.requires_grad_(True)
    before = keys[0].detach().clone()
    with torch.no_grad():
        for view in query_key_heads(model):  # restore the partners of the keys to their initial values
            view.parts()["query"].weight.copy_(dict(small().named_parameters())[f"{view.name}.project.query.weight"])
    take_steps(model, optimizer, range(1, 2))
    assert keys[0].grad is not None
    torch.testing.assert_close(keys[0].detach(), before - 0.25 * keys[0].grad)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attention", ["gqa", "mla"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_head_of_zeros_leaves_its_partners_at_tau_and_no_nan(when: str, attention: str, norm: str) -> None:
    """The weights of the last head or key head are zero when QuacK is attached, or become zero later."""
    model = small(attention)
    optimizer = AdamW(model.parameters(), lr=0.01)
    part, partner = ("key", "query") if attention == "gqa" else ("uk", "uq")
    view = query_key_heads(model)[0]
    rows = view.parts()[part]

    def erase() -> None:
        with torch.no_grad():
            rows.of(rows.n_heads - 1).zero_()

    if when == "before":
        erase()
    quack = QuacK(model, optimizer, tau=0.5, norm=norm)
    for step in range(3):
        if when == "after":
            erase()
        take_steps(model, optimizer, range(step, step + 1))
        rates = quack.rates[view.name]
        assert all(scales.isfinite().all() and (scales > 0).all() for scales in rates.values())
        assert rates[partner][-1] == 0.5
    assert all(p.isfinite().all() for p in model.parameters())
    assert rates[partner][0] != 0.5 or attention == "gqa", "the others follow their partners"


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attention", ["gqa", "mla"])
def test_resumed_is_uninterrupted_to_the_bit(attention: str, norm: str) -> None:
    """Criterion: the state is saved to a file and loaded with weights_only, and training continues to the bit."""
    model = small(attention)
    optimizer = AdamW(model.parameters(), lr=0.02)
    quack = QuacK(model, optimizer, norm=norm)
    take_steps(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), quack.state_dict()], file)
    take_steps(model, optimizer, range(3, 7))

    stored = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    again = small(attention)
    other = AdamW(again.parameters(), lr=0.02)
    for what, state in zip((again, other, QuacK(again, other, norm=norm)), stored, strict=True):
        what.load_state_dict(state)
    take_steps(again, other, range(3, 7))
    assert_same(again, model)
    bare = small(attention)
    take_steps(bare, AdamW(bare.parameters(), lr=0.02), range(7))
    with pytest.raises(AssertionError):
        assert_same(bare, model)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_loss_scaler_skips_changes_nothing(fused: bool) -> None:
    """Criterion: this holds for fused optimizers, which skip inside the step, and for others, which are not called. A
    scaled step equals the unscaled one."""
    model, alone = small("mla"), small("mla")
    optimizers = [AdamW(one.parameters(), lr=0.01, fused=fused) for one in (model, alone)]
    for one, optimizer in zip((model, alone), optimizers, strict=True):
        QuacK(one, optimizer, tau=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    for step in range(3):
        before = weights(model)
        give_gradients(model, step)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = scaler.scale(parameter.grad)
        if step == 1:
            next(iter(model.parameters())).grad.fill_(torch.inf)  # type: ignore[union-attr]
        scaler.step(optimizers[0])
        scaler.update()
        if step == 1:
            assert_same(model, before)
        else:
            take_steps(alone, optimizers[1], range(step, step + 1))
    torch.testing.assert_close(weights(model), weights(alone))


class Wrapper(SGD):
    """A wrapper like Accelerate's: an Optimizer whose own step never moves the weights."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__([nn.Parameter(torch.zeros(1))])
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> None:
        self.optimizer.step()

    def train(self) -> None: ...

    def eval(self) -> None: ...


def test_an_optimizer_inside_a_wrapper_is_found() -> None:
    model, direct = small(), small()
    inner = SGD(model.parameters(), lr=0.1)
    wrapper = Wrapper(inner)
    quack = QuacK(model, wrapper, tau=0.5)
    assert quack.optimizers == (inner,)
    with pytest.raises(InputError, match="attached already"):
        QuacK(model, inner)
    give_gradients(model, 0)
    wrapper.step()
    optimizer = SGD(direct.parameters(), lr=0.1)
    QuacK(direct, optimizer, tau=0.5)
    take_steps(direct, optimizer)
    assert_same(model, direct)
