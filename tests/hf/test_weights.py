"""A layer filled with another model's weights computes what that model's own attention computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import FAST, MODELS, saved, theirs
from torch import Tensor, nn

from attractor.attention import Rope, build
from attractor.errors import InputError
from attractor.hf import import_attention
from attractor.hf.architectures import architecture
from attractor.hf.import_models import import_model
from attractor.hf.weights import LAYOUTS, translate

T, D = 11, 48
LAYER_INDEX = 2


@pytest.mark.parametrize("name", FAST)
def test_a_layer_takes_the_weights_that_the_imported_model_has(name: str, tmp_path: Path) -> None:
    """The logits of imported models are held to those of transformers in test_hf_import."""
    model, known = saved(tmp_path, name, spelled=False), architecture(MODELS[name][0])
    imported = import_model(tmp_path)
    layer = imported.config.build(1).layers[LAYER_INDEX].attention
    prefix = f"{known.names.base}{known.names.blocks}.{LAYER_INDEX}.{known.names.attention}."
    import_attention(layer, model.state_dict(), known.layout, prefix)
    expected = imported.layers[LAYER_INDEX].attention.state_dict()
    assert all(torch.equal(weight, expected[part]) for part, weight in layer.state_dict().items())


class FlashDifferential(nn.Module):
    """The differential attention of unilm's flash class, written from the formulas of arXiv 2410.05258 with the names
    of its public code: queries and keys are split as (h, 2), interleaved RoPE, a norm with weight."""

    def __init__(self, n_heads: int, n_kv_heads: int, layer_index: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.width = n_heads, n_kv_heads, D // n_heads // 2
        self.q_proj = nn.Linear(D, D, bias=False)
        self.k_proj = nn.Linear(D, n_kv_heads * 2 * self.width, bias=False)
        self.v_proj = nn.Linear(D, n_kv_heads * 2 * self.width, bias=False)
        self.out_proj = nn.Linear(D, D, bias=False)
        self.lambda_init = 0.8 - 0.6 * torch.exp(torch.tensor(-0.3 * layer_index)).item()
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(torch.randn(self.width) * 0.3))
        self.subln = nn.RMSNorm(2 * self.width, eps=1e-5)
        nn.init.normal_(self.subln.weight)

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate the pairs (2j, 2j+1) as complex numbers."""
        angles = torch.outer(torch.arange(x.shape[2]), 10000.0 ** -(torch.arange(0, self.width, 2) / self.width))
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.view_as_real(turned).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        q = self.rotate(self.q_proj(x).unflatten(-1, (2 * self.n_heads, -1)).transpose(1, 2))
        k = self.rotate(self.k_proj(x).unflatten(-1, (2 * self.n_kv_heads, -1)).transpose(1, 2))
        v = self.v_proj(x).unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2)
        first = (self.lambda_q1 * self.lambda_k1).sum().exp()
        second = (self.lambda_q2 * self.lambda_k2).sum().exp()
        one, other = self.attended(q, k, v)
        heads = self.subln(one - (first - second + self.lambda_init) * other) * (1 - self.lambda_init)
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of two attention maps with grouped queries: query head h reads key head h // repeats."""
        q, k = q.unflatten(1, (self.n_heads, 2)), k.unflatten(1, (self.n_kv_heads, 2))
        one, other = (grouped_weights(q[:, :, i], k[:, :, i]) for i in (0, 1))
        values = v.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)
        return one @ values, other @ values


def grouped_weights(q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf")).softmax(-1)


@pytest.mark.parametrize("n_kv_heads", [6, 3, 2])
def test_original_differential_attention_and_its_gradients(n_kv_heads: int) -> None:
    torch.manual_seed(0)
    theirs = FlashDifferential(6, n_kv_heads, LAYER_INDEX)
    layer = build("differential-original", D, 6, LAYER_INDEX, n_kv_heads=n_kv_heads)
    import_attention(layer, theirs.state_dict(), layout="unilm-diff-flash")
    x = torch.randn(2, T, D)
    expected, (ours, _) = theirs(x), layer(x, rope=Rope(layer.rope_width))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    expected.square().sum().backward()
    ours.square().sum().backward()
    gradients = translate(layer, {n: p.grad for n, p in theirs.named_parameters()}, "unilm-diff-flash")
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "ours", "layout", "words"),
    [
        ("llama", None, "llma", "unknown layout 'llma'; did you mean 'llama'"),
        ("llama", None, "deepseek-v3", "layer must be an MLA layer"),
        ("qwen2", ("gqa", {"n_kv_heads": 2}), "qwen2", "found k_proj.bias.*qkv_bias"),
        ("llama", ("gqa", {"n_kv_heads": 2, "qkv_bias": True}), "llama", "must hold 'q_proj.bias'"),
        ("llama", ("gqa", {"n_kv_heads": 1}), "llama", r"k_proj.weight must have shape \(8, 32\)"),
        ("llama", ("differential-original", {}), "unilm-diff-flash", "must hold"),
        ("llama", ("coupled-euler", {"n_kv_heads": 2}), "llama", "these differ: couple"),
        ("llama", ("standard", {"orthogonal_values": True}), "llama", "orthogonal_values must be off"),
        ("llama", ("standard", {"sigma_reparam": True}), "llama", "sigma_reparam must be off"),
        ("llama", ("gqa", {"n_kv_heads": 2}), "gpt-neox", "n_kv_heads must be n_heads=4 where"),
    ],
)
def test_another_layout_or_shape_is_refused_and_changes_nothing(name: str, ours: Any, layout: str, words: str) -> None:
    model = theirs(name)
    layer = build("gqa", 32, 4, n_kv_heads=2) if ours is None else build(ours[0], 32, 4, **ours[1])
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(InputError, match=words):
        import_attention(layer, model.model.layers[LAYER_INDEX].self_attn.state_dict(), layout=layout)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_every_layout_is_tried_here() -> None:
    assert set(LAYOUTS) == {"unilm-diff-flash", *(architecture(MODELS[name][0]).layout for name in FAST)}
