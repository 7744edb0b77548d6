"""Define what a row of the table in `architectures.py` says about a Hugging Face architecture.

A row says how config.json translates to a TransformerConfig and back, what the weights are called and how they are laid
out, and which of the architecture's options attractor lacks. A model with such an option is refused by name, since
importing it would compute something else. Fields that config.json leaves out have the defaults of transformers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from attractor.attention import PRESETS, Attention, AttentionConfig
from attractor.attention.config import STAGES
from attractor.attention.position import parse_scaling
from attractor.errors import InputError
from attractor.hf.read_config import (
    GLOBAL,
    LOCAL,
    Described,
    mapping,
    number,
    refuse_other_than_lists,
    rope_type,
    rotation,
)
from attractor.hf.weights import LAYOUTS, Tie
from attractor.hf.write_config import alike, first_layer, latent_sizes, shape
from attractor.models.config import ROTATIONS, ModelConfig
from attractor.models.imported import ImportedConfig, transformer_config
from attractor.models.language_model import LanguageModel
from attractor.models.transformer import TransformerConfig, layer_indices

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
BEFORE = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
IN_TRAINING_ALONE = ("dropout", "z_loss")
DEFAULTS = {"hidden_act": "silu", "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048}


@dataclass(frozen=True)
class Need:
    """A rule for a field of config.json, and the feature that attractor lacks where the rule does not hold."""

    field: str
    rule: str
    holds: Callable[[Described], bool]
    lacking: str
    alternative: str = ALTERNATIVE


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
        and len(stored.get("layer_types") or range(number(stored, "num_hidden_layers")))
        == number(stored, "num_hidden_layers")
    ),
    "other kinds of layers",
)
WHOLE_HEADS = Need(
    "rope_parameters",
    "of whole heads",
    lambda stored: stored["rope_parameters"].get("partial_rotary_factor", 1.0) == 1.0,
    "rotation of a part of each head in this architecture",
)


@dataclass(frozen=True)
class Names:
    """The names of a model's parts in its files, without `.weight` and `.bias`; the fields have attractor's names."""

    base: str = "model."  # precedes the names of all parts but the readout; absent in models without a readout
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
    not_weights: tuple[str, ...] = ("inv_freq",)  # suffixes of stored tensors that are no weights
    older: Mapping[str, str] = field(default_factory=dict)  # names that older files have in place of newer ones


@dataclass(frozen=True)
class Architecture:
    model_type: str
    layout: str  # of the weights of an attention layer (weights.py)
    translate: Callable[[Described], dict[str, Any]]  # from config.json to the fields of an ImportedConfig
    needs: tuple[Need, ...] = ()
    describe: Callable[[ImportedConfig], dict[str, Any]] = lambda config: shape(config)  # to config.json
    names: Names = field(default_factory=Names)
    norm_offset: float = 0.0  # what the norms add to their stored weights, not to biases
    activations: Mapping[str, str] = field(default_factory=lambda: GATED)  # kinds of MLPs by `hidden_act`
    partial_rotation: bool = False  # some of its models rotate a part of each head
    windows: bool = False  # some of its models have sliding windows
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
        refuse_other_than_lists(described, "layer_types", "no_rope_layers")
        local = mapping(mapping(described, "rope_parameters"), "sliding_attention")
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
        return transformer_config(self.translate(described) | {"mlp": self.activations[described["hidden_act"]]})

    def exported(self, config: ModelConfig) -> dict[str, Any]:
        """Return the content of config.json for a model of attractor; refuse a model that it cannot describe."""
        if not isinstance(config, TransformerConfig):
            raise self.refusal("family", TransformerConfig.family, config.family)
        config = ImportedConfig.of(config)
        act = next((act for act, mlp in self.activations.items() if mlp == config.mlp), next(iter(self.activations)))
        common = self.describe(config) | {"hidden_act": act}
        if "head_dim" in self.defaults:  # which the width of heads that is left out stands for
            common["head_dim"] = first_layer(config).layout.free
        if not self.partial_rotation:
            common["rope_parameters"].get(GLOBAL, common["rope_parameters"]).pop("partial_rotary_factor", None)
        self.require_same(config, self.translated(self.described(common)))
        names = {llamas: its for its, llamas in self.aliases.items()}
        stored = {names.get(name, name): value for name, value in common.items()}
        for need in self.unmet(self.described(stored)):
            raise self.refusal(need.field, need.rule, common.get(need.field))
        return stored

    def require_same(self, config: TransformerConfig, translated: TransformerConfig) -> None:
        """Refuse a configuration that config.json cannot express, and name the first field that differs."""
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
                    offset=offset if kind == "weight" else 0.0,
                )
                for kind in ("weight", "bias")
                if f"{ours[0]}.{kind}" in parameters
            ]

        base, offset = names.base, self.norm_offset
        ties = module(["embedding"], base + names.embedding) + module(["positions"], base + names.positions)
        for index, block in enumerate(model.layers):
            here, there = f"blocks.{index}.", f"{base}{names.blocks}.{index}."
            attention = LAYOUTS[self.layout](cast(Attention, block.attention))
            ties += [tie.within(f"{here}attention.", f"{there}{names.attention}.") for tie in attention]
            for norm, stored in names.norms.items():
                ties += module([here + norm], there + stored, offset)
            for stored, parts in names.mlp.items():
                ties += module([f"{here}mlp.{part}" for part in parts], there + stored, transposed=names.transposed)
        return ties + module(["norm"], base + names.norm, offset) + module(["head"], names.head)


def settings(config: TransformerConfig) -> dict[str, Any]:
    """Return all settings that affect the computation, defaults resolved: equal where models compute the same."""
    config = ImportedConfig.of(config)
    layer, mechanism = first_layer(config), config.staged_attention
    flat: dict[str, Any] = {"attention": mechanism_name(mechanism)}
    for part in (config, *stages_of(mechanism)):
        flat |= {f.name: getattr(part, f.name) for f in fields(part) if f.name != "attention"}
    flat["rope_scaling"] = None if config.rope_scaling is None else parse_scaling(config.rope_scaling)
    if config.global_layers is not None:
        flat["global_layers"] = ",".join(map(str, sorted(layer_indices(config.global_layers, config.n_layers))))
    flat |= {"n_kv_heads": layer.layout.n_kv_heads, "head_dim": layer.layout.free, "attention_scale": layer.scale}
    flat |= latent_sizes(layer)
    unused = [*IN_TRAINING_ALONE, "heads_per_kv"]
    unused += [] if mechanism.couple.qk_norm else ["qk_norm_eps", "qk_norm_across"]
    unused += ["rope_theta", "rope_scaling"] if config.positions not in ROTATIONS else []
    unused += ["pool"] if config.n_classes is None else []
    return {name: value for name, value in flat.items() if name not in unused}


def stages_of(mechanism: AttentionConfig) -> list[Any]:
    return [getattr(mechanism, name) for name in STAGES]


def mechanism_name(mechanism: AttentionConfig) -> str:
    """Return the first preset whose stages are of the same kinds, or a list of the kinds."""

    def kinds(config: AttentionConfig) -> list[Any]:
        return [(type(s), getattr(s, "form", None), getattr(s, "force", "")) for s in stages_of(config)]

    names = (name for name, preset in PRESETS.items() if kinds(preset) == kinds(mechanism))
    return next(names, ", ".join(type(stage).__name__ for stage in stages_of(mechanism)))
