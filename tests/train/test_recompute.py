"""Activation checkpointing keeps gradients to the bit, saves memory, and recomputes little."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.models import FastSlowConfig, TransformerConfig
from attractor.models.language_model import LanguageModel
from attractor.train.config import Runtime, TrainConfig
from attractor.train.memory import LiveStorages
from attractor.train.recompute import MANY, SAVED_OPS, is_expensive
from same_runs import build_run, same

WAYS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "cheap": {"activation_checkpointing": True, "recompute": "cheap"},
    "blocks": {"activation_checkpointing": True},
}
WIDE = TransformerConfig(
    vocab_size=320, d_model=256, n_heads=8, n_layers=2, d_ff=512, max_seq_len=64, positions="rope", dropout=0.1
)


def gradients(model: LanguageModel, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)  # seeds dropout
    tokens = torch.randint(0, 320, (2, 33), generator=torch.Generator().manual_seed(0))
    loss, aux_loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    return list(torch.autograd.grad(loss + aux_loss, list(model.parameters())))


def asked(model: LanguageModel, how: dict[str, Any]) -> LanguageModel:
    model.activation_checkpointing = "activation_checkpointing" in how
    model.saved_ops = SAVED_OPS[how.get("recompute", "blocks")]
    return model.train()


@pytest.mark.slow
@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "config",
    [
        WIDE,
        WIDE.replace(attention="coupled-hamiltonian"),
        WIDE.replace(attention="differential"),
        FastSlowConfig(d_model=256, n_heads=4, d_ff=256, max_seq_len=64, n_rounds=2),
    ],
    ids=["standard", "coupled-hamiltonian", "differential", "fast-slow"],
)
def test_gradients_are_the_same_to_the_bit(config: Any, precision: torch.dtype | None) -> None:
    model = config.build(0)
    with torch.autocast("cpu", precision, enabled=precision is not None):
        found = [gradients(asked(model, how)) for how in WAYS.values()]
    assert same(found[0], found[1])
    assert same(found[0], found[2])


class Seen(LiveStorages):
    """Count operations by name, and the memory of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_dispatch__(self, operation: Any, *arguments: Any) -> Any:
        self.calls[str(operation.overloadpacket)] += 1
        return super().__torch_dispatch__(operation, *arguments)


def passes(model: LanguageModel) -> tuple[Seen, Seen]:
    """Return the operations of a forward and of a backward pass, with the bytes held after the forward pass."""
    tokens = torch.randint(0, 320, (2, 65), generator=torch.Generator().manual_seed(0))
    with Seen() as forward:
        loss, _ = model.loss(tokens[:, :-1], tokens[:, 1:])
    forward.calls["bytes"] = forward.now
    with Seen() as backward:
        loss.backward()
    return forward, backward


def test_cheap_computes_activations_again_and_neither_products_nor_attention() -> None:
    """Criterion: the backward pass recomputes activations but no product and no attention, while `blocks` recomputes
    all. The memory of `cheap` lies between that of `blocks` and that without checkpointing."""
    found = {name: passes(asked(WIDE.replace(dropout=0.0).build(0), how)) for name, how in WAYS.items()}
    calls = {name: backward.calls for name, (_, backward) in found.items()}
    held = {name: forward.calls["bytes"] for name, (forward, _) in found.items()}
    attention = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert calls["cheap"]["aten.mm"] == calls["nothing"]["aten.mm"] < calls["blocks"]["aten.mm"]
    assert calls["cheap"][attention] == calls["nothing"][attention] == 0
    assert calls["blocks"][attention] == WIDE.n_layers
    assert [calls[name]["aten.silu"] for name in WAYS] == [0, WIDE.n_layers, WIDE.n_layers]
    assert held["blocks"] < held["cheap"] < held["nothing"]


def test_expensive_operations_sum_over_many_numbers_or_attend() -> None:
    aten = torch.ops.aten
    x = torch.zeros(1)
    many, few = torch.zeros(2, 3, MANY), torch.zeros(2, 3, MANY - 1)
    assert is_expensive(aten.mm.default, many[0], many[0].T)
    assert not is_expensive(aten.mm.default, few[0], few[0].T)
    assert is_expensive(aten.baddbmm.default, x, many, many.mT)
    assert not is_expensive(aten.addmm.default, x, few[0], few[0].T)
    assert is_expensive(aten._scaled_dot_product_flash_attention.default, few, few, few)
    assert not is_expensive(aten.silu.default, many)


def test_a_run_checkpoints_as_its_config_says(config: TrainConfig, runtime: Runtime, tmp_path: Path) -> None:
    """Criterion: one step agrees to the bit under each setting, and a config with the default is stored as before."""
    weights = []
    for name, how in WAYS.items():
        run = build_run(config.replace(model=WIDE, **how), tmp_path / name, runtime)
        run.model.train()
        run.take_step()
        weights.append(list(run.model.state_dict().values()))
    assert same(weights[0], weights[1])
    assert same(weights[0], weights[2])
    assert "recompute" not in config.replace(**WAYS["blocks"]).to_dict()
    assert config.replace(**WAYS["cheap"]).to_dict()["recompute"] == "cheap"
