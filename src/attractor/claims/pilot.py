"""Judge a pilot: rivals run against one baseline, seed by seed, and each stops as soon as its answer is clear.

`Sequential` compares each of m rivals with the baseline, and the better ones with one another, at the error rates

    alpha / m   against the baseline,      2 alpha / (m (m - 1))   for each pair of rivals                  (1)

With probability at least 1 - alpha, every "better" and "worse" at any look is true. Proof: let t rivals not differ from
the baseline. The chance that any of them is called different is at most t alpha / m. Otherwise only the m - t others
are compared with one another, and the chance that an equal pair of them is called different is at most

    alpha (m - t)(m - t - 1) / (m (m - 1))  <=  alpha (m - t) / m                                           (2)

"No relevant difference" errs at most at rate alpha against the baseline, and at most at rate alpha among rivals.

The control comes first: unless the interval of its paired gap to the baseline lies above zero, nothing is said about
rivals (`sensitivity.py`). A decision depends only on the losses of consecutive seeds from 0. Neither the order in which
runs finish nor the order in which rivals are named has an effect.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, takewhile
from typing import Literal

from attractor.errors import InputError
from attractor.verdict.intervals import Interval, summary
from attractor.verdict.sensitivity import ControlGap, control_gap
from attractor.verdict.sequential import Sequential, SequentialOutcome

CONTROL_SEEDS = 2
MORE_CONTROL_SEEDS = 4  # used where two pairs do not show that the control is worse

Losses = Mapping[str, Mapping[int, float]]  # by mechanism and seed


@dataclass(frozen=True)
class Finding:
    """The comparison of two mechanisms. The outcome stays "go on" where the time ran out before a decision."""

    of: str
    against: str
    outcome: SequentialOutcome | Literal["failed", "not finite"]
    interval: Interval | None = None
    sd: float | None = None  # standard deviation of the paired differences

    @property
    def open(self) -> bool:
        return self.outcome == "go on"

    @property
    def undecided(self) -> bool:
        return self.outcome in ("go on", "undecided at the end")

    @property
    def n(self) -> int:
        return 0 if self.interval is None else self.interval.n


@dataclass(frozen=True)
class Judgement:
    """The findings so far, and the runs still wanted, as (mechanism, seed) in the order of running."""

    gap: ControlGap
    rivals: tuple[Finding, ...]
    duels: tuple[Finding, ...]  # between rivals that are both better than the baseline
    wanted: tuple[tuple[str, int], ...]

    @property
    def sensitive(self) -> bool | None:
        return self.gap.sensitive

    @property
    def better(self) -> tuple[str, ...]:
        return tuple(finding.of for finding in self.rivals if finding.outcome == "better")


@dataclass(frozen=True)
class Pilot:
    """The plan of a pilot, made before its first run. Seeds are 0 .. n_max - 1, and `margin` is the smallest
    difference that matters."""

    rivals: tuple[str, ...]
    n_max: int
    margin: float = 0.01
    alpha: float = 0.05
    baseline: str = "standard"
    control: str = "uniform"

    def __post_init__(self) -> None:
        if not self.rivals:
            raise InputError("rivals must be at least one name, and there is none; name a mechanism")
        if len(set(self.rivals)) < len(self.rivals):
            raise InputError(f"rivals must be without repetition, got '{' '.join(self.rivals)}'; name each once")
        for reserved, what in ((self.baseline, "baseline"), (self.control, "control")):
            if reserved in self.rivals:
                raise InputError(
                    f"rivals must be without the {what}, got '{reserved}'; every pilot has it: leave it out"
                )
        if not 0 < self.margin < math.inf:
            raise InputError(
                f"margin must be a number above zero, got {self.margin:g}; name the smallest difference that matters"
            )
        if not 0 < self.alpha < 0.5:
            raise InputError(
                f"alpha must lie between 0 and 0.5, got {self.alpha:g}; it is an error rate: 0.05, not 0.95"
            )
        if self.n_max < 2:
            raise InputError(f"a pilot must have at least 2 pairs of seeds, got {self.n_max}; one has no interval")
        object.__setattr__(self, "rivals", tuple(sorted(self.rivals)))

    @property
    def arms(self) -> tuple[str, ...]:
        """All mechanisms. The control comes early, because it decides whether the other runs can show anything."""
        return (self.baseline, self.control, *self.rivals)

    @property
    def rival_level(self) -> float:
        """The simultaneous confidence of a rival's interval over all looks."""
        return 1 - self.alpha / len(self.rivals)

    @property
    def duel_level(self) -> float:
        """The simultaneous confidence of the interval between two rivals over all looks."""
        return 1 - self.alpha / math.comb(len(self.rivals), 2)

    def judge(self, losses: Losses, failed: frozenset[str] = frozenset()) -> Judgement:
        rivals = tuple(self._compare(rival, self.baseline, losses, failed, len(self.rivals)) for rival in self.rivals)
        better = [finding.of for finding in rivals if finding.outcome == "better"]
        n_pairs = math.comb(len(self.rivals), 2)
        duels = tuple(self._compare(of, against, losses, failed, n_pairs) for of, against in combinations(better, 2))
        gap = self._gap(losses)
        needed = self._seeds_needed(rivals, duels, gap)
        wanted = tuple(
            (label, seed)
            for seed in range(self.n_max)
            for label in self.arms
            if seed < needed[label] and seed not in losses.get(label, {}) and label not in failed
        )
        over = self.baseline in failed or (self.control in failed and not gap.sensitive) or _hopeless(gap)
        return Judgement(gap, rivals, duels, () if over else wanted)

    def _plan(self, n_comparisons: int) -> Sequential:
        return Sequential(self.alpha / n_comparisons, self.margin, self.n_max)  # (1)

    def _compare(self, of: str, against: str, losses: Losses, failed: frozenset[str], n_comparisons: int) -> Finding:
        """Repeat all looks up to the deciding one, so that further runs never change an earlier answer."""
        pairs = losses.get(of, {}).keys() & losses.get(against, {}).keys()
        differences: list[float] = []
        plan, finding = self._plan(n_comparisons), Finding(of, against, "go on")
        for seed in takewhile(pairs.__contains__, range(self.n_max)):
            differences.append(losses[of][seed] - losses[against][seed])
            decision = plan.look(differences)
            finite = math.isfinite(decision.interval.mean)
            sd = summary(differences).standard_deviation
            finding = Finding(of, against, decision.outcome if finite else "not finite", decision.interval, sd)
            if not finding.open:
                return finding
        if failed & {of, against}:
            return Finding(of, against, "failed", finding.interval, finding.sd)
        return finding

    def _seeds_needed(self, rivals: tuple[Finding, ...], duels: tuple[Finding, ...], gap: ControlGap) -> dict[str, int]:
        needed = {finding.of: self.n_max if finding.open else finding.n for finding in rivals}
        for duel in duels:
            if duel.open:
                needed |= {duel.of: self.n_max, duel.against: self.n_max}
        pairs = 0 if gap.interval is None else gap.interval.n
        of_control = CONTROL_SEEDS if pairs < CONTROL_SEEDS or gap.sensitive else min(MORE_CONTROL_SEEDS, self.n_max)
        against_baseline = (self.n_max if finding.open else finding.n for finding in rivals)
        return needed | {self.baseline: max(of_control, *against_baseline), self.control: of_control}

    def _gap(self, losses: Losses) -> ControlGap:
        """Return the gap of the first two pairs, or of four where two do not show that the control is worse."""
        control, baseline = losses.get(self.control, {}), losses.get(self.baseline, {})
        paired = list(takewhile(lambda seed: seed in control and seed in baseline, range(MORE_CONTROL_SEEDS)))
        few, more = (
            control_gap({seed: control[seed] for seed in paired[:n]}, baseline)
            for n in (CONTROL_SEEDS, MORE_CONTROL_SEEDS)
        )
        return few if few.sensitive else more


def _hopeless(gap: ControlGap) -> bool:
    """Whether further seeds are pointless: the control is not worse or was lost, or all its pairs do not show it."""
    if gap.interval is None:
        return False
    if not math.isfinite(gap.interval.mean):
        return True
    if gap.interval.n < CONTROL_SEEDS:
        return False
    return gap.interval.mean <= 0 or (gap.interval.n >= MORE_CONTROL_SEEDS and gap.sensitive is False)
