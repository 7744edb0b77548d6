"""A layer filled with another model's weights computes what that model's own attention computes."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from foreign import theirs
from torch import Tensor, nn

from attractor.attention import Attention, Rope, build
from attractor.errors import InputError
from attractor.hf import import_attention
from attractor.hf.architectures import architecture
from attractor.hf.weights import LAYOUTS, translate

T, D = 11, 48
LAYER_INDEX = 2


@dataclass
class Case:
    """The attention of a Hugging Face model, and our layer of the same config."""

    theirs: nn.Module
    rotary: nn.Module
    ours: Attention
    theta: float

    def run(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1]).unsqueeze(0)
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        return self.theirs(x, position_embeddings=self.rotary(x, positions), attention_mask=mask[None, None])[0]


def made(name: str) -> Case:
    model = theirs(name)
    config = architecture(model.config.model_type).config(model.config.to_dict())
    ours = config.build(0).eval().layers[LAYER_INDEX].attention
    return Case(model.model.layers[LAYER_INDEX].self_attn, model.model.rotary_emb, ours, config.rope_theta)


CASES = ["llama", "qwen2", "qwen3", "phi3", "cohere", "diffllama", "deepseek-v3"]
WHOLE_MODELS = {"gpt2", "gpt-neox", "gemma3"}  # tested only in test_hf_import


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Case, str]:
    filled = made(request.param)
    import_attention(filled.ours, filled.theirs.state_dict(), layout=request.param)
    return filled, request.param


def test_same_output_and_same_gradients(case: tuple[Case, str]) -> None:
    """Criterion: fp32 outputs agree to 1e-5, and their gradients, translated like weights, equal ours."""
    filled, layout = case
    width = filled.ours.output.out.out_features
    x = torch.randn(2, T, width, generator=torch.Generator().manual_seed(1), requires_grad=True)
    weight = torch.randn(2, T, width, generator=torch.Generator().manual_seed(2))
    rope = Rope(filled.ours.rope_width, filled.theta)
    theirs = filled.run(x)
    ours, _ = filled.ours(x, rope=rope)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    (theirs_x,) = torch.autograd.grad((theirs * weight).sum(), x, retain_graph=True)
    (ours_x,) = torch.autograd.grad((ours * weight).sum(), x, retain_graph=True)
    torch.testing.assert_close(ours_x, theirs_x, rtol=1e-4, atol=1e-5)
    (theirs * weight).sum().backward()
    (ours * weight).sum().backward()
    gradients = translate(filled.ours, {n: p.grad for n, p in filled.theirs.named_parameters()}, layout)
    for name, parameter in filled.ours.named_parameters():
        if not (layout == "diffllama" and name == "score.norm.weight"):  # DiffLlama has no such weight
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-4)


def test_prefix_selects_a_layer_of_a_whole_model() -> None:
    case = made("llama")
    whole = {f"model.layers.2.self_attn.{name}": w for name, w in case.theirs.state_dict().items()}
    whole["model.layers.1.self_attn.q_proj.weight"] = torch.zeros(1)
    import_attention(case.ours, whole, layout="llama", prefix="model.layers.2.self_attn.")
    assert torch.equal(case.ours.state_dict()["project.query.weight"], case.theirs.q_proj.weight)


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


class PlainDifferential(FlashDifferential):
    """The differential attention of unilm's plain class, which repeats key sub-heads before it pairs the maps."""

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        maps = grouped_weights(q, k).unflatten(1, (self.n_heads, 2))
        values = v.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)
        return maps[:, :, 0] @ values, maps[:, :, 1] @ values


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


@torch.no_grad()
@pytest.mark.parametrize(("n_stored", "n_kv_heads"), [(6, 6), (3, 6), (2, 6), (1, 6), (1, 2)])
def test_plain_differential_attention_pairs_keys_after_repeating_them(n_stored: int, n_kv_heads: int) -> None:
    torch.manual_seed(0)
    theirs = PlainDifferential(6, n_stored, LAYER_INDEX)
    layer = build("differential-original", D, 6, LAYER_INDEX, n_kv_heads=n_kv_heads)
    import_attention(layer, theirs.state_dict(), layout="unilm-diff-plain")
    x = torch.randn(2, T, D)
    torch.testing.assert_close(layer(x, rope=Rope(layer.rope_width))[0], theirs(x), rtol=1e-5, atol=1e-5)


def test_the_two_classes_differ_where_keys_are_shared_and_nowhere_else() -> None:
    x = torch.randn(2, T, D, generator=torch.Generator().manual_seed(1))
    for n_kv_heads in (6, 3):
        torch.manual_seed(0)
        flash, plain = (kind(6, n_kv_heads, LAYER_INDEX) for kind in (FlashDifferential, PlainDifferential))
        plain.load_state_dict(flash.state_dict())
        assert torch.equal(flash(x), plain(x)) == (n_kv_heads == 6)


@pytest.mark.parametrize(("n_stored", "n_kv_heads", "needed"), [(3, 3, 6), (2, 2, 6), (1, 1, 2)])
def test_a_layer_with_too_few_key_heads_for_the_plain_class_is_refused(
    n_stored: int, n_kv_heads: int, needed: int
) -> None:
    theirs = PlainDifferential(6, n_stored, LAYER_INDEX)
    layer = build("differential-original", D, 6, LAYER_INDEX, n_kv_heads=n_kv_heads)
    with pytest.raises(InputError, match=f"n_kv_heads must be {needed} for layout 'unilm-diff-plain' .*, got"):
        import_attention(layer, theirs.state_dict(), layout="unilm-diff-plain")


@torch.no_grad()
def test_weights_are_translated_back_unchanged(case: tuple[Case, str]) -> None:
    """Criterion: translating weights back gives the stored ones bit for bit under the same names."""
    filled, layout = case
    parameters, stored = dict(filled.ours.named_parameters()), filled.theirs.state_dict()
    back: dict[str, Tensor] = {}
    for tie in LAYOUTS[layout].ties(filled.ours):
        back |= zip(tie.stored, tie.store([parameters[name] for name in tie.parameters]), strict=True)
    assert back.keys() == stored.keys()
    assert all(torch.equal(back[name], stored[name]) for name in stored)


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
        ("llama", ("gqa", {"n_kv_heads": 2}), "gpt-neox", "n_kv_heads must be n_heads=4 where"),
    ],
)
def test_another_layout_or_shape_is_refused_and_changes_nothing(name: str, ours: Any, layout: str, words: str) -> None:
    case = made(name)
    layer = case.ours if ours is None else build(ours[0], 32, 4, **ours[1])
    before = {name: p.clone() for name, p in layer.named_parameters()}
    with pytest.raises(InputError, match=words):
        import_attention(layer, case.theirs.state_dict(), layout=layout)
    assert all(torch.equal(before[name], p) for name, p in layer.named_parameters())


def test_every_layout_is_tried_here() -> None:
    assert set(LAYOUTS) == {*CASES, *WHOLE_MODELS, "unilm-diff-flash", "unilm-diff-plain"}
