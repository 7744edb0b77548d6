"""What a run tells whoever watches: a contract, and the silence that a run among many keeps."""

from typing import Any, Protocol


class Display(Protocol):
    def start(self) -> None:
        """The run belongs to this process from here on: what an earlier one left may be cleared away."""

    def begin(self, facts: dict[str, Any], first_step: int, n_steps: int) -> None:
        """The run is about to start, or to continue from `first_step`."""

    def step(self, record: dict[str, Any]) -> None:
        """A training step was taken; the record may hold loss, lr, grad_norm, tokens_per_second, memory, mfu."""

    def taken(self, n_steps: int) -> None:
        """So many steps have been taken; unlike `step`, this is called at each of them."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """A validation was made."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def end(self) -> None: ...


class Silent:
    def start(self) -> None: ...

    def begin(self, facts: dict[str, Any], first_step: int, n_steps: int) -> None: ...

    def step(self, record: dict[str, Any]) -> None: ...

    def taken(self, n_steps: int) -> None: ...

    def evaluated(self, record: dict[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...
