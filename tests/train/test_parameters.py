"""Weight decay shrinks matrices and leaves the coupling's step sizes alone, in our models and in others."""

import math

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.optim import AdamW

import attractor
from attractor.attention import PRESETS
from attractor.attention.position import LearnedPositions
from attractor.errors import InputError
from attractor.models import TransformerConfig
from attractor.train.config import TrainConfig
from attractor.train.optimizer import optimizer_groups

TINY = TransformerConfig(vocab_size=32, d_model=32, n_heads=4, n_layers=1, d_ff=24)
MAPS = (nn.Linear, nn.Embedding, LearnedPositions)


class Foreign(nn.Module):
    """A foreign model with torch's own attention and one of our layers."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 32)
        self.theirs = nn.MultiheadAttention(32, 2, batch_first=True)
        self.ours = attractor.attention.build(attention, d_model=32, n_heads=4)
        self.norm = nn.LayerNorm(32)
        self.readout = nn.Linear(32, 32)
        self.readout.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.theirs(x, x, x, need_weights=False)[0]
        return self.readout(self.norm(x + self.ours(x)[0]))


def decay_by_name(model: nn.Module, weight_decay: float = 0.1) -> dict[str, float]:
    groups = attractor.parameter_groups(model, weight_decay)
    return {name: group["weight_decay"] for group in groups for name, _ in group["params"]}


@pytest.mark.parametrize("attention", PRESETS)
def test_the_groups_partition_the_parameters_of_every_model(attention: str) -> None:
    """Criterion: in our models exactly the weights of linear maps and embeddings decay, and no norms, biases, step
    sizes or lambda vectors, whatever their shape."""
    ours = TINY.replace(attention=attention, positions="learned", qkv_bias=False).build()
    maps = [name for name, module in ours.named_modules() if isinstance(module, MAPS)]
    assert {name for name, value in decay_by_name(ours).items() if value} == {f"{name}.weight" for name in maps}
    for model in (ours, Foreign(attention)):
        groups = attractor.parameter_groups(model, 0.1)
        held = [parameter for group in groups for _, parameter in group["params"]]
        assert len({*map(id, held)}) == len(held)
        assert {*map(id, held)} == {*map(id, model.parameters())}
        AdamW(groups, lr=1e-3)


def test_the_matrices_of_experts_decay() -> None:
    """transformers stores the experts of a layer as one parameter, whose name has no `weight`."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.randn(2, 8, 4))
            self.down_proj = nn.Parameter(torch.randn(2, 4, 4))
            self.down_proj_bias = nn.Parameter(torch.randn(2, 4))

    decay = decay_by_name(Experts())
    assert {name for name, value in decay.items() if value} == {"gate_up_proj", "down_proj"}


def test_only_matrices_of_a_foreign_model_decay() -> None:
    """Criterion: the tied matrix counts once, and no bias, norm or step size decays."""
    decay = decay_by_name(Foreign("coupled-euler"))
    decaying = {name for name, value in decay.items() if value}
    assert {"embedding.weight", "theirs.in_proj_weight", "theirs.out_proj.weight"} <= decaying
    assert {"ours.couple.tau", "norm.weight", "norm.bias", "readout.bias"} <= decay.keys() - decaying
    assert "readout.weight" not in decay


def test_the_groups_are_those_of_a_run() -> None:
    config = TrainConfig(model=TINY.replace(attention="coupled-euler"), weight_decay=0.1)
    model = config.model.build()
    assert attractor.parameter_groups(model, 0.1) == optimizer_groups(model, config)


def test_frozen_parameters_are_left_out_and_an_empty_group_with_them() -> None:
    model = Foreign("standard")
    model.embedding.weight.requires_grad_(False)
    assert "embedding.weight" not in decay_by_name(model)
    (group,) = attractor.parameter_groups(nn.Linear(3, 2, bias=False), 0.1)
    assert [name for name, _ in group["params"]] == ["weight"]
    assert group["weight_decay"] == 0.1


def test_a_hugging_face_model_holds_its_tied_weights_once() -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=1, tie_word_embeddings=True)
    decay = decay_by_name(transformers.AutoModelForCausalLM.from_config(config))
    assert "lm_head.weight" not in decay
    assert {name for name, value in decay.items() if not value} == {name for name in decay if "norm" in name}


@pytest.mark.parametrize("wrong", [-0.1, math.nan, math.inf])
def test_an_invalid_decay_is_refused(wrong: float) -> None:
    with pytest.raises(InputError, match=r"^weight_decay must be at least 0 and finite, got "):
        attractor.parameter_groups(Foreign("standard"), wrong)
