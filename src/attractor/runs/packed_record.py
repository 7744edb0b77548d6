"""Pack a study's record for storage: what the runs of a cell have in common is written once.

Runs of one cell differ by their seed alone, so most names and many values of theirs are the same. The cell's `shared`
holds every name that all its runs have, with the value that they share or with `{"_each": [a value for every run]}`.
Each run keeps the names that not all have. Packing moves these behind the others, and changes nothing else.

A series, which is a list of pairs of a growing step and a value, becomes `{"_at": [steps], "_values": [values]}`, since
runs measured at the same steps share the first list. A run's own names that begin with an underscore get another one.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

FORMAT = 2
AT, VALUES, EACH = "_at", "_values", "_each"


def packed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the packed form of a record (`StudyRecord.to_dict`) that consists of JSON's types."""
    cells = []
    for cell in record["cells"]:
        runs = [_in_two_lists(run) for run in cell["outcomes"]]
        shared = _shared_by(runs) if len(runs) > 1 else {}
        cells.append({**cell, "shared": shared, "outcomes": [_without(run, shared) for run in runs]})
    return {**record, "format": FORMAT, "cells": cells}


def unpacked(record: Mapping[str, Any]) -> dict[str, Any]:
    cells = []
    for cell in record["cells"]:
        runs = enumerate(cell["outcomes"])
        cells.append({**cell, "outcomes": [_in_pairs(_joined(cell["shared"], run, place)) for place, run in runs]})
    return {**record, "cells": cells}


def _shared_by(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = runs
    return {name: _common([run[name] for run in runs]) for name in first if all(name in run for run in others)}


def _common(values: Sequence[Any]) -> Any:
    texts = {json.dumps(value) for value in values}  # 1, 1.0 and true would be equal to Python
    if len(texts) == 1:
        return values[0]
    return _shared_by(values) if all(isinstance(value, dict) for value in values) else {EACH: values}


def _without(run: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in run.items() if name not in shared}
    for name, common in shared.items():
        if isinstance(run[name], dict) and common.keys() != {EACH} and (rest := _without(run[name], common)):
            kept[name] = rest
    return kept


def _joined(shared: Any, run: Any, place: int) -> Any:
    """Return what the run at this place among those of its cell was before it was packed."""
    if not isinstance(shared, dict):
        return shared
    if shared.keys() == {EACH}:
        return shared[EACH][place]
    joined = {name: _joined(common, run.get(name, {}), place) for name, common in shared.items()}
    return joined | {name: value for name, value in run.items() if name not in shared}


def _in_two_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {f"_{name}" if name.startswith("_") else name: _in_two_lists(item) for name, item in value.items()}
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return value
    steps = [step for step, _ in value]
    grow = all(type(step) is int for step in steps) and all(a < b for a, b in pairwise(steps))
    return {AT: steps, VALUES: [item for _, item in value]} if steps and grow else value


def _in_pairs(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {AT, VALUES}:
        return [[step, item] for step, item in zip(value[AT], value[VALUES], strict=True)]
    return {name[1:] if name.startswith("_") else name: _in_pairs(item) for name, item in value.items()}
