"""Errors for users: one line that names the field, the rule, the value and the next step."""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral
from types import ModuleType
from typing import Any


class InputError(ValueError):
    """Something a user gave cannot be used. The command line prints it as one line and exits with code 2."""


class NotInstalledError(InputError, ImportError):
    """A package that is needed is not installed. `except ImportError` catches it, as for any missing package."""


class WritingError(InputError):
    """A file of a run could not be written, as on a full disk. What was written before is intact."""


class DamageWarning(UserWarning):
    """Something is damaged or cannot be read, and the rest is used. The command line prints the message as one line."""


class LeftOutWarning(DamageWarning):
    """A damaged run or study was left out of a result. A command that ends with such a result ends with exit code 1."""


def require(condition: bool, field: str, rule: str, value: object, next_step: str = "") -> None:
    """Raise an InputError of one line (field, rule, value, next step) unless the condition holds."""
    if not condition:
        raise InputError(f"{field} must be {rule}, got {value!r}" + (f"; {next_step}" if next_step else ""))


def require_count(field: str, value: object, least: int = 1, next_step: str = "") -> None:
    fits = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
    require(fits, field, f"an integer of at least {least}", value, next_step)


def not_installed(package: str, extra: str, use: str = "this", instead: str = "") -> NotInstalledError:
    """Return the error for an optional package that is missing: which extra of attractor installs it, and how.

    attractor is not on PyPI, so its clone must be named."""
    install = f"run in a clone of attractor: pip install -e '.[{extra}]'"
    message = f"package '{package}' must be installed for {use}; {install}"
    return NotInstalledError(message + (f", or {instead}" if instead else ""))


def require_package(package: str, extra: str = "text", use: str = "this", instead: str = "") -> ModuleType:
    """Import a package or a module of one, or raise an error that says which extra of attractor installs it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise not_installed(package.partition(".")[0], extra, use, instead) from error


def part_not_installed(error: BaseException, extra: str, use: str) -> NotInstalledError | None:
    """Return the error for what models and training need and could not import, or None for any other error."""
    package = error.name if isinstance(error, ModuleNotFoundError) else None
    return not_installed(package, extra, use) if package in ("torch", "jaxtyping", "safetensors") else None


def require_seed(seed: int) -> None:
    fits = isinstance(seed, Integral) and not isinstance(seed, bool) and 0 <= seed < 2**63
    require(fits, "seed", "an integer of at least 0 and below 2**63", seed)


NEAR = 0.65  # similarity above which a known name is suggested: it admits typing errors, but no other words


def unknown(kind: str, name: object, known: Iterable[str], see: str = "") -> InputError:
    """Return the error for a name that is not in a table: it suggests a name that is near, or lists all names."""
    names = sorted(set(known))
    near = nearest(str(name), names)
    guess = f"; did you mean '{near}'?" if near else f"; known: {', '.join(names) or 'none'}"
    return InputError(f"unknown {kind} '{name}'{guess}" + (f" ({see})" if see else ""))


def require_known(kind: str, name: object, known: Collection[Any], see: str = "") -> None:
    """Refuse a name that is not in a table."""
    if name not in known:
        raise unknown(kind, name, known, see)


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the known name that was probably meant, or None where no name is near enough.

    A part of a name finds that name, too: 'eular' means 'coupled-euler', not 'mla'. So does its beginning: 'diff'.
    """
    parts = {part: known_name for known_name in reversed(names) for part in known_name.split("-")}
    parts |= {known_name: known_name for known_name in names}
    alike = get_close_matches(name, parts, n=1, cutoff=NEAR)
    begun = [known_name for known_name in names if len(name) >= 3 and known_name.startswith(name)]
    return parts[alike[0]] if alike else begun[0] if begun else None


class RunStopped(RuntimeError):  # noqa: N818
    """A run ended before its last step and lost nothing. The command line prints it and exits with `exit_code`."""

    exit_code = 1


class RankLostError(RunStopped):
    """Another process of the run failed, is gone or is stuck. Every process that notices it prints the message."""


class RunInterrupted(RunStopped):
    """Someone asked the run to stop: it saved a checkpoint first."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number  # as a shell reports a process that a signal ended
