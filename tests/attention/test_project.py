"""Projections: MLA folded and unfolded, the published sizes of PsiQRH, grouped keys, and sizes that are refused."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.attention import PRESETS, Attention, Rope, build
from attractor.attention.hooks import capture
from attractor.attention.project.heads import Heads
from attractor.attention.project.latent import LatentProjection
from attractor.errors import InputError

DIMS = {"q_latent": 7, "kv_latent": 5, "rope_dim": 4, "nope_dim": 3, "v_dim": 6}


def mla(**changes: Any) -> Attention:
    torch.manual_seed(0)
    return build("mla", 16, 4, **changes).double()


def some_x(length: int = 6) -> Tensor:
    return torch.randn(2, length, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("softcap", [None, 1.0])
@pytest.mark.parametrize("latent_norm", [False, True])
@pytest.mark.parametrize("with_rope", [False, True])
@pytest.mark.parametrize("dims", [{}, DIMS], ids=["default", "unequal"])
def test_absorbed_decoding_equals_the_unfolded_pass(
    dims: dict[str, int], with_rope: bool, latent_norm: bool, softcap: float | None
) -> None:
    """Criterion: both agree within 1e-12 in fp64, and the cache holds kv_latent + rope_dim numbers a position."""
    layer, x = mla(**dims, latent_norm=latent_norm, softcap=softcap), some_x()
    assert layer.absorbs
    if latent_norm:
        torch.nn.init.normal_(layer.project.norm.weight)
    rope = Rope(layer.rope_width) if with_rope else None
    cache = layer.new_cache()
    found = torch.cat([layer(chunk, rope=rope, cache=cache)[0] for chunk in x.split([3, 1, 2], dim=1)], dim=1)
    torch.testing.assert_close(found, layer(x, rope=rope)[0], rtol=1e-12, atol=1e-12)
    assert cache.n_numbers == 6 * (layer.project.kv_latent + layer.layout.rotary)


def test_absorbed_decoding_gives_the_same_weights() -> None:
    layer, x, rope = mla(), some_x(), Rope(2)
    with capture("weights") as seen:
        layer(x, rope=rope)
        layer(x, rope=rope, cache=layer.new_cache())
    torch.testing.assert_close(*seen["weights"])


def test_mla_is_the_formula() -> None:
    """Criterion: q_h = [W_uq c_q ; W_qr c_q], k_h = [W_uk c ; W_kr x], v_h = W_uv c, and all heads share the rope
    key."""
    layer, x = mla(**DIMS), some_x()
    w = dict(layer.project.named_parameters())
    c_q, c = x @ w["query_down.weight"].T, x @ w["down.weight"].T
    q, k, v = layer.project(x)
    for h in range(4):
        nope, rope, value = slice(3 * h, 3 * h + 3), slice(4 * h, 4 * h + 4), slice(6 * h, 6 * h + 6)
        query = [c_q @ w["query_up.weight"][nope].T, c_q @ w["query_rope.weight"][rope].T]
        torch.testing.assert_close(q[:, h], torch.cat(query, dim=-1))
        torch.testing.assert_close(k[:, h], torch.cat([c @ w["key_up.weight"][nope].T, x @ w["key_rope.weight"].T], -1))
        torch.testing.assert_close(v[:, h], c @ w["value_up.weight"][value].T)


@pytest.mark.parametrize("dims", [{}, DIMS], ids=["default", "unequal"])
def test_mla_with_qk_norm_trains_and_decodes_unabsorbed(dims: dict[str, int]) -> None:
    """Criterion: every parameter has a gradient, decoding equals the full pass, and keys and values are cached
    unfolded."""
    layer, x = mla(qk_norm=True, **dims), some_x()
    assert not layer.absorbs
    rope, cache = Rope(layer.rope_width), layer.new_cache()
    whole, _ = layer(x, rope=rope)
    gradients = torch.autograd.grad(whole.square().sum(), list(layer.parameters()))
    assert all(gradient.any() and gradient.isfinite().all() for gradient in gradients)
    steps = torch.cat([layer(token, rope=rope, cache=cache)[0] for token in x.split(1, dim=1)], dim=1)
    torch.testing.assert_close(steps, whole, rtol=1e-12, atol=1e-12)
    assert cache.n_numbers == 6 * 4 * (layer.layout.free + layer.layout.rotary + layer.layout.value)


def test_every_field_of_mla_sizes_its_matrices() -> None:
    """Criterion: every field sizes its own matrices; defaults follow d_model and the head width."""
    project = mla(**DIMS).project
    assert isinstance(project, LatentProjection)
    shapes = {name: tuple(value.shape) for name, value in project.named_parameters()}
    expected = {"query_down": (7, 16), "query_up": (4 * 3, 7), "query_rope": (4 * 4, 7), "down": (5, 16)}
    expected |= {"key_up": (4 * 3, 5), "key_rope": (4, 16), "value_up": (4 * 6, 5)}
    assert shapes == {f"{name}.weight": shape for name, shape in expected.items()}
    with torch.device("meta"):
        layer = build("mla", 512, 8)
    assert (layer.project.query_down.out_features, layer.project.kv_latent) == (256, 128)
    assert (layer.layout.free, layer.layout.rotary, layer.layout.value) == (64, 32, 64)


def test_scale_follows_the_projected_width() -> None:
    """Criterion: MLA scales by its nope + rope coordinates; phase activation has two parts but keeps the head's
    scale."""
    for layer, width in ((mla(**DIMS), 7), (build("phase", 16, 4), 4), (build("differential", 16, 4), 2)):
        assert layer.score.scale == width**-0.5


@pytest.mark.parametrize(("latent", "expected"), [(256, 330_496), (None, 3_692_800)], ids=["d", "4d"])
def test_parameters_of_psiqrh(latent: int | None, expected: int) -> None:
    """Criterion: d = 256, H = 8, latent = d, a biased two-matrix MLP of 512 and two LayerNorms give the published
    594,432."""
    with torch.device("meta"):
        layer = build("psiqrh", 256, 8, latent=latent)
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected
    if latent == 256:
        mlp, norms = 2 * 256 * 512 + 512 + 256, 2 * 2 * 256
        assert expected + mlp + norms == 594_432


def test_shared_latent_is_the_formula() -> None:
    """Criterion: Z = LayerNorm(W_z x + b_z), and q, k, v are linear in Z, each of width latent / H."""
    layer, x = build("psiqrh", 16, 4, latent=24).double(), some_x()
    project = layer.project
    z = torch.nn.functional.layer_norm(x @ project.latent.weight.T + project.latent.bias, (24,))
    for linear, found in zip((project.query, project.key, project.value), project(x), strict=True):
        expected = (z @ linear.weight.T + linear.bias).unflatten(-1, (4, 6)).transpose(1, 2)
        torch.testing.assert_close(found, expected)


def test_named_presets_group_as_they_say() -> None:
    """Criterion: `gqa` means H / 4 key heads, `mqa` means one, and an explicit number overrides the ratio."""
    with torch.device("meta"):
        found = [build(name, 64, 8).layout.n_kv_heads for name in ("standard", "gqa", "coupled-gqa", "mqa")]
        assert found == [8, 2, 2, 1]
        assert build("gqa", 64, 8, n_kv_heads=4).layout.n_kv_heads == 4
    assert Heads(heads_per_kv=4) == PRESETS["gqa"].project


def test_bias_is_on_queries_keys_and_values_alone() -> None:
    names = {name for name, _ in build("standard", 16, 4, qkv_bias=True).named_parameters() if name.endswith("bias")}
    assert names == {"project.query.bias", "project.key.bias", "project.value.bias"}


def test_head_width_may_be_given() -> None:
    layer = build("standard", 16, 4, head_dim=6)
    assert layer.layout.free == layer.layout.value == 6
    assert layer(some_x().float())[0].shape == (2, 6, 16)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("standard", {"n_kv_heads": 3}, "n_kv_heads must be a divisor of n_heads=4, got 3"),
        ("standard", {"n_kv_heads": 0}, "n_kv_heads must be a divisor of n_heads=4, got 0"),
        ("gqa", {"heads_per_kv": 3}, "heads_per_kv must be a divisor of n_heads=4, got 3; choose n_heads to fit"),
        ("psiqrh", {"latent": 30}, "latent must be a multiple of n_heads=4, got 30"),
        ("psiqrh", {"n_kv_heads": 3}, "n_kv_heads must be a divisor of n_heads=4, got 3"),
        ("uniform", {"n_kv_heads": 3}, "n_kv_heads must be a divisor of n_heads=4, got 3"),
        ("mla", {"rope_dim": 3}, "rope_dim must be even, got 3; rotary positions turn pairs"),
        ("mla", {"kv_latent": 0}, "kv_latent must be an integer of at least 1, got 0"),
        ("mla", {"v_dim": -1}, "v_dim must be an integer of at least 1, got -1"),
        ("differential", {"head_dim": 5}, "head width must be even under differential attention, got 5"),
        ("standard", {"d_model": 18}, "d_model must be divisible by n_heads=4, got 18; or give head_dim"),
        ("standard", {"n_heads": 0}, "n_heads must be an integer of at least 1, got 0"),
        ("standard", {"d_model": -16}, "d_model must be an integer of at least 1, got -16"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, changes: dict[str, int], message: str) -> None:
    """Criterion: an InputError names the field, the rule and the value."""
    with pytest.raises(InputError, match="^" + re.escape(message)):
        build(name, **({"d_model": 16, "n_heads": 4} | changes))
