"""Every task runs from the command line to its own metric, on data that the test makes."""

import json
from pathlib import Path

import pytest

from attractor.tasks import KINDS
from attractor.tasks.sudoku import generate
from in_process import Command
from tiers import fast_alone

MODEL = ["--d-model=16", "--n-heads=2", "--n-layers=1", "--d-ff=32", "--batch-size=4", "--eval-batches=2"]
RUN = [*MODEL, "--n-steps=4", "--eval-every=2", "--device=cpu", "--threads=1"]


def text(folder: Path, attractor: Command) -> list[str]:
    source = "".join(f"{i} squared is {i * i}\n<|endoftext|>\n" for i in range(400))
    (folder / "squares.txt").write_text(source)
    code, _, errors = attractor("data", "prepare", "squares.txt", "--tokenizer=bpe:300", "--out=squares")
    assert code == 0, errors
    return ["--corpus=squares", "--seq-len=16"]


def mqar(folder: Path, attractor: Command) -> list[str]:
    return ["--level=easy"]


def needle(folder: Path, attractor: Command) -> list[str]:
    (folder / "squares.txt").write_text("".join(f"{i} squared is {i * i}\n<|endoftext|>\n" for i in range(400)))
    return ["--corpus=squares.txt", "--seq-len=48", "--least-gap=20"]


def sudoku(folder: Path, attractor: Command) -> list[str]:
    boards, solutions = generate(24, 40, seed=0)
    rows = [",".join("".join(map(str, grid.ravel())) for grid in pair) for pair in zip(boards, solutions, strict=True)]
    (folder / "boards.csv").write_text("\n".join(["puzzle,solution", *rows]))
    return ["--recipe=laptop", "--puzzles=boards.csv", "--ood-puzzles=generated", "--n-boards=16", "--n-valid-boards=6"]


MAKERS = {"text": text, "mqar": mqar, "needle": needle, "sudoku": sudoku}
MEASURES = {
    "text": {"perplexity"},
    "mqar": {"accuracy", "sequence_accuracy"},
    "needle": {"accuracy"},
    "sudoku": {"board_accuracy", "cell_accuracy", "ood_board_accuracy", "ood_cell_accuracy", "ood_loss"},
}


@pytest.mark.parametrize("task", fast_alone([kind.kind for kind in KINDS], "sudoku"))
def test_a_task_trains_resumes_and_compares_by_its_metric(task: str, tmp_path: Path, attractor: Command) -> None:
    """Criterion: its measures are in the summary, in the metrics of every validation and on the live console, and a
    comparison of mechanisms ends with a page."""
    asked = ["--task", task, *MAKERS[task](tmp_path, attractor), *RUN]
    code, said, errors = attractor("train", *asked, "--out=run")
    assert code == 0, errors
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["measures"].keys() == MEASURES[task]
    first, *_ = summary["measures"]
    assert summary["metric"]["name"] == first
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    validated = [record for record in records if "valid_loss" in record]
    assert [record["step"] for record in validated] == [2, 4]
    for name in MEASURES[task]:
        assert validated[-1][name] == summary["measures"][name]
        assert f"{name.replace('_', ' ')} " in said
    code, said, errors = attractor("compare", "standard", "gated", *asked, "--seeds", "0", "1", "--out=compared")
    assert code == 0, errors
    assert Path(tmp_path, said.splitlines()[-1]).exists()
    assert first.replace("_", " ") in (tmp_path / "compared" / "report.html").read_text()


def test_finite_data_may_be_measured_in_epochs_instead_of_steps(attractor: Command) -> None:
    asked = ["--task=mqar", "--level=zoology-64", "--n-examples=40", *MODEL]
    _, said, _ = attractor("plan", *asked, "--epochs=2.5", "--no-calibrate", "--json")
    assert json.loads(said)["plans"][0]["n_steps"] == 25


@pytest.mark.slow
def test_a_comparison_fine_tunes_each_mechanism_from_its_run(tmp_path: Path, attractor: Command) -> None:
    pretrain = ["--task", "text", *text(tmp_path, attractor), *RUN, "--positions=learned", "--max-seq-len=64"]
    code, _, errors = attractor("compare", "standard", "gated", *pretrain, "--seeds", "2", "3", "--out=pretrained")
    assert code == 0, errors
    tune = ["--corpus=squares", "--seq-len=16", "--start=pretrained", "--seeds", "2", "3"]
    short = ["--n-steps=6", "--lr=2e-5", "--batch-size=4", "--eval-batches=2", "--device=cpu"]
    code, _, errors = attractor("compare", "gated", "standard", *tune, *short, "--out=tuned")
    assert code == 0, errors
    configs = {
        path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "tuned").glob("runs/*/config.json")
    }
    assert len(configs) == 6
    assert len({config["start_weights"] for config in configs.values()}) == 6
    assert {config["model"]["d_model"] for config in configs.values()} == {16}
    assert {(config["lr"], config["n_steps"]) for config in configs.values()} == {(2e-5, 6)}
    code, _, errors = attractor("compare", "mla", *tune, *short)
    assert code == 2
    assert "a comparison with one run of 'mla' with seed 2, and 'pretrained' has 0" in errors
