"""A quantity is read from its place in a run, and losses are compared per byte where the record allows it."""

import math

import pytest

from attractor.runs.quantity import (
    COMPUTED,
    GAP_ELSEWHERE,
    LOSS,
    LOSS_ELSEWHERE,
    MEAN_LOSS,
    PERPLEXITY,
    Quantity,
    effective_rank,
)
from attractor.runs.study_record import StudyRecord, with_bytes_per_token
from invented_records import losses, outcome, record

TEXT = {"task": {"kind": "text"}, "model": {"vocab_size": 4096}}


def test_a_loss_is_compared_per_byte_whatever_the_tokenizer() -> None:
    """The same text has 1.2 nats a byte, once in bytes and once in tokens of 4.6 bytes."""
    in_bytes = outcome("a", 0, {"valid_loss": 1.2, "bytes_per_token": 1.0})
    in_tokens = outcome("b", 0, {"valid_loss": 1.2 * 4.6, "bytes_per_token": 4.6})
    assert LOSS.compared(in_bytes) == LOSS.compared(in_tokens) == pytest.approx(1.2)
    assert PERPLEXITY.compared(in_tokens) == pytest.approx(1.2)
    flat = {"valid_loss": 1.0, "bytes_per_token": 4.0, "curve": [(0, 4.0), (9, 4.0)]}
    assert MEAN_LOSS.compared(outcome("c", 0, flat)) == 1.0


def test_older_records_have_the_length_of_their_tokens() -> None:
    described = "wiki: 3,964 documents, 68,978,671 bytes; 20,000,000 training and 354,587 validation tokens in windows"
    assert with_bytes_per_token({"data": described}, TEXT)["bytes_per_token"] == pytest.approx(3.3889, abs=1e-4)
    in_bytes = TEXT | {"model": {"vocab_size": 320}}
    assert with_bytes_per_token({}, in_bytes)["bytes_per_token"] == 1.0
    assert with_bytes_per_token({"bytes_per_token": 2.0}, in_bytes)["bytes_per_token"] == 2.0
    for unknown in (TEXT, {"task": {"kind": "sudoku"}}, {}):
        assert "bytes_per_token" not in with_bytes_per_token({"data": "no sizes"}, unknown)


def test_a_record_compares_in_one_unit_and_names_it() -> None:
    known = record({"standard": losses(1.7, 3)})
    assert known.loss_unit == "nats/byte"
    stored = known.to_dict()
    del stored["cells"][0]["outcomes"][1]["summary"]["bytes_per_token"]
    mixed = StudyRecord.from_dict(stored)
    assert mixed.loss_unit == "nats/token"
    assert all("bytes_per_token" not in run.summary for run in mixed.outcomes)
    stored["cells"][0]["config"]["task"] = {"kind": "sudoku"}
    stored["cells"][1]["config"]["task"] = {"kind": "sudoku"}
    assert StudyRecord.from_dict(stored).loss_unit == "nats"


def test_a_quantity_of_layers_has_values_a_mean_and_none_where_missing() -> None:
    run = outcome("a", 0, {"valid_loss": None, "probes": {"effective_rank": [10.0, 30.0]}})
    assert [effective_rank(layer).number(run) for layer in (None, 0, 1, -1, 2)] == [20.0, 10.0, 30.0, 30.0, None]
    assert math.isnan(LOSS.compared(run))  # type: ignore[arg-type]
    assert Quantity("speed", "tokens_per_second").number(run) is None
    assert Quantity("nothing", "probes.nothing.at.all").number(run) is None


def test_generalisation_is_a_gap_and_not_a_level() -> None:
    """Criterion: a model whose loss is lower by 0.2 on every text has the same gap between texts."""
    runs = [
        outcome("a", 0, {"valid_loss": 1.7 - lead, "probes": {"elsewhere": {"far": 2.5 - lead, "near": 1.9 - lead}}})
        for lead in (0.0, 0.2)
    ]
    gaps = [GAP_ELSEWHERE.number(run) for run in runs]
    assert gaps[0] == pytest.approx(gaps[1]) == pytest.approx(0.5)
    assert [LOSS_ELSEWHERE.number(run) for run in runs] == pytest.approx([2.2, 2.0])


def test_every_computed_quantity_has_no_value_where_it_was_not_measured() -> None:
    for number in (computed(outcome("a", 0, {})) for computed in COMPUTED.values()):
        assert number is None or math.isnan(number)
