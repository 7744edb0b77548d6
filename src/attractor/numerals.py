"""Format numbers for people to read, and read times that people write."""

import re

from attractor.errors import InputError

PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def with_prefix(value: float) -> str:
    """Return three digits and a prefix: `1.23M`, `45.1k`, `870`, `181P`."""
    for size, sign in PREFIXES:
        if value >= size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{sign}"
    return f"{value:.0f}"


def in_bytes(value: int) -> str:
    """Return one digit after the point and a unit: `1.2 GB`; below that, whole megabytes: `870 MB`."""
    exponent, unit = next(((size, sign) for size, sign in PREFIXES if 1e9 <= size <= value), (1e6, "M"))
    return f"{value / exponent:.{0 if unit == 'M' else 1}f} {unit}B"


def in_time(seconds: float) -> str:
    """Return two digits and a unit: `45 ms`, `4.5 s`, `12 min`, `3.4 h`, `5.1 days`."""
    for size, sign in ((86_400, "days"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size:
            return f"{seconds / size:.{1 if seconds < 10 * size else 0}f} {sign}"
    return f"{1e3 * seconds:.{1 if seconds < 0.01 else 0}f} ms"


def seconds_of(text: str, field: str = "budget") -> float:
    """Convert a time such as `90s`, `10m`, `2h` or `1h30m` to seconds."""
    if not re.fullmatch(r"(\d+(\.\d+)?[smh])+", text):
        raise InputError(f"{field} must be a time with its unit, got '{text}'; give 90s, 10m or 2h")
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)([smh])", text))
