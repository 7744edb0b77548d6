"""Translate a config.json of Hugging Face into fields of a TransformerConfig: one function per kind of architecture.

The functions read config.json over the defaults of its architecture, under the names of fields that Llama has.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from attractor.attention import AttentionConfig
from attractor.attention.project.latent import Latent
from attractor.errors import InputError
from attractor.models.config import LARGEST
from attractor.models.transformer import layer_indices

Described = Mapping[str, Any]  # a config.json, over the defaults of its architecture
ROTARY_NUMBERS = (
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "attention_factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
)


def shape(stored: Described) -> dict[str, Any]:
    """Translate the fields that all architectures have."""
    d_model, n_heads = number(stored, "hidden_size"), number(stored, "num_attention_heads")
    head_dim = number(stored, "head_dim", d_model // n_heads)
    return {
        "vocab_size": number(stored, "vocab_size"),
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": number(stored, "num_key_value_heads", n_heads),
        "n_layers": number(stored, "num_hidden_layers"),
        "d_ff": number(stored, "intermediate_size"),
        "max_seq_len": number(stored, "max_position_embeddings"),
        "head_dim": None if head_dim * n_heads == d_model else head_dim,
        "tied_embeddings": bool(stored["tie_word_embeddings"]),
        "norm_eps": real(stored, "rms_norm_eps"),
        "positions": "rope",
        "rope_theta": real(stored["rope_parameters"], "rope_theta", 10000.0),
        "rope_scaling": scaling(stored),
        "rope_fraction": real(stored["rope_parameters"], "partial_rotary_factor", 1.0),
        "qkv_bias": bool(stored.get("attention_bias")),
        "out_bias": bool(stored.get("attention_bias")),
        "mlp_bias": bool(stored.get("mlp_bias")),
    }


def number(stored: Described, name: str, default: int | None = None) -> int:
    """Return a whole number. The default replaces null and 0."""
    value = stored.get(name) if default is None else stored.get(name) or default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1 in config.json, got {value!r}; restore the file")
    if value > LARGEST:
        raise InputError(f"{name} must be at most {LARGEST:,} in config.json, got more; restore the file")
    return value


def real(stored: Described, name: str, default: float | None = None) -> float:
    """Return a positive number. The default replaces null and 0."""
    value = stored.get(name) if default is None else stored.get(name) or default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise InputError(f"{name} must be a number above 0 in config.json, got {value!r}; restore the file")
    return float(value)


def mapping(stored: Described, name: str) -> Described:
    """Return an object of config.json, which is empty where it is left out or null."""
    value = stored.get(name) or {}
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be an object in config.json, got {value!r}; restore the file")
    return value


def refuse_other_than_lists(stored: Described, *names: str) -> None:
    for name in names:
        if not isinstance(stored.get(name) or [], list | tuple):
            raise InputError(f"{name} must be a list in config.json, got {stored[name]!r}; restore the file")
        if any(isinstance(item, Mapping | list) for item in stored.get(name) or []):
            raise InputError(
                f"{name} must be a list of single values in config.json, got {stored[name]!r}; restore the file"
            )


def rotation(stored: Described) -> dict[str, Any]:
    """Collect the rotary parameters: one field since transformers 5, several fields before."""
    separate = {name: stored[name] for name in ("rope_theta", "partial_rotary_factor") if stored.get(name)}
    rope = mapping(stored, "rope_parameters")
    # Architectures with sliding windows have parameters for each kind of layer.
    collected = separate | dict(mapping(stored, "rope_scaling")) | dict(mapping(rope, "full_attention") or rope)
    for name in ROTARY_NUMBERS:
        real(collected, name, 1.0)  # 1.0 passes where the number is left out, and each use has its own default
    refuse_other_than_lists(collected, "short_factor", "long_factor")
    return collected


def rope_type(stored: Described, field: str = "rope_parameters") -> str:
    rope = stored[field]
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    was_phi3s = kind == "su" or (kind == "yarn" and "long_factor" in rope)
    return "longrope" if was_phi3s else kind


def scaling(stored: Described) -> str | None:
    """Return the scaling in the format of `TransformerConfig.rope_scaling`, with the numbers of transformers."""
    rope, kind = stored["rope_parameters"], rope_type(stored)
    if kind == "default":
        return None
    longest = stored["max_position_embeddings"]
    length = stored.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or longest
    length = number({"original_max_position_embeddings": length}, "original_max_position_embeddings")
    factor, size = rope.get("factor"), rope.get("attention_factor")
    parts: list[Any] = [kind, factor]
    if kind == "dynamic":
        parts.append(longest)
    elif kind == "llama3":
        parts += [rope.get("low_freq_factor"), rope.get("high_freq_factor"), length]
    elif kind == "yarn":
        factor = factor or longest / length
        if size is None:
            numerator, denominator = rope.get("mscale"), rope.get("mscale_all_dim")
            both = numerator and denominator
            size = growth(factor, numerator) / growth(factor, denominator) if both else growth(factor, 1.0)
        name = kind if rope.get("truncate", True) else "yarn-exact"
        parts = [name, factor, length, rope.get("beta_fast") or 32, rope.get("beta_slow") or 1, size]
    elif kind == "longrope":
        factor = factor or longest / length
        usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(length))
        lists = [",".join(map(str, rope.get(name) or [None])) for name in ("short_factor", "long_factor")]
        parts = [kind, length, usual if size is None else size, *lists]
    return ":".join(map(str, parts))


def growth(factor: float, weight: float) -> float:
    """Return the factor by which YaRN enlarges rotated queries and keys; logits grow by its square."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


LOCAL, GLOBAL = "sliding_attention", "full_attention"


def windows(stored: Described, layer_types: Sequence[str]) -> dict[str, Any]:
    """Translate the kinds of the layers. A window that covers all positions counts as none."""
    longest, n_layers = stored["max_position_embeddings"], number(stored, "num_hidden_layers")
    window = number(stored, "sliding_window", longest)
    if LOCAL not in layer_types or window >= longest:
        return {}
    without = frozenset(index for index, kind in enumerate(layer_types) if kind == GLOBAL)
    rules = [f"{rule}:{n}" for rule in ("every", "first") for n in range(1, n_layers + 1)]
    rule = next((rule for rule in rules if layer_indices(rule, n_layers) == without), None)
    listed = ",".join(map(str, sorted(without)))
    return {"window": window, "global_layers": (rule or listed) if without else None}


def kinds_of_layers(stored: Described, every: int) -> list[str]:
    """Return the kinds of the layers. By default, the last of every `every` layers is global."""
    layers = range(1, number(stored, "num_hidden_layers") + 1)
    return list(stored.get("layer_types") or [LOCAL if layer % every else GLOBAL for layer in layers])


def with_window(stored: Described) -> dict[str, Any]:
    return shape(stored) | windows(stored, [LOCAL] * number(stored, "num_hidden_layers"))


def with_kinds(stored: Described, every: int = 0) -> dict[str, Any]:
    """Translate layers of two kinds. By default all have a window, or all but the first of every `every`."""
    indices = range(number(stored, "num_hidden_layers"))
    usual = [GLOBAL if every and index % every == 0 else LOCAL for index in indices]
    return shape(stored) | windows(stored, stored.get("layer_types") or usual)


def last_with_window(stored: Described) -> dict[str, Any]:
    """Translate Qwen's fields, by which the last layers have a window."""
    if not stored.get("use_sliding_window"):
        return shape(stored)
    first = number(stored, "max_window_layers") if stored.get("max_window_layers") else 0
    layers = range(number(stored, "num_hidden_layers"))
    return shape(stored) | windows(
        stored, stored.get("layer_types") or [LOCAL if layer >= first else GLOBAL for layer in layers]
    )


def with_local_rope(stored: Described, kinds: Sequence[str], theta: float) -> dict[str, Any]:
    """Translate the kinds of the layers where those with a window have a RoPE of their own."""
    fields, theta = shape(stored), real(stored["local_rope_parameters"], "rope_theta", theta)
    is_other = LOCAL in kinds and (theta != fields["rope_theta"] or fields["rope_scaling"] is not None)
    longest = stored["max_position_embeddings"] + is_other  # a wide window changes nothing but the rotation
    window = min(number(stored, "sliding_window", longest), stored["max_position_embeddings"])
    full = dict(stored) | {"max_position_embeddings": longest, "sliding_window": window}
    return fields | windows(full, kinds) | {"local_rope_theta": theta if is_other else None}


def biased(stored: Described) -> dict[str, Any]:
    return last_with_window(stored) | {"qkv_bias": True, "out_bias": False}


def biased_inputs(stored: Described) -> dict[str, Any]:
    """Translate attention whose output has no bias, or its own field for it."""
    return shape(stored) | {"out_bias": bool(stored.get("attention_out_bias"))}


def biased_alike(stored: Described) -> dict[str, Any]:
    """Translate models of which all linear maps have a bias or none has. InternLM's first files say `qkv_bias`."""
    bias = stored.get("qkv_bias", stored.get("attention_bias"))
    return shape(dict(stored) | {"attention_bias": bias, "mlp_bias": bias})


def normed(stored: Described) -> dict[str, Any]:
    fields = last_with_window(stored)
    return fields | {"qk_norm": True, "qk_norm_eps": fields["norm_eps"]}


def scaled_embeddings(stored: Described) -> dict[str, Any]:
    return shape(stored) | {"embedding_scale": number(stored, "hidden_size") ** 0.5}


def normed_after(stored: Described) -> dict[str, Any]:
    return normed(stored) | {"qk_norm_across": True, "post_norm": True}


def olmo3(stored: Described) -> dict[str, Any]:
    return normed_after(stored) | with_local_rope(stored, kinds_of_layers(stored, 4), 5e5)


def gemma2(stored: Described) -> dict[str, Any]:
    return scaled_embeddings(stored) | windows(stored, kinds_of_layers(stored, 2)) | capped(stored)


def gemma3(stored: Described) -> dict[str, Any]:
    kinds = kinds_of_layers(stored, number(stored, "sliding_window_pattern", 6))
    local = with_local_rope(stored, kinds, real(stored, "rope_local_base_freq", 1e4))
    return normed(stored) | scaled_embeddings(stored) | local | capped(stored)


def capped(stored: Described) -> dict[str, Any]:
    """Translate the bounds and the scale of Gemma 2 and 3."""
    return {
        "norms_per_block": 4,
        "softcap": stored["attn_logit_softcapping"],
        "logit_softcap": stored["final_logit_softcapping"],
        "attention_scale": real(stored, "query_pre_attn_scalar") ** -0.5,
    }


def some_without_rope(stored: Described) -> dict[str, Any]:
    layers = rotated_layers(stored)
    return shape(stored) | {"no_rope_every": layers.index(0) + 1 if 0 in layers else None}


def rotated_layers(stored: Described) -> list[int]:
    """Return 1 for each layer with RoPE and 0 for each without."""
    n_layers, every = number(stored, "num_hidden_layers"), number(stored, "no_rope_layer_interval")
    layers = stored.get("no_rope_layers") or rotated_layers_of(n_layers, every)
    return [int(bool(layer)) for layer in layers][:n_layers]


def rotated_layers_of(n_layers: int, every: int | None) -> list[int]:
    return [1 if every is None else int(layer % every != 0) for layer in range(1, n_layers + 1)]


def multiplied(stored: Described) -> dict[str, Any]:
    return shape(stored) | {
        "embedding_scale": real(stored, "embedding_multiplier"),
        "branch_scale": real(stored, "residual_multiplier"),
        "attention_scale": real(stored, "attention_multiplier"),
        "logit_scale": 1 / real(stored, "logits_scaling"),
    }


def multiplied_twice_normed(stored: Described) -> dict[str, Any]:
    """Translate HyperCLOVA X, which multiplies logits where Granite divides them."""
    fields = shape(stored)
    scale = stored.get("attention_multiplier") or (fields["head_dim"] or fields["d_model"] // fields["n_heads"]) ** -0.5
    known = dict(stored) | {"attention_multiplier": scale, "logits_scaling": 1 / real(stored, "logits_scaling")}
    return multiplied(known) | {"norms_per_block": 4 if stored["use_post_norm"] else 2}


def gpt2(stored: Described) -> dict[str, Any]:
    """Translate GPT-2, whose logits are unscaled if `scale_attn_weights` is false."""
    full = dict(stored) | {"intermediate_size": stored.get("intermediate_size") or 4 * number(stored, "hidden_size")}
    full |= {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": None, "head_dim": None}
    scale = {} if stored["scale_attn_weights"] else {"attention_scale": 1.0}
    return shape(full) | {"positions": "learned", "stream_norm": "layernorm"} | scale


def parallel(stored: Described) -> dict[str, Any]:
    full = dict(stored) | {"mlp_bias": True, "num_key_value_heads": None, "head_dim": None}
    return shape(full) | {"stream_norm": "layernorm", "parallel_branches": bool(stored["use_parallel_residual"])}


def stablelm(stored: Described) -> dict[str, Any]:
    """Translate StableLM, whose parallel branches share a norm."""
    is_parallel = bool(stored["use_parallel_residual"])
    style = {"stream_norm": "layernorm", "parallel_branches": is_parallel, "norms_per_block": 1 if is_parallel else 2}
    return shape(stored) | style | {"qkv_bias": bool(stored["use_qkv_bias"]), "out_bias": False, "mlp_bias": False}


def layer_normed(stored: Described) -> dict[str, Any]:
    return shape(stored) | {"stream_norm": "layernorm"}


def starcoder2(stored: Described) -> dict[str, Any]:
    full = dict(stored) | {"mlp_bias": stored["attention_bias"]}
    return with_window(full) | {"stream_norm": "layernorm"}


def parallel_with_one_norm(stored: Described) -> dict[str, Any]:
    style = {"stream_norm": "layernorm-no-bias", "parallel_branches": True, "norms_per_block": 1}
    return shape(stored) | style | {"logit_scale": real(stored, "logit_scale")}


def rotated_where_local(stored: Described) -> dict[str, Any]:
    """Translate layers of which those with a window have RoPE and the others, each last of a few, have none."""
    kinds = local_kinds(stored)
    return windows(stored, kinds) | {"no_rope_every": kinds.index(GLOBAL) + 1 if GLOBAL in kinds else None}


def local_kinds(stored: Described) -> list[str]:
    """Return the kinds of these layers. Without a window, Exaone 4 counts all as rotated."""
    if stored["sliding_window"] is None:
        return [LOCAL] * number(stored, "num_hidden_layers")
    return list(stored.get("layer_types") or kinds_of_layers(stored, number(stored, "sliding_window_pattern", 4)))


def cohere2(stored: Described) -> dict[str, Any]:
    return parallel_with_one_norm(stored) | rotated_where_local(stored)


def exaone4(stored: Described) -> dict[str, Any]:
    return normed(stored) | {"post_norm": True} | rotated_where_local(stored)


def paired(stored: Described) -> dict[str, Any]:
    """Translate DiffLlama, where two heads are the sub-heads of one differential head."""
    fields = shape(stored)
    width = (fields["head_dim"] or fields["d_model"] // fields["n_heads"]) * 2
    n_heads = fields["n_heads"] // 2
    return fields | {
        "attention": "differential-original",
        "n_heads": n_heads,
        "n_kv_heads": fields["n_kv_heads"] // 2,
        "head_dim": None if width * n_heads == fields["d_model"] else width,
    }


def latent(stored: Described) -> dict[str, Any]:
    project = Latent(
        q_latent=number(stored, "q_lora_rank"),
        kv_latent=number(stored, "kv_lora_rank"),
        nope_dim=number(stored, "qk_nope_head_dim"),
        rope_dim=number(stored, "qk_rope_head_dim"),
        v_dim=number(stored, "v_head_dim"),
        latent_norm=True,
    )
    fields = shape(stored) | {"n_kv_heads": None, "head_dim": project.nope_dim}
    del fields["qkv_bias"], fields["out_bias"]
    rope = stored["rope_parameters"]
    weight = rope.get("mscale_all_dim")
    if weight and rope_type(stored) != "default":
        width = number(stored, "qk_nope_head_dim") + number(stored, "qk_rope_head_dim")
        fields["attention_scale"] = width**-0.5 * growth(real(rope, "factor"), weight) ** 2
    return fields | {"attention": AttentionConfig(project=project)}
