"""A comparison within a time plans the seeds that fit, stops decided rows, keeps its plan and ends in time."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.report.judged_study import JudgedStudy
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import StudyRecord
from attractor.study.compare import SCALE, comparison
from attractor.study.launch import Job
from attractor.study.plan import Conduct, Planned, plan_study, write_plan
from attractor.study.within import UntilDecided, seconds_of_plan, seeds_that_fit, stored_plan
from attractor.train.config import Runtime, TrainConfig
from in_process import Command

RUNTIME = Runtime(device="cpu", threads=1)
SEEDS = tuple(range(3, 11))
EFFECTS = {"standard": 0.0, "uniform": 0.4, "gated": -0.001, "differential": 0.2}
FOREVER = time.monotonic() + 1e6


@pytest.fixture
def planned(base: TrainConfig, tmp_path: Path) -> Planned:
    study = comparison("tried", ("standard", "gated", "differential"), SEEDS, base, base.build_task(), margin=0.004)
    study = replace(study, looks=tuple(range(2, len(SEEDS) + 1)))
    conduct = Conduct(scale=SCALE, root=tmp_path, folder=tmp_path / "out", command="attractor compare")
    made = plan_study(study, conduct, RUNTIME)
    write_plan(made)
    return made


def loss_of(label: str, seed: int) -> float:
    """Return an invented loss: one row is clearly worse than standard, the other is hard to tell from it."""
    return 2.1 + EFFECTS[label] + float(np.random.default_rng([seed, len(label)]).normal(0, 0.009))


def finish(job: Job) -> None:
    folder = RunFolder.create(job.path, job.config.identity(job.config.build_task()))
    loss = loss_of(job.config.label, job.config.seed)
    metric = {"name": "perplexity", "value": math.exp(loss)}
    costs = {"n_parameters": 1000, "tokens_per_second": 1000.0, "peak_memory_bytes": 10**8}
    folder.write_summary({"metric": metric, "valid_loss": loss, "tokens": 100, "bytes_per_token": 1.0, **costs})


def conducted(planned: Planned, said: list[str], n_at_most: int = 1000, failing: str = "") -> list[str]:
    """Finish the chosen runs one after the other with their invented losses, and return their names in order."""
    decisions = UntilDecided(planned, FOREVER, said.append)
    ended = [job for job in planned.jobs if job.finished]
    ran: list[str] = []
    while len(ran) < n_at_most and (chosen := decisions.choose([job for job in planned.jobs if job not in ended])):
        if chosen[0].config.label != failing:
            finish(chosen[0])
        ended.append(chosen[0])
        ran.append(chosen[0].name)
        decisions.watch((), ended)
    return ran


def outcomes(planned: Planned) -> dict[str, str]:
    judged = JudgedStudy(StudyRecord.read(planned.folder))
    return {row: judged.differences[row, "", judged.headlines[0]].verdict.outcome for row in judged.design.rivals}


@pytest.mark.parametrize("n_workers", [1, 2, 16])
def test_more_time_never_plans_fewer_seeds_and_no_plan_exceeds_the_time(planned: Planned, n_workers: int) -> None:
    seconds, before = dict.fromkeys(planned.design.rows, 10.0) | {"gated": 12.0}, 0
    for left in np.geomspace(10, 2000, 30):
        try:
            seeds = seeds_that_fit(planned, seconds, n_workers, left)
        except InputError:
            assert before == 0, "only the smallest times are too small"
            continue
        assert seeds == SEEDS[: len(seeds)]
        assert len(seeds) >= max(2, before)
        assert seconds_of_plan(planned, len(seeds), seconds, n_workers) <= left
        before = len(seeds)
    assert before == len(SEEDS)


def test_a_time_too_short_for_two_seeds_is_refused_with_one_that_is_enough(planned: Planned) -> None:
    seconds = dict.fromkeys(planned.design.rows, 10.0)
    with pytest.raises(InputError, match=r"take about \d+ s here, and 5 s are left after timing; give") as refused:
        seeds_that_fit(planned, seconds, 2, 5.0)
    minutes = int(str(refused.value).partition("--within ")[2].partition("m")[0])
    assert len(seeds_that_fit(planned, seconds, 2, 60.0 * minutes)) >= 2


def test_finished_runs_take_no_time(planned: Planned) -> None:
    seconds = dict.fromkeys(planned.design.rows, 10.0)
    before = seconds_of_plan(planned, 2, seconds, 1)
    finish(planned.jobs[0])
    assert seconds_of_plan(planned, 2, seconds, 1) < before


def test_the_control_runs_first_and_a_decided_row_runs_no_more(planned: Planned) -> None:
    said: list[str] = []
    ran = conducted(planned, said)
    assert ran[:4] == [f"{row} seed {seed}" for seed in SEEDS[:2] for row in ("standard", "uniform")]
    assert outcomes(planned) == {"gated": "undecided", "differential": "worse"}
    n_runs = {row: sum(name.startswith(row) for name in ran) for row in EFFECTS}
    assert 2 <= n_runs["differential"] < n_runs["gated"] == n_runs["standard"] == len(SEEDS)
    assert n_runs["uniform"] == 2
    assert len(set(ran)) == len(ran)
    (worse, undecided) = said
    assert worse.startswith("differential: worse. After")
    assert undecided.startswith("gated: undecided. All 8 pairs")


@pytest.mark.parametrize("n_before", [0, 3, 9])
def test_an_interrupted_comparison_goes_on_to_the_same_verdict(planned: Planned, n_before: int) -> None:
    """Criterion: it repeats no run, and its record before the end names no verdict that the end does not."""
    before = conducted(planned, [], n_before)
    early = {row: outcome for row, outcome in outcomes(planned).items() if outcome in ("better", "worse")}
    next_step = JudgedStudy(StudyRecord.read(planned.folder)).verdict()[-1].text
    n_left = len(list(StudyRecord.read(planned.folder).sequential_rows().wanted()))
    assert next_step == f"What next: the same command goes on, with {n_left} runs to do at most: attractor compare"
    ran = before + conducted(planned, [])
    assert len(set(ran)) == len(ran)
    assert outcomes(planned) == {"gated": "undecided", "differential": "worse"}
    assert early.items() <= outcomes(planned).items()
    assert conducted(planned, []) == []


def test_no_run_begins_or_goes_on_after_the_end(planned: Planned) -> None:
    assert UntilDecided(planned, FOREVER, print).choose(planned.jobs)
    assert not UntilDecided(planned, time.monotonic(), print).choose(planned.jobs)


def test_a_row_that_fails_runs_no_more_and_the_others_go_on(planned: Planned) -> None:
    ran = conducted(planned, [], failing="gated")
    assert sum(name.startswith("gated") for name in ran) == 1
    assert outcomes(planned) == {"gated": "undecided", "differential": "worse"}
    judged = JudgedStudy(StudyRecord.read(planned.folder))
    assert judged.differences["gated", "", judged.headlines[0]].words == "undecided (not run)"


@pytest.mark.parametrize(
    ("changes", "within", "message"),
    [
        ({}, False, "within must be as in the plan"),
        ({"margin": 0.02}, True, r"margin must be as in the plan of '.*out', which has 0\.004, got 0\.02; repeat"),
        ({"rows": ("standard", "mla", "uniform")}, True, "rows must be as in the plan"),
        ({"seeds": (0, 1, 2)}, True, "seeds must be as in the plan"),
        ({"question": "Which does best in 9 steps?"}, True, "question must be as in the plan"),
    ],
)
def test_a_folder_with_another_plan_is_refused(planned: Planned, changes: Mapping, within: bool, message: str) -> None:
    assert stored_plan(planned.folder, planned.design, within=True) == planned.design
    with pytest.raises(InputError, match=message):
        stored_plan(planned.folder, replace(planned.design, **changes), within)


@pytest.mark.slow
def test_the_command_times_trains_and_answers_and_repeated_trains_nothing(
    attractor: Command, base: TrainConfig
) -> None:
    names = ("d_model", "n_heads", "n_layers", "d_ff", "corpus", "n_steps", "warmup_steps", "batch_size", "seq_len")
    settings = vars(base.model) | vars(base.task) | vars(base)
    options = [f"--{name.replace('_', '-')}={settings[name]}" for name in names]
    words = ["compare", "standard", "gated", "--within=1h", "--seeds", "0", "1", "--workers=2", "--device=cpu"]
    code, out, _ = attractor(*words, *options)
    page = Path(out.splitlines()[-1])
    assert code == 0
    assert "plan: the control first, with 2 seeds; at most 2 seeds of each row" in out
    design = json.loads((page.parent / "study.json").read_text())["design"]
    assert (design["looks"], design["seeds"]) == ([2], [0, 1])
    assert "at a look that was planned before the first run (2 pairs)" in page.read_text()
    code, again, _ = attractor(*words, *options)
    assert code == 0
    assert f"as planned in '{page.parent / 'study.json'}'" in again
    table = out.index("\nattention ")
    assert again.endswith(out[table:])
