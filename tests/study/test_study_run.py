"""The runs of a study are named by their configuration, shared, skipped, distinguished, split and merged."""

import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from attractor.attention import mechanism
from attractor.attention.presets import preset
from attractor.errors import InputError
from attractor.report.attention_maps import heatmaps
from attractor.report.judged_study import JudgedStudy
from attractor.runs.configuration import config_hash
from attractor.runs.quantity import PERPLEXITY, Quantity
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import StudyRecord, training_curve
from attractor.study import ATTENTION_MAPS, Axis, Scale, Study, axis
from attractor.study.plan import Conduct, _task_of, identity_of, key_of, plan_study
from attractor.study.run import run_study
from attractor.tasks.text import _load
from attractor.train.config import Runtime, TrainConfig

BASE = TrainConfig().replace(
    d_model=16, n_heads=2, n_layers=1, d_ff=16, n_steps=6, warmup_steps=1, batch_size=2, seq_len=16, eval_every=3
)
FAILING = """
from torch import nn

class Failing(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        if self.training and x.shape[1] == 16:
            raise RuntimeError("no more")
        return self.out(x)
"""
RUNTIME = Runtime(device="cpu", threads=1, save_every=1000, telemetry_every=None)


@pytest.fixture
def corpus(tmp_path):
    text = "".join(f"{n} squared is {n * n}.\n" for n in range(3000))
    (tmp_path / "squares.txt").write_text(text)
    return str(tmp_path / "squares.txt")


def study(corpus: str, *names: str, seeds=(0, 1), name="tried", **changes) -> Study:
    base = changes.pop("base", BASE).replace(corpus=corpus, eval_batches=4)
    given = {"rows": axis("attention", *(names or ("standard", "gated"))), "control": False}
    scales = {"smoke": Scale(base, seeds)}
    return Study("A", "B?", "none", baseline="standard", scales=scales, name=name, **(given | changes))


def carried_out(study: Study, root: Path, **conduct) -> tuple[StudyRecord, dict[str, str], str]:
    said = io.StringIO()
    console = Console(file=said, width=200)
    record, failures = run_study(study, Conduct(root=root, workers=2, **conduct), RUNTIME, console)
    return record, failures, said.getvalue()


def places_of(record: StudyRecord) -> set[tuple[str, str]]:
    return {(cell.row, cell.column) for cell in record.cells if cell.outcomes}


def losses(record: StudyRecord) -> dict[tuple[str, str], dict[int, float]]:
    return {(cell.row, cell.column): cell.losses for cell in record.cells}


def test_finished_runs_are_shared_skipped_and_kept_when_the_study_is_edited(corpus, tmp_path):
    root = tmp_path / "runs"
    first, failures, _ = carried_out(study(corpus), root)
    assert not failures
    assert first.finished == 4
    written = {path: path.stat().st_mtime_ns for path in (root / "runs").rglob("summary.json")}
    again, _, said = carried_out(study(corpus), root)
    assert again == first
    assert "4 of 4 runs were finished before" in said

    # Another study needs two of these runs and a new one; renaming an axis changes no run.
    other, _, said = carried_out(study(corpus, "standard", "uniform", seeds=(0,), name="other"), root)
    assert "1 of 2 runs were finished before" in said
    assert losses(other)["standard", ""] == {0: losses(first)["standard", ""][0]}

    edited = study(corpus, base=BASE.replace(lr=1e-3))
    after, _, said = carried_out(edited, root)
    assert "by its file or by --seeds: 4 of its earlier runs are not part of it now" in said
    assert losses(after) != losses(first)
    (kept,) = (root / "tried-smoke" / "earlier").glob("*.json")
    planned = {key for cell in json.loads(kept.read_text())["cells"] for key in cell["runs"].values()}
    assert planned == {outcome.key for outcome in first.outcomes}
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert carried_out(study(corpus), root)[0] == first  # the first study again has nothing to run


def test_a_study_continues_from_its_record_alone(corpus, tmp_path):
    first, _, _ = carried_out(study(corpus), tmp_path / "first")
    stored = StudyRecord.from_dict(json.loads(json.dumps(first.to_dict())))
    more = study(corpus, seeds=(0, 1, 2))
    whole, failures, said = carried_out(more, tmp_path / "second", from_record=stored)
    assert not failures
    assert "4 runs are taken from the record and are not run again" in said
    assert "4 of 6 runs were finished before" in said
    for cell in first.cells:
        continued = whole.cell(cell.row)
        assert continued.outcomes[:2] == cell.outcomes
        assert continued.config == cell.config
        assert [outcome.seed for outcome in continued.outcomes] == [0, 1, 2]
    assert set(first.environments["python"]) <= set(whole.environments["python"])
    assert carried_out(more, tmp_path / "second", from_record=stored)[0] == whole  # no run is left to do


def test_the_processor_of_a_run_from_a_record_of_several_is_unknown(corpus, tmp_path):
    stored = carried_out(study(corpus, seeds=(0,)), tmp_path / "first")[0].to_dict()
    for cell in stored["cells"]:
        assert cell["outcomes"][0]["summary"].pop("processor")
    stored["environments"]["processor"] = ["a", "b"]
    root, record = tmp_path / "second", StudyRecord.from_dict(json.loads(json.dumps(stored)))
    whole, _, _ = carried_out(study(corpus, seeds=(0, 1)), root, from_record=record)
    for cell in whole.cells:
        assert ["processor" in outcome.summary for outcome in cell.outcomes] == [False, True]


def test_a_run_that_was_begun_here_goes_on_and_is_said_to(corpus, tmp_path):
    first, _, _ = carried_out(study(corpus, seeds=(0,)), tmp_path / "first")
    again = study(corpus, seeds=(0,))
    job = plan_study(again, Conduct(root=tmp_path / "second"), RUNTIME).jobs[0]
    RunFolder.create(job.path, identity_of(job.config, "training"))
    _, _, said = carried_out(again, tmp_path / "second", from_record=first)
    assert "1 runs are taken from the record and are not run again; 1 others of it were begun here and go on" in said


def test_two_copies_may_take_over_one_record(corpus, tmp_path, monkeypatch):
    """Criterion: a run that the other copy wrote in the meantime is kept, and no temporary folder is left."""
    first, _, _ = carried_out(study(corpus, seeds=(0,)), tmp_path / "first")
    written = RunFolder.write_summary

    def beside_another_copy(run, summary):
        written(run, summary)
        key = next(outcome.key for outcome in first.outcomes if outcome.summary == summary)
        if run.path.name != key and not (run.path.parent / key).exists():
            shutil.copytree(run.path, run.path.parent / key)

    monkeypatch.setattr(RunFolder, "write_summary", beside_another_copy)
    record, _, said = carried_out(study(corpus, seeds=(0,)), tmp_path / "second", from_record=first)
    assert "2 of 2 runs were finished before" in said
    assert losses(record) == losses(first)
    assert {path.name for path in (tmp_path / "second" / "runs").iterdir()} == {x.key for x in first.outcomes}


def test_a_record_continues_a_share_that_has_none_of_its_runs(corpus, tmp_path):
    first, _, _ = carried_out(study(corpus, seeds=(0,)), tmp_path / "first")
    more = study(corpus, seeds=(0, 1))
    for share in ("1/4", "2/4", "3/4", "4/4"):  # of one run each, and two of these stand in the record
        whole, _, _ = carried_out(more, tmp_path / "second", from_record=first, part=share)
    assert whole.finished == 4


def test_cells_are_carried_out_by_their_rows_and_columns(corpus, tmp_path):
    grid = study(corpus, seeds=(0,), columns=axis("lr", 1e-3, 2e-3))
    first, _, said = carried_out(grid, tmp_path, rows=("gated",), columns=("0.002",))
    assert "1 of 4 runs" in said
    assert places_of(first) == {("gated", "0.002")}
    column, _, said = carried_out(grid, tmp_path, columns=("0.002",))
    assert "1 of 2 runs were finished before" in said
    assert places_of(column) == {("standard", "0.002"), ("gated", "0.002")}


def test_chosen_columns_need_no_data_of_other_columns(corpus, tmp_path):
    grid = study(corpus, seeds=(0,), columns=axis("corpus", corpus, "not-here"))
    for needing in ({}, {"columns": ("not-here",)}):
        with pytest.raises(InputError, match="unknown corpus 'not-here'"):
            carried_out(grid, tmp_path, **needing)
    record, failures, _ = carried_out(grid, tmp_path, columns=(corpus,))
    assert not failures
    assert {(cell.column, cell.missing) for cell in record.cells} == {(corpus, ()), ("not-here", (0,))}


def test_a_record_of_other_runs_is_refused(corpus, tmp_path):
    first, _, _ = carried_out(study(corpus, seeds=(0,)), tmp_path / "first")
    with pytest.raises(InputError, match=r"none of its 2 runs .* prepare the data of its runs: "):
        carried_out(study(corpus, base=BASE.replace(lr=1e-3)), tmp_path / "second", from_record=first)
    assert not list((tmp_path / "second").rglob("summary.json"))


def test_a_study_split_over_machines_and_merged_by_copying_is_the_study(corpus, tmp_path):
    one, two, whole = tmp_path / "one", tmp_path / "two", tmp_path / "whole"
    carried_out(study(corpus), one, part="1/2")
    part, _, _ = carried_out(study(corpus), two, part="2/2")
    assert part.finished == 2
    shutil.copytree(one / "runs", two / "runs", dirs_exist_ok=True)
    merged, _, said = carried_out(study(corpus), two)
    assert "4 of 4 runs were finished before" in said
    assert losses(merged) == losses(carried_out(study(corpus), whole)[0])


def test_a_run_that_diverges_is_an_outcome_that_no_verdict_leaves_out(corpus, tmp_path):
    """Criterion: where a run of a row diverged, the others decide nothing, whatever their losses are. The same command
    repeats no run."""
    rows = Axis("lr", {"standard": {"lr": 1e-3}, "too fast": {"lr": 1e30}})
    wild = study(corpus, rows=rows, seeds=(0,), base=BASE.replace(max_bad_steps=1, clip=None, warmup_steps=0))
    record, failures, said = carried_out(wild, tmp_path)
    assert not failures
    assert "too fast seed 0: stopped at step" in said
    assert math.isnan(record.cell("too fast").losses[0])
    assert record.cell("standard").losses.keys() == {0}
    (difference,) = JudgedStudy(record).differences.values()
    assert difference.verdict.outcome == "undecided"
    assert "diverged" in difference.verdict.reason
    assert carried_out(wild, tmp_path)[0] == record


def test_a_failed_run_is_reported_and_stops_no_other(corpus, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    rows = Axis("attention", {"standard": {}, "failing": {"attention": mechanism(f"{tmp_path}/failing.py:Failing")}})
    failing = study(corpus, rows=rows, seeds=(0,), base=BASE.replace(positions="learned"))
    record, failures, said = carried_out(failing, tmp_path)
    (why,) = failures.values()
    assert "RuntimeError: no more" in why
    assert "failed: failing seed 0" in said
    assert record.cell("failing").missing == (0,)
    assert record.cell("standard").losses.keys() == {0}
    with pytest.raises(InputError, match="no run finished"):  # where all fail, there is no report
        carried_out(failing, tmp_path / "alone", rows=("failing",))


@pytest.fixture
def tuning(corpus) -> Callable[..., tuple[Study, Study]]:
    """Return a study of pretraining, and one that goes on from its runs."""

    def of(*rows: str, seeds=(0, 1), of_start=(0, 1)) -> tuple[Study, Study]:
        before = study(corpus, *rows, name="before", base=BASE.replace(n_steps=4), seeds=of_start)
        base = BASE.replace(lr=1e-4, n_steps=3)
        return before, study(corpus, name="after", base=base, seeds=seeds, pretrained=before)

    return of


def test_a_fine_tuning_starts_from_the_run_of_its_row_and_seed(corpus, tuning, tmp_path):
    _, after = tuning(of_start=(0, 1, 2))
    record, failures, said = carried_out(after, tmp_path)
    assert not failures
    assert "seed 2" not in said  # from which no run starts
    for cell in record.cells:
        assert cell.config["start"]
    scratch = carried_out(study(corpus, name="scratch", base=BASE.replace(lr=1e-4, n_steps=3)), tmp_path)[0]
    for place, by_seed in losses(record).items():  # it has a lower loss than a run from random weights
        assert all(by_seed[seed] < losses(scratch)[place][seed] for seed in (0, 1))


def test_a_share_of_a_fine_tuning_study_pretrains_what_it_fine_tunes_and_no_more(tuning, tmp_path):
    """Criterion: two shares carry out each run once, and together those of the undivided study."""
    _, after = tuning("standard", "gated", "differential")
    whole, _, _ = carried_out(after, tmp_path / "whole")
    names = {path.name for path in (tmp_path / "whole" / "runs").iterdir()}
    assert len(names) == 8
    shares = []
    for part in ("1/2", "2/2"):
        record, failures, said = carried_out(after, tmp_path / part[0], part=part)
        assert not failures
        assert "first, the runs from which this study starts: 2 of before" in said
        assert record.finished == 2
        shares.append({path.name for path in (tmp_path / part[0] / "runs").iterdir()})
    assert shares[0] | shares[1] == names
    assert not shares[0] & shares[1]
    for folder in (tmp_path / "2" / "runs").iterdir():
        shutil.copytree(folder, tmp_path / "1" / "runs" / folder.name)
    merged, _, said = carried_out(after, tmp_path / "1")
    assert "4 of 4 runs were finished before" in said
    assert losses(merged) == losses(whole)


def test_a_plan_of_fine_tuning_shows_runs_whose_start_has_not_finished(tuning, tmp_path):
    _, after = tuning()
    planned = plan_study(after, Conduct(root=tmp_path), RUNTIME)
    assert not planned.jobs
    assert [name for name, _ in planned.waiting] == [job.name for job in planned.before.jobs]
    record, _, _ = carried_out(after, tmp_path, rows=("standard",))
    assert places_of(record) == {("standard", "")}
    planned = plan_study(after, Conduct(root=tmp_path), RUNTIME)
    assert [job.name for job in planned.jobs] == ["standard seed 0", "standard seed 1"]
    assert [name for name, _ in planned.waiting] == ["gated seed 0", "gated seed 1"]


def test_a_failed_pretraining_stops_no_other_row_and_is_told(tuning, tmp_path):
    before, after = tuning(seeds=(0,), of_start=(0,))
    (failing,) = (job for job in plan_study(before, Conduct(root=tmp_path), RUNTIME).jobs if "gated" in job.name)
    RunFolder.create(failing.path, identity_of(failing.config, "training") | {"lr": 0.1})
    record, failures, _ = carried_out(after, tmp_path)
    assert list(failures) == ["gated seed 0"]
    assert places_of(record) == {("standard", "")}


def test_a_start_without_weights_is_refused_with_a_way_out(tuning, tmp_path):
    before, after = tuning(seeds=(0,), of_start=(0,))
    carried_out(after, tmp_path)
    start = plan_study(before, Conduct(root=tmp_path), RUNTIME).jobs[0].path
    shutil.rmtree(start / "checkpoints")
    with pytest.raises(InputError, match=r"must have weights, .* remove that folder, then repeat the command"):
        carried_out(after, tmp_path)


def test_unequal_budgets_are_refused_unless_permitted(corpus, tmp_path):
    rows = Axis("length", {"standard": {"n_steps": 6}, "longer": {"n_steps": 12}})
    with pytest.raises(InputError, match="budget must be equal within a table: 'standard' sees 192 tokens, 'longer'"):
        carried_out(study(corpus, rows=rows, seeds=(0,)), tmp_path)
    assert not list(tmp_path.rglob("metrics.jsonl"))  # nothing was trained
    record, _, _ = carried_out(study(corpus, rows=rows, seeds=(0,), budget="free"), tmp_path)
    assert record.design.budget == "free"
    assert record.finished == 2


def test_a_quantity_that_no_run_has_is_named(corpus, tmp_path):
    wrong = study(corpus, seeds=(0,), quantities=(PERPLEXITY, Quantity("speed", "token_per_second")))
    with pytest.raises(InputError, match=r"quantity 'speed' must be a figure that runs leave behind.*known: .*metric"):
        carried_out(wrong, tmp_path)


def test_a_quantity_of_rows_that_another_machine_runs_leaves_a_gap(corpus, tmp_path):
    """A share of a study without any run of a penalty ended in an error after all its work."""
    penalised = study(corpus, seeds=(0,), quantities=(PERPLEXITY, Quantity("reach of the penalty", "penalty_reach")))
    record, failures, _ = carried_out(penalised, tmp_path)
    assert not failures
    assert all(cell.outcomes for cell in record.cells)


def test_maps_are_measured_and_the_record_survives_storage(corpus, tmp_path):
    probed = study(corpus, "standard", "differential", seeds=(0,), probes=(ATTENTION_MAPS,))
    record, _, _ = carried_out(probed, tmp_path)
    for cell in record.cells:
        (outcome,) = cell.outcomes
        assert len(outcome.probes["entropy"]) == BASE.model.n_layers
        assert all(1 <= rank <= BASE.seq_len for rank in outcome.probes["effective_rank"])
        maps = outcome.probes["heatmaps"]["maps"]
        assert len(maps) == 1
        assert all(abs(sum(row) - 1) < 0.02 for head in maps[0] for row in head)
    stored = StudyRecord.from_dict(json.loads(json.dumps(record.to_dict())))
    assert StudyRecord.from_dict(stored.to_dict()) == stored
    assert losses(stored) == losses(record)
    shown = heatmaps(JudgedStudy(stored))
    assert [maps.row for maps in shown] == ["standard", "differential"]
    for maps in shown:
        kept = np.asarray(record.cell(maps.row).outcomes[0].probes["heatmaps"]["maps"])[:, :2, :32, :32]
        assert maps.weights.shape == kept.shape
        assert np.abs(maps.weights - kept).max() <= 0.0051
    for cell in stored.cells:
        assert stored.cell(cell.row).outcomes[0].training == record.cell(cell.row).outcomes[0].training != ()


def test_a_record_is_the_same_before_and_after_it_was_stored_with_five_digits_in_its_series(corpus, tmp_path):
    record, _, _ = carried_out(study(corpus, "standard", seeds=(0,)), tmp_path)
    assert StudyRecord.from_dict(json.loads(record.to_text())) == record
    (run,) = record.cell("standard").outcomes
    logged = [r["valid_loss"] for r in RunFolder.open(tmp_path / "runs" / run.key).metrics() if "valid_loss" in r]
    for (_, kept), loss in zip(run.curve, logged, strict=True):
        assert kept == pytest.approx(loss, rel=5e-5)
        assert len(f"{kept!r}".replace(".", "").lstrip("0")) <= 5
    assert run.summary["valid_loss"] == logged[-1]  # alone it keeps all its digits


def test_a_record_keeps_the_maps_of_one_seed_of_a_row(corpus, tmp_path):
    probed = study(corpus, "standard", seeds=(0, 1), probes=(ATTENTION_MAPS,))
    record, _, _ = carried_out(probed, tmp_path)
    stored = StudyRecord.from_dict(record.to_dict())
    assert ["heatmaps" in outcome.probes for outcome in record.cell("standard").outcomes] == [True, True]
    assert ["heatmaps" in outcome.probes for outcome in stored.cell("standard").outcomes] == [True, False]


def test_the_training_curve_has_the_mean_loss_between_evaluations():
    """Criterion: steps after the last evaluation and non-finite losses do not count."""
    records = [
        *({"tokens": tokens, "loss": loss} for tokens, loss in ((1, 4.0), (2, 2.0), (3, 1.0), (4, None), (5, 9.0))),
        {"tokens": 2, "valid_loss": 3.0},
        {"tokens": 4, "valid_loss": 2.0},
    ]
    assert training_curve(records, {2, 4}) == ((2, 3.0), (4, 1.0))


def test_wall_clock_is_measured_once_so_that_a_resumed_study_is_the_same(corpus, tmp_path):
    timed = study(corpus, seeds=(0,), budget="wall")
    folder = tmp_path / "tried-smoke"
    folder.mkdir()
    hashes = {row: config_hash(config.to_dict()) for (row, _), config in timed.configs("smoke", 0)}
    speeds = {"device": "cpu", hashes["standard"]: 1.0, hashes["gated"]: 2.0}
    (folder / "speeds.json").write_text(json.dumps(speeds))
    planned = plan_study(timed, Conduct(root=tmp_path, part="1/2"), RUNTIME)
    assert [job.config.n_steps for job in planned.jobs] == [6, 3]
    renamed = study(corpus, seeds=(0,), budget="wall", rows=Axis("attention", dict(timed.rows.values)))
    again = plan_study(renamed, Conduct(root=tmp_path), RUNTIME)
    assert [job.path for job in again.jobs] == [job.path for job in planned.jobs]
    edited = study(corpus, seeds=(0,), budget="wall", base=BASE.replace(n_layers=2))
    with pytest.raises(InputError, match=r"part must be 1/1 until the speeds of all rows are measured, and is 1/2"):
        plan_study(edited, Conduct(root=tmp_path, part="1/2"), RUNTIME)
    (folder / "speeds.json").write_text(json.dumps(speeds | {"device": "cuda"}))
    with pytest.raises(InputError, match=r"device must be that of the speeds in '.*speeds\.json', cuda, and is cpu"):
        plan_study(timed, Conduct(root=tmp_path), RUNTIME)


def test_times_are_taken_in_one_place(corpus, tmp_path):
    """Criterion: a share is refused, and times of another device are replaced by times of this one."""
    timed = study(corpus, seeds=(0,), kind="timing", quantities=(Quantity("speed", "tokens_per_second"),))
    with pytest.raises(InputError, match=r"part must be 1/1 in a study of times, and is 1/2"):
        carried_out(timed, tmp_path, part="1/2")
    for axis_of in ({"rows": ("gated",)}, {"columns": ("",)}):
        with pytest.raises(InputError, match=rf"{next(iter(axis_of))} cannot be chosen in a study of times"):
            carried_out(timed, tmp_path, **axis_of)
    _, _, said = carried_out(timed, tmp_path)
    assert "2 cases in turns, on cpu" in said
    assert "2 of 2 runs were finished before" in carried_out(timed, tmp_path)[2]
    for path in (tmp_path / "runs").iterdir():
        run = RunFolder.open(path)
        run.write_summary(run.summary() | {"device": "cuda"})
    assert "2 cases in turns, on cpu; the times of cuda are replaced" in carried_out(timed, tmp_path)[2]


def test_costs_are_counted_without_data_or_training(tmp_path):
    counted = Study(
        "A", "B?", "none", axis("attention", "standard", "gated"), "standard", {"smoke": Scale(BASE, (0,))},
        control=False, kind="counts", quantities=(Quantity("parameters", "n_parameters"),), name="counted",
    )  # fmt: skip
    record, _, _ = carried_out(counted, tmp_path)
    found = {cell.row: record.design.quantities[0].value(cell.outcomes[0]) for cell in record.cells}
    models = {name: BASE.replace(attention=name).model.build(0) for name in found}
    assert found == {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}


def test_the_key_contains_all_that_determines_the_run(corpus, tmp_path, monkeypatch):
    """Criterion: it depends on the content of the data and of the run's starting weights, and not on their paths."""
    config = BASE.replace(corpus=corpus)
    monkeypatch.setenv("ATTRACTOR_DATA", str(Path(corpus).parent))
    assert key_of(config) == key_of(TrainConfig.from_dict(config.to_dict()))
    changed = [config.replace(seed=1), config.replace(lr=1e-3), config.replace(attention=preset("gated"))]
    assert len({key_of(each) for each in [config, *changed]}) == 4
    before = key_of(config)
    Path(corpus).write_text(Path(corpus).read_text() + "1 more\n")
    _load.cache_clear()
    _task_of.cache_clear()
    assert key_of(config) != before


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", ""])
def test_a_share_that_makes_no_sense_is_refused(part):
    with pytest.raises(InputError, match="part must be a share as 2/3"):
        Conduct(part=part)
