"""The controls refuse what they cannot do, in one line with the rule and the next step, and nothing stays attached."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from subjects import of_family, small
from torch import nn
from torch.optim import SGD, Muon

from attractor.attention import PRESETS
from attractor.control import FixedRates, QKClip, QuacK
from attractor.errors import InputError
from tiers import fast_alone

Subject = tuple[Any, Any]  # a model and what is given as its optimizer


def trained(model: nn.Module) -> Subject:
    return model, SGD(model.parameters(), lr=0.1)


def plain() -> Subject:
    return trained(small())


class ScheduleFree(SGD):
    """An optimizer of the schedule-free kind: the model holds one of its two sets of weights."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


def frozen(part: str) -> Subject:
    model = small()
    for block in model.blocks:  # type: ignore[union-attr]
        for matrix in ("query", "key") if part == "both" else (part,):
            getattr(block.attention.project, matrix).requires_grad_(False)
    return trained(model)


def tied() -> Subject:
    model = small()
    first, second = (block.attention.project for block in model.blocks)  # type: ignore[union-attr]
    second.query.weight = first.query.weight
    return trained(model)


def one_of_two() -> Subject:
    model = small(qkv_bias=True)
    return model, Muon([parameter for parameter in model.parameters() if parameter.ndim == 2])


def with_state(attention: str = "standard", norm: str = "frobenius") -> dict[str, Any]:
    model, optimizer = trained(small(attention))
    return {"initial_norms": QuacK(model, optimizer, norm=norm).state_dict()}


POSITIVE = "must be positive and finite, got"
QK_NORM = PRESETS["standard"].replace(qk_norm=True)
NO_NORMS = "must be a dict that holds norm and initial, got"
REFUSED: dict[str, tuple[Any, Callable[[], Subject], dict[str, Any], str]] = {
    "tau of 0": (QuacK, plain, {"tau": 0.0}, f"tau {POSITIVE}"),
    "negative tau": (FixedRates, plain, {"tau": -1.0}, f"tau {POSITIVE}"),
    "tau in words": (QuacK, plain, {"tau": "1"}, f"tau {POSITIVE}"),
    "infinite tau": (FixedRates, plain, {"tau": math.inf}, f"tau {POSITIVE}"),
    "threshold of 0": (QKClip, plain, {"threshold": 0}, f"threshold {POSITIVE}"),
    "threshold without a number": (QKClip, plain, {"threshold": math.nan}, f"threshold {POSITIVE}"),
    "threshold of True": (QKClip, plain, {"threshold": True}, f"threshold {POSITIVE}"),
    "norm": (QuacK, plain, {"norm": "spektral"}, "unknown norm of QuacK 'spektral'; did you mean 'spectral'"),
    "no optimizer": (QuacK, lambda: (small(), []), {}, "at least one"),
    "no hooks": (QuacK, lambda: (small(), object()), {}, "step hooks .* but object has none"),
    "offloaded": (QKClip, lambda: trained(small().to("meta")), {}, "must hold values for QKClip, but is on the meta"),
    "two copies": (QuacK, lambda: (m := small(), ScheduleFree(m.parameters())), {}, "ScheduleFree has train"),
    "two copies, clipped": (QKClip, lambda: (m := small(), ScheduleFree(m.parameters())), {}, "ScheduleFree has train"),
    "weights of another model": (
        QuacK,
        lambda: (small(), SGD(small().parameters())),
        {},
        "the weight of query of 'blocks.0.attention' must be among .* when it is replaced",
    ),
    "one of two optimizers": (QuacK, one_of_two, {}, "the bias of query .* list of all optimizers"),
    "one of two, clipped": (QKClip, one_of_two, {}, "the bias of query .* list of all optimizers"),
    "all frozen": (QuacK, lambda: frozen("both"), {}, "all are frozen"),
    "frozen, clipped": (QKClip, lambda: frozen("key"), {}, "the key weights of 'blocks.0.attention' are frozen"),
    "tied": (QuacK, tied, {}, "query of 'blocks.1.attention' and query of 'blocks.0.attention' must not share"),
    "tied, clipped": (QKClip, tied, {}, "blocks.1.attention' and .*blocks.0.attention' must not share weights"),
    "no attention": (QuacK, lambda: trained(nn.Linear(2, 2)), {}, "found no attention module in Linear.*register_view"),
    "QK-norm": (QKClip, lambda: trained(small(attention=QK_NORM)), {}, "clipping would do nothing.*qk_norm"),
    "QK-norm of theirs": (QKClip, lambda: trained(of_family("qwen3")), {}, "Qwen2 in Qwen3's place.*QuacK"),
    "coupled": (QKClip, lambda: trained(small("coupled-euler")), {}, "the coupling is not linear.*QuacK"),
    "no norms": (QuacK, plain, {"initial_norms": {}}, f"{NO_NORMS} nothing; give the state_dict"),
    "a model for norms": (QuacK, plain, {"initial_norms": small()}, rf"{NO_NORMS} \w*Transformer\w*; give the state"),
    "rates for norms": (QuacK, plain, {"initial_norms": {"tau": 1.0}}, f"{NO_NORMS} tau; give"),
    "norms of another kind": (QuacK, plain, with_state(norm="spectral"), "norm must be 'spectral' as in the state"),
    "norms of other heads": (QuacK, plain, with_state("gqa"), "key of 'blocks.0.attention' has 1 heads there and 4"),
    "norms of other parts": (QuacK, plain, with_state("mla"), r"uq of .* has 4 heads there and 0 here.* and \d+ more"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_control_is_refused_with_the_reason_and_leaves_nothing_attached(case: str) -> None:
    control, subject, options, message = REFUSED[case]
    model, optimizer = subject()
    with pytest.raises(InputError, match=message) as refused:
        control(model, optimizer, **options)
    assert "\n" not in str(refused.value)
    if type(optimizer) is SGD:  # another control of the optimizer would be refused while one is attached
        other = small()
        optimizer.add_param_group({"params": [*other.parameters()]})
        FixedRates(other, optimizer, 0.5)


RULES = (QuacK, FixedRates)
ORDERS = [*((first, second) for first in RULES for second in RULES), *((QKClip, rule) for rule in (QKClip, *RULES))]


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_two_rules_and_a_rule_after_the_clip_are_refused(first: Any, second: Any) -> None:
    """Criterion: the second is accepted once the first is removed. Removing the first again does not unguard it."""
    model, optimizer = plain()
    attached = first(model, optimizer, 0.5)
    once, after = f"an optimizer takes {second.__name__} once.*remove", f"attach {second.__name__} before QKClip"
    with pytest.raises(InputError, match=once if first is second or first in RULES else after):
        second(model, optimizer, 0.5)
    attached.remove()
    second(model, optimizer, 0.5)
    attached.remove()
    with pytest.raises(InputError, match=f"{second.__name__} is attached already"):
        second(model, optimizer, 0.5)


@pytest.mark.parametrize("rule", RULES)
def test_a_state_with_another_tau_or_of_other_layers_is_refused_and_changes_nothing(rule: Any) -> None:
    model, optimizer = plain()
    first = rule(model, optimizer, 0.5)
    state = first.state_dict()
    first.remove()
    other = rule(model, optimizer, 1.0)
    with pytest.raises(InputError, match=r"tau must be 0.5 as in the state that is loaded, got 1"):
        other.load_state_dict(state)
    if rule is QuacK:
        del state["initial"]["blocks.1.attention"]
        before = other.state_dict()["initial"]
        with pytest.raises(InputError, match=r"query of 'blocks.1.attention' has 0 heads there and 4 here"):
            other.load_state_dict(state | {"tau": 1.0})
        torch.testing.assert_close(other.state_dict()["initial"], before, rtol=0, atol=0)


def test_a_shared_key_may_be_frozen_and_a_layer_may_be_repeated_under_a_clip() -> None:
    """Criterion: a shared key is never scaled, and one layer that is called twice is clipped once."""
    model = small("mqa")
    model.blocks[0].attention.project.key.weight.requires_grad_(False)  # type: ignore[index, union-attr]
    model.blocks[1] = model.blocks[0]  # type: ignore[index]
    QKClip(*trained(model))


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
