"""Errors for users: one line that names the field, the rule, the value and the next step."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Something a user gave cannot be used. The command line prints it as one line and exits with code 2."""


def unknown(kind: str, name: object, known: Iterable[str], see: str = "") -> InputError:
    """The error for a name that is not in a table: offers the nearest one, and where to see them all."""
    names = sorted(known)
    # A part of a name finds it, too: 'eular' means 'coupled-euler', not 'mla'.
    parts = {part: known_name for known_name in reversed(names) for part in known_name.split("-")}
    parts |= {known_name: known_name for known_name in names}
    near = get_close_matches(str(name), parts, n=1, cutoff=0.5)
    guess = f"; did you mean '{parts[near[0]]}'?" if near else f"; known: {', '.join(names)}"
    return InputError(f"unknown {kind} '{name}'{guess}" + (f" ({see})" if see else ""))


class RunStopped(RuntimeError):  # noqa: N818
    """A run ended before its last step and lost nothing. The command line prints it and exits with `exit_code`."""

    exit_code = 1


class RunInterrupted(RunStopped):
    """Someone asked the run to stop: it saved a checkpoint first."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number  # as a shell reports a process that a signal ended
