"""The head views of our layers scale exactly the right logits, and every obstacle that a view reports is real."""

from typing import Any

import pytest
import torch
from scaling import FACTOR, equal, holds, scaled, times, unsettle
from torch import Tensor, nn

from attractor.attention import PRESETS, Attention, build
from attractor.attention.hooks import capture
from attractor.attention.score.differential import Differential
from attractor.control.heads import attention_view, known_heads, query_key_heads
from attractor.control.views import DotProduct, QueryKeyHeads, Rows
from attractor.errors import InputError

WIDTH, HEADS, LENGTH = 16, 4, 6
TOKEN = Differential(form="token")
# Combinations of options that no preset has.
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "standard with bias": ("standard", {"qkv_bias": True}),
    "standard with narrow heads": ("standard", {"head_dim": 6, "n_kv_heads": 2}),
    "standard with QK-norm": ("standard", {"qk_norm": True}),
    "standard with soft-cap": ("standard", {"softcap": 2.0}),
    "gated gqa": ("gated", {"n_kv_heads": 2}),
    "differential gqa": ("differential", {"n_kv_heads": 2}),
    "differential-v2 gqa": ("differential-v2", {"n_kv_heads": 2}),
    "differential with QK-norm": ("differential", {"qk_norm": True}),
    "coupled-linear gqa": ("coupled-linear", {"n_kv_heads": 2}),
    "coupled-linear differential": ("coupled-linear", {"score": Differential()}),
    "coupled-linear differential-v2": ("coupled-linear", {"score": TOKEN}),
    "coupled-linear opened": ("coupled-linear", {"zero_start": True, "n_steps": 2}),
    "coupled-linear shared force": ("coupled-linear", {"shared_force": True}),
    "mla differential": ("mla", {"score": Differential()}),
    "mla differential-v2": ("mla", {"score": TOKEN}),
    "mla with QK-norm": ("mla", {"qk_norm": True}),
    "mla coupled-linear": ("mla", {"couple": PRESETS["coupled-linear"].couple}),
    "mla coupled-linear differential": ("mla", {"couple": PRESETS["coupled-linear"].couple, "score": Differential()}),
    "mla coupled-linear differential-v2": ("mla", {"couple": PRESETS["coupled-linear"].couple, "score": TOKEN}),
}
SCORING = {name: (name, {}) for name in PRESETS if name not in ("uniform", "decay", "gated-deltanet")} | MORE


def layer_of(case: str) -> Attention:
    preset, changes = SCORING[case]
    layer = build(preset, d_model=WIDTH, n_heads=HEADS, layer_index=1, **changes).double()
    unsettle(layer)
    return layer


def view_of(layer: Attention) -> QueryKeyHeads:
    (view,) = query_key_heads(layer)
    return view


def couples_or_norms(case: str) -> bool:
    """Return whether the layer couples or normalises; then only sums of queries and keys scale, or no rows do."""
    couple = layer_of(case).config.couple
    return couple.moves or couple.qk_norm


class Observed:
    """Return the logits and values of one layer at one input."""

    def __init__(self, layer: Attention) -> None:
        self.layer = layer
        self.x = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    @torch.no_grad()
    def __call__(self) -> tuple[Tensor, Tensor]:
        with capture("logits") as seen:
            self.layer(self.x)
        logits = seen["logits"][0]
        if self.layer.config.score.query_maps == 2:  # the tap shows all first maps before all second maps
            logits = logits.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        return logits, self.layer.project(self.x)[2]


def rows_to_scale(view: QueryKeyHeads, head: int) -> tuple[list[tuple[Rows, int]], float]:
    """Return the rows that scale the logits of one head alone, and the factor by which they do. These are its queries,
    and its keys unless another head reads them. All heads share the position part of the key, so those queries are
    scaled twice."""
    if isinstance(view, DotProduct):
        query, key, position = view.query, view.key, []
    else:
        query, key, position = view.uq, view.uk, [(view.qr, head)] if view.qr else []
    if view.reads.count(view.reads[head]) > 1:
        return [(query, head), *position], FACTOR
    return [(query, head), (key, view.reads[head]), *position, *position], FACTOR**2


def is_controllable(view: QueryKeyHeads, observe: Observed) -> bool:
    """Return whether scaling a head's rows scales its logits alone and by the right factor, as no obstacle promises."""
    logits, _ = observe()
    for head in range(view.n_heads):
        parts, by = rows_to_scale(view, head)
        with scaled(*parts):
            if not torch.equal(observe()[0], times(logits, [head], by)):
                return False
    return True


@pytest.mark.parametrize("case", SCORING)
def test_a_view_reports_an_obstacle_exactly_where_there_is_one(case: str) -> None:
    """Criterion: without an obstacle, scaling a head's rows scales its logits to the bit; with one, it does not."""
    layer = layer_of(case)
    view = view_of(layer)
    assert is_controllable(view, Observed(layer)) == (not view.obstacle), view.obstacle


@pytest.mark.parametrize("case", [case for case in SCORING if not couples_or_norms(case)])
def test_each_part_scales_the_logits_of_its_equation(case: str) -> None:
    layer = layer_of(case)
    holds(view_of(layer), Observed(layer))


def test_rows_are_views_of_the_parameter() -> None:
    view = view_of(layer_of("differential gqa"))
    assert isinstance(view, DotProduct)
    for rows in view.parts().values():
        equal(torch.cat([rows.of(head) for head in range(rows.n_heads)]), rows.weight[rows.index])
        assert sorted(rows.index.tolist()) == list(range(rows.weight.shape[0])), "every row belongs to one head"
        assert all(rows.of(head).untyped_storage().data_ptr() == rows.weight.data_ptr() for head in range(rows.n_heads))


def test_layers_are_found_in_order_and_by_name() -> None:
    model = nn.ModuleDict(
        {"first": layer_of("standard"), "idle": build("uniform", WIDTH, HEADS), "last": layer_of("mla")}
    )
    views = query_key_heads(model)
    assert [view.name for view in views] == ["first", "last"]
    assert all(model.get_submodule(view.name) is view.module for view in views)


@pytest.mark.parametrize("name", ["uniform", "decay"])
def test_a_layer_without_scores_has_no_heads(name: str) -> None:
    layer = build(name, WIDTH, HEADS)
    assert attention_view("layer", layer) is None
    assert known_heads(layer) == []
    with pytest.raises(InputError, match="scores queries against keys"):
        query_key_heads(layer)
