"""The table of Hugging Face architectures whose models can be imported as an attractor Transformer, and exported again.

A row says how config.json translates to a TransformerConfig and back, what the weights are called and how they are laid
out, and which options of the architecture attractor does not have. A model with such an option is refused by name,
since importing it would compute something else. Fields that config.json leaves out have the defaults of transformers.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from attractor.attention import PRESETS, Attention, AttentionConfig
from attractor.attention.config import STAGES
from attractor.attention.position import parse_scaling
from attractor.attention.project.latent import Latent, LatentProjection
from attractor.errors import InputError
from attractor.hf.weights import LAYOUTS, Tie
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.models.transformer import TransformerConfig, layer_indices

Described = Mapping[str, Any]  # a config.json, over the defaults of its architecture

ALTERNATIVE = "'attractor measure' and 'attractor evaluate' take the model directly"
NOT_CAUSAL = "attractor imports, measures and evaluates causal language models alone"
# A kind of MLP is exported under the first of its names.
GATED = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu-tanh",
    "gelu_new": "geglu-tanh",
    "swish": "swiglu",
}
GEMMA = {"gelu_pytorch_tanh": "geglu-tanh", "gelu": "geglu-tanh"}  # its first config files say gelu and mean tanh
PLAIN = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh"}
BEFORE = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
AFTER = {"attention_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}
IN_TRAINING_ALONE = ("dropout", "z_loss")


@dataclass(frozen=True)
class Need:
    """A rule for a field of config.json, and the feature that attractor lacks where the rule does not hold."""

    field: str
    rule: str
    holds: Callable[[Described], bool]
    lacking: str
    alternative: str = ALTERNATIVE


@dataclass(frozen=True)
class Names:
    """The names of a model's parts in its files, without `.weight` and `.bias`; those of attractor are the fields."""

    base: str = "model."  # before the names of all parts but the readout; models without a readout are stored without
    embedding: str = "embed_tokens"
    positions: str = ""
    norm: str = "norm"
    head: str = "lm_head"
    blocks: str = "layers"
    attention: str = "self_attn"
    norms: Mapping[str, str] = field(default_factory=lambda: BEFORE)
    mlp: Mapping[str, Sequence[str]] = field(  # one or several of attractor's matrices in a stored one
        default_factory=lambda: {"mlp.gate_proj": ["gate"], "mlp.up_proj": ["up"], "mlp.down_proj": ["down"]}
    )
    transposed: bool = False  # matrices of the MLP are stored as inputs x outputs
    not_weights: tuple[str, ...] = ("inv_freq",)  # ends of names of tensors that are stored and no weights
    older: Mapping[str, str] = field(default_factory=dict)  # names that older files have in place of newer ones


@dataclass(frozen=True)
class Architecture:
    model_type: str
    models: str
    layout: str  # of the weights of an attention layer (weights.py)
    translate: Callable[[Described], dict[str, Any]]  # from config.json to the fields of a TransformerConfig
    becomes: str  # a description of these fields
    needs: tuple[Need, ...] = ()
    describe: Callable[[TransformerConfig], dict[str, Any]] = lambda config: described_shape(config)  # and back
    names: Names = field(default_factory=Names)
    norm_offset: float = 0.0  # what the norms add to their stored weights
    activations: Mapping[str, str] = field(default_factory=lambda: GATED)  # kinds of MLPs by `hidden_act`
    partial_rotation: bool = False  # it has models that rotate a part of each head
    windows: bool = False  # it has models with sliding windows
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)  # its names of fields that Llama calls otherwise

    @property
    def option(self) -> str:
        """The name of the architecture in `attractor export --to`."""
        return self.model_type.replace("_", "-")

    def unmet(self, described: Described) -> Iterator[Need]:
        names = list(self.activations)
        act = Need("hidden_act", " or ".join(names), lambda stored: stored["hidden_act"] in names, "such activation")
        rotated = () if self.partial_rotation else (WHOLE_HEADS,)
        needs = (act, *ALWAYS, *rotated, LOCAL_OR_GLOBAL if self.windows else NO_LOCAL, *self.needs)
        return (need for need in needs if not need.holds(described))

    def described(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of config.json over the defaults, under the names that Llama has."""
        known = {self.aliases.get(name, name): value for name, value in stored.items()}
        described = dict(DEFAULTS) | dict(self.defaults) | known
        by_layer: Any = described.get("rope_parameters") or {}
        local = by_layer.get("sliding_attention") or {}
        return described | {"rope_parameters": rotation(described), "local_rope_parameters": local}

    def config(self, stored: Mapping[str, Any]) -> TransformerConfig:
        described = self.described(stored)
        for need in self.unmet(described):
            raise InputError(
                f"{need.field} must be {need.rule} for a model of type '{self.model_type}' to be imported, got "
                f"{described.get(need.field)!r}: attractor has no {need.lacking}; {need.alternative}"
            )
        return self.translated(described)

    def translated(self, described: Described) -> TransformerConfig:
        return TransformerConfig(**self.translate(described) | {"mlp": self.activations[described["hidden_act"]]})

    def exported(self, config: ModelConfig) -> dict[str, Any]:
        """Return the content of config.json for a model of attractor, or refuse one that the architecture is not."""
        if not isinstance(config, TransformerConfig):
            raise self.refusal("family", TransformerConfig.family, config.family)
        act = next((act for act, mlp in self.activations.items() if mlp == config.mlp), next(iter(self.activations)))
        common = self.describe(config) | {"hidden_act": act}
        if not self.partial_rotation:
            common["rope_parameters"].get(GLOBAL, common["rope_parameters"]).pop("partial_rotary_factor", None)
        self.require_same(config, self.translated(self.described(common)))
        names = {llamas: its for its, llamas in self.aliases.items()}
        stored = {names.get(name, name): value for name, value in common.items()}
        for need in self.unmet(self.described(stored)):
            raise self.refusal(need.field, need.rule, common.get(need.field))
        return stored

    def require_same(self, config: TransformerConfig, translated: TransformerConfig) -> None:
        """Refuse a configuration that config.json would not say in full, by the first field that differs."""
        possible, actual = settings(translated), settings(config)
        for name, value in actual.items():
            if name not in possible or not alike(value, possible[name]):
                raise self.refusal(name, possible.get(name), value)

    def refusal(self, name: str, possible: Any, actual: Any) -> InputError:
        return InputError(
            f"{name} must be {possible} for --to {self.option}, got {actual}; '--to hf' exports every model, with the "
            "code that runs it"
        )

    def spellings(self, name: str) -> list[str]:
        """Return the names that a stored tensor may have: today's first."""
        return list(dict.fromkeys([name, self.names.older.get(name, name), name.removeprefix(self.names.base)]))

    def ties(self, model: LanguageModel) -> list[Tie]:
        """Return what ties the parameters of the model to the stored tensors."""
        names, parameters = self.names, model.state_dict().keys()

        def module(ours: Sequence[str], stored: str, offset: float = 0.0, transposed: bool = False) -> list[Tie]:
            return [
                Tie(
                    tuple(f"{name}.{kind}" for name in ours),
                    (f"{stored}.{kind}",),
                    transposed=transposed and kind == "weight",
                    offset=offset,
                )
                for kind in ("weight", "bias")
                if f"{ours[0]}.{kind}" in parameters
            ]

        base, offset = names.base, self.norm_offset
        ties = module(["embedding"], base + names.embedding) + module(["positions"], base + names.positions)
        for index, block in enumerate(model.layers):
            here, there = f"blocks.{index}.", f"{base}{names.blocks}.{index}."
            attention = LAYOUTS[self.layout].ties(block.attention)
            ties += [tie.within(f"{here}attention.", f"{there}{names.attention}.") for tie in attention]
            for norm, stored in names.norms.items():
                ties += module([here + norm], there + stored, offset)
            for stored, parts in names.mlp.items():
                ties += module([f"{here}mlp.{part}" for part in parts], there + stored, transposed=names.transposed)
        return ties + module(["norm"], base + names.norm, offset) + module(["head"], names.head)


DEFAULTS = {"hidden_act": "silu", "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048}


# --- from config.json ---------------------------------------------------------------------------------------------


def shape(stored: Described) -> dict[str, Any]:
    """Translate the fields that all architectures have."""
    d_model, n_heads = number(stored, "hidden_size"), number(stored, "num_attention_heads")
    head_dim = stored.get("head_dim") or d_model // n_heads
    return {
        "vocab_size": number(stored, "vocab_size"),
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": stored.get("num_key_value_heads") or n_heads,
        "n_layers": number(stored, "num_hidden_layers"),
        "d_ff": number(stored, "intermediate_size"),
        "max_seq_len": number(stored, "max_position_embeddings"),
        "head_dim": None if head_dim * n_heads == d_model else head_dim,
        "tied_embeddings": bool(stored["tie_word_embeddings"]),
        "norm_eps": float(stored["rms_norm_eps"]),
        "positions": "rope",
        "rope_theta": float(stored["rope_parameters"].get("rope_theta") or 10000.0),
        "rope_scaling": scaling(stored),
        "rope_fraction": float(stored["rope_parameters"].get("partial_rotary_factor") or 1.0),
        "qkv_bias": bool(stored.get("attention_bias")),
        "out_bias": bool(stored.get("attention_bias")),
        "mlp_bias": bool(stored.get("mlp_bias")),
    }


def number(stored: Described, name: str) -> int:
    value = stored.get(name)
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1 in config.json, got {value!r}; restore the file")
    return value


def rotation(stored: Described) -> dict[str, Any]:
    """Collect the rotary parameters: one field since transformers 5, several fields before."""
    separate = {name: stored[name] for name in ("rope_theta", "partial_rotary_factor") if stored.get(name)}
    rope = stored.get("rope_parameters") or {}
    # Architectures with sliding windows have parameters for each kind of layer.
    return separate | (stored.get("rope_scaling") or {}) | (rope.get("full_attention") or rope)


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
    factor, size = rope.get("factor"), rope.get("attention_factor")
    parts: list[Any] = [kind, factor]
    if kind == "dynamic":
        parts.append(longest)
    elif kind == "llama3":
        parts += [rope.get("low_freq_factor"), rope.get("high_freq_factor"), length]
    elif kind == "yarn":
        factor = factor or longest / length
        size = yarn_size(factor, rope) if size is None else size
        name = kind if rope.get("truncate", True) else "yarn-exact"
        parts = [name, factor, length, rope.get("beta_fast") or 32, rope.get("beta_slow") or 1, size]
    elif kind == "longrope":
        factor = factor or longest / length
        usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(length))
        lists = [",".join(map(str, rope.get(name) or [None])) for name in ("short_factor", "long_factor")]
        parts = [kind, length, usual if size is None else size, *lists]
    return ":".join(map(str, parts))


def yarn_size(factor: float, rope: Mapping[str, Any]) -> float:
    numerator, denominator = rope.get("mscale"), rope.get("mscale_all_dim")
    if numerator and denominator:
        return growth(factor, numerator) / growth(factor, denominator)
    return growth(factor, 1.0)


def growth(factor: float, weight: float) -> float:
    """Return by how much YaRN enlarges logits, as the square root of their factor."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


LOCAL, GLOBAL = "sliding_attention", "full_attention"


def windows(stored: Described, layer_types: Sequence[str]) -> dict[str, Any]:
    """Translate the kinds of the layers. A window over all positions is none."""
    window, n_layers = stored.get("sliding_window"), number(stored, "num_hidden_layers")
    if LOCAL not in layer_types or not window or window >= stored["max_position_embeddings"]:
        return {}
    without = frozenset(index for index, kind in enumerate(layer_types) if kind == GLOBAL)
    rules = [f"{rule}:{n}" for rule in ("every", "first") for n in range(1, n_layers + 1)]
    rule = next((rule for rule in rules if layer_indices(rule, n_layers) == without), None)
    listed = ",".join(map(str, sorted(without)))
    return {"window": window, "global_layers": (rule or listed) if without else None}


def kinds_of_layers(stored: Described, every: int) -> list[str]:
    """Return the kinds of the layers, by default with a global one as the last of so many."""
    layers = range(1, number(stored, "num_hidden_layers") + 1)
    return list(stored.get("layer_types") or [LOCAL if layer % every else GLOBAL for layer in layers])


def with_window(stored: Described) -> dict[str, Any]:
    return shape(stored) | windows(stored, [LOCAL] * number(stored, "num_hidden_layers"))


def last_with_window(stored: Described) -> dict[str, Any]:
    """Translate Qwen's fields, by which the last layers have a window."""
    if not stored.get("use_sliding_window"):
        return shape(stored)
    first = number(stored, "max_window_layers") if stored["max_window_layers"] else 0
    layers = range(number(stored, "num_hidden_layers"))
    return shape(stored) | windows(
        stored, stored.get("layer_types") or [LOCAL if layer >= first else GLOBAL for layer in layers]
    )


def with_local_rope(stored: Described, kinds: Sequence[str], theta: float) -> dict[str, Any]:
    """Translate the kinds of the layers where those with a window have a RoPE of their own."""
    fields, theta = shape(stored), float(stored["local_rope_parameters"].get("rope_theta") or theta)
    is_other = LOCAL in kinds and (theta != fields["rope_theta"] or fields["rope_scaling"] is not None)
    longest = stored["max_position_embeddings"] + is_other  # a wide window changes nothing but the rotation
    window = min(stored.get("sliding_window") or longest, stored["max_position_embeddings"])
    full = dict(stored) | {"max_position_embeddings": longest, "sliding_window": window}
    return fields | windows(full, kinds) | {"local_rope_theta": theta if is_other else None}


def biased(stored: Described) -> dict[str, Any]:
    return last_with_window(stored) | {"qkv_bias": True, "out_bias": False}


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
    kinds = kinds_of_layers(stored, stored.get("sliding_window_pattern") or 6)
    local = with_local_rope(stored, kinds, stored.get("rope_local_base_freq") or 1e4)
    return normed(stored) | scaled_embeddings(stored) | local | capped(stored)


def capped(stored: Described) -> dict[str, Any]:
    """Translate the bounds and the scale of Gemma 2 and 3."""
    return {
        "norms_per_block": 4,
        "softcap": stored["attn_logit_softcapping"],
        "logit_softcap": stored["final_logit_softcapping"],
        "attention_scale": float(stored["query_pre_attn_scalar"]) ** -0.5,
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
        "embedding_scale": float(stored["embedding_multiplier"]),
        "branch_scale": float(stored["residual_multiplier"]),
        "attention_scale": float(stored["attention_multiplier"]),
        "logit_scale": 1 / stored["logits_scaling"],
    }


def gpt2(stored: Described) -> dict[str, Any]:
    """Translate GPT-2, whose scale of attention may be left out."""
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


def starcoder2(stored: Described) -> dict[str, Any]:
    full = dict(stored) | {"mlp_bias": stored["attention_bias"]}
    return with_window(full) | {"stream_norm": "layernorm"}


def parallel_with_one_norm(stored: Described) -> dict[str, Any]:
    style = {"stream_norm": "layernorm-no-bias", "parallel_branches": True, "norms_per_block": 1}
    return shape(stored) | style | {"logit_scale": float(stored["logit_scale"])}


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
        fields["attention_scale"] = width**-0.5 * growth(rope["factor"], weight) ** 2
    return fields | {"attention": AttentionConfig(project=project)}


# --- to config.json -----------------------------------------------------------------------------------------------


def first_layer(config: TransformerConfig) -> Attention:
    with torch.device("meta"):
        return Attention(config.attention_config, config.d_model, config.n_heads, 0, config.head_dim)


def described_shape(config: TransformerConfig) -> dict[str, Any]:
    """Return the fields of config.json that all architectures have: the inverse of `shape`."""
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
        "rope_parameters": described_rotation(config),
        "attention_bias": getattr(project, "qkv_bias", False) and getattr(output, "out_bias", False),
        "mlp_bias": config.mlp_bias,
    } | ({} if is_usual_width else {"head_dim": layer.layout.free})


def described_rotation(config: TransformerConfig) -> dict[str, Any]:
    """Return the rotary parameters: the inverse of `scaling`."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if (fraction := config.attention_config.couple.rope_fraction) != 1:
        rope["partial_rotary_factor"] = fraction
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


def described_window(config: TransformerConfig) -> dict[str, Any]:
    """Return the fields of one window in all layers: the inverse of `with_window`."""
    return described_shape(config) | {"sliding_window": config.attention_config.window}


def described_kinds(config: TransformerConfig) -> dict[str, Any]:
    """Return the fields of layers of two kinds: the inverse of `windows`."""
    mechanisms = [config.layer_mechanism(index) for index in range(config.n_layers)]
    kinds = [GLOBAL if mechanism.window is None else LOCAL for mechanism in mechanisms]
    return described_shape(config) | {"sliding_window": config.attention_config.window, "layer_types": kinds}


def described_qwen2(config: TransformerConfig) -> dict[str, Any]:
    window = config.attention_config.window
    first = sum(config.layer_mechanism(index).window is None for index in range(config.n_layers))
    return described_kinds(config) | {"use_sliding_window": window is not None, "max_window_layers": first}


def described_qwen3(config: TransformerConfig) -> dict[str, Any]:
    return described_qwen2(config) | {"head_dim": first_layer(config).layout.free}


def described_olmo3(config: TransformerConfig) -> dict[str, Any]:
    """Return the fields of layers of two kinds, with a rotation for each."""
    stored = described_kinds(config)
    local = {"rope_type": "default", "rope_theta": config.local_rope_theta or config.rope_theta}
    return stored | {"rope_parameters": {GLOBAL: stored["rope_parameters"], LOCAL: local}}


def described_gemma2(config: TransformerConfig) -> dict[str, Any]:
    layer = first_layer(config)
    return described_kinds(config) | {
        "head_dim": layer.layout.free,
        "attn_logit_softcapping": layer.softcap,
        "final_logit_softcapping": config.logit_softcap,
        "query_pre_attn_scalar": round(layer.scale**-2),
    }


def described_gemma3(config: TransformerConfig) -> dict[str, Any]:
    return described_gemma2(config) | described_olmo3(config)


def described_phi3(config: TransformerConfig) -> dict[str, Any]:
    stored = described_window(config)
    length = stored["rope_parameters"].pop("original_max_position_embeddings", None)
    return stored | ({} if length is None else {"original_max_position_embeddings": length})


def described_multiplied(config: TransformerConfig) -> dict[str, Any]:
    return described_shape(config) | {
        "embedding_multiplier": config.embedding_scale,
        "residual_multiplier": config.branch_scale,
        "attention_multiplier": first_layer(config).scale,
        "logits_scaling": 1 / config.logit_scale,
    }


def described_without_rope(config: TransformerConfig) -> dict[str, Any]:
    every = config.no_rope_every
    layers = {"no_rope_layers": rotated_layers_of(config.n_layers, every), "no_rope_layer_interval": every or 4}
    return described_shape(config) | layers


def described_gpt2(config: TransformerConfig) -> dict[str, Any]:
    layer = first_layer(config)
    return described_shape(config) | {"scale_attn_weights": alike(layer.scale, max(layer.layout.free, 1) ** -0.5)}


def described_parallel(config: TransformerConfig) -> dict[str, Any]:
    return described_shape(config) | {"use_parallel_residual": config.parallel_branches}


def described_stablelm(config: TransformerConfig) -> dict[str, Any]:
    return described_parallel(config) | {"use_qkv_bias": getattr(config.attention_config.project, "qkv_bias", False)}


def described_one_norm(config: TransformerConfig) -> dict[str, Any]:
    return described_shape(config) | {"logit_scale": config.logit_scale}


def described_pairs(config: TransformerConfig) -> dict[str, Any]:
    stored = described_shape(config)
    doubled = {name: 2 * stored[name] for name in ("num_attention_heads", "num_key_value_heads")}
    return stored | doubled | {"head_dim": first_layer(config).layout.free // 2}


def described_latent(config: TransformerConfig) -> dict[str, Any]:
    """Return the widths of MLA; those of other attention do not matter, since `attention` differs first."""
    layer, stored = first_layer(config), described_shape(config)
    sizes = latent_sizes(layer) or dict.fromkeys(LATENT_NAMES, 2)
    stored |= {stored_name: sizes[name] for name, stored_name in LATENT_NAMES.items()}
    stored |= {"num_key_value_heads": config.n_heads, "first_k_dense_replace": config.n_layers}
    stored.pop("head_dim", None)  # its meaning has changed over time
    rope, width = stored["rope_parameters"], layer.layout.free + layer.layout.rotary
    ratio = layer.scale * width**0.5
    if rope["rope_type"] == "yarn" and ratio > 1:
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


def settings(config: TransformerConfig) -> dict[str, Any]:
    """Return what the model computes, with all defaults resolved. Configs of one function have equal settings."""
    layer, mechanism = first_layer(config), config.attention_config
    stages = {name: getattr(mechanism, name) for name in STAGES}
    by_stage = [{f.name: getattr(stage, f.name) for f in fields(stage)} for stage in stages.values()]
    flat: dict[str, Any] = {"attention": mechanism_name(mechanism)} | {
        f.name: getattr(config, f.name) for f in fields(config) if f.name != "attention"
    }
    for values in by_stage:
        flat |= values
    flat["rope_scaling"] = None if config.rope_scaling is None else parse_scaling(config.rope_scaling)
    if config.global_layers is not None:
        flat["global_layers"] = ",".join(map(str, sorted(layer_indices(config.global_layers, config.n_layers))))
    flat |= {"n_kv_heads": layer.layout.n_kv_heads, "head_dim": layer.layout.free, "attention_scale": layer.scale}
    flat |= latent_sizes(layer)
    unused = [*IN_TRAINING_ALONE, "heads_per_kv"]
    unused += [] if mechanism.couple.qk_norm else ["qk_norm_eps", "qk_norm_across"]
    unused += ["rope_theta", "rope_scaling"] if config.positions == "learned" else []
    unused += ["pool"] if config.n_classes is None else []
    return {name: value for name, value in flat.items() if name not in unused}


def mechanism_name(mechanism: AttentionConfig) -> str:
    """Return the first preset whose stages are of the same kinds, or a list of the kinds."""

    def kinds(config: AttentionConfig) -> list[Any]:
        return [
            (
                type(getattr(config, name)),
                getattr(getattr(config, name), "form", None),
                getattr(config.couple, "force", ""),
            )
            for name in STAGES
        ]

    names = [name for name, preset in PRESETS.items() if kinds(preset) == kinds(mechanism)]
    return names[0] if names else ", ".join(type(getattr(mechanism, name)).__name__ for name in STAGES)


def alike(value: Any, other: Any) -> bool:
    is_real = isinstance(value, float) and isinstance(other, float | int)
    return math.isclose(value, other, rel_tol=1e-9) if is_real else bool(value == other)


# --- the table ----------------------------------------------------------------------------------------------------


def off(name: str, lacking: str) -> Need:
    return Need(name, "false or left out", lambda stored: not stored.get(name), lacking)


SCALING_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
ALWAYS = (
    off("quantization_config", "packed weights"),
    Need(
        "is_causal",
        "true or left out",
        lambda stored: stored.get("is_causal", True) is not False,
        "import of encoders, whose positions see what comes after them",
        NOT_CAUSAL,
    ),
    Need(
        "rope_parameters",
        f"of type {', '.join(SCALING_KINDS[:-1])} or {SCALING_KINDS[-1]}",
        lambda stored: rope_type(stored) in SCALING_KINDS,
        "such scaling of positions",
    ),
)
NO_LOCAL = Need(
    "layer_types",
    "full_attention in every layer",
    lambda stored: {*(stored.get("layer_types") or ())} <= {GLOBAL},
    "sliding windows in this architecture, or other kinds of layers",
)
LOCAL_OR_GLOBAL = Need(
    "layer_types",
    "full_attention or sliding_attention, once for each layer",
    lambda stored: (
        {*(stored.get("layer_types") or ())} <= {GLOBAL, LOCAL}
        and len(stored.get("layer_types") or range(stored["num_hidden_layers"])) == stored["num_hidden_layers"]
    ),
    "other kinds of layers",
)
LOCAL_ROPE = Need(
    "rope_parameters",
    "of type default in layers with a window",
    lambda stored: rope_type(stored, "local_rope_parameters") == "default",
    "scaling of positions in these layers alone",
)
WHOLE_HEADS = Need(
    "rope_parameters",
    "of whole heads",
    lambda stored: stored["rope_parameters"].get("partial_rotary_factor", 1.0) == 1.0,
    "rotation of a part of each head in this architecture",
)
NO_WINDOW = off("use_sliding_window", "sliding windows in this architecture")

NO_FORESIGHT = off("use_bidirectional_attention", "reading ahead")
QWEN = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
GEMMA2 = {
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "head_dim": 256,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
FOUR_NORMS = BEFORE | AFTER | {"mlp_norm": "pre_feedforward_layernorm"}

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "llama",
        "Llama 1 to 3.3, SmolLM, TinyLlama, Yi",
        "llama",
        shape,
        "`standard` with `n_kv_heads`, RoPE with any scaling, `swiglu`, biases where it has them",
    ),
    Architecture(
        "mistral",
        "Mistral",
        "llama",
        with_window,
        "as Llama, with a `window` in 7B v0.1",
        describe=described_window,
        windows=True,
        defaults={"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
    ),
    Architecture(
        "qwen2",
        "Qwen 1.5, 2 and 2.5",
        "qwen2",
        biased,
        "as Llama, with `qkv_bias`, and `window` and `global_layers` where it has them",
        describe=described_qwen2,
        windows=True,
        defaults=QWEN,
    ),
    Architecture(
        "qwen3",
        "Qwen3, dense",
        "qwen3",
        normed,
        "as Llama, with `qk_norm` and `head_dim`, and `window` and `global_layers` where it has them",
        describe=described_qwen3,
        windows=True,
        defaults=QWEN | {"head_dim": 128},
    ),
    Architecture(
        "gemma",
        "Gemma 1 and CodeGemma",
        "llama",
        scaled_embeddings,
        "`embedding_scale` = sqrt(d_model), `geglu-tanh`; norms stored as w are 1 + w",
        (NO_FORESIGHT,),
        lambda config: described_shape(config) | {"head_dim": first_layer(config).layout.free},
        norm_offset=1.0,
        activations=GEMMA,
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "head_dim": 256,
            "num_key_value_heads": 16,
            "max_position_embeddings": 8192,
        },
    ),
    Architecture(
        "gemma2",
        "Gemma 2",
        "llama",
        gemma2,
        "as Gemma, with four norms, `softcap`, `logit_softcap`, `attention_scale`, and a `window` in every other layer",
        (NO_FORESIGHT,),
        described_gemma2,
        names=Names(norms=FOUR_NORMS),
        norm_offset=1.0,
        windows=True,
        defaults=GEMMA2,
        aliases={"hidden_activation": "hidden_act"},
    ),
    Architecture(
        "gemma3_text",
        "Gemma 3, text alone",
        "gemma3",
        gemma3,
        "as Gemma 2, with `qk_norm` in place of the caps, `global_layers` and `local_rope_theta`",
        (NO_FORESIGHT, LOCAL_ROPE, off("attn_logit_softcapping", "cap that transformers does not apply")),
        described_gemma3,
        names=Names(norms=FOUR_NORMS),
        norm_offset=1.0,
        windows=True,
        defaults=GEMMA2
        | {
            "max_position_embeddings": 131_072,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "rope_theta": 1e6,
        },
        aliases={"hidden_activation": "hidden_act"},
    ),
    Architecture(
        "olmo2",
        "OLMo 2",
        "llama",
        normed_after,
        "`post_norm`, and `qk_norm_across`: QK-norm over all heads together",
        names=Names(norms=AFTER),
        defaults={"rms_norm_eps": 1e-5},
    ),
    Architecture(
        "olmo3",
        "OLMo 3",
        "llama",
        olmo3,
        "as OLMo 2, with a `window`, `global_layers`, and YaRN in the global layers alone (`local_rope_theta`)",
        (LOCAL_ROPE,),
        described_olmo3,
        names=Names(norms=AFTER),
        windows=True,
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 5e5},
    ),
    Architecture(
        "phi3",
        "Phi-3 and Phi-4 mini, Phi-4",
        "phi3",
        with_window,
        "as Llama, with `rope_fraction`, LongRoPE, and a `window` where it has one; fused matrices are split",
        (
            Need(
                "rope_parameters",
                "of type default or longrope",
                lambda stored: rope_type(stored) in ("default", "longrope"),
                "such scaling of positions in this architecture",
            ),
        ),
        described_phi3,
        windows=True,
        names=Names(mlp={"mlp.gate_up_proj": ["gate", "up"], "mlp.down_proj": ["down"]}),
        partial_rotation=True,
        defaults={
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "sliding_window": None,
        },
    ),
    Architecture(
        "smollm3",
        "SmolLM3",
        "llama",
        some_without_rope,
        "as Llama, with `no_rope_every`: layers without RoPE",
        (
            NO_WINDOW,
            Need(
                "no_rope_layers",
                "0 in the last of every so many layers and 1 in the others",
                lambda stored: (
                    rotated_layers(stored)
                    == rotated_layers_of(stored["num_hidden_layers"], some_without_rope(stored)["no_rope_every"])
                ),
                "other choice of layers without RoPE",
            ),
        ),
        described_without_rope,
        defaults={
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "no_rope_layer_interval": 4,
            "rope_theta": 2e6,
        },
    ),
    Architecture(
        "granite",
        "Granite 3, dense",
        "llama",
        multiplied,
        "as Llama, with `embedding_scale`, `branch_scale`, `attention_scale` and `logit_scale`",
        describe=described_multiplied,
        defaults={
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
    ),
    Architecture(
        "gpt2",
        "GPT-2, DistilGPT-2",
        "gpt2",
        gpt2,
        "`stream_norm` = layernorm, learned positions, `gelu-tanh`, biases everywhere",
        (
            off("scale_attn_by_inverse_layer_idx", "scale of attention by layer"),
            off("add_cross_attention", "attention to another sequence"),
        ),
        described_gpt2,
        names=Names(
            base="transformer.",
            embedding="wte",
            positions="wpe",
            norm="ln_f",
            blocks="h",
            attention="attn",
            norms={"attention_norm": "ln_1", "mlp_norm": "ln_2"},
            mlp={"mlp.c_fc": ["up"], "mlp.c_proj": ["down"]},
            transposed=True,
            not_weights=(".attn.bias", ".attn.masked_bias"),
        ),
        activations=PLAIN,
        defaults={
            "hidden_act": "gelu_new",
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 1024,
            "scale_attn_weights": True,
        },
        aliases={
            "n_embd": "hidden_size",
            "n_positions": "max_position_embeddings",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "activation_function": "hidden_act",
            "layer_norm_epsilon": "rms_norm_eps",
        },
    ),
    Architecture(
        "gpt_neox",
        "GPT-NeoX, Pythia",
        "gpt-neox",
        parallel,
        "`stream_norm` = layernorm, `parallel_branches`, `rope_fraction`, biases, `gelu`",
        describe=described_parallel,
        names=Names(
            base="gpt_neox.",
            embedding="embed_in",
            norm="final_layer_norm",
            attention="attention",
            mlp={"mlp.dense_h_to_4h": ["up"], "mlp.dense_4h_to_h": ["down"]},
            not_weights=("inv_freq", ".attention.bias", ".attention.masked_bias"),
            older={"lm_head.weight": "embed_out.weight"},
        ),
        activations=PLAIN,
        partial_rotation=True,
        defaults={
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-5,
            "attention_bias": True,
            "use_parallel_residual": True,
            "partial_rotary_factor": 0.25,
        },
        aliases={
            "layer_norm_eps": "rms_norm_eps",
            "rotary_emb_base": "rope_theta",
            "rotary_pct": "partial_rotary_factor",
        },
    ),
    Architecture(
        "stablelm",
        "StableLM 3B and 2",
        "llama",
        stablelm,
        "`stream_norm` = layernorm, `rope_fraction`, `qkv_bias` and `parallel_branches` where it has them",
        (off("qk_layernorm", "LayerNorm of queries and keys"),),
        described_stablelm,
        partial_rotation=True,
        defaults={
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "use_qkv_bias": False,
            "use_parallel_residual": False,
            "partial_rotary_factor": 0.25,
        },
        aliases={"layer_norm_eps": "rms_norm_eps"},
    ),
    Architecture(
        "starcoder2",
        "StarCoder 2",
        "llama",
        starcoder2,
        "`stream_norm` = layernorm, biases, `gelu-tanh`, and a `window` where it has one",
        describe=described_window,
        names=Names(mlp={"mlp.c_fc": ["up"], "mlp.c_proj": ["down"]}),
        activations=PLAIN,
        windows=True,
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "attention_bias": True,
        },
        aliases={"norm_epsilon": "rms_norm_eps", "use_bias": "attention_bias"},
    ),
    Architecture(
        "cohere",
        "Command R, Aya 23",
        "cohere",
        parallel_with_one_norm,
        "`stream_norm` = layernorm-no-bias, `parallel_branches` with one norm, `logit_scale`",
        (off("use_qk_norm", "LayerNorm of queries and keys"),),
        described_one_norm,
        names=Names(norms={"attention_norm": "input_layernorm"}),
        defaults={
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "logit_scale": 0.0625,
            "rope_theta": 5e5,
        },
        aliases={"layer_norm_eps": "rms_norm_eps"},
    ),
    Architecture(
        "deepseek_v3",
        "DeepSeek-V3 without experts",
        "deepseek-v3",
        latent,
        "`mla` with its five widths and `latent_norm`",
        (
            off("attention_bias", "biases in MLA"),
            off("mlp_bias", "such bias in this architecture"),
            Need(
                "first_k_dense_replace",
                "at least num_hidden_layers",
                lambda stored: stored["first_k_dense_replace"] >= stored["num_hidden_layers"],
                "mixtures of experts (MoE)",
            ),
            Need("q_lora_rank", "a number", lambda stored: bool(stored["q_lora_rank"]), "MLA with direct queries"),
            Need("rope_interleave", "true", lambda stored: bool(stored["rope_interleave"]), "such order of rotation"),
        ),
        described_latent,
        defaults={
            "first_k_dense_replace": 3,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "rope_interleave": True,
            "max_position_embeddings": 4096,
        },
    ),
    Architecture(
        "diffllama",
        "DiffLlama",
        "diffllama",
        paired,
        "`differential-original` with half as many heads of twice the width",
        (
            Need(
                "rms_norm_eps",
                "1e-05",
                lambda stored: stored["rms_norm_eps"] == 1e-5,
                "other epsilon in the norm of differential attention",
            ),
        ),
        described_pairs,
        defaults={"rms_norm_eps": 1e-5},
    ),
)

# What attractor lacks for other well-known architectures.
LACKING = {
    "gemma3": "images; the text model alone has model_type gemma3_text",
    "gptj": "interleaved rotation of a part of each head, or a bias of the readout",
    "opt": "shifted learned positions, or ReLU",
    "phi": "bias of the readout",
    "falcon": "attention with biases by distance (ALiBi), or its fused order of weights",
    "bloom": "attention with biases by distance (ALiBi)",
    "olmo": "norm without weights, or clipped queries",
    "cohere2": "windows in the layers with RoPE alone, in this table",
    "mixtral": "mixtures of experts (MoE)",
    "qwen2_moe": "mixtures of experts (MoE)",
    "qwen3_moe": "mixtures of experts (MoE)",
    "olmoe": "mixtures of experts (MoE)",
    "deepseek_v2": "mixtures of experts (MoE)",
    "gpt_oss": "mixtures of experts (MoE), or sinks",
    "mamba": "state-space layers",
    "mamba2": "state-space layers",
}
ENCODERS = (
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "eurobert", "modernbert"),
    *("mpnet", "nomic_bert", "roberta", "xlm-roberta", "xlm-roberta-xl"),
)
ENCODER_DECODERS = ("bart", "led", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "t5gemma", "umt5", "whisper")


def architecture(model_type: object) -> Architecture:
    for known in ARCHITECTURES:
        if known.model_type == model_type:
            return known
    names = ", ".join(known.model_type for known in ARCHITECTURES)
    refused = f"model_type must be one of attractor, {names}, got {model_type!r}"
    if model_type in ENCODERS:
        raise InputError(f"{refused}: an encoder, whose positions see what comes after them; {NOT_CAUSAL}")
    if model_type in ENCODER_DECODERS:
        raise InputError(f"{refused}: a model with an encoder, which reads another sequence; {NOT_CAUSAL}")
    why = f": attractor has no {LACKING[model_type]}" if isinstance(model_type, str) and model_type in LACKING else ""
    raise InputError(f"{refused}{why}; {ALTERNATIVE}")
