"""FastSlow has the paper's exact sizes, fulfils its propositions, and supports every choice in its config."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attractor.attention import Rope
from attractor.attention.presets import PRESETS
from attractor.equilibrium.fixed_point import Solver
from attractor.errors import InputError
from attractor.models import SIZES, FastSlow, FastSlowConfig
from attractor.models.block_pooling import AlignedBlocks, causal_pool, causal_upsample
from attractor.models.families import model_config
from attractor.models.residual_streams import Mixing
from tiers import fast_alone, tiered

SMALL = FastSlowConfig(vocab_size=17, d_model=16, n_heads=4, d_ff=24, pool_factor=3, max_seq_len=64)
METHODS: dict[str, dict[str, Any]] = {
    "single": {},
    "passes": {"equilibrium": "passes", "n_iterations": 3},
    "anderson": {"equilibrium": "anderson", "n_iterations": 4},
    "deq": {"equilibrium": "deq", "n_iterations": 5},
    "deq, depth 3": {"equilibrium": "deq", "n_iterations": 5, "solver_depth": 3, "backward_iterations": 2},
    "forced": {"equilibrium": "forced", "n_iterations": 3},
    "forced-deq": {"equilibrium": "forced-deq", "n_iterations": 3},
    "projector": {"projector_width": 8},
    "streams": {"streams": 4},
    "sphere": {"unit_slow_state": True, "projector_width": 8},
    "decay": {"slow_attention": "decay"},
    "window": {"window": 4},
}
CACHED = METHODS | {"control": {"slow_input": "constant"}}


def built(config: FastSlowConfig = SMALL, gate: float = 0.0, dtype: torch.dtype = torch.float64) -> FastSlow:
    model = config.build(seed=0).to(dtype).eval()
    assert isinstance(model, FastSlow)
    with torch.no_grad():
        model.injection.gate.fill_(gate)
    return model


def tokens(batch: int = 2, length: int = 11, seed: int = 0) -> Tensor:
    return torch.randint(0, SMALL.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def logits(model: FastSlow, *args: Any, **kwargs: Any) -> Tensor:
    with torch.no_grad():
        return model(*args, **kwargs)[0]


def n_parameters(name: str) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in SIZES[name].build().parameters())


def test_the_models_of_table_2_have_their_sizes() -> None:
    assert n_parameters("fast-slow") == 779_777
    assert n_parameters("dense-minimind") == 1_025_408
    assert n_parameters("dense-gemma") == 585_504
    assert SIZES["fast-slow"] == FastSlowConfig()
    assert n_parameters("fast-slow-long") == 3_755_649
    assert n_parameters("fast-slow-small") == 48_024_065
    assert n_parameters("fast-slow-medium") == 112_346_881
    assert FastSlowConfig().layer_equivalents == 3.25
    assert FastSlowConfig(frozen=True).layer_equivalents == 3.0
    assert FastSlowConfig(equilibrium="passes", n_iterations=3).layer_equivalents == 7.25


def literally(model: FastSlow, ids: Tensor) -> Tensor:
    """Compute lines (10) to (18) of the paper, with the last norm applied once. Here phi follows the upsampling and is
    zero where there is no previous block."""
    config, (_, length) = model.config, ids.shape
    period = config.pool_factor
    rope = Rope(config.d_model // config.n_heads, config.rope_theta)
    fast, slow = rope.at(torch.arange(length)), rope.at(torch.arange(-(-length // period)))
    x = F.embedding(ids, model.embedding.weight)
    for block in model.blocks_of(model.pre):
        x, _ = block(x, True, fast)
    for _ in range(config.n_rounds):
        y = causal_pool(x, period)
        for block in model.blocks_of(model.slow):
            y, _ = block(y, True, slow)
        phi = model.injection.norm(model.injection.project(causal_upsample(y, period, length)[:, period:]))
        x = x + model.injection.gate.tanh() * F.pad(phi, (0, 0, period, 0))[:, :length]
        for block in model.blocks_of(model.post):
            x, _ = block(x, True, fast)
    return F.linear(model.norm(x), model.embedding.weight)


@pytest.mark.parametrize("length", [3, 4, 9, 10, 11])
@pytest.mark.parametrize("changes", [{}, {"n_pre": 2, "n_post": 2, "n_rounds": 3}, {"n_slow": 0, "projector_width": 5}])
def test_the_forward_pass_is_proposition_9(changes: dict[str, Any], length: int) -> None:
    model = built(SMALL.replace(**changes), gate=0.7)
    ids = tokens(length=length)
    with torch.no_grad():
        assert torch.allclose(logits(model, ids), literally(model, ids), atol=1e-13)


@pytest.mark.parametrize("length", fast_alone([8, 9, 10], 10))
@pytest.mark.parametrize("method", METHODS)
def test_no_token_depends_on_its_future_with_an_open_gate(method: str, length: int) -> None:
    """Criterion: Proposition 21 holds by gradients that are exactly zero, with ten times the injection of an open
    gate."""
    model = built(SMALL.replace(**METHODS[method]), gate=10.0)
    with torch.no_grad():
        model.injection.norm.weight.fill_(10.0)
    embedded: list[Tensor] = []

    def keep(module: object, args: object, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    model.embedding.register_forward_hook(keep)
    out, _ = model(tokens(1, length))
    for t in range(length):
        (gradient,) = torch.autograd.grad(out[:, t].square().sum(), embedded[0], retain_graph=True)
        assert (gradient[:, t + 1 :] == 0).all()
        assert gradient[:, t].abs().max() > 0 or method == "forced-deq"  # whose root depends on the slow state alone


@pytest.mark.parametrize("method", METHODS)
def test_the_slow_state_reaches_a_token_from_the_block_before_and_no_later(method: str) -> None:
    """Criterion: with the fast path's attention disabled, a token depends only on tokens of complete blocks and on
    itself."""
    model = built(SMALL.replace(n_rounds=1, n_pre=0, **METHODS[method]), gate=10.0)
    with torch.no_grad():
        for block in model.blocks_of(model.post):
            block.attention.output.out.weight.zero_()  # type: ignore[union-attr]
    ids = tokens(1, 11)
    usual = logits(model, ids)
    for changed in range(11):
        other = ids.clone()
        other[0, changed] = (other[0, changed] + 1) % SMALL.vocab_size
        moved = (logits(model, other) - usual).abs().amax(-1)[0] > 0
        block_read_from = (changed // 3 + 1) * 3
        assert moved.tolist() == [t == changed or t >= block_read_from for t in range(11)]


@pytest.mark.parametrize("method", METHODS)
def test_the_injection_changes_at_most_once_in_a_block_and_the_first_block_has_none(method: str) -> None:
    """Criterion: Proposition 22 holds, and the first block has no injection."""
    model = built(SMALL.replace(**METHODS[method]), gate=1.0)
    seen: list[tuple[Tensor, Tensor]] = []
    usual = model.injected

    def noted(x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        found = usual(x, *args)
        seen.append((x, found[0]))
        return found

    model.injected = noted  # type: ignore[method-assign, assignment]
    logits(model, tokens(2, 11))
    assert len(seen) == SMALL.n_rounds
    for _, injected in seen:
        assert (injected[:, :3] == 0).all()
        for start in (3, 6, 9):
            block = injected[:, start : start + 3]
            assert torch.equal(block, block[:, :1].expand_as(block))
            assert block.abs().max() > 0.1


@pytest.mark.parametrize("method", [method for method in METHODS if method != "forced-deq"])
def test_a_closed_gate_gives_the_frozen_model_without_gradients_in_the_slow_path(method: str) -> None:
    """Criterion: Proposition 23 holds, so in the first step the slow path and injection have a gradient only at the
    gate. Behind a closed gate the root of forced-deq depends on no text, so that Pre has no gradient either."""
    config = SMALL.replace(**METHODS[method])
    coupled, frozen = built(config), built(config.replace(frozen=True))
    frozen.load_state_dict(coupled.state_dict())
    ids = tokens()
    assert torch.equal(logits(coupled, ids), logits(frozen, ids))
    coupled.train()
    loss, aux_loss = coupled.loss(ids, ids)
    (loss + aux_loss).backward()
    for name, parameter in coupled.named_parameters():
        of_the_slow_path = name.startswith(("slow.", "injection.")) and name != "injection.gate"
        assert parameter.grad is not None
        if "_mixing." not in name:  # mixing equal streams changes nothing, so it has no gradient
            assert bool(parameter.grad.any()) != of_the_slow_path, name
    frozen.train().loss(ids, ids)[0].backward()
    trained = {name for name, parameter in frozen.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, p in frozen.named_parameters() if p.requires_grad}
    assert not any(name.startswith(("slow.", "injection.")) for name in trained)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("method", METHODS)
def test_a_padded_sequence_has_the_logits_of_the_sequence_alone(method: str, side: str) -> None:
    model = built(SMALL.replace(**METHODS[method]), gate=1.0)
    ids, lengths = tokens(3, 11), [11, 7, 2]
    real = torch.tensor([[t < n if side == "right" else t >= 11 - n for t in range(11)] for n in lengths])
    found = logits(model, ids, real=real)
    for row, n in enumerate(lengths):
        alone = logits(model, ids[row : row + 1, real[row]])
        assert torch.allclose(found[row, real[row]], alone[0], atol=1e-11), n


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("method", CACHED)
def test_decoding_from_a_cache_gives_the_logits_of_the_full_pass(method: str, padded: bool) -> None:
    model = built(SMALL.replace(**CACHED[method]), gate=1.0)
    ids = tokens(3, 14)
    real = torch.ones(3, 14, dtype=torch.bool)
    if padded:
        real[1, :2] = real[2, :4] = False
    whole = logits(model, ids, real=real if padded else None)
    cache, found, start = model.new_cache(), [], 0
    for length in (5, 1, 1, 4, 1, 1, 1):
        now = slice(start, start + length)
        found.append(logits(model, ids[:, now], cache=cache, real=real[:, now] if padded and start == 0 else None))
        start += length
    assert torch.allclose(torch.cat(found, dim=1)[real], whole[real], atol=1e-11)


def test_the_slow_path_carries_the_range_of_a_fast_path_with_a_window() -> None:
    """Criterion: a token depends on tokens far beyond the windows if and only if the gate is open. The slow path has no
    window, whichever mechanism it uses. The cache holds W positions of the fast path and all blocks of the slow
    path."""
    ids = tokens(1, 30)
    other = torch.cat([(ids[:, :1] + 1) % SMALL.vocab_size, ids[:, 1:]], dim=1)
    for gate in (0.0, 1.0):
        model = built(SMALL.replace(window=4), gate)
        moved = (logits(model, other) - logits(model, ids)).abs().amax(-1)[0] > 0
        assert moved[:10].all()
        assert moved[10:].any() == (gate > 0)  # three passes reach three positions back each
    for slow_attention in (None, "uniform", "coupled-euler"):
        assert SMALL.replace(window=4, slow_attention=slow_attention).slow_attention_config.window is None
    in_attention = SMALL.replace(attention=PRESETS["standard"].replace(window=4))
    assert (in_attention.attention_config.window, in_attention.slow_attention_config.window) == (4, None)
    cache = model.new_cache()
    with torch.no_grad():
        for token in ids.split(1, dim=1):
            model(token, cache=cache)
    assert {fast.n_held for fast in [*cache.pre, *cache.rounds[0].post[0]]} == {4}
    assert [slow.n_held for slow in cache.rounds[0].slow] == [30 // SMALL.pool_factor] * 2


def test_decoding_runs_the_slow_stack_once_in_a_block() -> None:
    model = built(gate=1.0)
    calls: list[int] = []
    model.slow[0].register_forward_pre_hook(lambda module, args: calls.append(args[0].shape[1]))
    cache, ids = model.new_cache(), tokens(1, 14)
    for t in range(14):
        logits(model, ids[:, t : t + 1], cache=cache)
        assert len(calls) == SMALL.n_rounds * ((t + 1) // 3)
    assert set(calls) == {1}


@pytest.mark.parametrize("path", ["both", "slow"])
@pytest.mark.parametrize("attention", tiered([x for x in PRESETS if x != "value-residual"]))  # of Transformers
def test_any_mechanism_serves_on_either_path(attention: str, path: str) -> None:
    names = {"attention": attention} if path == "both" else {"attention": "standard", "slow_attention": attention}
    model = built(SMALL.replace(d_model=32, **names), gate=1.0)
    ids = tokens(2, 10)
    out = logits(model, ids)
    assert out.isfinite().all()
    assert torch.allclose(logits(model, ids[:, :7]), out[:, :7], atol=1e-12)
    assert model_config(model.config.to_dict()) == model.config


def test_several_streams_start_as_the_model_with_one_stream() -> None:
    one, four = built(gate=1.0), built(SMALL.replace(streams=4), gate=1.0)
    assert not four.load_state_dict(one.state_dict(), strict=False).unexpected_keys
    assert torch.allclose(logits(one, tokens()), logits(four, tokens()), atol=1e-12)
    with torch.no_grad():
        for name, parameter in four.named_parameters():
            if name.endswith(("write_weights", "mix_weights")):
                parameter += torch.linspace(-1, 1, parameter.numel(), dtype=parameter.dtype).view_as(parameter)
    assert (logits(one, tokens()) - logits(four, tokens())).abs().max() > 1e-3


def test_mixing_keeps_the_mean_of_streams_in_half_precision() -> None:
    mixing = Mixing(4, 0)
    for weight in mixing.parameters():
        torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 8, 4, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, mixed, _ = mixing(x)
    torch.testing.assert_close(mixed.mean(2), x.mean(2), rtol=0, atol=1e-5)


def test_streams_diverge_in_training() -> None:
    model = built(SMALL.replace(streams=3), gate=0.5).train()
    for _ in range(3):
        model.zero_grad()
        model.loss(tokens(), tokens(seed=1))[0].backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= parameter.grad
    for name, parameter in model.named_parameters():
        at_the_entrance = name.startswith(("pre.0.attention", "slow.0.attention"))  # here the streams are always copies
        if name.endswith("read_weights"):
            assert parameter.grad is not None
            assert bool(parameter.grad.abs().max() > 1e-12) != at_the_entrance, name


@pytest.mark.parametrize("method", ["single", "passes", "anderson"])
def test_the_loss_penalises_the_fixed_point_residual_in_training_alone(method: str) -> None:
    ids, config = tokens(), SMALL.replace(**METHODS[method])
    plain, asked = (built(config.replace(fixed_point_loss=weight), gate=0.5) for weight in (0.0, 0.3))
    assert float(asked.loss(ids, ids)[1].detach()) == 0
    assert float(plain.train().loss(ids, ids)[1].detach()) == 0
    moved: list[Tensor] = []
    asked.post[0].register_forward_hook(lambda _, args, out: moved.append((out[0] - args[0]).detach()))
    aux_loss = asked.train().loss(ids, ids)[1]
    first_of_each_round = [step.square().mean() for step in moved[:: config.solver.n_iterations]]
    assert len(first_of_each_round) == 2
    assert float(aux_loss.detach()) == pytest.approx(0.3 * float(sum(first_of_each_round)), rel=1e-5)


def test_the_state_on_the_sphere_does_not_depend_on_the_size_of_the_slow_state() -> None:
    ids = tokens()

    def scaled(config: FastSlowConfig) -> Tensor:
        model = built(config, gate=1.0)
        usual = model.injection.forward
        before = logits(model, ids)
        model.injection.forward = lambda y: usual(7 * y)  # type: ignore[method-assign]
        return (logits(model, ids) - before).abs().max()

    assert scaled(SMALL.replace(projector_width=8, unit_slow_state=True)) < 1e-12
    assert scaled(SMALL.replace(projector_width=8)) > 1e-3


@pytest.mark.parametrize(("slow_input", "same"), [("constant", True), ("text", False)])
def test_the_limit_of_equation_2_depends_on_the_slow_state_alone(slow_input: str, same: bool) -> None:
    """Criterion: with a Post that is a contraction, two texts with the same slow state have the same logits, within
    1e-8, and two texts with different slow states do not. Under deq both differ, since its equation keeps the text."""
    config = SMALL.replace(slow_input=slow_input, n_iterations=200)
    ids, others = tokens(), tokens(seed=1)
    distances = {}
    for method in ("forced", "forced-deq", "deq"):
        model = built(config.replace(equilibrium=method), gate=1.0)
        model.post[0] = Contraction(model.post[0])
        distances[method] = (logits(model, ids) - logits(model, others))[:, SMALL.pool_factor + 1 :].abs().amax()
    assert distances["deq"] > 1e-3
    for method in ("forced", "forced-deq"):
        assert distances[method] < 1e-8 if same else distances[method] > 1e-3


class Contraction(torch.nn.Module):
    """Compute z / 2 + a small part of what a block adds, where the block reads z + 1 so that its norms are smooth."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, z: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
        moved, aux_loss = self.block(z + 1, *how)
        return 0.5 * z + 0.05 * (moved - z - 1), aux_loss


def test_equation_2_as_printed_is_one_evaluation_of_forced() -> None:
    """Criterion: with one iteration and one round, the state is Post(x) + injection; a closed gate gives the frozen
    model's passes."""
    model = built(SMALL.replace(equilibrium="forced", n_iterations=1, n_rounds=1), gate=0.7)
    x, injection = torch.randn(2, 2, 11, SMALL.d_model, dtype=torch.float64).unbind()
    placement = model.placement(tokens(), None, None)
    with torch.no_grad():
        found, _ = model.relaxed(x, injection, placement, None)
        image, _ = model.post[0](x, placement.mask, placement.rotation)
    torch.testing.assert_close(found, image + injection)
    forced, passes = (built(SMALL.replace(**METHODS[method])) for method in ("forced", "passes"))
    assert torch.equal(logits(forced, tokens()), logits(passes, tokens()))


def test_the_slow_path_is_shorter_than_the_sequence_whether_or_not_blocks_divide_it() -> None:
    """Criterion: P need not divide the length, since no token reads the last block. The slow path always has fewer
    positions than the model. A sequence beyond learned positions is refused, and so is one without a block to read."""
    for period in (1, 3, 5, 64):
        config = SMALL.replace(pool_factor=period)
        for length in (1, 11, 12, 64):
            assert config.slow_length(length) == -(-length // period) - 1 < config.max_seq_len
    model = built(SMALL.replace(positions="learned", pool_factor=1), gate=1.0)
    assert logits(model, tokens(1, 64)).isfinite().all()
    with pytest.raises(InputError, match="max_seq_len must be at least the sequence's length, got 64 for 65 tokens"):
        model(tokens(1, 65))
    with pytest.raises(InputError, match="pool_factor must be below seq_len=8, got 8; no block would be read"):
        SMALL.replace(pool_factor=8).require_length(8)
    with pytest.raises(InputError, match="seq_len must be at most max_seq_len=64, got 65"):
        model.config.require_length(65)


def test_a_slow_path_with_a_constant_input_has_all_parameters_and_reads_no_text() -> None:
    """Criterion: with an open gate, a constant slow input gives the same nonzero injection for any text, and text does
    not."""
    informed, blind = (built(config, gate=0.9) for config in (SMALL, SMALL.replace(slow_input="constant")))
    assert informed.state_dict().keys() == blind.state_dict().keys()

    def injected(model: FastSlow, seed: int) -> Tensor:
        x = torch.randn(1, 11, SMALL.d_model, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        with torch.no_grad():
            return model.injected(x, AlignedBlocks(SMALL.pool_factor, 11, x.device), None, None)[0]

    assert torch.equal(injected(blind, 0), injected(blind, 1))
    assert not torch.allclose(injected(informed, 0), injected(informed, 1))
    assert injected(blind, 0).abs().max() > 0.01


def test_a_config_without_later_choices_is_stored_as_before() -> None:
    choices: dict[str, Any] = {
        "slow_input": "constant",
        "solver_depth": 2,
        "solver_tolerance": 1e-2,
        "backward_iterations": 3,
    }
    assert not choices.keys() & SMALL.to_dict().keys()
    chosen = SMALL.replace(equilibrium="deq", streams=2, **choices)
    assert choices.items() <= chosen.to_dict().items()
    assert model_config(chosen.to_dict()) == chosen
    with pytest.raises(InputError, match="model family 'fast-show'"):
        model_config({"family": "fast-show"})
    assert chosen.solver == Solver("deq", 4, depth=2, tolerance=1e-2, backward_iterations=3)


@pytest.mark.parametrize("slow", ["uniform", "mla"])
def test_without_a_first_block_the_fast_path_has_the_rotation_of_its_own_heads(slow: str) -> None:
    model = built(SMALL.replace(n_pre=0, n_post=2, positions="rope", slow_attention=slow))
    assert model.rope is not None
    assert model.rope.width == model.blocks_of(model.post)[0].attention.rope_width
    assert logits(model, tokens()).isfinite().all()


@pytest.mark.parametrize("slow_attention", ["short-conv", "gated-deltanet"])
def test_a_slow_path_that_reads_earlier_blocks_takes_no_padding_with_a_cache(slow_attention: str) -> None:
    model, real = built(SMALL.replace(slow_attention=slow_attention), dtype=torch.float32), torch.ones(2, 11).bool()
    logits(model, tokens(), model.new_cache(), real)
    real[1, :2] = False
    logits(model, tokens(), real=real)
    with pytest.raises(InputError, match="use_cache must be False for padded texts where the slow path reads"):
        logits(model, tokens(), model.new_cache(), real)


def test_an_unpadded_cache_goes_on_with_a_padding_mask() -> None:
    """Criterion: a mask without padding changes nothing, and padding at the end changes no real token."""
    model, whole = built(gate=0.5), tokens(length=14)
    for real in (torch.ones(2, 5, dtype=torch.bool), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])):
        cache = model.empty_cache()
        logits(model, whole[:, :9], cache)
        torch.testing.assert_close(logits(model, whole[:, 9:], cache, real)[real], logits(model, whole)[:, 9:][real])
