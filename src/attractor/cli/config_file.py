"""Settings in a file, as `--config FILE` names it.

NAME = VALUE        TOML: options by name, as they would stand on the line
[model] ...         TOML or JSON: the whole configuration of a run, as its config.json stores it
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attractor.errors import InputError, require
from attractor.files import from_json, read_regular

READERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": from_json}
LARGEST = 2**24  # bytes of a file of settings
WHOLE = "model"  # a table that only whole configurations have


def settings_in(path: Path) -> dict[str, Any]:
    """Return the values in a file of settings, whose names are written with underscores or dashes."""
    if path.suffix not in READERS:
        step = "write NAME = VALUE for each option into a file that ends in .toml"
        step = f"give '{path / 'config.json'}'" if path.is_dir() else step
        raise InputError(f"config must be a .toml file or a run's config.json, got '{path}'; {step}")
    content = read_regular(path, LARGEST)
    try:
        values = READERS[path.suffix](content.decode())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"config '{path}' must hold {path.suffix[1:].upper()}: {reason}; mend that place") from error
    if not isinstance(values, dict) or (path.suffix == ".json" and WHOLE not in values):
        raise InputError(f"config '{path}' must hold the configuration of a run; options by name go into a .toml file")
    return {name.replace("-", "_"): value for name, value in values.items()}


def as_words(values: Mapping[str, Any], kinds: Mapping[str, str]) -> list[str]:
    """Return options as the words of a command line. Kinds are those that the help shows, as FLOAT FLOAT."""
    words = []
    for name, value in values.items():
        if name not in kinds:
            raise InputError(f"{name} must be left out of a file, since it is no setting of a run; give --{name} here")
        if kinds[name] == "NAME" and "." in str(value).partition(":")[0]:
            step = f"give --{name.replace('_', '-')} here"
            raise InputError(f"{name} must be left out of a file where it names code, got {value!r}; {step}")
        if kinds[name] == "FLAG":
            require(isinstance(value, bool), name, "true or false", value, f"write {name} = true")
            words.append(f"--{'' if value else 'no-'}{name}")
            continue
        several, listed = " " in kinds[name], value if isinstance(value, list) else [value]
        is_open = kinds[name].endswith("...")  # for any number of values, also a single one
        if (several != isinstance(value, list) and not is_open) or any(
            isinstance(part, dict | list) for part in listed
        ):
            rule = "a list of values" if several else "one value"
            raise InputError(f"{name} must be {rule}, got {value!r}; write {name} = {'[...]' if several else 'VALUE'}")
        words += [f"--{name}", *map(str, listed)] if several else [f"--{name}={value}"]
    return words
