"""`attractor evaluate` measures a run as it was validated, any model on texts or tasks, and two models in
comparison."""

import json
from pathlib import Path

import pytest

from attractor.runs.run_folder import RunFolder
from in_process import Command, command_in_process
from tiny_causal import TEXTS, write_llama, write_run, write_task


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with `run`, another run, a foreign model, and texts."""
    place = tmp_path_factory.mktemp("place")
    write_run(place / "run", n_steps=6)
    write_run(place / "elsewhere" / "run", seed=1)
    write_llama(place / "llama")
    (place / "fresh.txt").write_text("<|endoftext|>\n".join(text.upper() for text in TEXTS[:8]))
    (place / "book.txt").write_text("".join(TEXTS))
    return place


@pytest.fixture
def attractor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path) -> Command:
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    return command_in_process(monkeypatch, capsys)


def test_a_single_run_has_the_loss_of_its_own_validation(attractor: Command, place: Path) -> None:
    code, _, err = attractor("evaluate", "run", "--out", "alone")
    assert (code, err) == (0, "")
    (row,) = json.loads((place / "alone" / "evaluation.json").read_text())["rows"]
    summary = RunFolder.open(place / "run").summary()
    assert summary is not None
    assert row["loss"] == pytest.approx(summary["best_loss"], rel=1e-6)


def test_two_models_with_different_tokenizers_are_compared(attractor: Command, place: Path) -> None:
    code, out, err = attractor("evaluate", "run", "--against", "llama", "--on", "fresh.txt", "--window=32", "--out=two")
    assert (code, err) == (0, "")
    assert "8 documents" in out
    assert "nats per byte" in out
    kept = json.loads((place / "two" / "evaluation.json").read_text())
    assert [row["model"] for row in kept["rows"]] == ["run", "llama"]
    assert len({row["n_bytes"] for row in kept["rows"]}) == 1
    documents = [json.loads(line) for line in (place / "two" / "documents.jsonl").read_text().splitlines()]
    for row in kept["rows"]:
        of_model = [document for document in documents if document["model"] == row["model"]]
        assert sum(document["nats"] for document in of_model) == pytest.approx(row["nats"])
    by_byte = [document["nats"] / document["n_bytes"] for document in documents]
    assert kept["difference"]["mean"] == pytest.approx((sum(by_byte[:8]) - sum(by_byte[8:])) / 8)


def test_models_with_one_name_get_different_labels(attractor: Command) -> None:
    code, out, _ = attractor("evaluate", "run", "--against", "elsewhere/run", "--on", "fresh.txt")
    assert code == 0
    assert "elsewhere/run" in out


def test_tasks_are_run_and_stored(attractor: Command, place: Path) -> None:
    write_task(place)
    code, out, _ = attractor("evaluate", "run", "--tasks", "squares", "--include-path=.", "--limit=6", "--out=tasks")
    assert code == 0
    assert "squares" in out
    kept = json.loads((place / "tasks" / "evaluation.json").read_text())
    assert 0 <= kept["results"]["squares"]["acc,none"] <= 1
    assert kept["n-samples"]["squares"]["effective"] == 6


REFUSED = {
    "a model without texts": (["llama"], "on must be given"),
    "too few documents": (["run", "--against", "llama", "--on", "book.txt"], "documents must be at least 6"),
    "too long a window": (["run", "--on", "fresh.txt", "--window", "65"], "window must be at most 64"),
    "too long a window for tasks": (["run", "--tasks", "squares", "--window", "65"], "window must be at most 64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_requests_are_refused_in_one_line(attractor: Command, name: str) -> None:
    arguments, said = REFUSED[name]
    code, _, err = attractor("evaluate", *arguments)
    assert code == 2
    assert said in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
