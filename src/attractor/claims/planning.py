"""Tell before the runs whether a scale and its seeds could decide a claim: try its rule on simulated studies.

Losses are drawn with the published effects, and without them, at the noise that stored runs of the study have:

    loss(row, seed) = level(row) + shared(seed) + noise(row, seed)                                          (1)

The noise of a row follows from its paired differences with the other rows, in which shared(seed) cancels.

A setting can decide a claim where the rule says *holds* of at least 80% of the simulated studies in which the claim
is true. The levels are the least-squares solution of all differences of a column:

                        as claimed               otherwise
    A below B           the published effect     none                                                       (2)
    A equal to B        none                     the margin, the smallest difference that matters
    a premise           the published effect     the published effect

The control is drawn far worse than its baseline. Parts of a rule that are not about losses (a gate, a cost) are left
out.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

import numpy as np

from attractor.claims.comparisons import Control, Obstacle, Pair, values
from attractor.claims.rules import Conditional, Differs, Equivalent, InRegime
from attractor.claims.verdicts import AllOf, Rule
from attractor.runs.quantity import LOSS, MEAN_LOSS, PERPLEXITY, Quantity
from attractor.runs.study_record import Cell, Design, Outcome, StudyRecord
from attractor.verdict.power import POWER

Place = tuple[str, str]  # row and column
N_STUDIES = 500
FEWEST_SEEDS = 3  # that estimate a row's noise
SEEDS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
BASELINE, CONTROL = "baseline of drawn runs", "control of drawn runs"
SHARED_SPREAD = 0.01  # standard deviation of shared(seed) in (1), which cancels in paired differences
WORSE = 10.0  # the control's level, so that every simulated study is sensitive


@dataclass(frozen=True)
class Chances:
    """How often a rule ends in each verdict, over simulated studies."""

    claimed: Counter[str]  # of studies in which the claim is true
    otherwise: Counter[str]  # of studies in which it is not

    @property
    def power(self) -> float:
        return self.claimed["holds"] / self.claimed.total()

    @property
    def decides(self) -> bool:
        return self.power >= POWER


def of_losses(rule: Rule) -> Rule | None:
    """Return the parts of a rule that are about losses and can be drawn; None where there are none.

    Drawn runs are in every regime: `out_of_regime` tells whether stored ones are.
    """
    if isinstance(rule, Conditional):
        return of_losses(rule.rule)
    if isinstance(rule, AllOf):
        parts = tuple(part for part in map(of_losses, rule.rules) if part is not None)
        return AllOf(parts) if parts else None
    if isinstance(rule, Differs) and rule.quantity in (LOSS, MEAN_LOSS):
        return rule
    if isinstance(rule, Equivalent) and rule.quantity in (LOSS, MEAN_LOSS):
        premises = tuple(premise for premise in map(of_losses, rule.premises) if premise is not None)
        return replace(rule, premises=premises)
    return None


def out_of_regime(rule: Rule, record: StudyRecord) -> str | None:
    """Return why runs of this scale can decide nothing, however many there are; None where nothing is in the way."""
    if isinstance(rule, AllOf):
        return next(filter(None, (out_of_regime(part, record) for part in rule.rules)), None)
    if not isinstance(rule, Conditional):
        return None
    return (rule.obstacle(record) if isinstance(rule, InRegime) else None) or out_of_regime(rule.rule, record)


Spreads = Mapping[Place, float]  # the standard deviation of each row's noise in a column, in nats per byte


def spreads_of(rule: Rule, record: StudyRecord) -> dict[Place, float]:
    """Return the noise of every row that the rule compares. A column with too few seeds is left out.

    Of a row that is compared in several quantities, such as the final loss and its mean, the larger noise counts.
    """
    spreads: dict[Place, float] = {}
    comparisons = list(comparisons_of(rule))
    for quantity in dict.fromkeys(quantity for quantity, _ in comparisons):
        places = _places(pair for compared, pair in comparisons if compared == quantity)
        for place, spread in _spreads_of(quantity, places, record).items():
            spreads[place] = max(spread, spreads.get(place, 0.0))
    return spreads


def _spreads_of(quantity: Quantity, places: Sequence[Place], record: StudyRecord) -> dict[Place, float]:
    """Return the noise of rows by their paired differences, of all seeds that two rows share:

    var(x_i - x_j) = var_i + var_j, by least squares over all pairs of rows in a column                    (3)
    """
    spreads: dict[Place, float] = {}
    for column in dict.fromkeys(column for _, column in places):
        measured = {row: values(record, quantity, row, place) for row, place in places if place == column}
        rows = {row: losses for row, losses in measured.items() if not isinstance(losses, Obstacle)}
        names, lines, variances = list(rows), [], []
        for (i, losses), (j, other) in combinations(enumerate(rows.values()), 2):
            differences = [losses[seed] - other[seed] for seed in losses.keys() & other.keys()]
            if len(differences) >= FEWEST_SEEDS and np.isfinite(differences).all():
                weight = math.sqrt(len(differences) - 1)
                lines.append([weight * (n in (i, j)) for n in range(len(names))])
                variances.append(weight * np.var(differences, ddof=1))
        if lines:
            solution = np.linalg.lstsq(np.array(lines), np.array(variances), rcond=None)[0]  # (3)
            known = [any(line[n] for line in lines) for n in range(len(names))]
            sds = np.sqrt(np.maximum(solution, 0.0))
            spreads |= {
                (row, column): float(sd) for row, sd, is_known in zip(names, sds, known, strict=True) if is_known
            }
    return spreads


def chances(rule: Rule, n_seeds: int, spreads: Spreads | float, n_studies: int = N_STUDIES) -> Chances:
    """Try the rule on simulated studies. A row without a known spread gets the largest spread of the other rows."""
    verdicts = (islice(_verdicts(rule, n_seeds, spreads, claimed), n_studies) for claimed in (True, False))
    return Chances(*map(Counter, verdicts))


def can_decide(rule: Rule, n_seeds: int, spreads: Spreads | float) -> bool:
    """Return whether `chances` decides. Studies are simulated only until no further one can change the answer."""
    needed = math.ceil(POWER * N_STUDIES)
    held = 0
    for drawn, verdict in enumerate(_verdicts(rule, n_seeds, spreads, claimed=True), start=1):
        held += verdict == "holds"
        if held >= needed or drawn - held > N_STUDIES - needed:
            break
    return held >= needed


def seeds_to_decide(rule: Rule, spreads: Spreads | float, more_than: int = 0) -> int | None:
    """Return the smallest number in SEEDS with which the rule can decide; None where even the largest is too small."""

    numbers = [n for n in SEEDS if n > more_than]
    first = bisect_left(numbers, True, key=lambda n: can_decide(rule, n, spreads))  # more seeds never decide less
    return numbers[first] if first < len(numbers) else None


def what_it_can_decide(whole: Rule, design: Design, stored: Sequence[StudyRecord]) -> str:
    """Say in words whether the seeds of a design can decide a claim, at the spread of the study's stored runs."""
    rule = of_losses(whole)
    assert rule is not None
    of_scale = next((record for record in stored if record.design.scale == design.scale), None)
    if of_scale is not None and (why := out_of_regime(whole, of_scale)):
        return f"CANNOT DECIDE with any number of seeds, by the stored runs of scale {design.scale}: {why}"
    of_scales = {record.design.scale: spreads_of(rule, record) for record in stored}
    known = {scale: spreads for scale, spreads in of_scales.items() if spreads}
    if not known:
        return f"no plan: no stored record has {FEWEST_SEEDS} seeds of these rows; run a pilot, and store its record"
    scale = design.scale if design.scale in known else next(iter(known))
    n_seeds, sds = len(design.seeds), known[scale].values()
    noise = f"the noise of scale {scale} ({min(sds):.2g} to {max(sds):.2g} nats/byte a row)"
    at = f"with {n_seeds} seed{'s' * (n_seeds > 1)} and {noise}"
    drawn = chances(rule, n_seeds, known[scale])
    if drawn.decides:
        wrongly = drawn.otherwise["holds"] / drawn.otherwise.total()
        return (
            f"can decide {at}: of simulated studies, {drawn.power:.0%} end with *holds* where the claim is true, and "
            f"{wrongly:.0%} where it is not"
        )
    needed = seeds_to_decide(rule, known[scale], more_than=n_seeds)
    more = f"{needed} seeds would suffice" if needed else f"{SEEDS[-1]} seeds would not suffice: less noise is needed"
    return (
        f"CANNOT DECIDE {at}: of simulated studies in which the claim is true, only {drawn.power:.0%} end with "
        f"*holds*; {more}"
    )


def comparisons_of(rule: Rule, claimed: bool = True) -> Iterator[tuple[Quantity, Pair]]:
    """Yield the comparisons of a rule and what they compare, with the differences in (2) as their effects."""
    if isinstance(rule, AllOf):
        for part in rule.rules:
            yield from comparisons_of(part, claimed)
    elif isinstance(rule, Differs):
        yield from ((rule.quantity, pair if claimed else replace(pair, effect=0.0)) for pair in rule.pairs)
    elif isinstance(rule, Equivalent):
        yield from ((rule.quantity, replace(pair, effect=0.0 if claimed else pair.margin)) for pair in rule.pairs)
        for premise in rule.premises:
            yield from comparisons_of(premise)


def _controls(rule: Rule) -> Iterator[Control]:
    if isinstance(rule, AllOf):
        for part in rule.rules:
            yield from _controls(part)
    elif isinstance(rule, Differs | Equivalent) and rule.control is not None:
        yield rule.control


def _verdicts(rule: Rule, n_seeds: int, spreads: Spreads | float, claimed: bool) -> Iterator[str]:
    """Yield the rule's verdict on one simulated study after the other, without an end."""
    levels = _levels(rule, claimed)
    sds = spreads if isinstance(spreads, Mapping) else {}
    largest = max(sds.values()) if isinstance(spreads, Mapping) else spreads
    rng = np.random.default_rng(n_seeds)
    places = list(levels)
    noise_sd = np.array([[sds.get(place, largest)] for place in places])
    while True:
        shared = SHARED_SPREAD * rng.standard_normal(n_seeds)
        noise = noise_sd * rng.standard_normal((len(places), n_seeds))
        cells = tuple(_cell(*place, levels[place] + shared + row) for place, row in zip(places, noise, strict=True))
        yield rule.judge(StudyRecord(_design(places, n_seeds), cells)).status


def _places(pairs: Iterable[Pair]) -> list[Place]:
    places = (place for pair in pairs for place in zip((pair.of, pair.against), pair.columns, strict=True))
    return list(dict.fromkeys(places))


def _levels(rule: Rule, claimed: bool) -> dict[Place, float]:
    """Return the levels in (1) by row and column."""
    pairs = [pair for _, pair in comparisons_of(rule, claimed)]
    places = _places(pairs)
    differences = np.zeros((len(pairs), len(places)))
    for line, pair in zip(differences, pairs, strict=True):
        for sign, place in zip((1, -1), zip((pair.of, pair.against), pair.columns, strict=True), strict=True):
            line[places.index(place)] += sign
    solution = np.linalg.lstsq(differences, np.array([pair.effect for pair in pairs]), rcond=None)[0]
    levels = dict(zip(places, map(float, solution), strict=True))
    for column in dict.fromkeys(column for _, column in places):
        levels |= {(BASELINE, column): 0.0, (CONTROL, column): WORSE}
    for control in _controls(rule):
        levels.setdefault((control.against, ""), 0.0)
        levels[control.row, ""] = WORSE
    return levels


def _cell(row: str, column: str, losses: np.ndarray) -> Cell:
    outcomes = tuple(
        Outcome(seed, "", {"valid_loss": float(x), "bytes_per_token": 1.0}, {}, ((0, float(x)), (1, float(x))))
        for seed, x in enumerate(losses)
    )
    return Cell(row, column, {"task": {"kind": "text"}}, outcomes, ())


def _design(places: list[Place], n_seeds: int) -> Design:
    rows, columns = (tuple(dict.fromkeys(place[part] for place in places)) for part in (0, 1))
    return Design(
        name="drawn",
        title="",
        question="",
        source="",
        scale="drawn",
        rows_name="",
        rows=rows,
        columns_name="",
        columns=columns,
        seeds=tuple(range(n_seeds)),
        baseline=BASELINE,
        control=CONTROL,
        budget="free",
        quantities=(PERPLEXITY,),
    )
