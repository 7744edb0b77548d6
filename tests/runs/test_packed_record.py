"""The packed form of a record loses nothing, whatever runs have in common, and is small where they are alike."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor.files.seals import sealed
from attractor.runs.packed_record import FORMAT, packed, unpacked
from attractor.runs.study_record import StudyRecord, read_record
from invented_records import losses, record

NAMES = st.sampled_from(["a", "b", "_at", "_values", "_each", "__each"])  # some of them those of the packed form
STEPS = st.lists(st.integers(0, 3), max_size=3)  # growing, equal or falling
NUMBERS = st.none() | st.booleans() | st.integers(0, 1) | st.sampled_from([0.0, 0.5, 1.0])
VALUES = st.recursive(
    NUMBERS | st.sampled_from(["", "x"]) | STEPS.map(lambda steps: [[step, 0.5 * step] for step in steps]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
RUNS = st.lists(st.dictionaries(NAMES, VALUES), max_size=4)


def text(value: Any) -> str:
    """Return JSON, in which true, 1 and 1.0 differ, without the order of names."""
    return json.dumps(value, sort_keys=True)


@given(st.lists(RUNS, max_size=2))
def test_a_packed_record_has_every_value_and_its_text_is_the_same_after_reading(cells: list[list[dict]]) -> None:
    whole = {"cells": [{"row": "a", "outcomes": runs} for runs in cells]}
    stored = packed(whole)
    again = unpacked(json.loads(json.dumps(stored)))
    assert text([cell["outcomes"] for cell in again["cells"]]) == text(cells)
    kept = [{name: cell[name] for name in ("row", "outcomes")} for cell in again["cells"]]
    assert json.dumps(packed(again | {"cells": kept})) == json.dumps(stored)


def test_names_that_all_runs_have_keep_their_order() -> None:
    runs = [{"z": seed, "same": 1, "m": {"y": seed, "b": 2, "a": seed}} for seed in range(3)]
    (cell,) = unpacked(packed({"cells": [{"outcomes": runs}]}))["cells"]
    assert json.dumps(cell["outcomes"]) == json.dumps(runs)


def test_what_all_runs_share_and_the_steps_of_series_are_stored_once() -> None:
    runs = [{"device": "cpu", "curve": [[100, 2.0 - seed], [200, 1.0]], "speed": seed} for seed in range(3)]
    runs[0]["picture"] = [[1, 2, 3]]
    (cell,) = packed({"cells": [{"outcomes": runs}]})["cells"]
    assert cell["outcomes"] == [{"picture": [[1, 2, 3]]}, {}, {}]
    assert cell["shared"] == {
        "device": "cpu",
        "curve": {"_at": [100, 200], "_values": {"_each": [[2.0, 1.0], [1.0, 1.0], [0.0, 1.0]]}},
        "speed": {"_each": [0, 1, 2]},
    }


def test_records_are_stored_packed_and_older_ones_are_read() -> None:
    """Criterion: a record of the first format, in which every run is whole, is the same record."""
    known = record({"standard": losses(1.7, 8), "uniform": losses(2.3, 8)})
    stored = json.loads(known.to_text())
    older = known.to_dict()
    assert (stored["format"], older["format"]) == (FORMAT, 1)
    assert StudyRecord.from_dict(stored) == StudyRecord.from_dict(older) == known
    assert StudyRecord.from_dict(stored).to_text() == known.to_text()
    assert len(known.to_text()) < 0.6 * len(json.dumps(older, separators=(",", ":")))


@pytest.mark.parametrize(
    "shared", [None, {}, [], {"seed": {"_each": [0]}}, {"seed": {"_each": 3}}, {"curve": {"_at": [1], "_values": []}}]
)
def test_a_damaged_packed_record_is_refused_in_a_line(shared: Any, tmp_path) -> None:
    known = record({"standard": losses(1.7, 3)})
    stored = json.loads(known.to_text())
    stored["cells"][0]["shared"] = shared
    path = tmp_path / "study-damaged.json"
    path.write_text(json.dumps(sealed({name: value for name, value in stored.items() if name != "checksum"})))
    with pytest.raises(Exception, match=r"must hold a study's record, and is damaged; store it anew"):
        read_record(path)
