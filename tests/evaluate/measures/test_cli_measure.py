"""`attractor measure` compares a run with a Hugging Face model, keeps finished passages on Ctrl-C, and refuses bad
input."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from attractor.cli.measure import MeasureArguments, measure
from attractor.cli.parsing import parse_command
from attractor.errors import InputError, RunInterrupted
from attractor.evaluate import causal
from attractor.evaluate import measures as measuring
from tiny_causal import TEXTS, write_llama, write_run

BRIEFLY = ("--n-samples=2", "--length=8")


def attractor_measure(*arguments: str | Path) -> str:
    console = Console(file=StringIO(), width=120)
    measure(parse_command(MeasureArguments, "measure", [*map(str, arguments)]), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text("".join(TEXTS))
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "ours")


@pytest.mark.parametrize(("options", "length"), [((), 32), (("--length=40",), 40)])
def test_a_passage_is_as_long_as_in_training(
    options: tuple[str, ...], length: int, run: Path, text: Path, tmp_path: Path
) -> None:
    """Criterion: a greater length is asked for, and the page says what it means."""
    attractor_measure(run, "--on", text, "--n-samples=1", "--no-jacobians", "--k=0", "--out", tmp_path / "m", *options)
    (record,) = json.loads((tmp_path / "m" / "measures.json").read_text())["models"]
    assert record["plan"]["length"] == length
    assert any("trained on 32 tokens at a time" in note for note in record["notes"]) is (length > 32)


@pytest.mark.slow
def test_a_run_and_a_llama_are_measured_together(run: Path, llama: Path, text: Path, tmp_path: Path) -> None:
    """Criterion: each has a table, the record has both, and the last line is the path of the page."""
    out = tmp_path / "measures"
    lines = attractor_measure(run, llama, "--on", text, *BRIEFLY, "--k=2", "--out", out).splitlines()
    assert lines[-1] == str(out / "index.html")
    assert [line for line in lines if line in ("ours", "llama")] == ["ours", "llama"]
    assert sum(line.startswith("exponents over depth") for line in lines) == 2
    assert sum("sink: attention on position 0" in line for line in lines) == 1  # the legend of both tables
    ours, theirs = json.loads((out / "measures.json").read_text())["models"]
    assert (len(ours["layers"]), len(theirs["layers"])) == (1, 2)
    for found in (ours, theirs):
        assert found["n_samples"] == 2
        assert all(value["low"] <= value["mean"] <= value["high"] for value in found["by_layer"]["sink_mass"])
        assert len(found["exponents"]["by_rank"]) == 2


@pytest.mark.slow
def test_the_same_command_gives_the_same_numbers(llama: Path, text: Path, tmp_path: Path) -> None:
    found = []
    for name in ("first", "second"):
        attractor_measure(llama, "--on", text, *BRIEFLY, "--no-jacobians", "--out", tmp_path / name)
        found.append(json.loads((tmp_path / name / "measures.json").read_text())["models"])
    assert found[0] == found[1]


def test_half_precision_is_measured_without_jacobians(llama: Path, text: Path) -> None:
    with pytest.raises(InputError, match=r"dtype must be fp32 or fp64 for Jacobians, .*--no-jacobians"):
        attractor_measure(llama, "--on", text, *BRIEFLY, "--precision=bf16")
    assert "exponents" not in attractor_measure(llama, "--on", text, *BRIEFLY, "--precision=bf16", "--no-jacobians")


@pytest.mark.slow
def test_ctrl_c_keeps_the_finished_passages(
    llama: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: after an interrupt in the second of three passages, the page covers the first and states this."""
    whole = measuring.measured

    def interrupted(*given: Any) -> Any:
        yield next(whole(*given))
        raise KeyboardInterrupt

    monkeypatch.setattr("attractor.evaluate.measures.records.measured", interrupted)
    out = tmp_path / "measures"
    with pytest.raises(RunInterrupted) as stopped:
        attractor_measure(llama, "--on", text, "--n-samples=3", "--length=8", "--no-jacobians", "--out", out)
    assert stopped.value.exit_code == 130
    (found,) = json.loads((out / "measures.json").read_text())["models"]
    assert found["n_samples"] == 1
    assert "Stopped after 1 of 3 passages." in (out / "index.html").read_text()


@pytest.mark.parametrize("lost", [KeyboardInterrupt(), InputError("length must be at most 4; give a smaller one")])
def test_a_model_that_cannot_be_loaded_leaves_the_page_of_those_before_it(
    llama: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: BaseException
) -> None:
    load, loaded = causal.load_causal, []

    def load_first(*given: Any) -> Any:
        if loaded:
            raise lost
        loaded.append(given)
        return load(*given)

    monkeypatch.setattr(causal, "load_causal", load_first)
    out = tmp_path / "measures"
    with pytest.raises((RunInterrupted, InputError)):
        attractor_measure(llama, llama, "--on", text, *BRIEFLY, "--no-jacobians", "--out", out)
    assert "llama" in (out / "index.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--length=100",), "length must be at most 64, the number of positions of 'llama', got 100"),
        (("--length=64", "--n-samples=400"), "on must have 400 passages of 64 tokens"),
    ],
)
def test_unusable_input_is_refused(options: tuple[str, ...], message: str, llama: Path, text: Path) -> None:
    with pytest.raises(InputError, match=message):
        attractor_measure(llama, "--on", text, *options)


def test_measuring_restores_the_library_and_the_model(llama: Path, text: Path) -> None:
    """Criterion: transformers' table of attention functions and the model's own function are the same as before."""
    from transformers.modeling_utils import AttentionInterface

    before = AttentionInterface.get_interface
    attractor_measure(llama, "--on", text, *BRIEFLY, "--no-jacobians")
    assert AttentionInterface.get_interface is before
    assert torch.is_grad_enabled()
