"""The record of a measurement: means with Student's t interval over passages, by layer, and means by head."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from attractor.evaluate.measures.jacobians import TOLERANCE
from attractor.evaluate.measures.plan import Plan
from attractor.evaluate.measures.sample import Sample
from attractor.verdict.intervals import mean_interval

Interval = dict[str, float | None]  # mean, low and high; the last two are None for a single passage

END = "end"  # of the stream, after the last layer


@dataclass(frozen=True)
class LayerMeasure:
    name: str
    title: str
    about: str


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


OF_HEADS = (
    LayerMeasure("entropy", "Entropy of attention (nats)", "The mean over the rows of a map, including the first row."),
    LayerMeasure(
        "entropy_after_first", "Entropy without row 0 (nats)", "Row 0 can only attend to itself, so its entropy is 0."
    ),
    LayerMeasure(
        "normalised_entropy",
        "Entropy / log n",
        "The mean over rows that may attend to n > 1 positions; 1 is uniform attention without a sink.",
    ),
    LayerMeasure("effective_rank", "Effective rank", "(sum of singular values)² / (sum of their squares), of a map."),
    LayerMeasure(
        "top_share",
        "Share of the largest singular value",
        "As a share of the sum of all singular values; 1 is a map of rank one.",
    ),
    LayerMeasure("sink_mass", "Attention on position 0", "The mean over later positions: the attention sink."),
    LayerMeasure("logit_mean", "Mean logit", "Scaled, before soft-cap and mask, where attention is allowed."),
    LayerMeasure("logit_std", "Deviation of logits", "Scaled, before soft-cap and mask, where attention is allowed."),
    LayerMeasure(
        "logit_max", "Largest logit of any head", "Scaled, before soft-cap and mask, where attention is allowed."
    ),
)
OF_LAYERS = (
    LayerMeasure(
        "jacobian_norm", "Norm of the layer's Jacobian", "How much a small change of the state can grow in the layer."
    ),
)
OF_STREAM = (
    LayerMeasure(
        "stream_norm",
        "Stream after position 0",
        "Mean length of the stream's vectors, at the input of each layer and at the end.",
    ),
    LayerMeasure(
        "stream_norm_first",
        "Stream at position 0",
        "Length of the stream's vector at position 0, which an attention sink makes large.",
    ),
)
MEASURES = OF_HEADS + OF_LAYERS + OF_STREAM
OVER_HEADS: dict[str, Callable[[Sequence[float]], float]] = {"logit_max": max}  # other measures take the mean


def record(name: str, plan: Plan, samples: Sequence[Sample], **about: Any) -> dict[str, Any]:
    """Return the record. `layers` names the entries of each list by layer; stream measures have one more, the end."""
    by_sample = _by_sample(samples)
    return {
        "model": name,
        **about,
        "n_samples": len(samples),
        "plan": asdict(plan),
        "layers": samples[0].layers,
        "n_layers": samples[0].n_layers,
        "by_layer": {
            measure: [_interval(values) for values in zip(*rows, strict=True)] for measure, rows in by_sample.items()
        },
        "over_layers": {
            measure: _interval(_whole([row[: len(samples[0].layers)] for row in rows]))
            for measure, rows in by_sample.items()
        },
        "by_head": {
            measure.name: [
                [_mean(values) for values in zip(*layer, strict=True)]
                for layer in zip(*(sample.heads[measure.name] for sample in samples), strict=True)
            ]
            for measure in OF_HEADS
            if samples[0].heads
        },
        "by_sample": by_sample,
        "exponents": {
            "by_rank": [_interval(values) for values in zip(*(sample.exponents for sample in samples), strict=True)],
            "by_sample": [sample.exponents for sample in samples],
        },
        "notes": list(_notes(plan, samples)),
    }


def _by_sample(samples: Sequence[Sample]) -> dict[str, list[list[float | None]]]:
    """Return numbers by measure, passage and layer; None for a layer without softmax attention."""
    rows: dict[str, list[list[float | None]]] = {}
    for sample in samples:
        for name, layers in sample.heads.items():
            over = OVER_HEADS.get(name, _mean)
            rows.setdefault(name, []).append([over(heads) if heads else None for heads in layers])
        jacobian = {"jacobian_norm": sample.jacobian_norm} if sample.jacobian_norm else {}
        for name, values in (jacobian | sample.stream).items():
            rows.setdefault(name, []).append([*values])
    return rows


def _interval(values: Sequence[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    interval = mean_interval(known)
    if not isfinite(interval.mean):  # as for attention of a single row, or an exponent of minus infinity
        return None
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def _whole(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean over layers for each passage."""
    known = [[value for value in row if value is not None] for row in rows]
    return [_mean(row) if row else None for row in known]


def _notes(plan: Plan, samples: Sequence[Sample]) -> Any:
    """Yield the reservations that a reader must know of."""
    if len(samples) < plan.n_samples:
        yield f"Stopped after {len(samples)} of {plan.n_samples} passages."
    layers, heads = samples[0].layers, samples[0].heads.get("entropy")
    silent = [layer for number, layer in enumerate(layers) if not heads or not heads[number]]
    if silent:
        where = "No layer" if len(silent) == len(layers) else f"Not every layer (not {', '.join(map(str, silent))})"
        yield (
            f"{where} attends through a softmax that can be observed. Mechanisms of attractor with a softmax can be, "
            "as well as models of transformers that use its table of attention functions."
        )
    error = max(sample.jacobian_error for sample in samples)
    if error > TOLERANCE:
        yield f"Norms of Jacobians are lower bounds: their relative error may be as large as {error:.1%}."
    error = max(sample.exponent_error for sample in samples)
    if error > 1e-3:
        yield f"Exponents are lower bounds: their error may be as large as {error:.1e}."
