"""Find the query and key heads of all attention layers of a model; `layouts.py` knows those of Hugging Face models."""

import re
from dataclasses import replace
from typing import cast

from torch import nn

from attractor.attention import Attention
from attractor.attention.foreign_projections import OF_SCORES
from attractor.attention.project.latent import LatentProjection
from attractor.attention.project.values import ValueProjection
from attractor.control.layouts import VIEWS, coupling_obstacle, refuse_unknown
from attractor.control.views import (
    DotProduct,
    LatentHeads,
    QueryKeyHeads,
    grouped,
    head_rows,
    norm_rows,
    require_rows,
)
from attractor.errors import InputError

WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")  # what torch.compile and checkpoint_wrapper call their content
ADAPTED = re.compile(rf"(^|\.)({'|'.join(OF_SCORES)})(\.\w+)?\.base_layer\.weight$")  # PEFT wraps queries or keys


def attention_view(name: str, module: nn.Module) -> QueryKeyHeads | None:
    """Return the view of an `Attention` layer, or None for other modules and for layers without a softmax of logits."""
    if not isinstance(module, Attention):
        return None
    if isinstance(module.project, ValueProjection) or module.layout.extra:
        return None
    layout, halves = module.layout, module.config.score.halves
    project = module.project
    if isinstance(project, LatentProjection):
        uq = head_rows(project.query_up, layout.n_queries, layout.free, halves=halves)
        uk = head_rows(project.key_up, layout.n_heads, layout.free, halves=halves)
        kr = head_rows(project.key_rope, 1, layout.rotary, halves=halves)
        return LatentHeads(
            name,
            module,
            uq=uq,
            uk=uk,
            dkv=head_rows(project.down, 1, project.down.out_features),
            reads=grouped(uq.n_heads, uk.n_heads),
            reads_rope=grouped(uq.n_heads, kr.n_heads),
            dq=head_rows(project.query_down, 1, project.query_down.out_features),
            qr=head_rows(project.query_rope, layout.n_queries, layout.rotary, halves=halves),
            kr=kr,
            gamma_q=norm_rows(project.query_norm),
            gamma_kv=norm_rows(project.norm),
            obstacle=_obstacle(module, shared_keys=uq.n_heads > uk.n_heads),
        )
    query = head_rows(cast(nn.Linear, project.query), layout.n_queries, layout.free, halves=halves)
    key = head_rows(cast(nn.Linear, project.key), layout.n_kv_heads, layout.free, halves=halves)
    reads = grouped(query.n_heads, key.n_heads)
    return DotProduct(name, module, query, key, reads, _obstacle(module, shared_keys=len(reads) > key.n_heads))


def _obstacle(layer: Attention, shared_keys: bool = False) -> str:
    if layer.config.project.sigma_reparam:
        return "sigmaReparam divides the weights by their norm, so that the logits do not scale with them"
    if layer.config.couple.qk_norm:
        return "QK-norm undoes any scaling of the weights"
    return coupling_obstacle(layer.config, shared_keys)


def query_key_heads(model: nn.Module) -> list[QueryKeyHeads]:
    """Return the views of all attention layers, in the model's order; refuse a model with a layer of unknown layout.

    Their names do not depend on wrappers such as DistributedDataParallel and torch.compile."""
    _refuse_wrapped(model)
    views = _views(model)
    refuse_unknown(model, views)
    _refuse_adapted(model, views)
    for view in views:
        require_rows(view)
    return _without_wrappers(model, views)


def known_heads(model: nn.Module) -> list[QueryKeyHeads]:
    """Return the views of those attention layers whose layout is known; the list may be empty."""
    return _without_wrappers(model, _views(model))


def _views(model: nn.Module) -> list[QueryKeyHeads]:
    known: list[QueryKeyHeads] = []
    for name, module in model.named_modules():
        for view in (attention_view, *VIEWS):
            if (heads := view(name, module)) is not None:
                known.append(heads)
                break
    return known


def _refuse_wrapped(model: nn.Module) -> None:
    """Refuse weights that no longer are the rows of heads."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise InputError(
            "model must have its weights as matrices, but FullyShardedDataParallel (FSDP1) flattens them, so no head "
            "has rows: shard it by torch.distributed.fsdp.fully_shard (FSDP2)"
        )
    for name, _ in model.named_parameters():
        if ADAPTED.search(name):
            raise _adapted(name)


def _refuse_adapted(model: nn.Module, views: list[QueryKeyHeads]) -> None:
    """Refuse an adapter of any matrix that makes queries and keys, whatever its name."""
    scored = {id(part.weight) for view in views for part in view.parts().values()}
    for name, weight in model.named_parameters():
        if name.endswith(".base_layer.weight") and id(weight) in scored:
            raise _adapted(name)


def _adapted(name: str) -> InputError:
    return InputError(
        f"query and key weights must act alone, but an adapter (LoRA) adds to '{name}', so its rows do not say how "
        "logits change: adapt other layers (target_modules), or train all weights"
    )


def _without_wrappers(model: nn.Module, views: list[QueryKeyHeads]) -> list[QueryKeyHeads]:
    """Rename the views to what they are called in the model without wrappers.

    torch.compile and checkpoint_wrapper store their content under a name in `WRAPPED`. DistributedDataParallel and
    similar wrappers have a single child, called `module`."""
    wrappers = {f"{name}.module".lstrip(".") for name, part in model.named_modules() if [*part._modules] == ["module"]}

    def renamed(name: str) -> str:
        parts = name.split(".")
        paths = (".".join(parts[: n + 1]) for n in range(len(parts)))
        return ".".join(
            part for part, path in zip(parts, paths, strict=True) if part not in WRAPPED and path not in wrappers
        )

    return [replace(view, name=renamed(view.name)) for view in views]
