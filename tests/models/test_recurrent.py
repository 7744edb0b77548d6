"""All recurrent models repeat one iteration T times, have reproducible noise, and need the memory of one iteration."""

import copy
import json
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attractor.attention import PRESETS
from attractor.attention.hooks import capture
from attractor.errors import InputError
from attractor.models import SIZES, AKOrNConfig, FastSlowConfig, ItrSAConfig, PreNormItrSAConfig, RecursiveConfig
from attractor.models.config import ModelConfig
from attractor.models.families import model_config
from attractor.models.recurrent import RecurrentConfig, RecurrentModel
from attractor.train.memory import LiveStorages
from tiers import tiered

SHAPE: dict[str, Any] = {"d_model": 32, "n_heads": 4, "max_seq_len": 16, "n_iterations": 5, "d_ff": 24}
RECURSIVE: dict[str, Any] = {"n_layers": 1, "n_inner": 2, "n_segments": 1}
CONFIGS: dict[str, RecurrentConfig[Any]] = {
    "itrsa": ItrSAConfig(**SHAPE),
    "itrsa-rms": ItrSAConfig(**SHAPE, norm="rms", eta=0.5),
    "itrsa-bare": ItrSAConfig(**SHAPE, norm="none", inject=False, blank=None),
    "itrsa-lengths": ItrSAConfig(**SHAPE, readout_width=4),
    "itrsa-rope": ItrSAConfig(**SHAPE, positions="rope", attention="differential"),
    "energy-single": ItrSAConfig(**SHAPE | {"n_heads": 1}, energy="single"),
    "energy-multi": ItrSAConfig(**SHAPE, energy="multi"),
    "energy-grid": ItrSAConfig(**SHAPE, energy="multi", positions="grid"),
    "prenorm": PreNormItrSAConfig(**SHAPE),
    "akorn": AKOrNConfig(**SHAPE),
    "akorn-grid-rope": AKOrNConfig(**SHAPE, positions="grid-rope", attention="gated"),
    "akorn-published-grid": AKOrNConfig(**SHAPE, positions="grid-rope", qkv_bias=True, as_published=True),
    "akorn-wide": AKOrNConfig(**SHAPE, oscillator_width=32, rms_norm=True),
    "akorn-conv": AKOrNConfig(**SHAPE, coupling="conv"),
    "recursive": RecursiveConfig(**SHAPE, **RECURSIVE),
    "recursive-rope": RecursiveConfig(**SHAPE, **RECURSIVE, positions="rope", stable_softmax=True),
    "recursive-mlp": RecursiveConfig(**SHAPE, **RECURSIVE, mixer="mlp", d_mix=24),
}
NOISY = [name for name, config in CONFIGS.items() if config.blank is not None]
OF_PLACES = ("akorn-conv", "recursive-mlp")  # their weights belong to places, so a padded board cannot be shifted
PADDED = [name for name in CONFIGS if name not in OF_PLACES and "grid" not in name]


def built(name: str, **changes: Any) -> RecurrentModel:
    model = CONFIGS[name].replace(**changes).build(seed=0)
    assert isinstance(model, RecurrentModel)
    return model.eval()


def boards(batch: int = 3, length: int = 16) -> Tensor:
    """Return boards of which half of the cells are blank."""
    drawn = torch.randint(-8, 10, (batch, length), generator=torch.Generator().manual_seed(0))
    return drawn.clamp(min=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_forward_pass_is_n_steps_and_then_the_readout(name: str) -> None:
    model, tokens = built(name), boards()
    with torch.no_grad():
        state, stimulus = model.start(tokens), model.stimulus(tokens)
        followed = list(model.states(tokens, n_iterations=7))
        assert torch.equal(followed[0], state)
        for n, after in enumerate(followed[1:], start=1):
            state = model.step(state, stimulus)
            torch.testing.assert_close(state, after)
            torch.testing.assert_close(model(tokens, n_iterations=n)[0], model.read_out(state))
    assert len(followed) == 8
    assert all((later - earlier).abs().max() > 1e-4 for earlier, later in pairwise(followed)), "it moves"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_number_of_iterations_is_that_of_the_config_by_default(name: str) -> None:
    model, tokens = built(name), boards()
    with torch.no_grad():
        usual, longer = model(tokens)[0], model(tokens, n_iterations=9)[0]
        assert torch.equal(usual, model(tokens, n_iterations=5)[0])
        assert torch.equal(usual, model(tokens)[0]), "an argument does not stay"
        model.n_iterations = 9
        assert torch.equal(longer, model(tokens)[0])
        losses, likeliest = model.judge(tokens, tokens)
    assert torch.equal(likeliest, longer.argmax(-1)), "evaluation computes as long as it is told to"
    assert not torch.allclose(usual, longer)
    assert losses.shape == tokens.shape


def test_a_count_of_iterations_below_one_is_refused() -> None:
    model = built("itrsa")
    attempts: list[Callable[[Any], object]] = [
        lambda n: CONFIGS["itrsa"].replace(n_iterations=n),
        lambda n: model(boards(), n_iterations=n),
        lambda n: list(model.states(boards(), n_iterations=n)),
        lambda n: setattr(model, "n_iterations", n),
    ]
    for attempt, refused in product(attempts, (0, -1, 2.5)):
        with pytest.raises(InputError, match="n_iterations must be an integer of at least 1"):
            attempt(refused)
    assert model.n_iterations == 5


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_has_a_finite_nonzero_gradient(name: str) -> None:
    model = built(name).train()
    model.loss(boards(), boards())[0].backward()
    for parameter, tensor in model.named_parameters():
        if not tensor.requires_grad:
            continue
        assert tensor.grad is not None, parameter
        assert tensor.grad.isfinite().all(), parameter
        assert tensor.grad.abs().max() > 0, parameter


@pytest.mark.parametrize("name", NOISY)
def test_only_blank_cells_have_noise(name: str) -> None:
    model, tokens = built(name), boards()
    one, other = (model.start(tokens, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    again = model.start(tokens, torch.Generator().manual_seed(1))
    assert torch.equal((one != other).any(-1), tokens == 0)
    assert torch.equal(one, again)
    torch.testing.assert_close(one, model.normalised(one))
    given = tokens != 0
    torch.testing.assert_close(one[given], model.normalised(model.initial(model.stimulus(tokens)))[given])


@pytest.mark.parametrize("name", NOISY)
def test_evaluation_is_deterministic_and_leaves_the_generator_alone(name: str) -> None:
    """Criterion: the answer to a board depends neither on the other boards of the batch nor on their number."""
    model, tokens = built(name), boards()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with torch.no_grad():
        whole, _ = model(tokens)
        assert torch.equal(whole, model(tokens)[0])
        torch.testing.assert_close(whole[1:2], model(tokens[1:2])[0])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", NOISY)
def test_training_draws_from_torchs_generator_so_that_a_resumed_run_draws_the_same(name: str) -> None:
    model, tokens = built(name).train(), boards()
    torch.manual_seed(5)
    first, second = model(tokens)[0], model(tokens)[0]
    torch.manual_seed(5)
    assert torch.equal(first, model(tokens)[0])
    kept = torch.get_rng_state()
    assert torch.equal(second, model(tokens)[0])
    torch.set_rng_state(kept)
    assert torch.equal(second, model(tokens)[0])
    assert not torch.equal(first, second)


def test_without_blanks_no_noise_is_drawn() -> None:
    model, tokens = built("itrsa", blank=None).train(), boards()
    assert torch.equal(model(tokens)[0], model(tokens)[0])
    torch.testing.assert_close(model.start(tokens), model.normalised(model.stimulus(tokens)))


@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_nothing(name: str) -> None:
    model, tokens = built(name, max_seq_len=19), boards()
    pad = tokens.new_full((3, 3), 4)
    real = torch.cat([torch.zeros_like(pad, dtype=torch.bool), torch.ones_like(tokens, dtype=torch.bool)], 1)
    padded = torch.cat([pad, tokens], 1)
    with torch.no_grad():
        expected, _ = model(tokens)
        torch.testing.assert_close(model(padded, real=real)[0][:, 3:], expected)
        state, stimulus = model.start(padded, real=real), model.stimulus(padded, real)
        torch.testing.assert_close(model.step(state, stimulus, real)[:, 3:], list(model.states(tokens, 1))[1])
        energy = model.energy(state, stimulus, real)
        torch.testing.assert_close(energy, model.energy(model.start(tokens), model.stimulus(tokens)))


@pytest.mark.parametrize("name", OF_PLACES)
def test_the_tokens_at_padding_change_nothing(name: str) -> None:
    model, tokens = built(name), boards()
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[:, 12:] = False
    other = torch.where(real, tokens, 9 - tokens)
    with torch.no_grad():
        assert torch.equal(model(tokens, real=real)[0][real], model(other, real=real)[0][real])
    with pytest.raises(InputError, match="must be"):
        model(tokens[:, :9] if name == "recursive-mlp" else tokens[:, :10])


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_a_label_is_read_out_of_any_state_with_its_padding(pool: str) -> None:
    model, tokens = built("itrsa", n_classes=3, pool=pool), boards()
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[1, 5:] = False
    with torch.no_grad():
        *_, last = model.states(tokens, real=real)
        torch.testing.assert_close(model.read_out(last, real), model(tokens, real=real)[0])


@pytest.mark.parametrize(
    "config", [*(CONFIGS[name] for name in ("itrsa", "prenorm", "akorn", "recursive")), FastSlowConfig()]
)
def test_gates_of_coupling_may_learn_at_a_rate_of_their_own(config: ModelConfig[Any]) -> None:
    with torch.device("meta"):
        model = config.replace(attention="coupled-euler", zero_start=True).build()
    gates = {name for name, _ in model.named_parameters() if name.endswith("gate")}
    assert gates == set(model.config.own_rate) != set()


@pytest.mark.parametrize("width", [20, 32])
def test_the_noise_of_a_position_depends_on_nothing_but_the_position(width: int) -> None:
    """Criterion: blanks of a shorter board start as those of a longer one, whatever the width of the model is."""
    model, tokens = built("itrsa", d_model=width), boards(1)
    assert torch.equal(model.start(tokens)[:, :3], model.start(tokens[:, :3]))


@pytest.mark.parametrize("name", ["itrsa-rope", "prenorm", "akorn"])
def test_a_causal_model_does_not_depend_on_the_future_and_has_no_cache(name: str) -> None:
    model = built(name, causal=True)
    tokens = boards(1)
    changed = tokens.clone()
    changed[:, 9] = 7 - changed[:, 9]
    with torch.no_grad():
        one, other = model(tokens)[0], model(changed)[0]
    assert torch.equal(one[:, :9], other[:, :9])
    assert not torch.allclose(one[:, 9:], other[:, 9:])
    with pytest.raises(InputError, match=r"use_cache must be False for a recurrent model.*no cache"):
        model.generate(tokens[:, :9], max_new_tokens=2)
    said = model.generate(tokens[:, :9], max_new_tokens=2, temperature=0.0, use_cache=False)
    assert said[0, 9] == one[0, 8].argmax()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # raised when forward mode starts
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_can_be_differentiated_forward_backward_and_for_many_directions_at_once(name: str) -> None:
    model = built(name).double()
    tokens = boards(2)
    with torch.no_grad():
        state, stimulus = model.start(tokens), model.stimulus(tokens)
    directions = torch.randn(3, *state.shape, dtype=state.dtype, generator=torch.Generator().manual_seed(0))

    def step(x: Tensor) -> Tensor:
        return model.step(x, stimulus)

    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no forward mode
        moved = torch.func.vmap(lambda d: torch.func.jvp(step, (state,), (d,))[1])(directions)
        _, pull = torch.func.vjp(step, state)
        (pulled,) = pull(directions[0])
    by_difference = (step(state + 1e-6 * directions[1]) - step(state - 1e-6 * directions[1])) / 2e-6
    torch.testing.assert_close(moved[1], by_difference, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close((pulled * directions[2]).sum(), (moved[2] * directions[0]).sum())


@pytest.mark.parametrize("attention", tiered([x for x in PRESETS if x != "value-residual"]))  # of Transformers
@pytest.mark.parametrize("family", [ItrSAConfig, PreNormItrSAConfig, AKOrNConfig])
def test_every_mechanism_serves(family: type[RecurrentConfig[Any]], attention: str) -> None:
    model = family(**SHAPE, attention=attention).build(0)
    logits, aux_loss = model(boards())
    assert logits.isfinite().all()
    assert aux_loss.shape == ()
    with capture("weights") as seen:
        model(boards())
    assert len(seen["weights"]) == 5, "one for each iteration"


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_survive_files_copies_and_the_meta_device(name: str) -> None:
    model, other = built(name), CONFIGS[name].build(seed=1).eval()
    other.load_state_dict(load(save(model.state_dict())))
    assert torch.equal(model(boards())[0], other(boards())[0])
    assert torch.equal(model(boards())[0], copy.deepcopy(model)(boards())[0])
    with torch.device("meta"):
        assert CONFIGS[name].build()(torch.zeros(1, 16, dtype=torch.long))[0].shape == (1, 16, 10)
    assert CONFIGS[name] == model_config(json.loads(json.dumps(CONFIGS[name].to_dict())))


def test_the_named_sizes_have_their_parameters() -> None:
    """Criterion: ItrSA has two embedding tables, the readout, four attention matrices, gamma and the last norm."""
    names = ("itrsa", "itrsa-prenorm", "akorn")
    with torch.device("meta"):
        n_parameters = {name: sum(p.numel() for p in SIZES[name].build().parameters()) for name in names}
    width, tables = 512, (10 + 81 + 10) * 512
    mlp = 3 * width * 2048
    assert n_parameters["itrsa"] == tables + 4 * width**2 + 2 * width
    assert n_parameters["itrsa-prenorm"] == tables + 4 * width**2 + mlp + 3 * width
    standing_start, rotations, heads, omega_and_gamma = 81 * width, 4 * 81 * 32 * 4, 4 * width * (width + 1), 3
    readout = width * (4 * width + 4) + width + 3 * width * (width + 1) + 9 * (width + 1)
    published = 10 * width + standing_start + rotations + heads + omega_and_gamma + readout
    assert n_parameters["akorn"] == published == 2_982_412
    assert SIZES["itrsa"].layer_equivalents == 16


def peak_of_a_step(name: str, n_iterations: int, checkpointing: bool) -> int:
    model = built(name, n_iterations=n_iterations, vocab_size=10, d_ff=8).train()
    model.activation_checkpointing = checkpointing
    tokens = boards(64)
    with LiveStorages() as seen:
        model.loss(tokens, tokens)[0].backward()
    return seen.peak


@pytest.mark.parametrize("name", ["itrsa", "energy-multi", "prenorm", "akorn"])
def test_with_checkpointing_sixteen_iterations_hold_at_most_three_times_the_memory_of_one(name: str) -> None:
    one, sixteen = (peak_of_a_step(name, n, checkpointing=True) for n in (1, 16))
    everything = peak_of_a_step(name, 16, checkpointing=False)
    assert sixteen <= 3 * one
    assert everything > 1.5 * sixteen, "the measure sees what is saved"


@pytest.mark.parametrize("name", CONFIGS)
def test_checkpointing_changes_no_gradient(name: str) -> None:
    plain, recomputing = built(name).train(), built(name).train()
    recomputing.activation_checkpointing = True
    for model in (plain, recomputing):
        torch.manual_seed(0)
        model.loss(boards(), boards())[0].backward()
    for one, other in zip(plain.parameters(), recomputing.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("name", ["itrsa", "itrsa-rope", "energy-multi", "akorn"])
def test_values_shared_by_all_iterations_are_computed_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(name)
    n_calls = {"weights": 0, "injected": 0, "placement": 0}
    for method in n_calls:
        original = getattr(model, method)

        def counting(*args: Any, method: str = method, original: Any = original) -> Any:
            n_calls[method] += 1
            return original(*args)

        monkeypatch.setattr(model, method, counting)
    model(boards())
    assert n_calls == {"weights": 1, "injected": 1, "placement": 1}
