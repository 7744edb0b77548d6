"""The charts of a study, which its figures draw as lines and its page shows with zoom.

They show losses over tokens; quantities of the study by layer; numbers that were measured repeatedly during training
(`trajectories` in a summary) over steps, those of logits over heads as well. A chart appears if some run has its
numbers.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, count, product
from operator import attrgetter

from attractor.report.curves import Curves, by_place, over_heads, profiles, trajectories
from attractor.report.judged_study import JudgedStudy
from attractor.report.legs import SPEED
from attractor.runs.study_record import stored_loss_unit

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
    frames: dict[str, Frame]  # the vertical range of each panel
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
    makers = (_losses, _layered, _traced)
    made: dict[str, Chart] = {}
    for chart in (chart for make in makers for chart in make(judged)):
        # Two titles may differ in signs or letters that names do not have.
        names = chain([chart.name], (f"{chart.name}-{n}" for n in count(2)))
        name = next(name for name in names if name not in made)
        numbers = {column: curves for column, curves in chart.panels.items() if max(map(len, curves.values())) == 1}
        panels = {column: curves for column, curves in chart.panels.items() if column not in numbers}
        made[name] = replace(chart, name=name, panels=panels, numbers=numbers)
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
        panels = _by_column(judged, partial(by_place, judged, numbers=attrgetter(curve)))
        frames = {column: _with_margin(*_extremes(_late(curves))) for column, curves in panels.items()}
        x_label, against = "tokens", "the tokens seen"
        if panels and judged.record.legs:
            panels = {"over tokens": panels[""], "over seconds": _in_seconds(judged, panels[""])}
            frames = dict.fromkeys(panels, frames[""])
            x_label, against = (
                "tokens or seconds",
                "the tokens seen, and against the seconds that training on them took",
            )
        if panels:
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
    for headline in judged.headlines:
        panels = _by_column(judged, lambda column, of=headline: profiles(judged, of, column))  # type: ignore[misc]
        if panels:
            name = headline.name
            title = f"{in_capitals(name)} by layer"
            caption = f"The figure shows the {name} in each layer. {SEEDS}"
            frames = {column: _with_margin(*_extremes(curves)) for column, curves in panels.items()}
            yield Chart(f"profile-{slug(name)}", title, caption, "layer", name, panels, frames)


def _traced(judged: JudgedStudy) -> Iterator[Chart]:
    """Return the charts of what was measured over steps; those about logits are folded unless the study is on them."""
    on_logits = any("logit" in quantity.path for quantity in judged.design.quantities)
    kinds = (("trajectory", "", trajectories, SEEDS), ("heads", ", over heads", over_heads, HEADS))
    for (kind, over, curves_of, how), (name, remark) in product(kinds, TRACES.items()):
        panels = _by_column(judged, lambda column, of=curves_of, name=name: of(judged, name, column))  # type: ignore[misc]
        if panels:
            frames = {column: _extremes(curves) for column, curves in panels.items()}
            in_factors, (title, unit) = _wide(frames), TITLES[name]
            yield Chart(
                f"{kind}-{slug(name)}",
                title + over,
                f"The figure shows the {title[:1].lower()}{title[1:]} at each step. {how} {remark}".strip(),
                "steps",
                unit or name.replace("_", " "),
                panels,
                {column: _with_margin(*frame, in_factors) for column, frame in frames.items()},
                in_factors,
                folded="logit" in name and not on_logits,
            )


def _by_column(judged: JudgedStudy, of: Callable[[str], Curves]) -> dict[str, Curves]:
    panels = {judged.place(column): of(column) for column in judged.design.columns}
    return {column: curves for column, curves in panels.items() if curves}


def _late(curves: Curves) -> Curves:
    """Return the last two thirds of training, since the steep first third would hide differences."""
    end = max(curve[-1][0] for curve in curves.values())
    return {row: [point for point in curve if point[0] >= end / 3] for row, curve in curves.items()}


def _extremes(curves: Curves) -> Frame:
    points = [point for curve in curves.values() for point in curve]
    return min(point[2] for point in points), max(point[3] for point in points)


def _wide(frames: Mapping[str, Frame]) -> bool:
    lowest, highest = min(low for low, _ in frames.values()), max(high for _, high in frames.values())
    return is_wide(lowest, highest)


def is_wide(lowest: float, highest: float) -> bool:
    """Return whether values between these need a logarithmic scale."""
    return lowest > 0 and highest > WIDE * lowest


def _with_margin(low: float, high: float, in_factors: bool = False) -> Frame:
    if in_factors:
        return low / 1.2, high * 1.2
    margin = 0.06 * (high - low) or 0.01
    return low - margin, high + margin
