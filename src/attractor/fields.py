"""Fields of configurations: how they are stored, and how they are printed.

A stored configuration did not always have all of its fields. At its default a later field is not stored: so what was
stored before it, and the hash that names a run, stay as they were.
"""

from dataclasses import MISSING, Field, field, fields
from typing import Any


def later(default: Any) -> Any:
    """A field of a dataclass that is stored only where it is not at this default."""
    return field(default=default, metadata={"later": True})


def stored_fields(config: Any) -> dict[str, Any]:
    return {
        f.name: getattr(config, f.name)
        for f in fields(config)
        if not f.metadata.get("later") or getattr(config, f.name) != f.default
    }


class PrintsChanges:
    """A dataclass whose repr names only the fields that are not at their defaults, and evaluates to an equal object."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.__repr__ = _with_changed_fields  # type: ignore[method-assign]  # `dataclass` leaves a class's own repr alone


def _with_changed_fields(config: Any) -> str:
    values = {f.name: getattr(config, f.name) for f in fields(config) if getattr(config, f.name) != _default(f)}
    return f"{type(config).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def _default(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()
