"""Store and print configurations field by field.

A field that was added after configurations had been stored is left out where it has its default. So older stored
configurations, and the hashes that name their runs, stay valid.
"""

from dataclasses import MISSING, Field, field, fields
from numbers import Integral, Real
from typing import Any

from attractor.errors import require


def later(default: Any) -> Any:
    """Return a dataclass field that is stored only where it differs from this default."""
    return field(default=default, metadata={"later": True})


def stored_fields(config: Any) -> dict[str, Any]:
    return {
        f.name: getattr(config, f.name)
        for f in fields(config)
        if not f.metadata.get("later") or getattr(config, f.name) != f.default
    }


TYPES = {  # annotations, the values they accept, and the rule that an error states
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "text"),
}


def require_types(config: Any) -> None:
    """Refuse values of another type than that of their field, if that type is in `TYPES`, alone or with None.

    Numbers of numpy become Python's. In Python a bool is a number, too, but a field of numbers that holds one is most
    likely a mistake."""
    for f in fields(config):
        value = getattr(config, f.name)
        accepted = {kind: TYPES[kind] for kind in TYPES if f.type in (kind, kind | None)}
        for kind, (accepts, rule) in accepted.items():
            is_optional = f.type != kind
            fits = isinstance(value, accepts) and isinstance(value, bool) == (kind is bool)
            require(fits or (is_optional and value is None), f.name, rule + (", or None" if is_optional else ""), value)
            if kind in (int, float) and value is not None and type(value) not in (int, float):  # JSON knows no other
                object.__setattr__(config, f.name, kind(value))


class PrintsChanges:
    """Give a dataclass a repr of the fields that differ from their defaults; the repr evaluates to an equal object."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.__repr__ = _with_changed_fields  # type: ignore[method-assign]  # `dataclass` leaves a class's own repr alone


def _with_changed_fields(config: Any) -> str:
    values = {f.name: getattr(config, f.name) for f in fields(config) if getattr(config, f.name) != _default(f)}
    return f"{type(config).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def _default(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()
