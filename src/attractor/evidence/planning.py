"""Before the runs: could this scale, with these seeds, decide a claim? The claim's own rule is tried on drawn runs.

Losses are drawn with the published effects, and with none, at the paired spread that stored runs of the study have:

    loss(row, seed) = level(row) + shared(seed) + own(row, seed),   sd(own) = paired sd / sqrt(2)           (1)

A setting can decide where the rule says *holds* of at least 80% of the drawn studies that have what is claimed. The
levels are the least-squares solution of all differences of a column:

                        as claimed               otherwise
    A below B           the published effect     none                                                       (2)
    A equal to B        none                     the margin, the smallest difference that matters
    a premise           the published effect     the published effect

The control is worse by far. Parts of a rule that are not about losses (a gate, a cost) are not drawn.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from attractor.evidence.quantity import LOSS, MEAN_LOSS, PERPLEXITY
from attractor.evidence.readings import Control, Obstacle, Pair, values
from attractor.evidence.rules import POWER, Differs, Equivalent
from attractor.evidence.statistics import seed_differences, summary
from attractor.evidence.study import Cell, Design, Outcome, StudyRecord
from attractor.evidence.verdicts import AllOf, Rule

N_STUDIES = 500
SEEDS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
BASELINE, CONTROL = "baseline of drawn runs", "control of drawn runs"
SHARED_SPREAD, WORSE = 0.01, 10.0  # of seeds in (1), which cancels in pairs; of the control, whose gap is no question


@dataclass(frozen=True)
class Chances:
    """How often a rule ends in each verdict, over drawn studies."""

    claimed: Counter[str]  # of studies in which the claim is true
    otherwise: Counter[str]  # of studies in which it is not

    @property
    def power(self) -> float:
        return self.claimed["holds"] / self.claimed.total()

    @property
    def decides(self) -> bool:
        return self.power >= POWER


def of_losses(rule: Rule) -> Rule | None:
    """Return what of a rule is about losses and can be drawn; None where nothing is."""
    if isinstance(rule, AllOf):
        parts = tuple(part for part in map(of_losses, rule.rules) if part is not None)
        return AllOf(parts) if parts else None
    if isinstance(rule, Differs) and rule.quantity in (LOSS, MEAN_LOSS):
        return rule
    if isinstance(rule, Equivalent) and rule.quantity in (LOSS, MEAN_LOSS):
        premises = tuple(premise for premise in map(of_losses, rule.premises) if premise is not None)
        return replace(rule, premises=premises)
    return None


def largest_paired_spread(rule: Rule, record: StudyRecord) -> float | None:
    """Return the largest standard deviation, over seeds, of the paired differences that the rule looks at."""
    spreads = []
    for pair in pairs_of(rule):
        rows = [
            values(record, LOSS, row, place) for row, place in zip((pair.of, pair.against), pair.columns, strict=True)
        ]
        of, against = (row for row in rows) if not any(isinstance(row, Obstacle) for row in rows) else ({}, {})
        if len(of.keys() & against.keys()) >= 3:  # type: ignore[union-attr]
            sd = summary(seed_differences(of, against)).standard_deviation  # type: ignore[arg-type]
            spreads += [sd] if sd is not None and np.isfinite(sd) else []
    return max(spreads, default=None)


def chances(rule: Rule, n_seeds: int, paired_sd: float, n_studies: int = N_STUDIES) -> Chances:
    return Chances(*(_verdicts(rule, n_seeds, paired_sd, n_studies, claimed) for claimed in (True, False)))


def seeds_to_decide(rule: Rule, paired_sd: float) -> int | None:
    """Return the fewest seeds of SEEDS with which the rule can decide; None where even the most cannot."""
    n_studies = N_STUDIES // 5

    def decide(n_seeds: int) -> bool:
        return _verdicts(rule, n_seeds, paired_sd, n_studies, True)["holds"] >= POWER * n_studies

    return next(filter(decide, SEEDS)) if decide(SEEDS[-1]) else None


def pairs_of(rule: Rule, claimed: bool = True) -> Iterator[Pair]:
    """The comparisons of a rule, with the differences of (2) as their effects."""
    if isinstance(rule, AllOf):
        for part in rule.rules:
            yield from pairs_of(part, claimed)
    elif isinstance(rule, Differs):
        yield from (pair if claimed else replace(pair, effect=0.0) for pair in rule.pairs)
    elif isinstance(rule, Equivalent):
        yield from (replace(pair, effect=0.0 if claimed else pair.margin) for pair in rule.pairs)
        for premise in rule.premises:
            yield from pairs_of(premise)


def _controls(rule: Rule) -> Iterator[Control]:
    if isinstance(rule, AllOf):
        for part in rule.rules:
            yield from _controls(part)
    elif isinstance(rule, Differs | Equivalent) and rule.control is not None:
        yield rule.control


@cache
def _verdicts(rule: Rule, n_seeds: int, paired_sd: float, n_studies: int, claimed: bool) -> Counter[str]:
    levels = _levels(rule, claimed)
    rng = np.random.default_rng(n_seeds)
    places = list(levels)
    statuses: Counter[str] = Counter()
    for _ in range(n_studies):
        shared = SHARED_SPREAD * rng.standard_normal(n_seeds)
        own = paired_sd / 2**0.5 * rng.standard_normal((len(places), n_seeds))
        cells = tuple(_cell(*place, levels[place] + shared + noise) for place, noise in zip(places, own, strict=True))
        statuses[rule.judge(StudyRecord(_design(places, n_seeds), cells)).status] += 1
    return statuses


def _levels(rule: Rule, claimed: bool) -> dict[tuple[str, str], float]:
    """The levels in (1), by row and column."""
    pairs = list(pairs_of(rule, claimed))
    places = list(dict.fromkeys(p for q in pairs for p in zip((q.of, q.against), q.columns, strict=True)))
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


def _design(places: list[tuple[str, str]], n_seeds: int) -> Design:
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
