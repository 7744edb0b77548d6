"""Compute the power of a paired comparison: the chance that the t test of n pairs shows a true difference.

With standard deviation s of the differences, true difference D and critical value c = t_{n-1}(1 - α/2),

    power = P(|T| > c),   T ~ noncentral t with n - 1 degrees of freedom, centred at D √n / s                (1)

Limits: power is α at D = 0 and tends to 1 as D or n grows. A non-finite spread gives no answer. In this file `level`
is the error rate α, 0.05 and not 0.95.
"""

import math

import numpy as np

from attractor.errors import InputError

POWER = 0.8  # the power that plans aim at


def power_of_pairs(sd: float, difference: float, n: int, level: float = 0.05) -> float | None:
    """Return the probability that n pairs show this true difference; None for one pair, which shows nothing."""
    require_error_rate(level)
    _require_spread(sd)
    if n < 2 or not math.isfinite(sd):
        return None
    return _power(abs(difference) / sd * math.sqrt(n), n, level)


def detectable_with_power(sd: float, n: int, power: float = POWER, level: float = 0.05) -> float | None:
    """Return the true difference that a paired t test of n pairs shows with probability `power`; None for one pair.

    It is larger than the half width of the interval, the smallest measured difference that is shown: 1.4 times as large
    at a power of 0.8 and many pairs.
    """
    require_error_rate(level)
    _require_power(power, level)
    _require_spread(sd)
    if n < 2 or not math.isfinite(sd):
        return None
    near, far = 0.0, 1.0
    while _power(far, n, level) < power:
        near, far = far, 2 * far
    while far - near > 1e-12 * far:  # power grows with the difference; scipy.optimize would take longer to import
        middle = (near + far) / 2
        near, far = (near, middle) if _power(middle, n, level) >= power else (middle, far)
    return far * sd / math.sqrt(n)


def pairs_needed(sd: float, difference: float, power: float = POWER, level: float = 0.05) -> int | None:
    """Return the fewest pairs that show this true difference with probability `power`; None for a non-finite spread."""
    require_error_rate(level)
    _require_power(power, level)
    _require_spread(sd)
    if not 0 < abs(difference) < math.inf:
        raise InputError(f"difference must be a number other than zero: {difference}; name the one that matters")
    if not math.isfinite(sd):
        return None
    from scipy.special import ndtri

    def enough(n: int) -> bool:
        return _power(abs(difference) / sd * math.sqrt(n), n, level) >= power

    normal = (float(ndtri(1 - level / 2) + ndtri(power)) * sd / difference) ** 2  # rather too few pairs
    few = int(normal) if 2 <= normal < 2**40 and not enough(int(normal)) else 1
    many = few + 1
    while not enough(many):
        few, many = many, 3 * many - 2 * few
    while many - few > 1:  # power grows with n
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many


def require_error_rate(level: float) -> None:
    if not 0 < level < 0.5:
        raise InputError(f"level must lie between 0 and 0.5: {level}; it is an error rate here: 0.05, not 0.95")


def _power(centre: float, n: int, level: float) -> float:
    from scipy.special import ncfdtr, stdtrit

    critical = stdtrit(n - 1, 1 - level / 2)
    # (1) by way of T², which is noncentral F: scipy's noncentral t is NaN in the far tail.
    power = float(1 - ncfdtr(1, n - 1, centre**2, critical**2))
    return power if math.isfinite(power) else _power_by_quadrature(centre, n, critical)


def _power_by_quadrature(centre: float, n: int, critical: float) -> float:
    """Return (1) as a mean over quantiles of the estimated deviation, for places at which scipy's series gives NaN."""
    from scipy.special import chdtri, ndtr

    shares = (np.arange(4096) + 0.5) / 4096
    deviations = critical * np.sqrt(chdtri(n - 1, shares) / (n - 1))
    return float((ndtr(centre - deviations) + ndtr(-centre - deviations)).mean())


def _require_power(power: float, level: float) -> None:
    if not level < power < 1:
        raise InputError(f"power must lie between level ({level}) and 1: {power}; 0.8 is usual")


def _require_spread(sd: float) -> None:
    if sd <= 0:
        raise InputError(f"sd must be above zero: {sd}; take the standard deviation of differences that do differ")
