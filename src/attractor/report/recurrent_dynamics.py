"""The measured dynamics of recurrent models: charts by iteration, spectra, accuracy at test time, phase portraits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attractor.report.curves import Curves, by_place
from attractor.report.judged_study import JudgedStudy
from attractor.runs.quantity import Quantity
from attractor.runs.study_record import Outcome

ACCURACY = Quantity("accuracy", "probes.dynamics.accuracy")
PORTRAIT = Quantity("portrait", "probes.dynamics.portrait")


@dataclass(frozen=True)
class Course:
    """A list of numbers, one for each iteration or rank."""

    path: str  # below probes.dynamics
    title: str
    y_label: str
    x_label: str = "iteration"
    first: int = 0
    remark: str = ""


COURSES = (
    Course("norm.by_step", "Norm of the Jacobian", "|J|"),
    Course(
        "entropy.by_step",
        "Entropy of attention",
        "entropy / log T",
        remark="At 1 attention is uniform, and Jacobians are those of averaging.",
    ),
    Course("bound.by_step", "Bound of the norm by proposition 5.1", "bound on |J|"),
    Course("energy.by_step", "Energy", "-x'y"),
    Course("pseudo_energy.quadratic", "Pseudo-energy", "-x'S x", remark="S is the symmetric part of y's Jacobian."),
    Course(
        "exponents.by_rank",
        "Spectrum of finite-time exponents",
        "exponent",
        "rank",
        1,
        "The exponents are those of the product of 16 Jacobians without radial directions. Differences grow where an "
        "exponent lies above 0.",
    ),
)


def courses(judged: JudgedStudy, course: Course, column: str) -> Curves:
    quantity = Quantity(course.title, f"probes.dynamics.{course.path}")
    return by_place(judged, column, lambda outcome: list(enumerate(quantity.value(outcome) or (), start=course.first)))


def measures_over_time(judged: JudgedStudy) -> Iterator[tuple[str, str]]:
    """Yield each validation set and measure that was evaluated at several numbers of iterations."""
    pairs: dict[tuple[str, str], None] = {}
    for cell in judged.record.cells:
        for outcome in cell.outcomes:
            for part, measures in (ACCURACY.value(outcome) or {}).items():
                pairs |= dict.fromkeys((part, measure) for measure in measures)
    yield from pairs


def over_time(judged: JudgedStudy, part: str, measure: str, column: str) -> Curves:
    def numbers(outcome: Outcome) -> list[tuple[int, Any]]:
        by_time = ((ACCURACY.value(outcome) or {}).get(part) or {}).get(measure) or {}
        return [(int(n_iterations), value) for n_iterations, value in by_time.items()]

    return by_place(judged, column, numbers)


@dataclass(frozen=True)
class Portrait:
    orbits: list[list[tuple[float, float]]]  # the states of each board, from the start
    share: float  # of the variance, along the two axes


def portraits(judged: JudgedStudy, column: str) -> Mapping[str, Portrait]:
    """Return the portrait of the first seed of each row."""
    by_row: dict[str, Portrait] = {}
    for row in judged.design.rows:
        for outcome in judged.cell(row, column).outcomes[:1]:
            stored = PORTRAIT.value(outcome)
            if stored:
                by_row[row] = Portrait(stored["orbits"], stored["share"])
    return by_row
