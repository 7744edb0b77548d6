"""Treat configurations as data: hash them, name nested presets, and list the fields that differ."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from attractor.files import plain


def config_hash(config: Mapping[str, Any]) -> str:
    """Return a short hash of a configuration, which does not depend on the order of its fields."""
    canonical = json.dumps(plain(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def dotted_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a configuration by dotted name: `{"model": {"d_ff": 8}}` gives `{"model.d_ff": 8}`."""

    leaves: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for name, item in value.items():
                add(f"{prefix}.{name}" if prefix else str(name), item)
        else:
            leaves[prefix] = value

    if config:
        add("", config)
    return leaves


Presets = Mapping[str, Mapping[str, Any]]  # mechanisms as data, by name


def named(config: Any, presets: Presets) -> Any:
    """Return the configuration with every nested value that has the fields of a preset replaced by a name.

    The name is the nearest preset, followed by the fields that differ from it, as `euler, n_steps=3`. So a row that
    names a preset and a row that spells out a changed preset differ in one field. A field that is missing
    below the first level counts as equal to the preset's, because older configurations have fewer fields.
    """
    if not isinstance(config, dict):
        return config
    if not any(len(config) == len(preset) and config.keys() == preset.keys() for preset in presets.values()):
        return {name: named(value, presets) if isinstance(value, dict) else value for name, value in config.items()}
    fields = dotted_fields(plain(config))
    departures = {}
    for name, preset in presets.items():
        known = dotted_fields(plain(preset))
        departures[name] = [f"{f}={value}" for f, value in fields.items() if f not in known or known[f] != value]
    nearest = min(departures, key=lambda name: len(departures[name]))
    return ", ".join([nearest, *departures[nearest]])


def config_differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the fields in which the labelled configurations differ, with the values by label.

    A configuration that lacks a field is left out of that field's values, because absent is not the same as null.
    """
    flat = {label: dotted_fields(config) for label, config in configs.items()}
    names = dict.fromkeys(name for fields in flat.values() for name in fields)
    values = {name: {label: fields[name] for label, fields in flat.items() if name in fields} for name in names}
    return {name: by_label for name, by_label in values.items() if not _agree(by_label, len(flat))}


def _agree(by_label: Mapping[str, Any], n_labels: int) -> bool:
    first, *others = by_label.values()
    return len(by_label) == n_labels and all(other == first for other in others)
