"""Measure passages layer by layer: attention, the residual stream, and Jacobians."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor, nn

from attractor.console import Advance, StartProgress, no_progress
from attractor.evaluate.measures.heads import head_measures
from attractor.evaluate.measures.jacobians import Jacobians
from attractor.evaluate.measures.plan import Plan
from attractor.evaluate.measures.score_recorder import ScoreRecorder
from attractor.models.language_model import LanguageModel
from attractor.models.maps import LayerMaps, layer_maps, recurrent_map
from attractor.models.recurrent import RecurrentModel

UNITS_OF_MAPS, UNITS_OF_NORM, UNITS_OF_EXPONENTS = 1, 4, 4  # of work, per layer


@dataclass(frozen=True)
class Sample:
    layers: list[int]
    heads: dict[str, list[list[float]]]  # by measure, layer and head; a layer without softmax attention has no heads
    stream: dict[str, list[float]]  # by measure, at the input of each layer and at the end
    n_layers: int  # of the whole model, so that the end of the stream has a place
    jacobian_norm: list[float] = field(default_factory=list)
    jacobian_error: float = 0.0  # the largest bound on the relative error of a norm
    exponents: list[float] = field(default_factory=list)
    exponent_error: float = 0.0  # the largest bound on the error of an exponent


def layers_of(model: nn.Module, tokens: Tensor) -> LayerMaps:
    """Return the layers as maps of the residual stream, with depth as time.

    A recurrent model of ours has one map, applied once per iteration. FastSlow has the maps of its fast path, with the
    injection of the slow path between them.
    """
    if isinstance(model, RecurrentModel):
        step, start = recurrent_map(model, tokens)
        return LayerMaps.along([step] * model.n_iterations, start)
    if isinstance(model, LanguageModel):
        return layer_maps(model, tokens)
    from attractor.hf import layer_maps as hugging_face

    return hugging_face.layer_maps(model, tokens)


def n_units(model: nn.Module, tokens: Int[Tensor, "1 T"], plan: Plan) -> int:
    """Return the units of work of one passage, from which progress estimates the time left."""
    n_layers = len(layers_of(model, tokens).steps)
    per_layer = UNITS_OF_MAPS + UNITS_OF_NORM * plan.jacobians
    return per_layer * len(plan.chosen(n_layers)) + UNITS_OF_EXPONENTS * n_layers * (plan.k > 0)


def measured(
    model: nn.Module, tokens: Int[Tensor, "N T"], plan: Plan, start_progress: StartProgress = no_progress
) -> Iterator[Sample]:
    """Measure one passage after another, so that an interrupted caller keeps the samples so far.

    The memory is that of one layer on one passage.
    """
    with ScoreRecorder(model) as scores:
        advance = start_progress("units of work", len(tokens) * n_units(model, tokens[:1], plan))
        for passage in tokens:
            yield sample_of(scores, passage.unsqueeze(0), plan, advance)


def sample_of(scores: ScoreRecorder, tokens: Int[Tensor, "1 T"], plan: Plan, advance: Advance) -> Sample:
    maps = layers_of(scores.model, tokens)
    chosen = plan.chosen(len(maps.steps))
    jacobians = Jacobians.within(plan.max_bytes, maps, plan.k) if plan.jacobians else None
    heads: dict[str, list[list[float]]] = {}
    for number, layer in enumerate(chosen):
        for name, values in _attention(scores, maps, layer, plan.max_bytes):
            heads.setdefault(name, [[] for _ in chosen])[number] += values.tolist()
        advance(UNITS_OF_MAPS)
    stream = stream_norms([maps.states[layer] for layer in chosen] + [maps.states[-1]])
    if jacobians is None:
        return Sample(chosen, heads, stream, len(maps.steps))
    estimates = []
    for layer in chosen:
        estimates.append(jacobians.norm(layer))
        advance(UNITS_OF_NORM)
    norms, error = (
        [float(estimate.norm) for estimate in estimates],
        max(float(estimate.error) for estimate in estimates),
    )
    if not plan.k:
        return Sample(chosen, heads, stream, len(maps.steps), norms, error)
    spectrum = jacobians.exponents(plan.k)
    advance(UNITS_OF_EXPONENTS * len(maps.steps))
    of_depth = spectrum.exponents.tolist(), float(spectrum.error)
    return Sample(chosen, heads, stream, len(maps.steps), norms, error, *of_depth)


def stream_norms(states: list[Tensor]) -> dict[str, list[float]]:
    """Return the mean length of the vectors after position 0, and the length at position 0.

    An attention sink may make the vector at position 0 hundreds of times as long.
    """
    lengths = [state[0].float().norm(dim=-1).view(state.shape[1], -1).mean(1) for state in states]
    return {
        "stream_norm": [float(of_state[1:].mean()) for of_state in lengths],
        "stream_norm_first": [float(of_state[0]) for of_state in lengths],
    }


@torch.no_grad()
def _attention(scores: ScoreRecorder, maps: LayerMaps, layer: int, max_bytes: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the measures of all heads of a layer, in one module or several."""
    _, scored = scores.during(maps.steps[layer], maps.states[layer])
    for module, inputs in scored.items():
        yield from head_measures(module, inputs, max_bytes).items()
