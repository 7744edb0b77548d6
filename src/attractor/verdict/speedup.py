"""Compute the effective speedup of a row: how many times faster it reaches a loss than the baseline does.

A ladder is the baseline, trained with complete schedules at several budgets C (tokens, steps or FLOPs), in units of the
row's budget: usually 1/2, 1 and 2, with several seeds each. With the mean losses L(C) of the ladder, the mean loss
L_row of the row and its throughput r in units of the baseline's,

    b = -Σ (x - x̄) L(C) / Σ (x - x̄)²,   x = ln C, summed over the budgets                                  (1)
    ln s = D / b + ln r,   D = L(1) - L_row                                                                 (2)

where b = -dL / d ln C is the slope of the ladder. The interval is Fieller's: all θ = ln s - ln r that satisfy

    (D - θ b)² <= t² (v_DD - 2 θ v_Db + θ² v_bb + b² v_r)                                                   (3)

with the variances and the covariance v of D, b and mean ln r, and the t quantile. Both D and b contain the baseline, so
v_Db matters. Where at least four seeds are common to all budgets and the row, D and b are computed for each seed, and v
comes from these pairs: then (3) is exact for normal losses. Otherwise all groups count as independent. The degrees of
freedom are Satterthwaite's, at the estimate.

Limits. The slope stands for the whole ladder, so that a curved ladder biases large speedups by a few percent. Nothing
is extrapolated: beyond the shortest and the longest budget there is a bound and no number. Losses must be those at the
end of complete schedules: crossings of curves whose learning rate has not decayed yet say nothing about speed. Below
four seeds there is no interval.

E. C. Fieller, "Some problems in interval estimation", Journal of the Royal Statistical Society B 16, 1954.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attractor.errors import require
from attractor.verdict.intervals import require_confidence

FEWEST_SEEDS = 4
Losses = Sequence[float] | Mapping[Any, float]  # by seed, where runs have seeds


@dataclass(frozen=True)
class Speedup:
    """How many times faster a row reaches its loss than the baseline. Below 1 it is slower.

    `value` is None where the ladder allows no number, and `low` and `high` are None where there is no interval. The
    interval is open, with `low` 0 or `high` infinite, where it leaves the ladder.
    """

    value: float | None
    low: float | None
    high: float | None
    reason: str  # one or two sentences
    slope: float | None  # b of (1): the loss that the baseline gains with e times its budget
    n: int  # seeds: those in common where `paired`, otherwise those of the smallest group
    paired: bool
    level: float

    @property
    def numbers(self) -> str:
        """The speedup with its interval."""
        value = "unknown" if self.value is None else f"{self.value:.3g}x"
        return value + ("" if self.low is None or self.high is None else f" [{self.low:.3g}, {self.high:.3g}]")


def effective_speedup(
    ladder: Mapping[float, Losses],
    row: Losses,
    throughput_ratios: float | Sequence[float] = 1.0,
    level: float = 0.95,
) -> Speedup:
    """Return the effective speedup of a row against a ladder of the baseline.

    `ladder` has the baseline's final losses for each budget in units of the row's. `throughput_ratios` are repeated
    measurements of the row's tokens per second over the baseline's; a single one counts as exact.
    """
    budgets = sorted(ladder)
    known = bool(budgets) and 0 < budgets[0] < 1 < budgets[-1] < math.inf and 1 in budgets
    require(known, "ladder", "losses for budget 1, a shorter and a longer one", budgets, "as for budgets 0.5, 1 and 2")
    groups = [*(ladder[budget] for budget in budgets), row]
    n_losses = [len(group) for group in groups]
    require(all(n_losses), "losses", "at least one for each budget and the row", n_losses)
    ratios = np.atleast_1d(np.asarray(throughput_ratios, dtype=float))
    usable = ratios.size > 0 and bool(((ratios > 0) & (ratios < math.inf)).all())
    require(usable, "throughput_ratios", "finite numbers above zero", throughput_ratios)
    require_confidence(level)
    if not all(math.isfinite(loss) for group in groups for loss in _in_order(group)):
        return Speedup(None, None, None, "a run diverged, so its loss has no mean", None, min(n_losses), False, level)

    x = np.log(budgets)
    weights = np.zeros((2, len(groups)))  # (D, b) = weights @ mean losses
    weights[0, budgets.index(1)], weights[0, -1] = 1, -1  # (2)
    weights[1, :-1] = -(x - x.mean()) / np.square(x - x.mean()).sum()  # (1)
    samples, paired = _samples(groups, weights)
    n = min(sample.shape[1] for sample in samples)
    gain, slope = (float(part) for part in sum(sample.mean(axis=1) for sample in samples))
    log_ratios = np.log(ratios)
    ratio = float(np.exp(log_ratios.mean()))
    if slope <= 0:
        return Speedup(None, None, None, "the baseline's loss does not fall with its budget", slope, n, paired, level)
    theta = gain / slope
    if inside := x[0] <= theta <= x[-1]:
        reason = f"the row's loss is that of the baseline after {math.exp(theta):.3g} budgets"
        reason += f", and its throughput is {ratio:.3g} times the baseline's"
    else:
        end, side, bound = ("longest", "above", budgets[-1]) if theta > 0 else ("shortest", "below", budgets[0])
        reason = f"the row lies beyond the {end} budget of the ladder: its speedup is {side} about {bound * ratio:.3g}"
    value = math.exp(theta) * ratio if inside else None
    if n < FEWEST_SEEDS:
        return Speedup(value, None, None, f"{reason}; an interval needs {FEWEST_SEEDS} seeds", slope, n, paired, level)
    low, high, of_throughput = _fieller(samples, gain, slope, log_ratios, level)
    if low == -math.inf:
        reason += "; the slope of the ladder cannot be told from zero, so the interval is unbounded"
    elif inside and (low < x[0] or high > x[-1]):
        reason += "; the interval is open where it leaves the ladder"
    low = -math.inf if low < x[0] else min(low, x[-1] - of_throughput)
    high = math.inf if high > x[-1] else max(high, x[0] + of_throughput)
    return Speedup(value, math.exp(low) * ratio, math.exp(high) * ratio, reason, slope, n, paired, level)


def _samples(groups: Sequence[Losses], weights: np.ndarray) -> tuple[list[np.ndarray], bool]:
    """Return independent samples of (D, b), whose means add up to the estimates, and whether seeds are paired."""
    by_seed = [group for group in groups if isinstance(group, Mapping)]
    common = [seed for seed in by_seed[0] if all(seed in group for group in by_seed)] if by_seed else []
    if len(by_seed) == len(groups) and len(common) >= FEWEST_SEEDS:
        return [weights @ np.array([[group[seed] for seed in common] for group in by_seed], dtype=float)], True
    return [np.outer(weights[:, i], _in_order(group)) for i, group in enumerate(groups)], False


def _in_order(losses: Losses) -> Sequence[float]:
    return list(losses.values()) if isinstance(losses, Mapping) else losses


def _fieller(
    samples: Sequence[np.ndarray], gain: float, slope: float, log_ratios: np.ndarray, level: float
) -> tuple[float, float, float]:
    """Return both ends of (3), which are infinite where it is unbounded, and the half width that is throughput's."""
    from scipy.special import stdtrit  # the t quantile; scipy.stats would take a second to import

    covariances = [np.cov(sample) / sample.shape[1] for sample in samples]
    degrees = [sample.shape[1] - 1 for sample in samples]
    v_r = 0.0
    if len(log_ratios) > 1:
        v_r = float(log_ratios.var(ddof=1)) / len(log_ratios)
        covariances.append(np.array([[slope**2 * v_r, 0.0], [0.0, 0.0]]))
        degrees.append(len(log_ratios) - 1)
    direction = np.array([1.0, -gain / slope])
    parts = np.array([direction @ covariance @ direction for covariance in covariances])
    freedom = parts.sum() ** 2 / (parts**2 / degrees).sum() if parts.any() else min(degrees)  # Satterthwaite
    t = float(stdtrit(freedom, (1 + level) / 2))
    (v_dd, v_db), (_, v_bb) = t**2 * sum(covariances)
    if (square := slope**2 - v_bb) <= 0:
        return -math.inf, math.inf, 0.0
    middle = (gain * slope - v_db) / square
    half_width = math.sqrt(max(0.0, middle**2 - (gain**2 - v_dd) / square))
    return middle - half_width, middle + half_width, t * math.sqrt(v_r)
