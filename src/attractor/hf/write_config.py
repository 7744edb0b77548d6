"""Translate an ImportedConfig into fields of a config.json of Hugging Face: the inverses of `read_config.py`."""

import math
from typing import Any

from attractor.attention import Attention
from attractor.attention.position import parse_scaling
from attractor.attention.project.latent import LatentProjection
from attractor.hf.read_config import GLOBAL, LOCAL, rotated_layers_of
from attractor.models.imported import ImportedConfig
from attractor.models.shapes_only import shapes_only


def first_layer(config: ImportedConfig) -> Attention:
    with shapes_only():
        return Attention(config.staged_attention, config.d_model, config.n_heads, 0, config.head_dim)


def shape(config: ImportedConfig) -> dict[str, Any]:
    """Return the fields of config.json that name one setting each. The class of an architecture takes those it has."""
    layer = first_layer(config)
    project, output = layer.config.project, layer.config.output
    is_usual_width = layer.layout.free * config.n_heads == config.d_model
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": layer.layout.n_kv_heads,
        "num_hidden_layers": config.n_layers,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.max_seq_len,
        "tie_word_embeddings": config.tied_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": rotation(config),
        "attention_bias": getattr(project, "qkv_bias", False) and getattr(output, "out_bias", False),
        "mlp_bias": config.mlp_bias,
        "use_qkv_bias": getattr(project, "qkv_bias", False),
        "attention_out_bias": getattr(output, "out_bias", False),
        "use_parallel_residual": config.parallel_branches,
        "attn_logit_softcapping": layer.softcap,
        "final_logit_softcapping": config.logit_softcap,
        "query_pre_attn_scalar": round(layer.scale**-2),
        "embedding_multiplier": config.embedding_scale,
        "residual_multiplier": config.branch_scale,
        "attention_multiplier": layer.scale,
        "logit_scale": config.logit_scale,
        "logits_scaling": 1 / config.logit_scale,
        "scale_attn_weights": alike(layer.scale, max(layer.layout.free, 1) ** -0.5),
        "sliding_window": config.staged_attention.window,
        "no_rope_layers": rotated_layers_of(config.n_layers, config.no_rope_every),
        "no_rope_layer_interval": config.no_rope_every or 4,
        "first_k_dense_replace": config.n_layers,
    } | ({} if is_usual_width else {"head_dim": layer.layout.free})


def rotation(config: ImportedConfig) -> dict[str, Any]:
    """Return the rotary parameters: the inverse of `scaling`."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    rope["partial_rotary_factor"] = config.staged_attention.couple.rope_fraction
    if config.rope_scaling is None:
        return rope
    kind, numbers, short, long = parse_scaling(config.rope_scaling)
    rope["rope_type"] = kind
    if kind == "longrope":
        length, size = numbers
        lists = {"short_factor": list(short), "long_factor": list(long)}
        return rope | lists | {"original_max_position_embeddings": int(length), "attention_factor": size}
    rope["factor"] = numbers[0]
    if kind == "llama3":
        rope |= {"low_freq_factor": numbers[1], "high_freq_factor": numbers[2]}
        rope["original_max_position_embeddings"] = int(numbers[3])
    elif kind.startswith("yarn"):
        _, length, fast, slow, size = numbers
        rope |= {"rope_type": "yarn", "original_max_position_embeddings": int(length), "attention_factor": size}
        rope |= {"beta_fast": fast, "beta_slow": slow} | ({} if kind == "yarn" else {"truncate": False})
    return rope


def kinds(config: ImportedConfig) -> dict[str, Any]:
    """Return the fields of layers of two kinds: the inverse of `windows`."""
    mechanisms = [config.layer_mechanism(index) for index in range(config.n_layers)]
    kinds = [GLOBAL if mechanism.window is None else LOCAL for mechanism in mechanisms]
    of_qwen = {"use_sliding_window": LOCAL in kinds, "max_window_layers": kinds.count(GLOBAL)}
    return shape(config) | {"layer_types": kinds} | of_qwen


def olmo3(config: ImportedConfig) -> dict[str, Any]:
    """Return the fields of layers of two kinds, with a rotation for each."""
    stored = kinds(config)
    local = {"rope_type": "default", "rope_theta": config.local_rope_theta or config.rope_theta}
    return stored | {"rope_parameters": {GLOBAL: stored["rope_parameters"], LOCAL: local}}


def vaultgemma(config: ImportedConfig) -> dict[str, Any]:
    """Return the fields of Gemma 2 with a window, which transformers asks for even where no layer uses it."""
    return kinds(config) | {"sliding_window": config.staged_attention.window or config.max_seq_len}


def phi3(config: ImportedConfig) -> dict[str, Any]:
    stored = shape(config)
    length = stored["rope_parameters"].pop("original_max_position_embeddings", None)
    return stored | ({} if length is None else {"original_max_position_embeddings": length})


def multiplied_twice_normed(config: ImportedConfig) -> dict[str, Any]:
    return shape(config) | {"logits_scaling": config.logit_scale, "use_post_norm": config.norms_per_block == 4}


def biased_inputs(config: ImportedConfig) -> dict[str, Any]:
    """Return the fields of attention whose output has its own bias, or none: the inverse of `biased_inputs`."""
    return shape(config) | {"attention_bias": getattr(config.staged_attention.project, "qkv_bias", False)}


def local_where_rotated(config: ImportedConfig) -> dict[str, Any]:
    """Return the fields of layers of which those with RoPE have a window: the inverse of `rotated_where_local`."""
    kinds = [LOCAL if rotated else GLOBAL for rotated in rotated_layers_of(config.n_layers, config.no_rope_every)]
    window = config.staged_attention.window or config.max_seq_len
    return shape(config) | {"layer_types": kinds, "sliding_window": window}


def exaone4(config: ImportedConfig) -> dict[str, Any]:
    if config.no_rope_every or config.staged_attention.window:
        return local_where_rotated(config)
    return shape(config) | {"layer_types": [GLOBAL] * config.n_layers, "sliding_window": None}


def pairs(config: ImportedConfig) -> dict[str, Any]:
    stored = shape(config)
    doubled = {name: 2 * stored[name] for name in ("num_attention_heads", "num_key_value_heads")}
    return stored | doubled | {"head_dim": first_layer(config).layout.free // 2}


def latent(config: ImportedConfig) -> dict[str, Any]:
    """Return the fields of MLA. Other attention gets arbitrary widths, since its field `attention` is refused first."""
    layer, stored = first_layer(config), shape(config)
    sizes = latent_sizes(layer) or dict.fromkeys(LATENT_NAMES, 2)
    stored |= {stored_name: sizes[name] for name, stored_name in LATENT_NAMES.items()}
    stored |= {"num_key_value_heads": config.n_heads}
    stored.pop("head_dim", None)  # its meaning has changed over time
    rope, width = stored["rope_parameters"], layer.layout.free + layer.layout.rotary
    ratio = layer.scale * width**0.5
    if rope["rope_type"] == "yarn" and rope["factor"] > 1 and ratio > 1:
        rope["mscale_all_dim"] = (ratio**0.5 - 1) / (0.1 * math.log(rope["factor"]))
    return stored


LATENT_NAMES = {
    "q_latent": "q_lora_rank",
    "kv_latent": "kv_lora_rank",
    "nope_dim": "qk_nope_head_dim",
    "rope_dim": "qk_rope_head_dim",
    "v_dim": "v_head_dim",
}


def latent_sizes(layer: Attention) -> dict[str, int]:
    """Return the widths of MLA; nothing for other attention."""
    if not isinstance(layer.project, LatentProjection):
        return {}
    q_latent, kv_latent = layer.project.query_down.out_features, layer.project.kv_latent
    sizes = (q_latent, kv_latent, layer.layout.free, layer.layout.rotary, layer.layout.value)
    return dict(zip(LATENT_NAMES, sizes, strict=True))


def alike(value: Any, other: Any) -> bool:
    is_real = isinstance(value, float) and isinstance(other, float | int)
    return math.isclose(value, other, rel_tol=1e-9) if is_real else bool(value == other)
