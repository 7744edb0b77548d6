"""Find the query and key rows of heads in other models, most of them Hugging Face's: one function per layout.

A module is recognised by its parts, never by its class or its model's name. A layout matches only if the module has no
further part that could stand between projection and dot product; a layout that only resembles a known one is unknown.

    separate     q_proj | k_proj, head by head         Llama, Mistral, Qwen2, Qwen3, Gemma 2 and 3, OLMo 2, DiffLlama
                 query | key; Wq | Wk; q_lin | k_lin   BERT and its like; CTRL; XLM
                 wq | wk; c_q | c_k; to_q | to_k       Meta's Llama; nanochat; x-transformers
    by_part      qkv_proj or qkv, rows [q | k | v]     Phi-3; timm
    by_head      query_key_value, rows [q k v] a head  GPT-NeoX
    transposed   c_attn, columns [q | k | v]           GPT-2
    latent       q_proj or q_a_proj, q_b_proj, rows [nope rope] a head; kv_a_proj_with_mqa, rows [latent | rope];
                 kv_b_proj, rows [key value] a head    DeepSeek-V2 and V3; torchtitan's, with other names
    stacked      in_proj_weight, rows [q | k | v]      torch.nn.MultiheadAttention, so torch.nn.TransformerEncoder
    fused        c_attn as a linear layer, rows [q | k | v]                    nanoGPT
    titan        qkv_linear: wq | wk, or wqkv with rows [queries k v] a group  torchtitan
    megatron     linear_qkv, rows [queries k v] a group                        Megatron

A norm on the latents comes before the projections of the heads, and a soft-cap after the logits, so neither is an
obstacle. Cross-attention is refused: it has the same rows, but its keys come from another sequence.
"""

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from attractor.attention import Attention
from attractor.attention.config import AttentionConfig
from attractor.attention.couple.dynamics import Dynamics
from attractor.attention.foreign_projections import LATENT, PROJECTIONS, REPLACEMENT, SCORING_PARTS, TITAN_LATENT
from attractor.control.views import DotProduct, LatentHeads, QueryKeyHeads, Rows, View, grouped, head_rows, norm_rows
from attractor.errors import InputError

SEPARATE = [names for names in PROJECTIONS.values() if not names.is_fused]
AFTER_LOGITS = {names.value for names in SEPARATE} | {names.out for names in PROJECTIONS.values()}
# Other parts that may stand beside projections: gates of outputs, an indexer, which chooses the keys to attend to, and
# replaced stages, of which `coupling_obstacle` tells.
HARMLESS = re.compile(rf"attn_sub_norm|(gate|g)_proj|ve_gate|to_\w+_gate|indexer|{REPLACEMENT}")
SCORE_PARAMETERS = re.compile(r"sinks|gate_bias|lambda_[qk][12]")  # they do not change the logits
OF_LATENTS = {name for names in (LATENT, TITAN_LATENT) for name in (names.query_norm, names.norm)}
QK_NORM = re.compile(r"(q|k|qk|query|key)_?(layer_?)?norm")
CROSS = re.compile(r"(?i)cross_?att|enc(oder)?_?(dec(oder)?_?)?att")  # names of cross-attention modules
ATTENTION = re.compile(r"(?i)attention|attn")
LINEAR_ATTENTION = re.compile(r"(Delta|Lightning)Attention$|Rwkv")  # it forms no logits
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def separate(name: str, module: nn.Module) -> DotProduct | None:
    """Read q_proj and k_proj. Each of the H narrow heads of differential attention is scored, so each is a head."""
    names = next((names for names in SEPARATE if _is_made_of(module, names.query, names.key)), None)
    n_queries = _n_heads(module)
    if not n_queries or names is None:
        return None
    n_rows, n_key_rows = (len(_projection(name, module, part).weight) for part in (names.query, names.key))
    width = _head_width(module) or n_rows // n_queries
    if not width or not _are_groups(module, n_key_rows // width):
        return None
    return _by_matrix(name, module, names.query, names.key, n_queries, n_key_rows // width, width)


def stacked(name: str, module: nn.Module) -> DotProduct | None:
    """Read in_proj_weight of torch's own attention: all queries, then all keys, then all values.

    It is unknown with a learned key (`bias_k`), whose logits follow the query weights alone, and where the weight is no
    plain matrix."""
    if not isinstance(module, nn.MultiheadAttention) or module.bias_k is not None:
        return None
    weight, n_heads, width = module.in_proj_weight, module.num_heads, module.head_dim
    if weight is None or not _is_plain(weight):  # None: keys and values have widths of their own
        return None
    starts = range(0, 2 * n_heads * width, width)
    query, key = (
        Rows(weight, tuple(part), width, module.in_proj_bias) for part in (starts[:n_heads], starts[n_heads:])
    )
    return _dot_product(name, module, query, key)


def by_part(name: str, module: nn.Module) -> DotProduct | None:
    """Read qkv_proj: all queries, then all keys, then all values."""
    width, n_queries, part = _head_width(module), _n_heads(module), PROJECTIONS["phi3"].query
    if hasattr(module, "fused_attn") and _is_made_of(module, PROJECTIONS["timm"].query):
        return _by_part(name, module, PROJECTIONS["timm"].query, n_queries, n_queries, width)
    # CodeGen, which has no groups, orders the rows of its qkv_proj differently.
    if not width or not hasattr(module, "num_key_value_groups") or not _is_made_of(module, part):
        return None
    n_keys = n_queries // cast(int, module.num_key_value_groups)
    return _by_part(name, module, part, n_queries, n_keys, width) if _are_groups(module, n_keys) else None


def by_head(name: str, module: nn.Module) -> DotProduct | None:
    """Read query_key_value: query, key and value of the first head, then of the next."""
    width, n_heads, part = _head_width(module), _n_heads(module), PROJECTIONS["gpt-neox"].query
    return _by_group(name, module, part, n_heads, n_heads, width) if width and _is_made_of(module, part) else None


def transposed(name: str, module: nn.Module) -> DotProduct | None:
    """Read c_attn if it is a Conv1D with a weight of D x 3D. GPT-BigCode's linear c_attn has another order."""
    width, n_heads, part = _head_width(module), _n_heads(module), PROJECTIONS["gpt2"].query
    if not width or not hasattr(getattr(module, part, None), "nf"):
        return None
    _refuse_cross_attention(name, module)  # the c_attn of cross-attention has no queries
    return _by_part(name, module, part, n_heads, n_heads, width, axis=1) if _is_made_of(module, part) else None


def fused(name: str, module: nn.Module) -> DotProduct | None:
    """Read c_attn if it is a linear layer of n_embd to 3 n_embd: all queries, then all keys, then all values."""
    part = PROJECTIONS["gpt2"].query
    sizes, is_linear = _sizes(module, "n_head", "n_embd"), isinstance(getattr(module, part, None), nn.Linear)
    if not sizes or not is_linear or not _is_made_of(module, part):
        return None
    n_heads, size = sizes
    return _by_part(name, module, part, n_heads, n_heads, size // n_heads)


def latent(name: str, module: nn.Module) -> LatentHeads | None:
    """Read latent attention, whose matrices are fused head by head. Queries without a latent come from q_proj."""
    names = TITAN_LATENT if hasattr(module, TITAN_LATENT.down) else LATENT
    has_query_latent = getattr(module, names.query_down, None) is not None
    queries = (names.query_down, names.query_up) if has_query_latent else (names.query,)
    sizes = _sizes(module, "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
    if not sizes or not _is_made_of(module, *queries, names.down, names.up):
        return None
    n_heads, (nope, rope, value, rank) = _n_heads(module), sizes
    up, down, key_value = (_projection(name, module, part) for part in (queries[-1], names.down, names.up))
    wanted = (n_heads * (nope + rope), rank + rope, n_heads * (nope + value))
    if (len(up.weight), len(down.weight), len(key_value.weight)) != wanted:
        return None
    query_down = _projection(name, module, names.query_down) if has_query_latent else None
    return LatentHeads(
        name,
        module,
        uq=head_rows(up, n_heads, nope, step=nope + rope),
        uk=head_rows(key_value, n_heads, nope, step=nope + value),
        dkv=head_rows(down, 1, rank),
        reads=grouped(n_heads, n_heads),
        reads_rope=grouped(n_heads, 1),
        dq=head_rows(query_down, 1, len(query_down.weight)) if query_down is not None else None,
        qr=head_rows(up, n_heads, rope, step=nope + rope, offset=nope),
        kr=head_rows(down, 1, rope, offset=rank),
        gamma_q=norm_rows(getattr(module, names.query_norm, None)) if has_query_latent else None,
        gamma_kv=norm_rows(getattr(module, names.norm, None)),
        obstacle=_obstacle(module, names.query_norm, names.norm),
    )


def titan(name: str, module: nn.Module) -> DotProduct | None:
    """Read qkv_linear: wq and wk, or wqkv group by group."""
    part, sizes = PROJECTIONS["torchtitan"].query, _sizes(module, "n_heads", "n_kv_heads", "head_dim")
    if not sizes or not _is_made_of(module, part, SCORING_PARTS["torchtitan"]):
        return None
    n_queries, n_keys, width = sizes
    matrices = {matrix for matrix, child in module.get_submodule(part).named_children()}
    if matrices == {"wqkv"}:
        return _by_group(name, module, f"{part}.wqkv", n_queries, n_keys, width)
    if matrices != {"wq", "wk", "wv"}:
        return None
    return _by_matrix(name, module, f"{part}.wq", f"{part}.wk", n_queries, n_keys, width)


def megatron(name: str, module: nn.Module) -> DotProduct | None:
    """Read linear_qkv group by group. With an output gate, it has more rows and is unknown."""
    fields = ("num_attention_heads_per_partition", "num_query_groups_per_partition", "hidden_size_per_attention_head")
    part, sizes = PROJECTIONS["megatron"].query, _sizes(module, *fields)
    if not sizes or not _is_made_of(module, part, SCORING_PARTS["megatron"]):
        return None
    return _by_group(name, module, part, *sizes)


def _by_matrix(
    name: str, module: nn.Module, of_queries: str, of_keys: str, n_queries: int, n_keys: int, width: int
) -> DotProduct | None:
    query, key = (_projection(name, module, part) for part in (of_queries, of_keys))
    if (len(query.weight), len(key.weight)) != (n_queries * width, n_keys * width):
        return None
    return _dot_product(name, module, head_rows(query, n_queries, width), head_rows(key, n_keys, width))


def _by_part(
    name: str, module: nn.Module, part: str, n_queries: int, n_keys: int, width: int, axis: int = 0
) -> DotProduct | None:
    """Read rows (axis 0) or columns (axis 1) that hold all queries, then all keys, then all values."""
    matrix = _projection(name, module, part)
    if matrix.weight.shape[axis] != (n_queries + 2 * n_keys) * width:
        return None
    query, key = head_rows(matrix, n_queries, width), head_rows(matrix, n_keys, width, offset=n_queries * width)
    return _dot_product(name, module, replace(query, axis=axis), replace(key, axis=axis))


def _by_group(name: str, module: nn.Module, part: str, n_queries: int, n_keys: int, width: int) -> DotProduct | None:
    """Read rows that hold all queries of a group, then its key and its value, then the next group."""
    matrix = _projection(name, module, part)
    if not n_keys or n_queries % n_keys or len(matrix.weight) != (n_queries + 2 * n_keys) * width:
        return None
    per_group = n_queries // n_keys
    step = (per_group + 2) * width
    starts = tuple(head // per_group * step + head % per_group * width for head in range(n_queries))
    query = replace(head_rows(matrix, n_queries, width), starts=starts)
    return _dot_product(name, module, query, head_rows(matrix, n_keys, width, offset=per_group * width, step=step))


VIEWS: list[View] = [separate, stacked, by_part, by_head, transposed, latent, fused, titan, megatron]
EXAMPLE = (
    "`def view(name, module): return attractor.control.DotProduct(name, module, query=head_rows(...), "
    "key=head_rows(...), reads=(...)) if type(module).__name__ == '{kind}' else None` and "
    "`attractor.control.register_view(view)`"
)


def register_view(view: View) -> None:
    """Add a `view(name, module)` for attention modules whose layout is unknown or read wrongly.

    It is asked before all other views and returns None for modules that it does not know."""
    VIEWS.insert(0, view)


def refuse_unknown(model: nn.Module, known: Sequence[QueryKeyHeads] = ()) -> None:
    """Refuse a model unless all its attention layers are known, so that no intervention silently acts on a part."""
    unknown = _unknown_attention(model, {heads.name for heads in known})
    if unknown:
        names = ", ".join(f"{type(module).__name__} '{name}'" for name, module in unknown[:3])
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        share = f"{len(unknown)} of {len(unknown) + len(known)}" if known else f"all {len(unknown)}"
        raise InputError(
            f"model must have attention whose query and key rows are known, but {share} attention modules are not: "
            f"{names}{more}; describe their rows by {EXAMPLE.format(kind=type(unknown[0][1]).__name__)}"
        )
    if not known:
        raise InputError(
            f"model must have attention that scores queries against keys, found no attention module in "
            f"{type(model).__name__}; if it has one, describe its rows by {EXAMPLE.format(kind='...')}"
        )


def _unknown_attention(model: nn.Module, known: set[str]) -> list[tuple[str, nn.Module]]:
    """Return modules that are named attention and have matrices, or that call scaled_dot_product_attention, and neither
    contain nor belong to a known one."""
    settled = known | {name for name, module in model.named_modules() if isinstance(module, Attention)}
    return [
        (name, module)
        for name, module in model.named_modules()
        if (
            ATTENTION.search(type(module).__name__)
            and not LINEAR_ATTENTION.search(type(module).__name__)
            and _has_matrices(module)
        )
        or _calls_sdpa(module)
        if not any(_is_within(name, other) or _is_within(other, name) for other in settled)
    ]


def _is_within(inner: str, outer: str) -> bool:
    return not outer or inner == outer or inner.startswith(outer + ".")


def _has_matrices(module: nn.Module) -> bool:
    """Whether the module or its children hold matrices. Quantised layers may hold no parameter, so names count too."""
    layers = [child for child in module.children() if not isinstance(child, nn.Embedding)]
    kinds = [type(layer).__name__ for layer in layers]
    return any("Linear" in kind and not ATTENTION.search(kind) for kind in kinds) or any(
        parameter.dim() >= 2 for part in [module, *layers] for parameter in part.parameters(recurse=False)
    )


def _calls_sdpa(module: nn.Module) -> bool:
    """Whether a method of the module's class, written outside torch, scores by torch's own attention."""
    kinds = [kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.")]
    codes = (getattr(method, "__code__", None) for kind in kinds for method in vars(kind).values())
    return any("scaled_dot_product_attention" in code.co_names for code in codes if code is not None)


def _is_made_of(module: nn.Module, *projections: str) -> bool:
    """Whether the module has these projections and no other part with parameters that could change the logits."""
    parts = dict(module.named_children())
    others = {part for part, child in parts.items() if any(True for _ in child.parameters())} - {*projections}
    others -= {*AFTER_LOGITS, *SCORING_PARTS.values(), *OF_LATENTS}
    others = {part for part in others if not HARMLESS.fullmatch(part) and not QK_NORM.fullmatch(part)}
    parameters = [name for name, _ in module.named_parameters(recurse=False)]
    return parts.keys() >= {*projections} and not others and all(map(SCORE_PARAMETERS.fullmatch, parameters))


def _obstacle(module: nn.Module, *of_latents: str) -> str:
    """Say why the logits do not scale with the weights. The norms of latents stand before the heads' projections."""
    norms = [
        part
        for part, child in module.named_children()
        if QK_NORM.fullmatch(part) and "Identity" not in type(child).__name__ and part not in of_latents
    ]
    if norms := norms or _norm_functions(module):
        return f"QK-norm ({', '.join(norms)}) undoes any scaling of the weights"
    if getattr(getattr(module, "attend", None), "l2_distance", False):  # x-transformers
        return "distances are scored, which do not scale with the weights"
    if getattr(getattr(module, "config", None), "clip_qkv", None) is not None:  # OLMo, OLMoE
        return "queries and keys are clipped to 'clip_qkv', so the logits do not scale with the weights"
    return ""


def _norm_functions(module: nn.Module) -> list[str]:
    """Return the functions named norms that the forward pass calls, unless the module says that it has no QK-norm.

    Names of the module's parts are none of them, also of parts that other modules of its class have."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is None or getattr(module, "qk_norm", True) is False:
        return []
    names = [name for name in code.co_names if "norm" in name and not hasattr(module, name)]
    return [name for name in names if not QK_NORM.fullmatch(name)]


def _sizes(module: nn.Module, *fields: str) -> list[int]:
    """Return the sizes that the module states in these fields, or nothing where it lacks one."""
    sizes = [getattr(module, field, None) for field in fields]
    return [size for size in sizes if isinstance(size, int)] if all(isinstance(s, int) for s in sizes) else []


def _first_size(*named: tuple[Any, str]) -> int:
    """Return the first of these fields that is a number, or 0."""
    sizes = (getattr(owner, field, None) for owner, field in named)
    return next((size for size in sizes if isinstance(size, int)), 0)


def _head_width(module: nn.Module) -> int:
    return _first_size((module, "head_dim"), (module, "head_size"), (module, "attention_head_size"))


def _n_heads(module: nn.Module) -> int:
    config = getattr(module, "config", None)
    stated = ((module, "num_heads"), (module, "num_attention_heads"), (config, "num_attention_heads"))
    return _first_size(*stated, *((module, field) for field in ("n_heads", "n_head", "n_local_heads", "heads")))


def _are_groups(module: nn.Module, n_keys: int) -> bool:
    n_queries = _n_heads(module)
    if not n_keys or n_queries % n_keys:
        return False
    if n_groups := _first_size((module, "num_key_value_groups")):
        return n_groups == n_queries // n_keys
    fields = ("n_kv_heads", "n_kv_head", "n_local_kv_heads", "kv_heads")
    return _first_size(*((module, field) for field in fields)) in (0, n_keys)


def _projection(name: str, module: nn.Module, part: str) -> Any:
    """Return a part with a whole weight and at most a bias, and refuse one with other parameters.

    Packed weights may report a floating dtype, so their class is checked as well."""
    _refuse_cross_attention(name, module)
    linear, where = module.get_submodule(part), f"{name}.{part}".lstrip(".")
    # Transformer Engine keeps the norm of a layer's input in the same module.
    weights = {part: values for part, values in linear.named_parameters() if not part.startswith("layer_norm_")}
    weight = weights.get("weight")
    if weight is None or weights.keys() - {"weight", "bias"}:
        held = f"parameters {', '.join(weights) or 'none'}"
    elif not _is_plain(weight):
        held = f"{type(weight.data).__name__} of {weight.dtype}"
    elif isinstance(linear, nn.Linear) and weight.shape != (linear.out_features, linear.in_features):
        held = f"a part of it, {tuple(weight.shape)}"
    else:
        return linear
    raise InputError(
        f"{where} must hold a floating-point parameter 'weight' and at most a 'bias', got {type(linear).__name__} with "
        f"{held}; rows of quantised, adapted or reparametrised weights cannot be scaled in place, so control the model "
        "before that, or merge it first"
    )


def _is_plain(weight: nn.Parameter) -> bool:
    return weight.dtype in FLOATING and type(weight.data).__name__ in ("Tensor", "DTensor")


def _refuse_cross_attention(name: str, module: nn.Module) -> None:
    has_cross_name = CROSS.search(name.rpartition(".")[2]) or "CrossAttention" in type(module).__name__
    if has_cross_name or getattr(module, "is_cross_attention", False):
        raise InputError(
            f"{name or 'model'} must be self-attention, got cross-attention ({type(module).__name__}), whose keys are "
            "of another sequence; give the part of the model that has self-attention only, or include it by "
            "`attractor.control.register_view(view)` with a `view(name, module)` that returns its heads"
        )


def _dot_product(name: str, module: nn.Module, query: Rows, key: Rows) -> DotProduct:
    reads, obstacle = grouped(query.n_heads, key.n_heads), _obstacle(module)
    if hasattr(module, REPLACEMENT):
        wanted = cast(AttentionConfig, getattr(module, REPLACEMENT).wanted)
        obstacle = obstacle or coupling_obstacle(wanted, shared_keys=len(reads) > key.n_heads)
    return DotProduct(name, module, query, key, reads, obstacle)


def coupling_obstacle(attention: AttentionConfig, shared_keys: bool) -> str:
    """Say why the logits of coupled queries and keys do not scale with the weights."""
    if not attention.couple.moves:
        return ""
    if not (isinstance(attention.couple, Dynamics) and attention.couple.force == "linear"):
        return "the coupling is not linear, so the logits do not scale with the weights"
    # A linear coupling mixes queries and keys, so both must be scaled alike; but a shared key must not be scaled.
    if shared_keys:
        return "the coupling mixes queries with keys that several heads share"
    return "the coupling mixes the halves of a head, which are scored apart" if attention.score.halves else ""
