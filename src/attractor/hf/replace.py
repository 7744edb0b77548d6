"""Replace the attention mechanism of a model of transformers, in place.

The model keeps its class, its config, the names of its weights and its cache. A new stage acts where the same stage of
attractor acts:

    couple    the projections of a layer return coupled queries and keys, so norms, positions and the cache come after
    score     a function in transformers' table of attention functions, which the config of the model selects
    output    the layer's last projection reads gated contexts: W_O (c * 2 sigmoid(W_g x)), exactly c where W_g = 0

The layers are found by the layout of their projections (`control/layouts.py`), whatever the architecture. All new
weights of a layer are in its module `attractor`. During a call of the layer, functions stand in front of its
projections. They call what is there at that time, which may be an adapter.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from attractor.attention.acting_weight import NEARLY_ZERO
from attractor.attention.config import AttentionConfig
from attractor.attention.couple.dynamics import CoupledDynamics, Dynamics
from attractor.attention.couple.mlp import QueryMLP
from attractor.attention.foreign_projections import PROJECTIONS, REPLACEMENT
from attractor.attention.mask import Mask, resolve_mask
from attractor.attention.named import resolved
from attractor.attention.output.gated import Gated
from attractor.attention.output.plain import Plain
from attractor.attention.presets import PRESETS
from attractor.attention.project.heads import Heads
from attractor.attention.score.exclusive import ExclusiveScore
from attractor.attention.score.softmax import Softmax
from attractor.attention.score.uniform import Uniform
from attractor.attention.stage import Coupling, HeadLayout, Shape
from attractor.control.heads import known_heads, query_key_heads
from attractor.control.score_inputs import uses_table
from attractor.control.views import DotProduct, QueryKeyHeads, Rows
from attractor.errors import InputError, require, require_seed
from attractor.models.initialize import draw

RECORD = "replaced_attention"  # the field of config.json
STARTS_AT_ZERO = "whose gates start at 0, so that the layer would write nothing"
OTHER_LOGITS = ("softcap", "position_bias", "s_aux")  # arguments of attention functions that change logits


def replace_attention(
    model: Any,
    attention: Any,
    layers: Iterable[int] | None = None,
    gate: float | None = 0.0,
    seed: int = 0,
) -> Any:
    """Give layers of a transformers model another mechanism, in place, and return the model.

    `attention` names a mechanism in any way that attractor knows (`attention/named.py`), or is its config. `layers` are
    numbers from 0; None replaces all. `gate` is the initial value of the gates g of a coupling, q' = q + tanh(g)
    (q_n - q). At 0, and for `mlp-only` and `gated`, the model starts as the original, bit for bit. With None a coupling
    has no gate, and these two start with random weights. Another score never starts as the original, and a stage of
    your own starts as its code says. New weights are drawn from (seed, their names).
    """
    require_seed(seed)
    wanted = chosen(attention, obstacle, "one that acts on the projections of such a model")
    couple = gated(wanted.couple) if gate is not None else wanted.couple
    if gate and not isinstance(couple, Dynamics):
        require(False, "gate", f"0 or None for '{attention}', which has no such gate", gate)
    wanted = wanted.replace(couple=couple)
    for name, replaced in install(model, wanted, layers).items():
        draw(replaced, seed, f"{name}.")
        if gate is not None:
            replaced.start(gate)
    return model


def chosen(attention: Any, refused: Callable[[AttentionConfig], str | None], rule: str) -> AttentionConfig:
    """Return the mechanism, or refuse it with the presets that are possible."""
    wanted, step = resolved(attention), "choose among"
    if isinstance(wanted, AttentionConfig):
        reason = refused(wanted)
    else:
        attention, step = wanted.name, "write its coupling, score or output as a config of that stage, or choose among"
        reason = "which joins whole, without the masks and the cache of such a model"
    if reason is not None:
        possible = ", ".join(name for name in PRESETS if refused(PRESETS[name]) is None) or "none"
        raise InputError(f"attention must be {rule}, got '{attention}', {reason}; {step}: {possible}")
    assert isinstance(wanted, AttentionConfig)
    return wanted


def obstacle(wanted: AttentionConfig) -> str | None:
    """Return why a layer of transformers cannot have the mechanism, or None if it can."""
    score, couple, kind = wanted.score, wanted.couple, type(wanted.project).__name__
    if score.query_maps > 1:
        return "which needs twice the queries that a layer projects"
    if type(wanted.project) is not Heads and not isinstance(score, Uniform):
        return f"whose project stage {kind} needs other projections than a layer has"
    if couple.parts > 1:
        return "whose queries and keys are wider than those of the layer"
    ours = ("sigma_reparam", "orthogonal_values", "qk_norm", "z_loss", "window", "n_kv_heads", "qkv_bias", "out_bias")
    if name := next((name for name in ours for stage in wanted.stages if getattr(stage, name, None)), None):
        return f"whose {name} acts in models of attractor alone"
    if couple.rope_fraction != 1 or (wanted.dropout and not is_scored(wanted)):
        return "whose rope_fraction and dropout are those of the model"
    if not isinstance(wanted.output, Plain | Gated):
        return f"whose output stage is {type(wanted.output).__name__}"
    if isinstance(wanted.output, Gated) and wanted.output.activation != "sigmoid":
        return STARTS_AT_ZERO
    is_new = couple.moves or is_scored(wanted) or isinstance(wanted.output, Gated)
    return None if is_new else "which the model has already"


def is_scored(wanted: AttentionConfig) -> bool:
    return wanted.score != Softmax()


def gated(couple: Coupling) -> Coupling:
    """Return the coupling with a gate, if it is one that can have it."""
    return replace(couple, zero_start=True) if isinstance(couple, Dynamics) else couple


def start_closed(couple: nn.Module) -> None:
    """Let a coupling without a gate start as the identity; a gate is closed by its initialization."""
    if isinstance(couple, QueryMLP):
        nn.init.constant_(couple.force.outer.weight, NEARLY_ZERO)


def install(model: Any, wanted: AttentionConfig, layers: Iterable[int] | None) -> "dict[str, Replaced]":
    """Give the layers the mechanism with uninitialized weights, and write it into the model's config."""
    views = chosen_layers(model, layers)
    made = {view.name: Replaced(wanted, view) for view in views.values()}  # all of them, before the model changes
    if is_scored(wanted):
        select_function(model)
    for view in views.values():
        view.module.add_module(REPLACEMENT, made[view.name])
        if made[view.name].couple is not None or made[view.name].gate is not None:  # it acts on projections
            view.module.register_forward_pre_hook(stand_in, with_kwargs=True)
            view.module.register_forward_hook(stand_back, always_call=True)
    record = {"layers": sorted(views), "attention": wanted.to_dict()}
    setattr(model.config, RECORD, [*getattr(model.config, RECORD, []), record])
    return made


def chosen_layers(model: Any, layers: Iterable[int] | None) -> dict[int, DotProduct]:
    """Return the attention layers by number."""
    require(hasattr(model, "set_attn_implementation"), "model", "a model of transformers", type(model).__name__)
    done = getattr(model.config, RECORD, [])
    if layers is None and done:
        require(False, "layers", "given where layers have been replaced before", layers)
    views: list[QueryKeyHeads] = query_key_heads(model) if layers is None else known_heads(model)
    views = [view for view in views if not hasattr(view.module, REPLACEMENT)]
    numbered = {number_of(view.name): view for view in views}
    alone = len(numbered) == len(views)
    require(alone, "model", "one stack of layers with one attention each", type(model).__name__, "give a part of it")
    numbers = list(numbered) if layers is None else list(layers)
    for number in numbers:
        possible = ", ".join(map(str, numbered)) or "none"
        require(number in numbered, "layers", f"among those of known layout that are not replaced: {possible}", number)
        view, rule = numbered[number], "of queries and keys with a matrix each"
        kind = type(view.module).__name__
        require(isinstance(view, DotProduct), "layers", rule, kind, "import and convert a model with MLA")
    return {number: cast(DotProduct, numbered[number]) for number in numbers}


def number_of(name: str) -> int:
    """Return the number of the layer to which the module of this name belongs."""
    return int(next(filter(str.isdigit, name.split(".")), 0))


@dataclass(frozen=True)
class HeadsOf:
    """Where heads are in the output of a projection: `width` coordinates in each of n blocks, from `offset` on."""

    part: str
    n_heads: int
    width: int
    first: int  # coordinate at which the blocks begin
    block: int
    offset: int

    @classmethod
    def of(cls, rows: Rows, module: nn.Module) -> "HeadsOf":
        part = next(name for name, child in module.named_children() if getattr(child, "weight", None) is rows.weight)
        starts = rows.starts
        block = starts[1] - starts[0] if len(starts) > 1 else rows.width
        offset = starts[0] % block
        return cls(part, rows.n_heads, rows.width, starts[0] - offset, block, offset)

    def blocks(self, projected: Tensor) -> Tensor:
        return projected.narrow(-1, self.first, self.n_heads * self.block).unflatten(-1, (self.n_heads, self.block))

    def read(self, projected: Tensor) -> Tensor:
        """Return the heads, B H T K."""
        return self.blocks(projected).narrow(-1, self.offset, self.width).transpose(1, 2)

    def written(self, projected: Tensor, heads: Tensor) -> Tensor:
        """Return what was projected, with other heads B H T K."""
        heads = heads.to(projected.dtype).transpose(1, 2)
        if self.n_heads * self.width == projected.shape[-1]:
            return heads.flatten(2)
        blocks = self.blocks(projected).slice_scatter(heads, -1, self.offset, self.offset + self.width)
        return projected.slice_scatter(blocks.flatten(2), -1, self.first, self.first + self.n_heads * self.block)


class Replaced(nn.Module):
    """The new stages of a layer."""

    def __init__(self, wanted: AttentionConfig, view: DotProduct) -> None:
        super().__init__()
        self.wanted = wanted
        attention, number = view.module, number_of(view.name)
        weight = view.query.weight
        self.query, self.key = HeadsOf.of(view.query, attention), HeadsOf.of(view.key, attention)
        n_queries, n_keys, width = view.query.n_heads, view.key.n_heads, view.query.width
        outs = [names.out for names in PROJECTIONS.values() if names.query == self.query.part]
        value = int(getattr(attention, "v_head_dim", width))
        shape = Shape(weight.shape[1 - view.query.axis], n_queries, width, number)
        layout = HeadLayout(n_queries, n_queries, n_keys, width, value)
        with torch.device(weight.device):
            self.couple = wanted.couple.build(layout) if wanted.couple.moves else None
            self.score = self.built_score(wanted, view.name, attention, shape, layout) if is_scored(wanted) else None
            self.gate = wanted.output.projection(shape, layout) if isinstance(wanted.output, Gated) else None
        self.out = next((out for out in outs if hasattr(attention, out)), "")
        if self.gate is not None:
            rule = f"a module with a projection {' or '.join(outs)} for a gated output"
            require(bool(self.out), f"'{view.name}'", rule, type(attention).__name__, "replace its couple stage alone")
        self.halves = wanted.score.halves
        self.own_scale = getattr(wanted.score, "attention_scale", None)
        self.to(weight.dtype)

    @staticmethod
    def built_score(
        wanted: AttentionConfig, name: str, attention: nn.Module, shape: Shape, layout: HeadLayout
    ) -> nn.Module:
        rule = "a module that looks up its attention function in transformers' table, for another score"
        require(uses_table(attention), f"'{name}'", rule, type(attention).__name__, "replace its couple stage alone")
        if wanted.score.halves:  # heads h and h + H/2 are the halves of one, as in transformers' DiffLlama
            pairs = layout.n_queries // 2
            even = layout.n_kv_heads % 2 == 0
            require(even, f"key heads of '{name}'", "of an even number, as pairs are subtracted", layout.n_kv_heads)
            shape = replace(shape, n_heads=pairs, head_dim=2 * layout.free)
            layout = HeadLayout(pairs, pairs, layout.n_kv_heads // 2, 2 * layout.free, 2 * layout.value)
        own_scale = getattr(wanted.score, "attention_scale", None)
        return wanted.score.build(shape, layout, own_scale or 1.0, wanted.dropout)  # else each call states the scale

    def start(self, gate: float) -> None:
        if isinstance(self.couple, CoupledDynamics):
            nn.init.constant_(cast(Tensor, self.couple.gate), gate)
        if self.couple is not None:
            start_closed(self.couple)
        if self.gate is not None:
            nn.init.constant_(self.gate.weight, NEARLY_ZERO)

    def forward(self, x: Tensor, parts: Mapping[str, nn.Module]) -> dict[str, Callable[[Tensor], Tensor]]:
        """Return what takes the place of the layer's projections for the input x."""
        places: dict[str, Callable[[Tensor], Tensor]] = {}
        if self.couple is not None:
            projected = {part: parts[part](x) for part in {self.query.part, self.key.part}}
            heads = self.couple(self.query.read(projected[self.query.part]), self.key.read(projected[self.key.part]))
            for place, coupled in zip((self.query, self.key), heads, strict=True):
                projected[place.part] = place.written(projected[place.part], coupled)
            places = {part: partial(given, values) for part, values in projected.items()}
        if self.gate is not None:
            gates = 2 * cast(Gated, self.wanted.output).gates(self.gate, x, self.query.n_heads)
            places[self.out] = lambda context: parts[self.out](
                (context.unflatten(-1, (self.query.n_heads, -1)) * gates).flatten(-2)
            )
        return places


def given(values: Tensor, x: Tensor) -> Tensor:
    return values


def stand_in(attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let functions stand in front of the layer's projections: an attribute is found before a module of its name."""
    parts = dict(attention.named_children())
    vars(attention).update(parts[REPLACEMENT](args[0] if args else kwargs["hidden_states"], parts))


def stand_back(attention: nn.Module, args: Any, output: Any) -> None:
    for part in dict(attention.named_children()):
        vars(attention).pop(part, None)


def select_function(model: Any) -> None:
    """Register the attention function under its name, and let the model's config select it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    used = model.config._attn_implementation
    step = "load the model with attn_implementation='sdpa'"
    require(used in ("sdpa", REPLACEMENT), "attn_implementation", "'sdpa' before another score is set", used, step)
    AttentionInterface.register(REPLACEMENT, attend)
    AttentionMaskInterface.register(REPLACEMENT, sdpa_mask)
    model.set_attn_implementation(REPLACEMENT)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Return the contexts, B T H V. Layers that keep their score have the function `sdpa`."""
    replaced: Any = getattr(module, REPLACEMENT, None)
    if replaced is None or replaced.score is None:
        from transformers import AttentionInterface

        function = AttentionInterface()["sdpa"]
        return function(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **rest)
    for name in OTHER_LOGITS:
        require(rest.get(name) is None, name, "absent in a layer with another score", rest.get(name))
    score = replaced.score
    if replaced.own_scale is None:
        score.scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    score.dropout = dropout or score.dropout
    is_causal = rest.get("is_causal")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    allowed = attention_mask
    if allowed is not None and allowed.dtype != torch.bool:
        allowed = allowed >= 0
    n_filled = filled(query, key, allowed, causal, score)
    key, value = key[:, :, :n_filled], value[:, :, :n_filled]
    if allowed is None:
        mask = resolve_mask(bool(causal), query.shape[0], query.shape[2], n_filled, query.device)
    else:
        mask = Mask(allowed[..., :n_filled])
    if not replaced.halves:
        return score(query, key, value, mask, query).transpose(1, 2), None
    context = score(query, key, torch.cat(value.chunk(2, 1), -1), mask, query)
    return torch.cat(context.chunk(2, -1), 1).transpose(1, 2), None


def filled(query: Tensor, key: Tensor, allowed: Tensor | None, causal: bool, score: nn.Module) -> int:
    """Return how many places for keys are filled. A static cache has empty ones behind them, which a mask tells.

    Its first call has no mask: the queries are the first positions then. Only exclusive attention, which reads the
    value of the query's own position, needs the number under a mask, and waits for the device to know it."""
    if allowed is None:
        return query.shape[2] if causal and query.shape[2] > 1 else key.shape[2]
    if not isinstance(score, ExclusiveScore):
        return key.shape[2]
    return int(allowed.flatten(0, -2).any(0).nonzero().max()) + 1


class ReplacedModel:
    """Load models whose attention has been replaced."""

    @classmethod
    def from_pretrained(cls, folder: Any, *args: Any, config: Any = None, **options: Any) -> Any:
        """Return the saved model, which has the class that it was saved from; the options are those of that class."""
        import transformers

        config = config or transformers.AutoConfig.from_pretrained(folder)
        records: Any = getattr(config, RECORD, None)
        require(bool(records), RECORD, "in config.json of a model to be loaded as one with replaced attention", records)
        name = (config.architectures or ["none"])[0]
        kind: Any = getattr(transformers, name, None)
        known = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
        require(known, "architectures", "a class of models in transformers", name)

        class WithReplacedAttention(kind):
            def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
                super().__init__(config, *args, **kwargs)
                setattr(config, RECORD, [])
                for record in records:
                    install(self, AttentionConfig.from_dict(record["attention"]), record["layers"])

        loaded = WithReplacedAttention.from_pretrained(folder, *args, config=config, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info=True
        model.__class__ = kind
        vars(model.config).pop("auto_map", None)  # a folder that is saved from here on has no code
        return loaded

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Do nothing; transformers calls this of every class that it loads by the name in a folder."""
