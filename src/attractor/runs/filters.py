"""Filter runs by conditions, written as `attention=gated lr>1e-3`; all conditions must hold.

A condition is a field, one of = != < <= > >= ~, and a value; `~` tests whether the text contains the value. A field is
a dotted name of the configuration, its last part if unambiguous, or a result such as state, steps, tokens or loss. A
value may have several words, as in `label=ItrSA spectral lr>1e-3`: a word without a sign belongs to the one before.
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attractor.errors import InputError, unknown

SPACED = re.compile(r"^\s|(^|\s)[=<>!~]")  # in a value: a space beside a sign, or a second sign
CONDITION = re.compile(r"^(?P<field>[\w.-]+?)(?P<sign><=|>=|!=|=|<|>|~)(?P<value>.*)$")
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda value, part: str(part).lower() in str(value).lower(),
}
ORDERED = ("<", "<=", ">", ">=")


@dataclass(frozen=True)
class Condition:
    field: str
    sign: str
    value: str

    def holds(self, fields: dict[str, Any]) -> bool:
        """Compare numbers as numbers and everything else as text. A run without the field fails."""
        if self.field not in fields:
            return False
        stored = fields[self.field]
        number = _number(self.value)
        if number is not None and _is_number(stored) and self.sign != "~":
            return SIGNS[self.sign](stored, number)
        if self.sign in ORDERED:
            return False  # texts have no order that a reader would expect
        return SIGNS[self.sign](_text(stored), self.value)


def conditions(where: Sequence[str], known: Iterable[str]) -> tuple[Condition, ...]:
    """Parse the conditions of a command line; `known` names the fields that runs have."""
    names = sorted(set(known))
    parsed = []
    for word in _words(" ".join(where)):
        match = CONDITION.match(word)
        if match is None or not match["value"]:
            raise InputError(
                f"where must hold conditions as lr>1e-3, with one of {' '.join(SIGNS)}, got '{word}'; "
                'write them in quotes, as --where "attention=gated lr>1e-3"'
            )
        if SPACED.search(match["value"]):
            raise InputError(
                "where must have no space beside a sign, and one sign in each condition, "
                f"got '{word}'; write it as lr>1e-3"
            )
        if match["sign"] in ORDERED and _number(match["value"]) is None:
            raise InputError(
                f"where must compare '{match['field']}' with a number, got '{match['value']}'; write {match['field']}"
                f"{match['sign']}0.5, or use = or ~ for a text"
            )
        parsed.append(Condition(full_name(match["field"], names), match["sign"], match["value"]))
    return tuple(parsed)


def _words(text: str) -> list[str]:
    words: list[str] = []
    for word in text.split():
        if words and CONDITION.match(word) is None:
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def full_name(field: str, known: Sequence[str]) -> str:
    """Return the dotted name that a name or its last part stands for."""
    if field in known:
        return field
    ending = [name for name in known if name.endswith(f".{field}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise InputError(f"where must name one field, and '{field}' is several: {', '.join(ending)}; write one of them")
    raise unknown("field", field, {*known, *(name.rpartition(".")[2] for name in known)})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _text(value: Any) -> str:
    """Return a stored value as a person writes it."""
    words = {True: "true", False: "false", None: "none"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
