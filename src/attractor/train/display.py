"""The interface through which a run reports its progress; the base class reports nothing."""

from typing import Any


class Display:
    def start(self) -> None:
        """This process has taken over the run, and may remove messages that an earlier process left."""

    def begin(self, facts: dict[str, Any], first_step: int, n_steps: int) -> None:
        """The run is about to start, or to continue from `first_step`."""

    def step(self, record: dict[str, Any]) -> None:
        """A training step was taken; the record may hold loss, lr, grad_norm, tokens_per_second, memory, mfu."""

    def taken(self, n_steps: int) -> None:
        """`n_steps` steps have been taken; unlike `step`, this is called at each of them."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """A validation was made."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def end(self) -> None:
        """The run has ended, or stopped."""
