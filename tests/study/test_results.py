"""Loaded results equal the files on disk, and compared results equal those of the command."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

import attractor
from attractor import RunResult, StudyResult
from attractor.errors import InputError
from attractor.runs.study_record import StudyRecord
from attractor.train.config import RECIPES, Runtime, TrainConfig
from attractor.train.finished import finished_run
from attractor.train.loop import train
from in_process import command_in_process

SMALL = RECIPES["laptop"].replace(n_steps=6, warmup_steps=1, eval_every=2, eval_batches=1, batch_size=2, seq_len=16)
ROWS = {"standard": (0, 1), "gated": (0, 1)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for attention, seeds in ROWS.items():
        for seed in seeds:
            train(SMALL.replace(attention=attention, seed=seed), folder / f"{attention}-{seed}", Runtime("cpu", 1, 1))
    return folder


def loaded_run(path: Path) -> RunResult:
    run = attractor.load(path)
    assert isinstance(run, RunResult)
    return run


def altered(run: Path, to: Path, **files: str | None) -> Path:
    """Copy a run and change or remove some of its files."""
    shutil.copytree(run, to)
    (to / "seal.json").unlink()  # as in a run of an earlier version
    for name, content in files.items():
        (path,) = to.glob(f"{name}.json*")
        path.unlink() if content is None else path.write_text(content)
    return to


def test_a_loaded_run_has_the_content_of_its_folder(runs: Path) -> None:
    """Criterion: its metrics are the records as a table, and it prints as one line with its main results."""
    run = loaded_run(runs / "gated-1")
    assert run.config == SMALL.replace(attention="gated", seed=1)
    lines = (runs / "gated-1" / "metrics.jsonl").read_text().splitlines()
    assert run.records == [json.loads(line) for line in lines]
    assert run.summary == json.loads((runs / "gated-1" / "summary.json").read_text())
    assert (run.best_loss, run.state) == (run.summary["best_loss"], "finished")
    assert len(run.metrics) == len(run.records)
    losses = run.metrics.dropna(subset="loss").set_index("step").loss
    assert losses.to_dict() == {record["step"]: record["loss"] for record in run.records if "loss" in record}
    assert "\n" not in repr(run)
    for part in ("gated", f"{run.n_parameters:,} parameters", "step 6 of 6", "nats/byte", "finished"):
        assert part in repr(run)
    assert f"{run.best_loss:.4f}" in repr(run)


def test_without_pandas_one_line_names_the_package_and_the_records_are_available(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = loaded_run(runs / "gated-0")
    assert run.records
    with pytest.raises(InputError, match=r"^package 'pandas' must be installed .*'\.\[pandas\]', or use \.records$"):
        _ = run.metrics


def test_the_model_has_the_best_weights_and_is_in_evaluation_mode(runs: Path) -> None:
    model = loaded_run(runs / "standard-0").model()
    best = finished_run(runs / "standard-0", torch.device("cpu")).model
    assert not model.training
    for name, weights in best.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weights, rtol=0, atol=0)
    logits, _ = model(torch.zeros(1, 4, dtype=torch.long))
    assert logits.shape == (1, 4, 320)


def test_the_figure_shows_every_loss_and_rate_of_the_records(runs: Path) -> None:
    run = loaded_run(runs / "gated-0")
    figure = run.plot()
    assert isinstance(figure, Figure)
    losses, rates = figure.axes
    training, validation = losses.lines
    assert list(training.get_ydata()) == [record["loss"] for record in run.records if "loss" in record]
    assert list(validation.get_ydata()) == [record["valid_loss"] for record in run.records if "valid_loss" in record]
    assert list(rates.lines[0].get_xdata()) == [record["tokens"] for record in run.records if "lr" in record]
    assert losses.get_ylabel() == "loss (nats/byte)"
    shown, _ = figure._repr_png_()  # type: ignore[attr-defined]
    assert shown.startswith(b"\x89PNG")


def test_html_of_a_run_escapes_its_names(runs: Path, tmp_path: Path) -> None:
    page = loaded_run(altered(runs / "gated-0", tmp_path / "<b>"))._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert page.count("<svg") == 1


def test_a_run_under_way_can_be_read_again(runs: Path, tmp_path: Path) -> None:
    copy = altered(runs / "gated-0", tmp_path / "copy", summary=None)
    run = loaded_run(copy)
    assert run.state == "interrupted"
    assert run.summary == {}
    assert run.n_parameters == loaded_run(runs / "gated-0").n_parameters
    n_records = len(run.records)
    run.folder.append({"step": 7, "tokens": 224, "loss": 1.0, "valid_loss": 0.5})
    assert len(run.records) == n_records + 1
    assert run.best_loss == 0.5
    with run.folder.hold():
        assert "running" in repr(run)


def paths(runs: Path) -> list[Path]:
    return [runs / f"{attention}-{seed}" for attention, seeds in ROWS.items() for seed in seeds]


@pytest.fixture(scope="module")
def study(runs: Path) -> StudyResult:
    return attractor.compare(paths(runs))


def test_compared_runs_are_the_study_that_the_command_writes(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Criterion: nothing is written without `out`, and a folder, a record and the runs give the same rows."""
    monkeypatch.chdir(tmp_path)
    study = attractor.compare([paths(runs)[0], loaded_run(paths(runs)[1]), *map(str, paths(runs)[2:])])
    assert not list(tmp_path.iterdir())
    code, _, errors = command_in_process(monkeypatch, capsys)("compare", *map(str, paths(runs)))
    assert code == 0, errors
    (written,) = tmp_path.glob("runs/compare-*")
    assert StudyRecord.read(written) == study.record
    for place in (written, written / "record.json"):
        again = attractor.load(place)
        assert isinstance(again, StudyResult)
        assert (again.rows, again.verdicts) == (study.rows, study.verdicts)
    with pytest.raises(InputError, match="load the folder of the study"):
        _ = again.runs


def test_with_out_the_study_and_its_page_are_written(runs: Path, tmp_path: Path) -> None:
    study = attractor.compare(paths(runs), out=tmp_path / "study")
    assert (tmp_path / "study" / "report.html").is_file()
    assert StudyRecord.read(tmp_path / "study") == study.record


def test_the_table_holds_means_intervals_differences_and_costs(runs: Path, study: StudyResult) -> None:
    table = study.table
    assert list(table.index) == ["standard", "gated"]
    perplexities = [loaded_run(runs / f"gated-{seed}").summary["metric"]["value"] for seed in (0, 1)]
    gated = table.loc["gated"]
    assert gated["perplexity"] == pytest.approx(sum(perplexities) / 2)
    assert gated["perplexity low"] < gated["perplexity"] < gated["perplexity high"]
    losses = [[loaded_run(runs / f"{row}-{seed}").summary["valid_loss"] for seed in (0, 1)] for row in ROWS]
    assert gated["difference"] == pytest.approx(sum(losses[1]) / 2 - sum(losses[0]) / 2)
    assert gated["parameters"] == loaded_run(runs / "gated-0").n_parameters
    assert gated["tok/s"] > 0
    assert table.loc["standard", "outcome"] == "baseline"


def test_a_study_gives_its_runs_figures_and_html(runs: Path, study: StudyResult) -> None:
    assert [run.path for run in study.runs] == [path.resolve() for path in paths(runs)]
    assert isinstance(study.plot("differences"), Figure)
    with pytest.raises(InputError, match="unknown figure 'difference'; did you mean 'differences'"):
        study.plot("difference")
    page = study._repr_html_()
    assert all(re.sub("'.*", "", line) in page for line in study.verdicts)
    assert page.count("<tr>") == 3
    assert "\n" not in repr(study)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config": "{"}, "damaged"),
        ({"metrics": "nonsense\n"}, "line 1 of .* is damaged"),
        ({"summary": "[]"}, "damaged"),
        ({"config": '{"n_steps": "many"}'}, r"config\.json"),
        ({"config": '{"model": 3}'}, r"config\.json"),
        ({"config": '{"task": {"kind": []}}'}, r"config\.json"),
        ({"config": '{"colour": 1}'}, r"config\.json"),
    ],
)
def test_a_damaged_run_or_configuration_is_refused_in_one_line(
    runs: Path, tmp_path: Path, files: dict[str, str | None], message: str
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        _ = loaded_run(altered(runs / "gated-0", tmp_path / "run", **files)).config
    assert "\n" not in str(refused.value)


def test_a_run_that_has_not_begun_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TrainConfig().to_dict()))
    run = loaded_run(tmp_path)
    assert run.records == []
    assert "not begun" in repr(run)
    assert "none yet" in run._repr_html_()
    for ask in (lambda: run.metrics, run.plot, run.model):
        with pytest.raises(InputError, match="yet; train it first"):
            ask()


def test_a_folder_of_runs_is_a_table_with_its_best_run(runs: Path) -> None:
    pool = attractor.load(runs)
    assert isinstance(pool, attractor.RunsResult)
    assert [run.path for run in pool] == sorted(path.parent for path in runs.glob("*/config.json"))
    assert list(pool.table.index) == [run.path.name for run in pool]
    best = pool.best()
    assert best.best_loss == min(run.best_loss for run in pool)
    assert best.evaluate()["loss"] == pytest.approx(best.best_loss, rel=1e-5)
    for x in ("tokens", "step", "seconds"):
        (axes,) = pool.plot(x).axes
        assert len(axes.lines) == len(pool)
    with pytest.raises(InputError, match="unknown axis 'hours'"):
        pool.plot("hours")
    study = attractor.compare(list(pool))
    assert study.to_latex().count(r"\begin{tabular}") >= 1


def test_a_path_that_is_neither_run_nor_study_is_refused_in_one_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "study.json").write_text('{"cells": 3}')
    (tmp_path / "empty").mkdir()
    for ask, argument, message in (
        (attractor.load, tmp_path / "nothing", "is no folder"),
        (attractor.load, tmp_path / "empty", r"holds neither config\.json nor study\.json"),
        (attractor.load, tmp_path / "damaged", "must hold the plan of a study, and is damaged"),
        (attractor.compare, str(runs / "gated-0"), "must be a list of runs"),
        (attractor.compare, [], "the list is empty"),
    ):
        with pytest.raises(InputError, match=message):
            ask(argument)  # type: ignore[operator]
