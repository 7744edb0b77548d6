"""The keys of all recorded runs stay as they are, whatever moves.

A key is a hash of a run's configuration. `--from-record` and the pool of runs find a run by its key, so a field that
changes its name or its default would make every stored run unfindable. `run_keys.json` has, by record and cell, the key
of each run as it is computed from the stored configuration. `PYTHONPATH=. python tests/test_run_keys.py` writes it anew
once a record has been added. Few of these keys differ from those in the records. Penalties at their default weight, and
orthogonal outputs, changed. The three comparisons on their own corpora name their folders. The rows with four streams
were trained before their formula changed. In GLUE each seed starts from other weights, and in the study of the scale
`bench` one seed was trained by an earlier configuration.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attractor.runs.configuration import config_hash
from attractor.runs.study_record import Cell, StudyRecord
from attractor.tasks import Task
from attractor.train.config import TrainConfig
from papers.coupled_qk import glue

ROOT = Path(__file__).parents[1]
assert glue.Glue.kind == "glue"  # the task of a record, which its module makes known
KEYS = Path(__file__).parent / "run_keys.json"


def identity_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return what determines the key of a run with this stored configuration, whose data need not be here."""
    config = TrainConfig.from_dict({name: value for name, value in stored.items() if name not in ("kind", "start")})
    if "kind" in stored:  # measurements of cost have no data
        return config.to_dict() | {"kind": stored["kind"]}
    identity = config.identity(cast(Task, SimpleNamespace(fingerprint=stored["data"])))
    del identity["start"]
    return identity | {name: stored[name] for name in ("start_weights",) if name in stored}


def keys_of(cell: Cell) -> str:
    identity = identity_of(cell.config)
    return " ".join(config_hash(identity | {"seed": outcome.seed}) for outcome in cell.outcomes)


def records() -> dict[str, StudyRecord]:
    paths = [*(ROOT / "results").glob("compare-*.json"), *ROOT.glob("papers/*/results/study-*.json")]
    return {
        path.stem: StudyRecord.from_dict(json.loads(path.read_text()))
        for path in sorted(paths, key=lambda path: path.name)
    }


def computed_keys() -> dict[str, list[str]]:
    return {name: [keys_of(cell) for cell in record.cells if cell.outcomes] for name, record in records().items()}


@pytest.mark.slow
def test_recorded_configurations_have_the_keys_they_always_had() -> None:
    assert computed_keys() == json.loads(KEYS.read_text())


def test_nearly_all_of_these_keys_are_those_under_which_the_runs_were_stored() -> None:
    stored = [outcome.key for record in records().values() for outcome in record.outcomes]
    computed = " ".join(keys for cells in json.loads(KEYS.read_text()).values() for keys in cells).split()
    assert len(stored) > 2000
    assert sum(a != b for a, b in zip(stored, computed, strict=True)) == 68


if __name__ == "__main__":
    KEYS.write_text(json.dumps(computed_keys(), indent=1) + "\n")
