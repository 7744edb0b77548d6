"""The fast decoding of a plain block equals the general one bit for bit, and a block that is not plain does not use
it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attractor.attention import PRESETS, Cache
from attractor.attention.hooks import capture
from attractor.models import ImportedConfig, Transformer
from attractor.models.fast_decoding import decode_step, plain_block_modules
from tiers import fast_alone

PLAIN: dict[str, dict[str, Any]] = {
    **{"rope": {}, "grouped": {"n_kv_heads": 2}, "biases": {"qkv_bias": True}, "wide heads": {"head_dim": 12}},
    **{"learned": {"positions": "learned"}, "another gate": {"mlp": "geglu"}},
    "biases everywhere": {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "layers without rope": {"no_rope_every": 2, "attention_scale": 0.3},
    "window": {"window": 6, "global_layers": "every:2"},
}
OTHER: list[dict[str, Any]] = [
    *({"attention": name} for name in PRESETS if name not in ("standard", "gqa", "mqa")),
    *({name: True} for name in ("qk_norm", "sigma_reparam", "parallel_branches")),
    *({"mlp": "gelu"}, {"softcap": 5.0}, {"norms_per_block": 4}, {"stream_norm": "layernorm"}),
    *({"rope_fraction": 0.5}, {"branch_scale": 0.5}),
]


def build(**changes: Any) -> Transformer:
    fields = {"vocab_size": 61, "d_model": 64, "n_heads": 4, "n_layers": 2, "d_ff": 96, "max_seq_len": 32}
    return ImportedConfig(**fields | {"positions": "rope"} | changes).build(0).eval()


@torch.no_grad()
def test_under_autocast_keys_are_kept_in_its_precision() -> None:
    model, tokens = build(), torch.arange(10).unsqueeze(0)
    cache = model.empty_cache()
    with torch.autocast("cpu", torch.bfloat16):
        model(tokens[:, :4], cache=cache)
        for t in range(4, 10):
            model(tokens[:, t : t + 1], cache=cache)
    nothing = torch.empty(1, 4, 0, 16)
    assert {held.dtype for layer in cache.layers for held in layer.append(nothing, nothing)} == {torch.bfloat16}


@torch.no_grad()
@pytest.mark.parametrize("dtype", fast_alone([torch.float32, torch.bfloat16, torch.float64], torch.float32))
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("changes", PLAIN.values(), ids=PLAIN)
def test_the_same_bits_position_by_position(changes: dict[str, Any], padded: bool, dtype: torch.dtype) -> None:
    model = build(**changes).to(dtype)
    tokens = torch.randint(0, 61, (3, 12), generator=torch.Generator().manual_seed(0))
    real = (torch.arange(12) >= torch.tensor([[0], [3], [1]])) if padded else None
    found = []
    for way in (quickly, in_general):
        cache, states = model.empty_cache(), []
        model(tokens[:, :4], cache=cache, real=None if real is None else real[:, :4])
        for t in range(4, 12):
            place = model.placement(tokens[:, t : t + 1], cache, None if real is None else real[:, t : t + 1])
            states.append(way(model, model.embedded(tokens[:, t : t + 1], place), place, cache.layers))
            cache.length += 1
        found.append(torch.cat(states, dim=1))
    assert torch.equal(*found)


def quickly(model: Transformer, x: Tensor, place: Any, caches: list[Cache]) -> Tensor:
    return decode_step(plain_block_modules(model.blocks) or [], x, place.mask, model.rotations(place), caches)


def in_general(model: Transformer, x: Tensor, place: Any, caches: list[Cache]) -> Tensor:
    for block, rotation, cache in zip(model.layers, model.rotations(place), caches, strict=True):
        x, _ = block(x, place.mask, rotation, cache)
    return x


@pytest.mark.parametrize("changes", OTHER, ids=str)
def test_other_blocks_are_not_plain(changes: dict[str, Any]) -> None:
    assert plain_block_modules(build(**changes).blocks) is None


def test_blocks_that_are_tapped_or_changed_are_not_plain() -> None:
    model = build()
    blocks, attention = model.blocks, model.layers[1].attention
    assert plain_block_modules(blocks) is not None
    with capture("weights"):
        assert plain_block_modules(blocks) is None
    for module in (blocks[0], attention.score, attention.query_norm, model.layers[0].mlp):
        for register in (module.register_forward_hook, module.register_forward_pre_hook):
            hook = register(lambda *_: None)
            assert plain_block_modules(blocks) is None
            hook.remove()
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert plain_block_modules(blocks) is None
    everywhere.remove()
    assert plain_block_modules(model.train().blocks) is None
    assert plain_block_modules(model.eval().blocks) is not None
    attention.output.out = nn.Sequential(attention.output.out)
    assert plain_block_modules(blocks) is None
