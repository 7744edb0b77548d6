"""The charts of a study, which its figures draw as lines and its page shows with zoom: for each row a mean over seeds.

They show losses over tokens; quantities of the study by layer; numbers that were measured repeatedly during training
(`trajectories` in a summary) over steps, those of logits over heads as well. A chart appears if some run has its
numbers.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, count
from typing import Any

from attractor.report.judged_study import JudgedStudy
from attractor.report.legs import SPEED
from attractor.runs.quantity import MEAN, Quantity
from attractor.runs.study_record import BY_HEAD, Outcome, stored_loss_unit

FEWEST = 4  # seeds whose band or interval is drawn; of fewer, each is a dot
Point = tuple[float, ...]  # place, mean and the ends of the band, followed by the values of the seeds that are dots
Curves = dict[str, list[Point]]  # by row
Frame = tuple[float, float]
WIDE = 30.0  # ratio of highest to lowest value, beyond which the scale is logarithmic


@dataclass(frozen=True)
class Chart:
    """A chart with a panel of lines for each column."""

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    panels: dict[str, Curves]
    frames: dict[str, Frame] = field(default_factory=dict)  # the vertical range of each panel
    in_factors: bool = False  # True for a logarithmic scale
    numbers: Mapping[str, Curves] = field(default_factory=dict)  # the panels that would have a single place
    folded: bool = False  # True where the page shows it on request alone

    @property
    def of_layers(self) -> bool:
        return self.x_label not in ("tokens", "steps", "tokens or seconds")


TITLES = {  # with the unit; other numbers are titled by their names
    "loss": ("Loss", "nats"),
    "gain": ("Context gain", "nats"),
    "lr": ("Learning rate", ""),
    "grad_norm": ("Gradient norm before clipping", ""),
    "param_norm": ("Norm of all parameters", ""),
    "max_logit": ("Largest logit on the probe", ""),
    "logit_change": ("Change of the probe's logits", ""),
    "gate": ("Gate of the slow path", "tanh gamma"),
    "fast_entropy": ("Entropy of attention, fast path", "nats"),
    "slow_entropy": ("Entropy of attention, slow path", "nats"),
    "fast_change": ("Change by the fast blocks", "|block(x) - x| / |x|"),
    "slow_change": ("Change by the slow blocks", "|block(x) - x| / |x|"),
    "slow_memory": ("Memory of the slow state", "tokens"),
    "residual": ("Distance of Post to its equilibrium", "|F(z) - z| / |z|"),
    "contraction": ("Growth of an iteration of Post", "factor"),
    "tokens_per_second": ("Speed, mean since the start", "tokens per second"),
}
# What is measured repeatedly during training, by its name in a summary's trajectories, with a remark.
TRACES = {
    "gate": "The sign of a gate means nothing, so that its size is drawn.",
    "slow_memory": "A slow path that attends only to itself has the memory of one block.",
    "residual": "The distance is that of the last evaluation in each round.",
    "contraction": "Plain iteration converges where the factor lies below 1.",
    "max_logit": "",
    "logit_change": "",
}
SEEDS = (
    "Each line is the mean over seeds. Its band reaches from the lowest seed to the highest; fewer than four are dots."
)
HEADS = (
    "Each line is the mean over all heads of one run, that of the first seed, and its band reaches from the lowest "
    "head to the highest."
)


@lru_cache(maxsize=1)
def charts(judged: JudgedStudy) -> tuple[Chart, ...]:
    """Return the charts for which the record has the numbers; pictures and page ask for the same ones."""
    made: dict[str, Chart] = {}
    for chart in chain(_losses(judged), _layered(judged), _traced(judged)):
        if not chart.panels:
            continue
        # Two titles may differ in signs or letters that names do not have.
        names = chain([chart.name], (f"{chart.name}-{n}" for n in count(2)))
        name = next(name for name in names if name not in made)
        numbers = {column: curves for column, curves in chart.panels.items() if max(map(len, curves.values())) == 1}
        panels = {column: curves for column, curves in chart.panels.items() if column not in numbers}
        frames = chart.frames or {column: _extremes(curves) for column, curves in chart.panels.items()}
        in_factors = chart.x_label == "steps" and is_wide(*_extent(frames.values()))
        with_margins = {column: _with_margin(*frame, in_factors) for column, frame in frames.items()}
        made[name] = replace(
            chart, name=name, panels=panels, numbers=numbers, frames=with_margins, in_factors=in_factors
        )
    return tuple(made.values())


def slug(name: str) -> str:
    """Return a name in characters that files, addresses and ids may contain."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()


def in_capitals(name: str) -> str:
    return f"{name[:1].upper()}{name[1:]}"


def _losses(judged: JudgedStudy) -> Iterator[Chart]:
    units = {stored_loss_unit(run.summary, cell.config) for cell in judged.record.cells for run in cell.outcomes}
    unit = units.pop() if len(units) == 1 else "nats"
    for name, kind, curve, averaged in (
        ("curves", "validation", "curve", ""),
        ("training-curves", "training", "training", ", as means between evaluations"),
    ):
        panels = _by_column(
            judged, lambda column, curve=curve: over_seeds(judged, column, lambda run: getattr(run, curve))
        )
        frames = {column: _extremes(_late(curves)) for column, curves in panels.items()}
        x_label, against = "tokens", "the tokens seen"
        if panels and judged.record.legs:
            panels = {"over tokens": panels[""], "over seconds": _in_seconds(judged, panels[""])}
            frames = dict.fromkeys(panels, frames[""])
            x_label = "tokens or seconds"
            against += ", and against the seconds that training on them took"
        yield Chart(
            name,
            f"{in_capitals(kind)} loss",
            f"The figure shows the {kind} loss against {against}{averaged}. {SEEDS} The vertical range is "
            "that of the last two thirds of training.",
            x_label,
            f"{kind} loss ({unit})",
            panels,
            frames,
        )


def _in_seconds(judged: JudgedStudy, curves: Curves) -> Curves:
    """Return the curves over the seconds that each row's mean throughput takes for their tokens."""
    speeds = {row: judged.spread(row, "", SPEED).mean for row in curves}
    return {
        row: [(tokens / speed, *values) for tokens, *values in curves[row]] for row, speed in speeds.items() if speed
    }


def _layered(judged: JudgedStudy) -> Iterator[Chart]:
    """Return a chart of each quantity that has a value for each layer."""
    for headline in (headline for headline in judged.headlines if headline.layer == MEAN):
        name = headline.name
        panels = _by_column(
            judged, lambda column, of=headline: over_seeds(judged, column, lambda run: _layers(of, run))
        )
        caption = f"The figure shows the {name} in each layer. {SEEDS}"
        yield Chart(f"profile-{slug(name)}", f"{in_capitals(name)} by layer", caption, "layer", name, panels)


def _layers(quantity: Quantity, run: Outcome) -> list[tuple[int, Any]]:
    of_layers = quantity.value(run)
    return list(enumerate(of_layers)) if isinstance(of_layers, list | tuple) else []


def _traced(judged: JudgedStudy) -> Iterator[Chart]:
    """Return the charts of what was measured over steps; those about logits are folded unless the study is on them."""
    on_logits = any("logit" in quantity.path for quantity in judged.design.quantities)
    kinds = (("trajectory", "", over_steps, SEEDS), ("heads", ", over heads", over_heads, HEADS))
    for kind, over, curves_of, how in kinds:
        for name, remark in TRACES.items():
            title, unit = TITLES[name]
            yield Chart(
                f"{kind}-{slug(name)}",
                title + over,
                f"The figure shows the {title[:1].lower()}{title[1:]} at each step. {how} {remark}".strip(),
                "steps",
                unit or name.replace("_", " "),
                _by_column(judged, lambda column, of=curves_of, name=name: of(judged, column, name)),
                folded="logit" in name and not on_logits,
            )


def _by_column(judged: JudgedStudy, of: Callable[..., Curves]) -> dict[str, Curves]:
    panels = {judged.place(column): of(column) for column in judged.design.columns}
    return {column: curves for column, curves in panels.items() if curves}


def over_seeds(judged: JudgedStudy, column: str, numbers: Callable[[Outcome], Sequence[tuple[int, Any]]]) -> Curves:
    """Return the curves at the places where every measured seed has a number: a mean over fewer seeds would jump."""
    curves: Curves = {}
    for row in judged.design.rows:
        measured = list(filter(None, map(numbers, judged.cell(row, column).outcomes)))
        by_place: dict[int, list[float]] = {}
        for place, value in chain.from_iterable(measured):
            if value is not None and math.isfinite(value):  # a stored record has null for NaN and infinity
                by_place.setdefault(place, []).append(value)
        curves[row] = [
            (*_point(place, values), *(values if 1 < len(values) < FEWEST else ()))
            for place, values in sorted(by_place.items())
            if len(values) == len(measured)
        ]
    return {row: curve for row, curve in curves.items() if curve}


def over_steps(judged: JudgedStudy, column: str, name: str) -> Curves:
    """Return a repeatedly measured number of a run against its steps. The sign of a gate means nothing."""

    def values(outcome: Outcome) -> list[tuple[int, Any]]:
        measurements = outcome.summary.get("trajectories", {}).get(name, ())
        return [(step, abs(value) if name == "gate" else value) for step, value in measurements]

    return over_seeds(judged, column, values)


def over_heads(judged: JudgedStudy, column: str, name: str) -> Curves:
    """Return the mean over all heads of the first seed; the band goes from the lowest head to the highest."""
    curves: Curves = {}
    for row in judged.design.rows:
        outcomes = judged.cell(row, column).outcomes
        looks = outcomes[0].summary.get(BY_HEAD, {}).get(name, ()) if outcomes else ()
        curves[row] = [
            _point(step, heads) for step, heads in looks if all(x is not None and math.isfinite(x) for x in heads)
        ]
    return {row: curve for row, curve in curves.items() if curve}


def _point(place: int, values: Sequence[float]) -> Point:
    return place, sum(values) / len(values), min(values), max(values)


def _late(curves: Curves) -> Curves:
    """Return the last two thirds of training, since the steep first third would hide differences."""
    end = max(curve[-1][0] for curve in curves.values())
    return {row: [point for point in curve if point[0] >= end / 3] for row, curve in curves.items()}


def _extremes(curves: Curves) -> Frame:
    return _extent((point[2], point[3]) for curve in curves.values() for point in curve)


def _extent(ranges: Iterable[Sequence[float]]) -> Frame:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def is_wide(lowest: float, highest: float) -> bool:
    """Return whether values between these need a logarithmic scale."""
    return lowest > 0 and highest > WIDE * lowest


def _with_margin(low: float, high: float, in_factors: bool = False) -> Frame:
    if in_factors:
        return low / 1.2, high * 1.2
    margin = 0.06 * (high - low) or 0.01
    return low - margin, high + margin
