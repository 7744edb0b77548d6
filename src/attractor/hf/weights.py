"""Translate the attention weights of public models to attractor's layers, which then compute the same, and back.

A layout lists ties. A tie says which stored tensors hold the numbers of which parameters, and in which order of rows:

    sub-heads    differential attention pairs heads (2h, 2h+1) or (h, h + H/2); in attractor they are halves of a head
    rope         rotary pairs are interleaved (2j, 2j+1) or halves (j, j + w/2); in attractor they are halves
    fused        matrices that hold several of attractor's are split
    transposed   GPT-2 stores a matrix as inputs x outputs

Each of these is a permutation or a split. So one tie serves both directions, and gradients translate in the same way,
which the tests use.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attractor.attention import Attention
from attractor.attention.foreign_projections import LATENT, PROJECTIONS, Projections
from attractor.attention.project.latent import LatentProjection
from attractor.errors import InputError, require, require_known

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Tie:
    """Parameters, and the stored tensor with the same numbers: rows(parameters) = rows(stored)[order] + offset.

    The rows of several parameters follow one another. Without `order`, rows have the same order on both sides."""

    parameters: tuple[str, ...]
    stored: tuple[str, ...]
    order: Tensor | None = None
    transposed: bool = False  # the stored tensor is inputs x outputs
    offset: float = 0.0

    def load(self, stored: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the values of the parameters, of which only the shapes are read."""
        (rows,) = stored
        rows = rows.mT.contiguous() if self.transposed else rows
        rows = rows if self.order is None else rows[self.order]
        rows = rows + self.offset if self.offset else rows
        if len(parameters) == 1:
            return [rows]
        return [part.clone() for part in rows.split([len(parameter) for parameter in parameters])]

    def store(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the stored tensors: the inverse of `load`."""
        rows = parameters[0] if len(parameters) == 1 else torch.cat(list(parameters))
        rows = rows - self.offset if self.offset else rows
        rows = rows if self.order is None else rows[self.order.argsort()]
        return [rows.mT.contiguous() if self.transposed else rows]

    def within(self, block: str, stored_block: str) -> "Tie":
        """Return the tie with prefixes before the names of the parameters and of the stored tensors."""
        names = (tuple(map(block.__add__, self.parameters)), tuple(map(stored_block.__add__, self.stored)))
        return type(self)(*names, self.order, self.transposed, self.offset)


class StackedTie(Tie):
    """A parameter whose rows are stored as one tensor each."""

    def load(self, stored: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
        return [torch.stack(list(stored))]

    def store(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        return list(parameters[0].unbind())


class AbsentTie(Tie):
    """A weight that the public model does not have, which is 1 there."""

    def load(self, stored: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
        return [torch.ones_like(parameter, device="cpu") for parameter in parameters]

    def store(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        if not all(parameter.is_meta or bool((parameter == 1).all()) for parameter in parameters):
            raise InputError(
                f"{self.parameters[0]} must be 1 to be exported, since the other architecture has no such weight, but "
                "training has changed it; export with --to hf, which keeps it"
            )
        return []


def import_attention(layer: Attention, state_dict: Weights, layout: str, prefix: str = "") -> None:
    """Fill `layer` with the attention weights in `state_dict`, whose names may stand behind `prefix`.

    Every weight of the layer must be found and every weight found must have a place, with the shape the layer has;
    otherwise nothing is changed and the error names what was expected and what was found.
    """
    weights = translate(layer, state_dict, layout, prefix)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(weights[name])


def translate(layer: Attention, state_dict: Weights, layout: str, prefix: str = "") -> dict[str, Tensor]:
    """Return the weights in `state_dict` under the names of the layer's parameters."""
    require_known("layout", layout, LAYOUTS)
    # Some models store the frequencies of RoPE, which are no weights.
    source = {
        name.removeprefix(prefix): weight
        for name, weight in state_dict.items()
        if name.startswith(prefix) and not name.endswith("inv_freq")
    }
    ties = LAYOUTS[layout](layer)
    places = dict(layer.named_parameters())
    if odd := sorted(places.keys() ^ {name for tie in ties for name in tie.parameters}):
        raise InputError(
            f"layout '{layout}' must fill every weight of the layer and no other, but these differ: {', '.join(odd)}; "
            "build the layer as the documentation's table of layouts says"
        )
    wanted = stored_shapes(ties, places)
    if missing := [name for name in wanted if name not in source]:
        names = ", ".join(sorted(source)[:8]) or "nothing"
        raise InputError(
            f"state_dict must hold '{missing[0]}' for layout '{layout}', found {names}; "
            f"choose another layout ({', '.join(LAYOUTS)}) or give the prefix of the layer's names"
        )
    for name, shape in wanted.items():
        if tuple(source[name].shape) != shape:
            raise InputError(
                f"{name} must have shape {shape} for this layer and layout '{layout}', got "
                f"{tuple(source[name].shape)}; build the layer with the model's own d_model, n_heads, n_kv_heads and "
                "head_dim"
            )
    if left := sorted(source.keys() - wanted.keys()):
        raise InputError(
            f"state_dict must hold nothing beyond layout '{layout}' and this layer, found {', '.join(left[:8])}; build "
            f"the layer with the fields they need (qkv_bias, out_bias, qk_norm) or choose another layout "
            f"({', '.join(LAYOUTS)})"
        )
    weights: dict[str, Tensor] = {}
    for tie in ties:
        values = tie.load([source[name] for name in tie.stored], [places[name] for name in tie.parameters])
        weights |= zip(tie.parameters, values, strict=True)
    return weights


def stored_shapes(ties: Iterable[Tie], places: Weights) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the stored tensors by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for tie in ties:
        stored = tie.store([places[name].to("meta") for name in tie.parameters])
        shapes |= zip(tie.stored, (tuple(tensor.shape) for tensor in stored), strict=True)
    return shapes


PARTS = ("query", "key", "value")


def deinterleave(rows: Tensor) -> Tensor:
    """Reorder rotary pairs (2j, 2j+1) of dimension 1 to (j, j + width/2)."""
    return torch.cat([rows[:, 0::2], rows[:, 1::2]], dim=1)


def require_plain_weights(layer: Attention) -> None:
    if getattr(layer.config.project, "orthogonal_values", False):
        raise InputError(
            "orthogonal_values must be off to import or export weights, since the matrix of values is computed from "
            "the weight and is not the weight; build the layer without it"
        )
    if layer.config.project.sigma_reparam:
        raise InputError(
            "sigma_reparam must be off to import or export weights, which are plain matrices; build the layer without "
            "it, or add it afterwards by attractor.attention.sigma_reparam.sigma_reparametrize"
        )


def kinds(layer: Attention, module: str) -> list[str]:
    """Return which of weight and bias a module of the layer has."""
    return [name.rsplit(".", 1)[1] for name, _ in layer.named_parameters() if name.rsplit(".", 1)[0] == module]


def separate(
    layer: Attention,
    order: Callable[[str], Tensor | None] = lambda part: None,
    names: Projections = PROJECTIONS["llama"],
) -> list[Tie]:
    """Tie one matrix each of queries, keys and values; `order` gives the stored order of the rows of each."""
    require_plain_weights(layer)
    ties = [
        Tie((f"project.{part}.{kind}",), (f"{getattr(names, part)}.{kind}",), order(part))
        for part in PARTS
        for kind in kinds(layer, "project.query")
    ]
    return ties + output(layer, names)


def output(layer: Attention, names: Projections, transposed: bool = False) -> list[Tie]:
    return [
        Tie((f"output.out.{kind}",), (f"{names.out}.{kind}",), transposed=transposed and kind == "weight")
        for kind in kinds(layer, "output.out")
    ]


def llama(layer: Attention) -> list[Tie]:
    """Tie Llama, Mistral, Qwen2 (qkv_bias=True) and Qwen3 (qk_norm=True), whose order of rows is attractor's."""
    norms = [Tie((f"{part}_norm.weight",), (f"{part[0]}_norm.weight",)) for part in ("query", "key")]
    return separate(layer) + (norms if layer.config.couple.qk_norm else [])


def gemma3(layer: Attention) -> list[Tie]:
    """Tie Gemma 3: as Llama, with norms of queries and keys that are stored as their difference from 1."""
    return [replace(tie, offset=1.0) if tie.parameters[0].endswith("_norm.weight") else tie for tie in llama(layer)]


def cohere(layer: Attention) -> list[Tie]:
    """Tie Cohere, Ernie, GLM and Helium: as Llama, with interleaved RoPE."""
    return separate(layer, lambda part: by_sub_head(layer, part, 1))


def by_sub_head(layer: Attention, part: str, n_sub_heads: int) -> Tensor | None:
    """Return the stored order of rows whose rotary pairs are interleaved in each sub-head; values are not rotated."""
    if part == "value":
        return None
    n_heads = layer.layout.n_queries if part == "query" else layer.layout.n_kv_heads
    rows = torch.arange(n_heads * layer.layout.free).view(n_sub_heads * n_heads, -1)
    rotated, rest = rows[:, : layer.rope_width], rows[:, layer.rope_width :]
    return torch.cat([deinterleave(rotated), rest], dim=1).flatten()


def fused(name: str, by_head: bool = False, transposed: bool = False) -> Callable[[Attention], list[Tie]]:
    """Tie a matrix with the rows [q | k | v], or with [q k v] of one head after another."""
    names = PROJECTIONS[name]

    def ties(layer: Attention) -> list[Tie]:
        require_plain_weights(layer)
        layout, order = layer.layout, None
        if by_head:
            rule = f"n_heads={layout.n_queries} where the matrices are fused by head"
            require(layout.n_kv_heads == layout.n_queries, "n_kv_heads", rule, layout.n_kv_heads)
            rows = torch.arange(3 * layout.n_queries * layout.free)
            order = rows.view(layout.n_queries, 3, layout.free).transpose(0, 1).flatten()
        return [
            Tie(
                tuple(f"project.{part}.{kind}" for part in PARTS),
                (f"{names.query}.{kind}",),
                order,
                transposed=transposed and kind == "weight",
            )
            for kind in kinds(layer, "project.query")
        ] + output(layer, names, transposed)

    return ties


def diffllama(layer: Attention) -> list[Tie]:
    """Tie Hugging Face's DiffLlama, whose sub-heads h and h + H/2 become one head. Its norm has no weight."""

    def paired(part: str) -> Tensor:
        n_heads = layer.layout.n_queries if part == "query" else layer.layout.n_kv_heads
        return torch.arange(n_heads * layer.layout.free).view(2, n_heads, -1).transpose(0, 1).flatten()

    norm = [AbsentTie((name,), ()) for name in dict(layer.named_parameters()) if name == "score.norm.weight"]
    return [*separate(layer, paired), LAMBDAS, *norm]


def unilm_diff(layer: Attention) -> list[Tie]:
    """Tie the authors' MultiheadFlashDiff (github.com/microsoft/unilm), whose heads share keys as ours do.

    Sub-heads 2h and 2h + 1 form head h, RoPE is interleaved, and the norm has a weight."""
    ties = separate(layer, lambda part: by_sub_head(layer, part, 2), PROJECTIONS["unilm"])
    return [*ties, LAMBDAS, Tie(("score.norm.weight",), ("subln.weight",))]


LAMBDAS = StackedTie(("score.vectors",), ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"))


def deepseek_v3(layer: Attention) -> list[Tie]:
    """Tie DeepSeek-V3: matrices fused by head, interleaved RoPE, norms on both latents (latent_norm=True)."""
    if not isinstance(layer.project, LatentProjection):
        raise InputError("layer must be an MLA layer for layout 'deepseek-v3'; build it from the preset 'mla'")
    require_plain_weights(layer)
    n_heads, nope, rope, value = (getattr(layer.layout, name) for name in ("n_heads", "free", "rotary", "value"))
    query = torch.arange(n_heads * (nope + rope)).view(n_heads, -1)
    key_value = torch.arange(n_heads * (nope + value)).view(n_heads, -1)
    latent, down = layer.project.kv_latent, torch.arange(layer.project.kv_latent + rope)

    def tie(parts: Sequence[str], stored: str, *rows: Tensor) -> Tie:
        order = torch.cat([row.flatten() for row in rows]) if rows else None
        return Tie(tuple(f"project.{part}.weight" for part in parts), (f"{stored}.weight",), order)

    return [
        tie(["query_down"], LATENT.query_down),
        tie(["query_up", "query_rope"], LATENT.query_up, query[:, :nope], deinterleave(query[:, nope:])),
        tie(["down", "key_rope"], LATENT.down, down[:latent], deinterleave(down[None, latent:])),
        tie(["key_up", "value_up"], LATENT.up, key_value[:, :nope], key_value[:, nope:]),
        tie(["query_norm"], LATENT.query_norm),
        tie(["norm"], LATENT.norm),
        *output(layer, PROJECTIONS["llama"]),
    ]


LAYOUTS: dict[str, Callable[[Attention], list[Tie]]] = {
    "llama": llama,
    "qwen2": llama,
    "qwen3": llama,
    "gemma3": gemma3,
    "cohere": cohere,
    "phi3": fused("phi3"),
    "gpt2": fused("gpt2", transposed=True),
    "gpt-neox": fused("gpt-neox", by_head=True),
    "diffllama": diffllama,
    "unilm-diff-flash": unilm_diff,
    "deepseek-v3": deepseek_v3,
}
