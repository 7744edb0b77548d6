"""Existing runs are compared without training, with a verdict where they are paired."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from attractor.errors import InputError
from attractor.report.judged_study import JudgedStudy
from attractor.report.study_report import write_report
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import StudyRecord
from attractor.study.stored_runs import compare_runs
from in_process import Command, assert_refused


def stored(path: Path, loss: float | None = 1.6, tokens: int = 1000, metric: str = "perplexity", **config: Any) -> Path:
    """Make a run with a given loss; a run whose loss is None has not finished."""
    task = {"kind": "text", "corpus": "web"}
    run = RunFolder.create(path, {"label": "standard", "seed": 0, "lr": 2e-3, "data": "abc", "task": task} | config)
    for step in range(1, 6):
        run.append({"step": step, "tokens": step * tokens // 5, "valid_loss": (loss or 2.0) + 1 / step})
    if loss is not None:
        value = math.exp(loss) if metric == "perplexity" else 0.5
        costs = {"n_parameters": 1000, "tokens_per_second": 10.0, "peak_memory_bytes": 10_000_000, "tokens": tokens}
        found = {"metric": {"name": metric, "value": value, "better": "lower"}, "valid_loss": loss}
        run.write_summary(found | {"context_gain": 0.3} | costs)
    return path


def seeds(folder: Path, label: str, losses: tuple[float, ...], **config: Any) -> list[Path]:
    return [stored(folder / f"{label}-{n}", loss, label=label, seed=n, **config) for n, loss in enumerate(losses)]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    losses = {"standard": (1.66, 1.68, 1.70), "gated": (1.61, 1.629, 1.651), "uniform": (2.16, 2.18, 2.2)}
    return [path for label, of_label in losses.items() for path in seeds(tmp_path, label, of_label)]


def test_runs_that_differ_by_their_seed_are_one_row_and_judged_by_pairs(paths: list[Path], tmp_path: Path) -> None:
    record, folder = compare_runs(paths, tmp_path / "out", "attractor compare ...")
    assert record.design.rows == ("standard", "gated", "uniform")
    assert (record.design.seeds, record.finished) == ((0, 1, 2), 9)
    sensitive, gated = JudgedStudy(record).verdict()
    assert sensitive.text.startswith("Sensitive")
    assert "better, -0.05" in gated.text
    page = write_report(JudgedStudy(record), folder, formats=("svg",)).read_text()
    assert 'id="figure-curves"' in page
    assert "model.attention" not in page
    assert record == StudyRecord.read(folder), "the folder can be read again"
    assert str(tmp_path) not in (folder / "study.json").read_text()


def test_rows_of_one_label_are_named_by_their_differing_fields_or_their_folder(tmp_path: Path) -> None:
    """Criterion: two runs of one seed have no common mean, and a field whose name ends with start is one, too."""
    starts = [{"model": {"attention": {"zero_start": bool(seed)}}, "seed": seed, "start": "a"} for seed in (0, 1)]
    for number, (fields, names) in enumerate(
        [
            (({}, {"lr": 1e-3}, {"label": "gated"}), ("standard, lr 0.002", "standard, lr 0.001", "gated")),
            (({}, {"lr": 1e-3, "clip": 1.0, "ema": 0.9}), ("standard (1-0)", "standard (1-1)")),
            (({}, {}), ("standard (2-0)", "standard (2-1)")),
            (starts, ("standard, zero_start False", "standard, zero_start True")),
        ]
    ):
        runs = [stored(tmp_path / f"{number}-{n}", **of_run) for n, of_run in enumerate(fields)]
        assert compare_runs(runs, tmp_path / f"out-{number}", "")[0].design.rows == names


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"data": "xyz"}, "undecided (other data than the baseline's)"),
        ({"tokens": 500}, "undecided (500 tokens, where the baseline saw 1.00k)"),
        ({"eval_batches": 4}, "undecided (another eval_batches than the baseline's)"),
        ({"accumulation": 4}, "undecided (another accumulation than the baseline's)"),
        ({"seed": 7}, "undecided (no seed in common with 'standard')"),
        ({"lr": 1e-3}, "undecided (one pair has no interval)"),
    ],
)
def test_a_verdict_is_given_only_where_rows_are_paired(tmp_path: Path, other: dict[str, Any], said: str) -> None:
    runs = [stored(tmp_path / "a"), stored(tmp_path / "b", 1.5, label="gated", **other)]
    record, folder = compare_runs(runs, tmp_path / "out", "attractor compare a b")
    *instrument, line = JudgedStudy(record).verdict()
    assert "Sensitivity unknown" in instrument[0].text
    assert line.subject == "gated"
    assert said in line.text
    assert write_report(JudgedStudy(record), folder, formats=("svg",)).exists()


def test_runs_of_several_tasks_are_shown_side_by_side_by_their_loss(tmp_path: Path) -> None:
    recall = stored(tmp_path / "b", label="gated", metric="accuracy", task={"kind": "mqar"})
    record, _ = compare_runs([stored(tmp_path / "a"), recall], tmp_path / "out", "")
    assert record.design.quantities[0].name == "validation loss"
    assert "other data" in JudgedStudy(record).verdict()[-1].text


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must be finished, and .* is not; finish it"):
        compare_runs([stored(tmp_path / "a", None)], None, "")
    foreign = RunFolder.create(tmp_path / "b", {"model": {}}).path
    with pytest.raises(InputError, match="needs label and seed"):
        compare_runs([foreign], None, "")


def test_the_command_takes_run_folders_and_trains_nothing(attractor: Command, paths: list[Path]) -> None:
    names = [path.name for path in paths]
    before = {path: path.stat().st_mtime_ns for folder in paths for path in folder.rglob("*")}
    code, said, errors = attractor("compare", *names)
    assert (code, errors) == (0, "")
    page = Path(said.splitlines()[-1])
    assert page.match("runs/compare-*/report.html")
    assert "gated: better, -0.05" in said
    assert {path: path.stat().st_mtime_ns for path in before} == before
    written = json.loads((page.parent / "record.json").read_text())
    assert written["design"]["command"] == f"attractor compare {' '.join(names)}"
    assert attractor("report", str(page.parent), "--formats", "svg").code == 0
    assert_refused(attractor("compare", *names, "--lr", "1e-3"), "lr must be left out where run folders are compared")
    assert_refused(attractor("compare", names[0], "gated"), "run must be a folder that exists, and 'gated' does not")


def test_runs_of_a_folder_are_compared_with_the_row_that_is_named_or_called_as_baselines_are(
    attractor: Command, paths: list[Path], tmp_path: Path
) -> None:
    for named, said in ((), "gated: better, -0.05"), (("--baseline", "gated"), "standard: worse, +0.05"):
        done = attractor("runs", "compare", str(tmp_path), "--where", "label!=uniform", *named)
        assert (done.code, done.err) == (0, "")
        assert said in done.out
    wrong = attractor("runs", "compare", str(tmp_path), "--baseline", "gate")
    assert_refused(wrong, "unknown row for the baseline 'gate'; did you mean 'gated'?")
