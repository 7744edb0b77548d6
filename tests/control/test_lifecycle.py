"""What happens to controls besides steps: deletion, conversion, wrapping, states of other ways of training."""

import gc
import io
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from subjects import of_family, small, tokens
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from attractor.control import FixedRates, QKClip, QuacK, initial_norms, query_key_heads
from attractor.errors import InputError
from tiers import fast_alone


def backward(model: nn.Module, seed: int) -> None:
    model.zero_grad()
    out = model(tokens(seed))
    (out[0] if isinstance(out, tuple) else out.logits).square().mean().backward()


def give_gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("family", ["ours", "llama"])
def test_nothing_keeps_a_deleted_model_alive(family: str, removed: bool) -> None:
    """Criterion: model, optimizer and controls are collected whether or not they were removed, and Hugging Face's table
    of attention functions is as before."""
    from transformers.modeling_utils import AttentionInterface

    look_up = AttentionInterface.__dict__.get("get_interface")

    def train() -> list[weakref.ref[Any]]:
        model = small() if family == "ours" else of_family(family)
        optimizer = AdamW(model.parameters(), lr=1e-3)
        quack, clip = QuacK(model, optimizer), QKClip(model, optimizer, 0.5)
        backward(model, 0)
        optimizer.step()
        if removed:
            clip.remove()
            quack.remove()
        return [weakref.ref(part) for part in (model, optimizer, quack, clip)]

    alive = train()
    gc.collect()
    assert [part() for part in alive] == [None] * 4
    assert AttentionInterface.__dict__.get("get_interface") is look_up


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_do_not_depend_on_wrappers() -> None:
    """Criterion: states and maxima of a compiled model, of compiled blocks and of a wrapper have the plain names."""
    plain = [view.name for view in query_key_heads(small())]

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    blocks = small()
    for number, block in enumerate(blocks.blocks):
        blocks.blocks[number] = torch.compile(block)
    for model in (torch.compile(small()), blocks, Wrapper(small()), torch.compile(Wrapper(small()))):
        assert [view.name for view in query_key_heads(model)] == plain
        state = QuacK(model, SGD(model.parameters(), lr=0.1)).state_dict()
        assert [*state["initial"]] == plain
    odd = nn.ModuleDict({"module": small(), "other": nn.Linear(1, 1)})  # a model's own name is no wrapper
    assert [view.name for view in query_key_heads(odd)] == [f"module.{name}" for name in plain]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_old_states_load(prefix: str) -> None:
    """Criterion: a state without tau, with the names of a wrapped model, is loaded."""
    model, other = small(), small(seed=1)
    quack = QuacK(model, SGD(model.parameters(), lr=0.1))
    wanted = QuacK(other, SGD(other.parameters(), lr=0.1)).state_dict()
    old = {"norm": "frobenius", "initial": {prefix + layer: parts for layer, parts in wanted["initial"].items()}}
    quack.load_state_dict(old | {"vectors": {}})
    torch.testing.assert_close(quack.state_dict()["initial"], wanted["initial"])
    fixed = FixedRates(other := small(), SGD(other.parameters(), lr=0.1), 0.5)
    fixed.load_state_dict({})


@pytest.mark.parametrize("rule", [QuacK, FixedRates])
def test_another_tau_on_resumption_is_refused(rule: Any) -> None:
    model = small()
    first = rule(model, SGD(model.parameters(), lr=0.1), 0.5)
    state = first.state_dict()
    first.remove()
    with pytest.raises(InputError, match=r"tau must be 0.5 as in the state that is loaded, got 1"):
        rule(model, SGD(model.parameters(), lr=0.1), 1.0).load_state_dict(state)
    if rule is QuacK:
        again = QuacK(model, SGD(model.parameters(), lr=0.1), 1.0, initial_norms=state)  # says so on purpose
        assert torch.equal(again._initial, first._initial)


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "gqa": lambda: small(n_kv_heads=2, qkv_bias=True),
    "mla": lambda: small("mla", d_model=128),
    "llama": lambda: of_fresh("LlamaConfig"),
    "gpt2": lambda: of_fresh("GPT2Config"),
}


def of_fresh(name: str) -> nn.Module:
    import transformers

    shape = {"n_embd": 64, "n_layer": 2, "n_head": 4} if name == "GPT2Config" else {"hidden_size": 64}
    layers = {} if name == "GPT2Config" else {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    config = getattr(transformers, name)(vocab_size=40, bos_token_id=1, eos_token_id=2, **shape, **layers)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("case", BUILDS)
def test_initial_norms_of_a_fresh_model(case: str) -> None:
    """Criterion: on the CPU they are those of the model that is built, to the bit; drawn layer by layer from the meta
    device they agree as two draws do; both leave the caller's random numbers alone, and no layer keeps its memory."""
    torch.manual_seed(0)
    fresh = BUILDS[case]()
    attached = QuacK(fresh, SGD(fresh.parameters(), lr=0.1)).state_dict()["initial"]
    torch.manual_seed(0)
    torch.testing.assert_close(initial_norms(BUILDS[case])["initial"], attached, rtol=0, atol=0)
    before = torch.get_rng_state()
    models: list[nn.Module] = []

    def on_meta() -> nn.Module:
        with torch.device("meta"):
            models.append(BUILDS[case]())
        return models[0]

    drawn = initial_norms(on_meta)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.is_meta for parameter in models[0].parameters())
    torch.testing.assert_close(drawn["initial"], attached, rtol=0.15, atol=0)
    moved = BUILDS[case]()
    for parameter in moved.parameters():
        parameter.data.mul_(3)
    optimizer = SGD(moved.parameters(), lr=0.1)
    quack = QuacK(moved, optimizer, initial_norms=drawn)
    give_gradients(moved, 0)
    optimizer.step()
    rates = torch.cat([rates for parts in quack.rates.values() for rates in parts.values()])
    assert (rates < 0.4).all()


def test_initial_norms_of_another_model_or_norm_are_refused_and_nothing_stays_attached() -> None:
    model = small()
    optimizer = SGD(model.parameters(), lr=0.1)
    for wrong in (initial_norms(lambda: small(n_layers=1)), initial_norms(small, "spectral")):
        with pytest.raises(InputError):
            QuacK(model, optimizer, initial_norms=wrong)
    with pytest.raises(InputError, match=r"must hold norm and initial, got nothing; give the state of a QuacK"):
        QuacK(model, optimizer, initial_norms={})
    with pytest.raises(InputError, match=r"a dict that holds norm and initial, got \w*Transformer\w*; give the state"):
        QuacK(model, optimizer, initial_norms=cast(Any, small()))
    with pytest.raises(InputError, match="build must be a function that returns a fresh model, got Transformer; give"):
        initial_norms(cast(Any, small()))
    with pytest.raises(InputError, match="unknown norm of QuacK 'frobenious'; did you mean 'frobenius'"):
        initial_norms(small, "frobenious")
    quack = QuacK(model, optimizer)
    other = FixedRates(model, SGD(model.parameters(), lr=0.1), tau=1.0)
    with pytest.raises(InputError, match="must hold norm and initial, got tau; FixedRates wrote it"):
        quack.load_state_dict(other.state_dict())


def test_a_control_that_is_removed_twice_does_not_unguard_its_successor() -> None:
    """Criterion: after a second `remove()`, the optimizer still refuses another control beside the attached one."""
    model = small()
    optimizer = SGD(model.parameters(), lr=0.1)
    for control in (QuacK, QKClip):
        first = control(model, optimizer)
        first.remove()
        second = control(model, optimizer)
        first.remove()
        with pytest.raises(InputError, match="it is attached already"):
            control(model, optimizer)
        second.remove()


def test_bf16_keeps_the_movement_that_rounding_took() -> None:
    """Criterion: over 300 steps of fixed rates the weights lie where the sum of the scaled steps lies, within the
    spacing of bf16; without remainders they would be several times as far."""
    model = small().bfloat16()
    optimizer = SGD(model.parameters(), lr=2.0**-9)
    fixed = FixedRates(model, optimizer, tau=0.3)
    (query, *_) = (view.parts()["query"].weight for view in query_key_heads(model))
    exact, rounded_twice = query.detach().double(), query.detach().clone()
    for step in range(300):
        give_gradients(model, step % 7)
        assert query.grad is not None
        moved = (query.detach() - 2.0**-9 * query.grad).double() - query.detach().double()
        exact += 0.3 * moved
        rounded_twice = (rounded_twice.double() + 0.3 * moved).bfloat16()
        optimizer.step()
    error = (query.detach().double() - exact).abs()
    assert error.max() <= 2.0**-8 * query.detach().abs().max()
    assert (rounded_twice.double() - exact).abs().mean() > 3 * error.mean()
    assert fixed.state_dict()["remainders"]


EPS = 1e-4  # AdamW's default value is 0 in fp16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", [QuacK, FixedRates])
def test_half_precision_resumes_to_the_bit_and_starts_as_the_bare_optimizer(rule: Any, dtype: torch.dtype) -> None:
    def begin() -> tuple[nn.Module, Any, Any]:
        model = small(qkv_bias=True).to(dtype)
        optimizer = AdamW(model.parameters(), lr=1e-2, eps=EPS)
        return model, optimizer, rule(model, optimizer, 1.0 if rule is QuacK else 0.3)

    def take_steps(model: nn.Module, optimizer: Any, steps: range) -> None:
        for step in steps:
            give_gradients(model, step)
            optimizer.step()

    whole = begin()
    take_steps(*whole[:2], range(1))
    if rule is QuacK:
        bare = small(qkv_bias=True).to(dtype)
        take_steps(bare, AdamW(bare.parameters(), lr=1e-2, eps=EPS), range(1))
        assert all(torch.equal(weight, weights(whole[0])[name]) for name, weight in weights(bare).items())
    take_steps(*whole[:2], range(1, 4))
    file = io.BytesIO()
    torch.save([part.state_dict() for part in whole], file)
    take_steps(*whole[:2], range(4, 8))
    resumed = begin()
    for part, state in zip(resumed, torch.load(io.BytesIO(file.getvalue()), weights_only=True), strict=True):
        part.load_state_dict(state)
    take_steps(*resumed[:2], range(4, 8))
    assert all(torch.equal(weight, weights(whole[0])[name]) for name, weight in weights(resumed[0]).items())


@pytest.mark.parametrize("before_a_step", [True, False])
@pytest.mark.parametrize("to", [torch.float64, torch.bfloat16])
def test_a_model_may_be_converted_after_attaching(to: torch.dtype, before_a_step: bool) -> None:
    """Criterion: a step is that of a model converted first, and the clip holds its bound."""
    converted, other = small(), small().to(to)
    pair = [SGD(model.parameters(), lr=0.5) for model in (converted, other)]
    for model, optimizer in zip((converted, other), pair, strict=True):
        FixedRates(model, optimizer, 0.3)
    clip = QKClip(converted, pair[0], 0.5)
    if not before_a_step:
        converted.zero_grad()
        give_gradients(converted, 0)
        for parameter in converted.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        with pytest.warns(RuntimeWarning, match="saw no attention logits"):
            pair[0].step()
    converted.to(to)
    for model, optimizer in zip((converted, other), pair, strict=True):
        give_gradients(model, 1)
        if model is converted:
            with pytest.warns(RuntimeWarning, match="saw no attention logits"):
                optimizer.step()
        else:
            optimizer.step()
    for name, weight in weights(other).items():
        assert torch.equal(weight, weights(converted)[name]), name
    backward(converted, 0)
    pair[0].param_groups[0]["lr"] = 0.0
    pair[0].step()
    backward(converted, 0)
    pair[0].step()
    first = clip.last["blocks.0.attention"].logits  # the input of the first layer does not change with the clip
    assert first.max() <= 0.5 * (1 + (1e-5 if to == torch.float64 else 1e-2))


class Adam8bit(AdamW):
    """An optimizer whose state is rounded to 8 bits, as others store it; the weights stay whole."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                step = (state[name].abs().max() / 127).clamp(min=1e-30)
                state[name].copy_((state[name] / step).round() * step)


# Neither bitsandbytes nor torchao is a dependency of the tests.
LOW_PRECISION = {
    "ours": "AdamW8bit",
    "bitsandbytes": "AdamW8bit PagedAdamW8bit Lion8bit",
    "torchao": "AdamW8bit AdamW4bit AdamWFp8",
}


def of_low_precision(library: str, kind: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    if library == "ours":
        return Adam8bit(parameters, lr=0.01)
    version = {"bitsandbytes": "0.50.2", "torchao": "0.18.0"}[library]
    package = pytest.importorskip(f"{library}.optim", reason=f"install {library}=={version} to test its optimizers")
    options = {"min_8bit_size": 1} if library == "bitsandbytes" else {}
    return getattr(package, kind)(parameters, lr=0.01, **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("library", "kind"),
    [
        pytest.param(library, kind, marks=() if library == "ours" else pytest.mark.slow)
        for library, kinds in LOW_PRECISION.items()
        for kind in kinds.split()
    ],
)
@torch.compiler.set_stance("force_eager")  # torchao compiles its steps
def test_optimizers_with_states_of_low_precision_are_supported(library: str, kind: str) -> None:
    """Criterion: the rows of heads move by their rate times the optimizer's own step, though the step of one calls that
    of its parent class, around which torch calls all hooks a second time; and the clip acts."""
    model, bare = small(d_model=128), small(d_model=128)  # torchao packs tensors of 4096 numbers or more
    optimizer, own = (of_low_precision(library, kind, of.parameters()) for of in (model, bare))
    fixed = FixedRates(model, optimizer, 0.25)
    start = weights(model)
    for one, its in ((model, optimizer), (bare, own)):
        give_gradients(one, 0)
        its.step()
    for name, weight in weights(model).items():
        rate = 0.25 if ".query." in name or ".key." in name else 1.0
        torch.testing.assert_close(weight, start[name] + rate * (weights(bare)[name] - start[name]))
    fixed.remove()
    QuacK(model, optimizer)
    clip = QKClip(model, optimizer, 0.01)
    backward(model, 0)
    optimizer.step()
    assert clip.n_clipped > 0


@pytest.mark.parametrize("control", [QuacK, QKClip])
@pytest.mark.parametrize("case", fast_alone(["llama", "gpt2", "ours"], "gpt2"))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_adapters_on_queries_and_keys_are_refused(case: str, control: Any) -> None:
    """Criterion: one true line, for the adapters of PEFT on our layers and on others."""
    import peft

    from attractor.hf.auto_classes import AttractorForCausalLM

    model: Any = AttractorForCausalLM.of(small()) if case == "ours" else of_family(case)
    targets = {"llama": ["q_proj", "k_proj"], "gpt2": ["c_attn"], "ours": ["query", "key"]}[case]
    settings = peft.LoraConfig(target_modules=targets, fan_in_fan_out=case == "gpt2")
    adapted = peft.get_peft_model(model, settings)
    with pytest.raises(InputError, match=r"must act alone, but an adapter \(LoRA\) adds to .*base_layer.weight'"):
        control(adapted, SGD(adapted.parameters(), lr=0.1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use_orig_params", [False, True])
def test_flattened_weights_are_refused(use_orig_params: bool, tmp_path: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = FullyShardedDataParallel(small(), use_orig_params=use_orig_params, device_id=torch.device("cpu"))
        for control in (QuacK, QKClip):
            with pytest.raises(InputError, match=r"FSDP1\) flattens them.*FSDP2"):
                control(model, SGD(model.parameters(), lr=0.1))
    finally:
        torch.distributed.destroy_process_group()
