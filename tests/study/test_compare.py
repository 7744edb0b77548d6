"""`attractor compare` is a study of one column, run here by the real command from presets to table, verdict and
page."""

import json
import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import attractor
from attractor.attention import PRESETS
from attractor.errors import InputError
from attractor.models import FastSlowConfig
from attractor.report.judged_study import JudgedStudy
from attractor.runs.run_folder import RunFolder, find_runs
from attractor.runs.study_record import StudyRecord
from attractor.study.compare import PILOT_SEED, SCALE, comparison, pilot_of_rates
from attractor.study.launch import Job, launch, share_machine
from attractor.study.plan import Conduct, Planned, plan_study
from attractor.study.run import run_study
from attractor.study.study import Study
from attractor.study.thorough import further_studies
from attractor.train.config import Runtime, TrainConfig
from in_process import command_in_process, without_heartbeat
from processes import in_fresh_process
from stress.commands import command

ATTRACTOR = str(Path(sysconfig.get_path("scripts")) / "attractor")
RUNTIME = Runtime(device="cpu", threads=1)


def words_of(base: TrainConfig, out: Path, *more: str) -> list[str]:
    """Return the same comparison as a person would type it, after the word attractor."""
    settings = vars(base.model) | vars(base.task) | vars(base)
    names = ["d_model", "n_heads", "n_layers", "d_ff", "max_seq_len", "corpus", "n_steps", "warmup_steps"]
    names += ["batch_size", "seq_len", "eval_every", "eval_batches"]
    options = [f"--{name.replace('_', '-')}={settings[name]}" for name in names]
    return ["compare", *more, *options, f"--out={out}", "--device=cpu"]


def verdict_on(record: StudyRecord) -> dict[str, str]:
    return {line.subject: line.text for line in JudgedStudy(record).verdict()}


def of_python(base: TrainConfig) -> dict[str, Any]:
    """Return the settings of a short comparison from Python."""
    sizes = {"recipe": "laptop", "corpus": base.task.corpus, "d_model": 16, "n_layers": 1, "n_steps": 6}
    return sizes | {"eval_batches": 1, "device": "cpu", "seeds": 2, "workers": 2}


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}


First = tuple[Path, subprocess.CompletedProcess]


@pytest.fixture(scope="module")
def first(base: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> First:
    """Compare two presets and the control with two seeds in a folder whose name needs quoting."""
    out = tmp_path_factory.mktemp("study") / "my comparison"
    words = words_of(base, out, "standard", "coupled-euler", "--seeds", "0", "1")
    return out, subprocess.run([ATTRACTOR, *words], capture_output=True, text=True, timeout=120, cwd=out.parent)


def test_the_command_ends_with_table_verdict_and_the_page_alone_on_its_last_line(first: First) -> None:
    """Criterion: the command exits with 0 and an empty standard error. Each preset and the control has a row in the
    requested order, the verdict begins with the sensitivity, and the last line is only the path."""
    out, done = first
    assert (done.returncode, without_heartbeat(done.stderr)) == (0, "")
    lines = done.stdout.splitlines()
    page = Path(lines[-1])
    assert page == out / "report.html"
    assert page.read_text().startswith("<!doctype html>")
    heading = next(i for i, line in enumerate(lines) if line.startswith("attention "))
    for name in ("perplexity", "difference (nats/byte)", "params", "tok/s", "memory"):
        assert name in lines[heading]
    rows = lines[heading + 2 : heading + 5]
    assert [line.split()[:2] for line in rows] == [[name, "2"] for name in ("standard", "coupled-euler", "uniform")]
    verdicts = [line for line in lines if line.startswith(("Sensitive: the", "Not sensitive: the", "coupled-euler:"))]
    assert len(verdicts) == 2
    assert verdicts[0].split(":")[0] in ("Sensitive", "Not sensitive")
    assert "2 pairs" in verdicts[1]
    ended = [line for line in lines if line.startswith("[")]
    assert [line.split("/")[0] for line in ended] == ["[1", "[2", "[3", "[4", "[5", "[6"]
    assert all(len(line) <= 100 for line in lines[heading : heading + 5])


def test_its_folder_has_all_files_of_a_study_and_no_file_is_outside(first: First, tmp_path: Path) -> None:
    """Criterion: a copy of the folder gives the same record and the same tables. The page loads nothing from another
    address, and contains the command that writes it again."""
    out, _ = first
    names = {"study.json", "report.html", "record.json", "table.md", "table.tex", "numbers.tex", "figures", "runs"}
    assert {path.name for path in out.iterdir()} == names
    assert {path.name for path in out.parent.iterdir()} == {out.name}
    shutil.copytree(out, tmp_path / "copy")
    record = StudyRecord.read(tmp_path / "copy")
    assert record == StudyRecord.read(out)
    assert (record.finished, record.design.scale, record.design.claims) == (6, "own", ())
    stored = StudyRecord.from_dict(json.loads((out / "record.json").read_text()))
    assert verdict_on(stored) == verdict_on(record)
    assert str(out.parent) not in (out / "study.json").read_text().replace(record.design.command, "")
    page = (out / "report.html").read_text()
    assert " src=" not in page.replace('src="data:', "")
    assert "<link" not in page
    assert "attractor compare standard coupled-euler" in page


def test_a_pilot_gives_each_row_its_best_rate_and_judges_none(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: of a rate that learns nothing, one that learns and one that diverges, every run has the middle one. A
    grid whose best rate is at its edge ends before any run that would be judged."""
    settings = of_python(base)
    study = attractor.compare("standard", lr=(1e-9, 1e-2, 1e3), out=tmp_path / "tried", **settings)
    assert {run.config.lr for run in study.runs} == {1e-2}
    assert {run.config.seed for run in study.runs} == {0, 1}
    pilot = StudyRecord.read(tmp_path / "tried" / "tried-rates")
    assert (pilot.design.seeds, pilot.finished) == ((PILOT_SEED,), 6)
    with pytest.raises(InputError, match=r"standard is at the edge; give --lr 5e-10 1e-09 1e-08 1e-07 2e-07"):
        attractor.compare("standard", lr=(1e-9, 1e-8, 1e-7), out=tmp_path / "edge", **settings)
    assert not (tmp_path / "edge" / "record.json").exists()
    with pytest.raises(InputError, match="lr must be one, or at least three different ones"):
        attractor.compare("standard", lr=(1e-3, 1e-3), **settings)
    with pytest.raises(InputError, match="unknown match 'parameter'; did you mean 'parameters'"):
        attractor.compare("standard", match="parameter", **settings)


def test_every_run_is_a_folder_of_one_mechanism_and_one_seed(first: First) -> None:
    runs = find_runs(first[0])
    labels = ("coupled-euler", "standard", "uniform")
    found = sorted((run.config["label"], run.config["seed"]) for run in runs)
    assert found == [(name, seed) for name in labels for seed in (0, 1)]
    assert len({json.dumps(r.config | {"label": 0, "seed": 0, "model": 0}) for r in runs}) == 1
    assert len({json.dumps(r.config["model"] | {"attention": 0}) for r in runs}) == 1


@pytest.mark.slow
def test_the_same_command_again_trains_nothing_and_reports_it(base: TrainConfig, first: First) -> None:
    out, done = first
    before = written(out)
    words = words_of(base, out, "standard", "coupled-euler", "--seeds", "0", "1")
    again = in_fresh_process(command, *words, folder=out.parent)
    assert (again.code, without_heartbeat(again.error)) == (0, "")
    changed = {path for path, when in written(out).items() if when != before.get(path)}
    assert {path.parent for path in changed} == {out, out / "figures"}, "no run was touched"
    assert out / "report.html" in changed
    said = again.out.splitlines()
    assert "6 of 6 runs were finished before" in said
    assert not [line for line in said if line.startswith("[")]
    rest = done.stdout.splitlines()
    table = next(i for i, line in enumerate(rest) if line.startswith("attention "))
    assert said[-len(rest[table:]) :] == rest[table:], "the same table and verdict"


def asked(base: TrainConfig, *presets: str, seeds: tuple[int, ...] = (0, 1), **more: Any) -> Study:
    return comparison("tried", presets, seeds, base, base.build_task(), **more)


def planned(study: Study, root: Path) -> Planned:
    return plan_study(study, Conduct(scale=SCALE, root=root, folder=root), RUNTIME)


def test_one_seed_gives_every_mechanism_the_same_weights_and_batches(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: over all presets, parameters with the same name and shape start equal in every bit, and the batches of
    every step are equal. Another seed gives others."""
    jobs = planned(asked(base.replace(n_heads=4), *PRESETS), tmp_path).jobs
    reference = {}
    for seed in (0, 1):
        configs = [job.config for job in jobs if job.config.seed == seed]
        standard = reference[seed] = configs[0].model.build(seed).state_dict()
        task = base.task.build(base.seq_len, seed)
        for config in configs:
            assert config.replace(attention="standard", seed=0) == base.replace(n_heads=4)
            shared = {name: w for name, w in config.model.build(seed).state_dict().items() if name in standard}
            shared = {name: w for name, w in shared.items() if w.shape == standard[name].shape}
            assert {"embedding.weight", "blocks.0.mlp.gate.weight", "blocks.0.mlp.down.weight"} <= shared.keys()
            assert all(torch.equal(w, standard[name]) for name, w in shared.items()), config.label
            again = config.build_task()
            for step in (0, 11):
                for one, other in zip(task.train_batch(step, 4)[:2], again.train_batch(step, 4)[:2], strict=True):
                    assert np.array_equal(one, other)
    assert not torch.equal(reference[0]["embedding.weight"], reference[1]["embedding.weight"])
    batches = [base.task.build(base.seq_len, seed).train_batch(0, 4)[0] for seed in (0, 1)]
    assert not np.array_equal(*batches)


def test_whole_pairs_come_as_early_as_possible_and_the_control_is_always_included(
    base: TrainConfig, tmp_path: Path
) -> None:
    jobs = planned(asked(base, "standard", "gated", seeds=(3, 5)), tmp_path).jobs
    rows = ("standard", "gated", "uniform")
    assert [job.name for job in jobs] == [f"{label} seed {seed}" for seed in (3, 5) for label in rows]
    study = asked(base, "gated", "uniform", "mla")
    assert study.axes(SCALE)[0].labels == ("gated", "uniform", "mla")
    assert study.design(SCALE, (0,), "").control == "uniform"


def test_the_legs_of_a_thorough_comparison_share_runs_and_add_no_idea(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: the baseline has half and twice the steps, and a whole model of half the width has half the heads. The
    pilot has all runs at higher rates that its grid holds, to the key. No rung is a row of the comparison."""
    study = asked(base, "standard", "gated")
    legs = further_studies(study, SCALE, PILOT_SEED, recall=True)
    jobs = {leg: planned(of_leg, tmp_path).jobs for leg, of_leg in legs.items()}
    n = base.n_steps
    assert {job.config.n_steps for job in jobs["ladder"]} == {n // 2, 2 * n}
    assert {job.config.model.label for job in jobs["ladder"]} == {"standard"}
    sizes = {(model.d_model, model.n_heads, model.d_ff) for model in (job.config.model for job in jobs["size"])}
    assert sizes == {(8, 1, 16)}
    assert {job.config.task.kind for job in jobs["recall"]} == {"mqar"}
    pilot = planned(pilot_of_rates(study, [base.lr, 2 * base.lr, 4 * base.lr]), tmp_path).jobs
    assert {job.path for job in jobs["stability"]} < {job.path for job in pilot}
    assert {job.config.lr for job in jobs["stability"]} == {base.lr, 2 * base.lr, 4 * base.lr}
    assert study.axes(SCALE)[0].labels == ("standard", "gated", "uniform")


def test_a_model_that_cannot_be_halved_has_twice_the_width(base: TrainConfig) -> None:
    odd = asked(base.replace(d_model=6, n_heads=1), "standard")
    assert further_studies(odd, SCALE, 0, recall=False)["size"].on(SCALE).base.model.d_model == 12


@pytest.mark.slow
def test_a_thorough_comparison_resumes_and_is_the_same_from_python(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: after a first run without legs, the thorough one trains what is missing and says what it takes; the
    loaded folder, its record and the JSON of the command agree on every leg; a second time nothing is trained."""
    settings = of_python(base) | {"n_heads": 2, "out": tmp_path / "tried"}
    plain = attractor.compare("standard", "gated", **settings)
    assert plain.legs == []
    study = attractor.compare("standard", "gated", thorough=True, **settings)
    of_legs = [(row["leg"], row["row"], row["n"]) for row in study.legs]
    assert of_legs == [
        ("loss", "gated", 2),
        ("speedup", "gated", 2),
        *[(f"loss at {by} the rate", row, 1) for row in ("standard", "gated") for by in ("2x", "4x")],
        ("loss at width 8", "gated", 2),
    ]
    assert {run.path for run in plain.runs} == {run.path for run in study.runs}
    assert attractor.load(tmp_path / "tried").legs == study.legs
    assert attractor.load(tmp_path / "tried" / "record.json").legs == study.legs
    before = written(tmp_path / "tried" / "runs")
    again = attractor.compare("standard", "gated", thorough=True, **settings)
    assert (again.legs, written(tmp_path / "tried" / "runs")) == (study.legs, before)
    assert attractor.compare("standard", "gated", **settings).legs == [], "without --thorough the report has no legs"


def test_a_larger_vocabulary_than_the_task_demands_is_kept(base: TrainConfig, tmp_path: Path) -> None:
    """The vocabulary that a person requests is not replaced by the smallest possible one."""
    jobs = planned(asked(base.replace(vocab_size=500), "standard", "gated"), tmp_path).jobs
    assert {job.config.model.vocab_size for job in jobs} == {500}


@pytest.mark.parametrize(
    ("presets", "more", "message"),
    [
        ((), {}, "mechanisms must be at least one name"),
        (("uniform", "gated"), {}, "mechanisms must be led by the baseline, which the control cannot be"),
        (("gated", "gated"), {}, "mechanisms must be without repetition, got 'gated gated'"),
        (("gated",), {"seeds": ()}, "seeds must be at least one"),
        (("gated",), {"seeds": (1, 2, 1)}, "seeds must be without repetition, got '1 2 1'"),
        (("gated",), {"margin": 0.0}, "margin must be above 0, got 0"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(
    base: TrainConfig, presets: tuple[str, ...], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        asked(base, *presets, **more)


def test_one_seed_is_told_from_a_number_of_seeds(monkeypatch, capsys) -> None:
    said = command_in_process(monkeypatch, capsys)("compare", "standard", "--seeds=4", "--corpus=missing.txt")
    assert "seed 4 alone is trained; --seeds 0-3 trains 4 seeds" in said.out


def test_workers_share_the_cores_and_there_is_at_least_one() -> None:
    cores = len(os.sched_getaffinity(0))
    n_workers, runtime = share_machine(1000, None, Runtime(device="cpu"))
    assert (n_workers, runtime.threads) == (cores, 1)
    n_workers, runtime = share_machine(1000, 1, Runtime(device="cpu"))
    assert (n_workers, runtime.threads) == (1, cores)
    assert share_machine(1, None, Runtime(device="cpu", threads=3))[1].threads == 3
    for workers in (0, -1):
        with pytest.raises(InputError, match=f"workers must be at least 1, got {workers}"):
            share_machine(4, workers, Runtime(device="cpu"))


def carried_out(study: Study, root: Path) -> tuple[StudyRecord, str]:
    """Run a comparison in this process; return the record and the printed text."""
    out = StringIO()
    conduct = Conduct(scale=SCALE, root=root, folder=root, workers=2)
    record, _ = run_study(study, conduct, RUNTIME, Console(file=out, width=120))
    return record, out.getvalue()


def run_of(root: Path, label: str, seed: int) -> Path:
    (path,) = [run.path for run in find_runs(root) if (run.config["label"], run.config["seed"]) == (label, seed)]
    return path


def damage_every_checkpoint(run: Path) -> None:
    for weights in run.glob("checkpoints/step-*/model.safetensors"):
        weights.write_bytes(b"")


def test_a_run_that_fails_is_reported_and_does_not_stop_the_rest(
    base: TrainConfig, first: First, tmp_path: Path
) -> None:
    """Criterion: of three unfinished runs, one has no intact checkpoint and another lost its newest. The first is named
    with the reason and is missing from the table. The damage of the second is named, and both others are finished."""
    root = tmp_path / "copy"
    shutil.copytree(first[0], root)
    broken, torn, whole = (run_of(root, *name) for name in (("coupled-euler", 1), ("standard", 0), ("uniform", 1)))
    for run in (broken, torn, whole):
        (run / "summary.json").unlink()
    damage_every_checkpoint(broken)
    (torn / "checkpoints/step-00000012/model.safetensors").write_bytes(b"")
    record, said = carried_out(asked(base, "standard", "coupled-euler"), root)
    lines = said.splitlines()
    (failed,) = [line for line in lines if line.startswith("failed: ")]
    assert failed.startswith(f"failed: coupled-euler seed 1: '{broken}/checkpoints' must hold an intact checkpoint")
    assert record.cell("coupled-euler").missing == (1,)
    assert "3 of 6 runs were finished before" in lines
    (damage,) = [line for line in lines if line.startswith("standard seed 0: damaged checkpoint")]
    assert "step-00000012/model.safetensors' does not have the content" in damage
    assert not (broken / "summary.json").exists()
    for run in (torn, whole):
        before, after = (RunFolder.open(path).summary() or {} for path in (first[0] / "runs" / run.name, run))
        assert after["valid_loss"] == before["valid_loss"]
    assert "one pair has no interval" in verdict_on(record)["coupled-euler"]


def test_mechanisms_within_another_family_are_compared_under_its_name(base: TrainConfig, tmp_path: Path) -> None:
    two_timescales = base.replace(model=FastSlowConfig(d_model=16, n_heads=2, d_ff=32, max_seq_len=64))
    record, _ = carried_out(asked(two_timescales, "standard", "gated", seeds=(0,)), tmp_path / "root")
    assert "fast-slow" in record.design.title
    labels = [cell.config["label"] for cell in record.cells]
    assert labels == ["fast-slow", "fast-slow gated", "fast-slow uniform"]
    assert "one pair has no interval" in verdict_on(record)["gated"]


def test_a_process_that_dies_silently_is_reported(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: a run killed by force, as for lack of memory, is a failure, and the launcher returns."""
    job = Job(base.replace(n_steps=100_000, eval_every=100_000, attention="gated"), tmp_path / "run")
    others = multiprocessing.active_children()  # of other tests: the one that imports for those that fork

    def kill(running: list[Job], ended: list[Job]) -> None:
        if running and (job.path / "metrics.jsonl").exists():
            for process in {*multiprocessing.active_children()}.difference(others):
                process.kill()

    failures = launch([job], 1, RUNTIME, kill)  # type: ignore[arg-type]
    why = "signal 9 ended its process; it has no checkpoint yet, so the same command starts it anew"
    assert failures == {"gated seed 0": why}


def test_a_mechanism_that_does_not_fit_is_refused_before_anything_runs(base: TrainConfig, tmp_path: Path) -> None:
    odd = base.replace(d_model=18, n_heads=6, positions="learned")  # heads of width 3 cannot be halved
    with pytest.raises(InputError, match="differential"):
        carried_out(asked(odd, "standard", "differential"), tmp_path / "root")
    assert not (tmp_path / "root").exists()


def until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_an_interrupt_leaves_runs_that_the_same_command_completes(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: Ctrl-C ends the command with 130 and a line with the next command. Unfinished runs have metrics and a
    checkpoint, and the printed command finishes them."""
    out = tmp_path / "out"
    words = words_of(base.replace(n_steps=300, eval_every=150), out, "standard", "--seeds", "0", "--workers", "2")
    process = subprocess.Popen(
        [ATTRACTOR, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        until(lambda: any('"loss"' in path.read_text() for path in out.glob("runs/*/metrics.jsonl")), process)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    (line,) = without_heartbeat(said).splitlines()
    saved = len({path.parent for path in out.glob("runs/*/checkpoints/step-*")})
    state = f"0 of 2 runs ended; under way: 2, of these with a checkpoint: {saved}"
    assert line.startswith(f"interrupted: {state}. Resume with the same command: ")
    stood = [int(path.name.removeprefix("step-")) for path in out.glob("runs/*/checkpoints/step-*")]
    assert stood
    assert all(1 <= step < 300 for step in stood)
    assert not list(out.glob("runs/*/summary.json"))
    resume = shlex.split(line.split("same command: ")[1])
    assert resume == ["attractor", *words]
    done = in_fresh_process(command, *resume[1:], folder=tmp_path)
    assert (done.code, without_heartbeat(done.error)) == (0, "")
    assert Path(done.out.splitlines()[-1]) == out / "report.html"
    runs = find_runs(out)
    assert len(runs) == 2
    for run in runs:
        steps = [record["step"] for record in run.metrics() if "loss" in record]
        assert steps == sorted(set(steps))
        assert steps[-1] == 300
