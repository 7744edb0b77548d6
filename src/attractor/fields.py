"""Fields that a stored configuration did not always have.

At its default such a field is not stored: so what was stored before it, and the hash that names a run, stay as they
were.
"""

from dataclasses import field, fields
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
