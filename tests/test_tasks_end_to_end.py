"""Every task from the command line to its own metric, on data that the test makes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attractor.tasks import TASKS
from attractor.tasks.sudoku import generate

MODEL = ["--d-model=16", "--n-heads=2", "--n-layers=1", "--d-ff=32", "--batch-size=4", "--eval-batches=2"]
RUN = [*MODEL, "--n-steps=4", "--eval-every=2", "--device=cpu", "--threads=1"]


def attractor(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from attractor.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def text(folder: Path) -> list[str]:
    source = "".join(f"{i} squared is {i * i}\n<|endoftext|>\n" for i in range(400))
    (folder / "squares.txt").write_text(source)
    made = attractor(folder, "data", "prepare", "squares.txt", "--tokenizer=bpe:300", "--out=squares")
    assert made.returncode == 0, made.stderr
    return ["--corpus=squares", "--seq-len=16"]


def mqar(folder: Path) -> list[str]:
    return ["--level=easy"]


def sudoku(folder: Path) -> list[str]:
    boards, solutions = generate(24, 40, seed=0)
    rows = [",".join("".join(map(str, grid.ravel())) for grid in pair) for pair in zip(boards, solutions, strict=True)]
    (folder / "boards.csv").write_text("\n".join(["puzzle,solution", *rows]))
    return ["--puzzles=boards.csv", "--ood-puzzles=generated", "--n-boards=16", "--n-valid-boards=6"]


def glue(folder: Path) -> list[str]:
    (folder / "MNLI").mkdir()
    kinds = ("entailment", "neutral", "contradiction")
    lines = ["sentence1\tsentence2\tgold_label", *(f"it is {i}\tis it {i}?\t{kinds[i % 3]}" for i in range(24))]
    for name in ("train", "dev_matched", "dev_mismatched"):
        (folder / "MNLI" / f"{name}.tsv").write_text("\n".join(lines))
    return ["--glue-task=mnli", "--glue-data=.", "--seq-len=32"]


MAKERS = {"text": text, "mqar": mqar, "sudoku": sudoku, "glue": glue}
MEASURES = {
    "text": {"perplexity"},
    "mqar": {"accuracy", "sequence_accuracy"},
    "sudoku": {"board_accuracy", "cell_accuracy", "ood_board_accuracy", "ood_cell_accuracy", "ood_loss"},
    "glue": {"accuracy", "mismatched_accuracy", "mismatched_loss"},
}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_trains_resumes_and_compares_by_its_own_metric(task: str, tmp_path: Path) -> None:
    """Criterion: its measures stand in the summary, in the metrics of every validation and, live, on the console; a
    comparison of mechanisms ends with a page."""
    asked = ["--task", task, *MAKERS[task](tmp_path), *RUN]
    said = attractor(tmp_path, "train", *asked, "--out=run")
    assert said.returncode == 0, said.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["measures"].keys() == MEASURES[task]
    first, *_ = summary["measures"]
    assert summary["metric"]["name"] == first
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    validated = [record for record in records if "valid_loss" in record]
    assert [record["step"] for record in validated] == [2, 4]
    for name in MEASURES[task]:
        assert validated[-1][name] == summary["measures"][name]
        assert f"{name.replace('_', ' ')} " in said.stdout
    compared = attractor(tmp_path, "compare", "standard", "gated", *asked, "--seeds", "0", "1", "--out=compared")
    assert compared.returncode == 0, compared.stderr
    assert Path(tmp_path, compared.stdout.splitlines()[-1]).exists()
    assert first in (tmp_path / "compared" / "report.html").read_text()


def test_an_option_of_another_task_is_refused_with_its_name(tmp_path: Path) -> None:
    said = attractor(tmp_path, "train", "--task=mqar", "--glue-task=sst2")
    assert said.returncode == 2
    assert said.stderr == (
        "error: glue_task must be left out with task 'mqar', since it is an option of task 'glue'; "
        "leave it out or give --task glue\n"
    )


def test_epochs_stand_for_steps_where_data_end(tmp_path: Path) -> None:
    asked = ["--task=mqar", "--level=zoology-64", "--n-examples=40", *MODEL]
    said = attractor(tmp_path, "plan", *asked, "--epochs=2.5", "--no-calibrate", "--json")
    assert json.loads(said.stdout)["plans"][0]["n_steps"] == 25
    said = attractor(tmp_path, "plan", "--task=mqar", "--epochs=2")
    assert (said.returncode, said.stderr) == (
        2,
        "error: epochs must be left out with data drawn without end, got 2; give n_steps alone\n",
    )


def test_a_comparison_fine_tunes_each_mechanism_from_its_own_run(tmp_path: Path) -> None:
    pretrain = ["--task", "text", *text(tmp_path), *RUN, "--positions=learned", "--max-seq-len=64"]
    said = attractor(tmp_path, "compare", "standard", "gated", *pretrain, "--seeds", "2", "3", "--out=pretrained")
    assert said.returncode == 0, said.stderr
    tune = ["--task=glue", *glue(tmp_path), "--start=pretrained/{attention}-seed{seed}", "--seeds", "2", "3"]
    short = ["--recipe=glue", "--epochs=1", "--batch-size=4", "--device=cpu"]
    said = attractor(tmp_path, "compare", "gated", "standard", *tune, *short, "--out=tuned")
    assert said.returncode == 0, said.stderr
    configs = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "tuned").glob("*/config.json")}
    assert len(configs) == 6
    assert len({config["start_weights"] for config in configs.values()}) == 6
    assert {config["model"]["d_model"] for config in configs.values()} == {16}
    assert {config["task"]["glue_tokenizer"] for config in configs.values()} == {"squares"}
    assert {(config["lr"], config["n_steps"]) for config in configs.values()} == {(2e-5, 6)}
