"""Cost curves: how seconds and memory of a training step grow with length, width and coupling steps.

    length    one sequence of this length; exponent 1 is linear, 2 is quadratic                             (1)
    width     heads of 64, an MLP of 4 d, the bench's number of tokens; exponent 2 if products dominate     (2)
    steps     n of every mechanism that takes steps; t(n) = a + b n, and b / t(1) is the cost of one more   (3)

Each point is measured alone: the fastest of a few warm steps, and the peak memory. Memory by length leaves out weights,
gradients and moments (16 bytes a parameter), which do not grow with length. The exponent of seconds is reported with
the exponent of counted FLOPs: where the two differ, the cost is not arithmetic alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from attractor.attention.couple.dynamics import Dynamics
from attractor.bench.cases import our_config
from attractor.bench.fits import FittedLine, power_law, straight_line
from attractor.bench.shape import BenchShape, varied
from attractor.bench.subprocess_timing import NotMeasured
from attractor.bench.training import counted_flops, counted_parameters, refuse_long
from attractor.bench.trial import BenchSetting, tried
from attractor.errors import InputError
from attractor.numerals import in_time

N_CALLS = 4  # one cold call and three warm ones
TRAINED_BYTES = 16  # per parameter within a step: weight, gradient, two moments
N_STEPS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Axes:
    lengths: tuple[int, ...]
    widths: tuple[int, ...]


AXES = {
    "cpu": Axes((256, 512, 1024, 2048), (256, 512, 768)),
    "cuda": Axes((1024, 2048, 4096, 8192, 16384), (256, 512, 1024, 2048)),
}


@dataclass(frozen=True)
class CostPoint:
    name: str
    axis: str
    at: int
    seconds: float | None = None
    memory: int | None = None  # peak bytes
    state: int | None = None  # the part of memory that every step holds: TRAINED_BYTES per parameter
    flops: float | None = None
    left_out: str | None = None


@dataclass(frozen=True)
class Growth:
    """The fits through the points of one mechanism on one axis; None where too few points were measured."""

    name: str
    axis: str
    seconds: FittedLine | None
    memory: FittedLine | None
    flops: FittedLine | None


@dataclass(frozen=True)
class CurveCase:
    """A point that is still to be measured. `variant` is the mechanism's name with its number of steps."""

    name: str
    axis: str
    at: int
    variant: str
    shape: BenchShape


def curve_cases(
    names: Sequence[str], shape: BenchShape, lengths: Sequence[int], widths: Sequence[int]
) -> list[CurveCase]:
    """List the cases axis by axis, so that an interrupted bench has complete axes."""
    at_length = [
        CurveCase(name, "length", n, name, replace(shape, seq_len=n, n_tokens=n)) for name in names for n in lengths
    ]
    at_width = [CurveCase(name, "width", n, name, shape.at_width(n)) for name in names for n in widths]
    stepped = [name for name in names if isinstance(our_config(name, shape).attention_config.couple, Dynamics)]
    at_step = [CurveCase(name, "steps", n, varied(name, "n_steps", n), shape) for name in stepped for n in N_STEPS]
    return [*at_length, *at_width, *at_step]


def points(
    cases: Sequence[CurveCase], setting: BenchSetting, patience: float, tell: Callable[[str], None] = lambda doing: None
) -> Iterator[CostPoint]:
    """Measure the cases in order. The time left that `tell` reports assumes that the rest takes as long as the past."""
    began, done = time.monotonic(), 0
    for (name, axis), curve in groupby(cases, key=lambda case: (case.name, case.axis)):
        last: tuple[float, float] | None = None
        for case in curve:
            left = f", {in_time((time.monotonic() - began) / done * (len(cases) - done))} left" if done else ""
            tell(f"{case.variant}, {axis} {case.at:,}: point {done + 1} of {len(cases)}{left}")
            point = _point(case.variant, replace(setting, shape=case.shape), last, patience)
            last = (point["seconds"], point["flops"]) if "seconds" in point else last
            done += 1
            yield CostPoint(name, axis, case.at, **point)


def _point(variant: str, setting: BenchSetting, last: tuple[float, float] | None, patience: float) -> dict[str, Any]:
    try:
        flops = counted_flops(variant, setting)
        if last is not None:
            refuse_long(last[0] * flops / last[1], N_CALLS, patience, "by its FLOPs")
        trial = tried(variant, setting, N_CALLS, patience)
    except (NotMeasured, InputError) as why:  # some mechanisms need more heads than a small width has
        return {"left_out": str(why)}
    state = TRAINED_BYTES * counted_parameters(variant, setting)
    return {"seconds": trial.least_seconds("step"), "memory": trial.peak_memory, "state": state, "flops": flops}


def growths(measured: Sequence[CostPoint]) -> list[Growth]:
    """Fit every curve, in the order in which the points came."""
    along: dict[tuple[str, str], list[CostPoint]] = {}
    for point in measured:
        if point.left_out is None:
            along.setdefault((point.name, point.axis), []).append(point)
    return [
        Growth(name, axis, *(_growth(axis, curve, cost) for cost in ("seconds", "memory", "flops")))
        for (name, axis), curve in along.items()
    ]


def _growth(axis: str, curve: Sequence[CostPoint], cost: str) -> FittedLine | None:
    """Fit one cost of a curve; None if memory lies below the state, since not all gradients were held at once."""
    x, y = [point.at for point in curve], [getattr(point, cost) for point in curve]
    if (axis, cost) == ("length", "memory"):
        y = [memory - point.state for memory, point in zip(y, curve, strict=True)]
    if len(set(x)) < 2 or (axis != "steps" and min(y) <= 0):
        return None
    return straight_line(x, y) if axis == "steps" else power_law(x, y)
