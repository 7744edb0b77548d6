"""`advise` chooses a setting for a budget, leaves out what is too large, and survives interruptions; one test
trains."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from attractor.claims.pilot import Pilot
from attractor.console import seconds_of
from attractor.errors import InputError, RunInterrupted
from attractor.models import TransformerConfig
from attractor.report.advice import Advice
from attractor.runs.run_folder import RunFolder, find_runs
from attractor.study import advise as module
from attractor.study.advise import PilotRequest, advise
from attractor.study.ladder import LADDER, Rung, choose, wall
from attractor.study.launch import Job
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig

RUNTIME = Runtime(device="cpu", threads=1)
RIVALS = ("coupled-euler", "differential")
EFFECTS = {"standard": 0.0, "uniform": 0.4, "coupled-euler": -0.001, "differential": 0.2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "squares.txt"
    path.write_text("".join(f"{i} squared is {i * i}\n" for i in range(400)))
    return str(path)


@pytest.fixture(scope="module")
def ladder() -> tuple[Rung, ...]:
    model = TransformerConfig(vocab_size=320, d_model=16, n_heads=2, n_layers=1, d_ff=32, positions="rope")
    config = TrainConfig(
        model=model, n_steps=12, batch_size=4, seq_len=32, warmup_steps=1, eval_every=12, eval_batches=2
    )
    return (Rung("tiny", config),)


def loss_of(label: str, seed: int) -> float:
    """Return an invented loss: one rival is clearly worse than standard, the other is hard to distinguish from it."""
    return 2.1 + EFFECTS[label] + float(np.random.default_rng([seed, len(label), 0]).normal(0, 0.009))


Launcher = Callable[..., dict[str, str]]


def invented(stop_after: float = math.inf, failing: str = "", ran: list[str] | None = None) -> Launcher:
    """Return a launcher that ends every run at once with its invented loss, one after the other."""

    def launch(jobs: Sequence[Job], n_workers: int, runtime: Runtime, watch: Callable) -> dict[str, str]:
        ended: list[Job] = []
        failures = {}
        for job in jobs:
            if job.config.label == failing:
                failures[job.name] = "out of memory"
            elif not job.finished:
                if ran is not None and len(ran) >= stop_after:
                    raise RunInterrupted("interrupted", 2)
                folder = RunFolder.create(job.path, job.config.identity(job.config.build_task()))
                loss = loss_of(job.config.label, job.config.seed)
                folder.write_summary(
                    {
                        "metric": {"name": "perplexity", "value": math.exp(loss)},
                        "valid_loss": loss,
                        "n_parameters": 1000,
                        "tokens_per_second": 1000.0 + len(job.config.label),
                        "peak_memory_bytes": 10**8,
                    }
                )
                if ran is not None:
                    ran.append(job.name)
            ended.append(job)
            watch([], ended)
        return failures

    return launch


@pytest.fixture
def ask(corpus: str, ladder: tuple[Rung, ...], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Advice, str]]:
    """Ask for advice with invented losses and step times; return the advice and the printed text."""

    def carry_out(out: Path, launch: Launcher, **changes: object) -> tuple[Advice, str]:
        monkeypatch.setattr(module, "launch", launch)
        monkeypatch.setattr(module.RunTimes, "__call__", lambda self, rung, label: 1.0)
        console = StringIO()
        options = PilotRequest(corpus, out=out, ladder=ladder, **changes)  # type: ignore[arg-type]
        return advise(options, RUNTIME, Console(file=console, width=120)), console.getvalue()

    return carry_out


def test_a_budget_is_a_time_with_its_unit() -> None:
    assert [seconds_of(text) for text in ("90s", "10m", "2h", "1h30m", "0.5h")] == [90, 600, 7200, 5400, 1800]
    for wrong in ("", "10", "m", "10 m", "-5m", "10d", "ten"):
        with pytest.raises(InputError, match=f"budget must be a time with its unit, got '{wrong}'; give 90s"):
            seconds_of(wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rivals": ("coupled-eular",)}, "did you mean 'coupled-euler'"),
        ({"rivals": ("gated", "standard")}, "rivals must be without the baseline"),
        ({"rivals": ("gated", "gated")}, "rivals must be without repetition"),
        ({"margin": -1.0}, "margin must be a number above zero"),
        ({"budget": 0.0}, "budget must be a time above zero"),
        ({"max_seeds": 1}, "max_seeds must be at least 2"),
        ({"alpha": 0.0}, "alpha must lie between"),
    ],
)
def test_unusable_requests_are_refused_before_anything_is_timed(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PilotRequest("nowhere", **wrong)


def test_a_corpus_that_would_be_read_too_often_is_refused(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"corpus must hold at least 71,680 training tokens.* holds 7,\d\d\d; give more"
    ):
        advise(PilotRequest(corpus, out=tmp_path / "out"), RUNTIME, Console(file=StringIO()))
    assert not (tmp_path / "out").exists()


def by_tokens(rung: Rung, label: str) -> float:
    return rung.tokens / 30_000 * (1.0 if label == "standard" else 1.1)


@pytest.mark.parametrize("n_workers", [1, 2, 16])
def test_a_larger_budget_never_chooses_less_and_no_budget_is_exceeded(n_workers: int) -> None:
    pilot, before = Pilot(RIVALS, 8), (-1, 0)
    for budget in np.geomspace(100, 100_000, 40):
        try:
            choice = choose(LADDER, pilot, by_tokens, n_workers, lambda budget=budget: budget)  # type: ignore[misc]
        except InputError:
            assert before == (-1, 0), "only the smallest budgets are too small"
            continue
        now = (LADDER.index(choice.rung), choice.n_max)
        assert now >= before
        assert choice.seconds <= budget
        assert choice.n_max == 8 or choice.rung is LADDER[0]
        before = now
    assert before == (len(LADDER) - 1, 8)


def test_a_budget_too_small_for_two_pairs_is_refused_with_the_needed_one() -> None:
    """Criterion: the budget that the message names is enough."""
    pilot = Pilot(RIVALS, 8)
    with pytest.raises(
        InputError, match=r"about \d+ s here, and 10 s are left after timing; give --budget \d+m"
    ) as told:
        choose(LADDER, pilot, by_tokens, 2, lambda: 10.0)
    enough = seconds_of(str(told.value).rpartition(" ")[2])
    assert choose(LADDER, pilot, by_tokens, 2, lambda: enough).n_max >= 2


def test_settings_out_of_reach_are_not_timed() -> None:
    timed: list[tuple[str, str]] = []

    def seconds(rung: Rung, label: str) -> float:
        timed.append((rung.name, label))
        return by_tokens(rung, label)

    assert choose(LADDER, Pilot(RIVALS, 8), seconds, 2, lambda: 200.0).rung is LADDER[0]
    assert {name for name, _ in timed} == {rung.name for rung in LADDER[:2]}
    timed.clear()
    assert choose(LADDER, Pilot(RIVALS, 8), seconds, 2, lambda: 1400.0).rung is LADDER[-2]
    assert [label for name, label in timed if name == LADDER[-1].name] == ["standard"]


def test_more_workers_never_take_longer_and_the_longest_run_is_a_bound() -> None:
    runs = [3.0, 5.0, 8.0, 2.0]
    walls = [wall(runs, n) for n in (1, 2, 4, 100)]
    assert walls == sorted(walls, reverse=True)
    assert walls[-1] >= 8.0


def test_an_arm_that_is_decided_is_closed_and_its_other_seeds_never_run(ask: Callable, tmp_path: Path) -> None:
    ran: list[str] = []
    advice, said = ask(tmp_path / "out", invented(ran=ran))
    coupled, differential = advice.judgement.rivals
    assert (coupled.outcome, differential.outcome) == ("undecided at the end", "worse")
    n_differential = sum(name.startswith("differential") for name in ran)
    assert n_differential == differential.n < coupled.n
    assert said.count("closed: differential against standard: worse") == 1
    assert len(ran) == len(set(ran)), "no run twice"
    assert said.splitlines()[-1] == str(tmp_path / "out" / "advice.json")
    assert json.loads((tmp_path / "out" / "advice.json").read_text())["recommended"] == "standard"


@pytest.mark.parametrize("stop_after", [0, 5])
def test_an_interrupted_pilot_continues_and_gives_the_same_advice(
    ask: Callable, tmp_path: Path, stop_after: int
) -> None:
    """Criterion: interrupted after any number of runs and repeated, it runs each once and gives the advice of an
    uninterrupted one. Repeated again, it runs none, and even the recorded time stays the same."""
    straight: list[str] = []
    expected, _ = ask(tmp_path / "straight", invented(ran=straight), max_seeds=3)
    ran: list[str] = []
    with pytest.raises(RunInterrupted):
        ask(tmp_path / "out", invented(stop_after, ran=ran), max_seeds=3)
    resumed, _ = ask(tmp_path / "out", invented(ran=ran), max_seeds=3)
    assert ran == straight
    assert resumed.words() == expected.words()
    stored = (tmp_path / "out" / "advice.json").read_bytes()
    again, _ = ask(tmp_path / "out", invented(0, ran=ran), max_seeds=3)
    assert again == resumed
    assert (tmp_path / "out" / "advice.json").read_bytes() == stored


def test_the_order_of_rivals_does_not_change_the_question(ask: Callable, tmp_path: Path) -> None:
    one, _ = ask(tmp_path / "out", invented(), max_seeds=3, rivals=RIVALS)
    ran: list[str] = []
    other, _ = ask(tmp_path / "out", invented(ran=ran), max_seeds=3, rivals=RIVALS[::-1])
    assert one == other
    assert not ran


def test_the_end_of_the_budget_ends_the_pilot_with_the_finished_runs(
    ask: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: a clock that jumps beyond the budget after six runs leaves six, and a repetition adds none."""
    ran: list[str] = []
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 1000.0 * (len(ran) >= 6))
    advice, said = ask(tmp_path / "out", invented(ran=ran))
    assert len(ran) == 6
    assert "the budget of 600 s is spent: the answer is what is known by now" in said
    assert advice.judgement.wanted
    now = 5000.0
    again, _ = ask(tmp_path / "out", invented(ran=ran))
    assert (len(ran), again.words()) == (6, advice.words())


def test_a_rival_that_fails_is_left_out_and_a_baseline_that_fails_is_an_error(ask: Callable, tmp_path: Path) -> None:
    ran: list[str] = []
    advice, _ = ask(tmp_path / "rival", invented(failing="coupled-euler", ran=ran))
    assert set(advice.failures) == {"coupled-euler"}
    assert [finding.outcome for finding in advice.judgement.rivals] == ["failed", "worse"]
    with pytest.raises(InputError, match="the baseline 'standard' failed, so there is nothing to compare"):
        ask(tmp_path / "baseline", invented(failing="standard"))


def test_a_folder_with_another_question_or_with_foreign_files_is_refused(ask: Callable, tmp_path: Path) -> None:
    ask(tmp_path / "out", invented())
    with pytest.raises(
        InputError, match=r"holds another pilot: margin is 0\.01 there, 0\.02 here; choose another --out"
    ):
        ask(tmp_path / "out", invented(), margin=0.02)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="out must be an empty folder or one of this command"):
        ask(tmp_path / "mine", invented())


def test_a_real_pilot_times_trains_and_answers(corpus: str, ladder: tuple[Rung, ...], tmp_path: Path) -> None:
    """Criterion: `advise` times, trains and answers. Each run is a folder that `find_runs` reads, and their
    configurations differ by mechanism and seed alone."""
    console = StringIO()
    options = PilotRequest(
        corpus, 3600.0, max_seeds=2, rivals=("coupled-euler",), workers=2, out=tmp_path, ladder=ladder
    )
    advice = advise(options, RUNTIME, Console(file=console, width=120))
    lines = console.getvalue().splitlines()
    assert lines[-1] == str(tmp_path / "advice.json")
    assert all(line in lines for line in advice.words())
    runs = find_runs(tmp_path)
    ran = {(run.config["label"], run.config["seed"]) for run in runs}
    assert {("standard", 0), ("standard", 1), ("uniform", 0), ("uniform", 1), ("coupled-euler", 0)} <= ran
    assert len({json.dumps(run.config | {"label": 0, "seed": 0, "model": 0}) for run in runs}) == 1
    assert len({json.dumps(run.config["model"] | {"attention": 0}) for run in runs}) == 1
    assert set(advice.losses) == set(advice.costs) == {"standard", "uniform", "coupled-euler"}
    assert 0 < advice.setting.spent_seconds < 3600
    again = advise(replace(options, rivals=("coupled-euler",)), RUNTIME, Console(file=StringIO()))
    assert again == advice


def test_every_setting_builds_every_mechanism_on_bytes(corpus: str) -> None:
    for rung in LADDER:
        for label in ("standard", "uniform", *RIVALS):
            config = module.config_on(rung, Text(corpus), label)
            assert config.task == Text(corpus)
            assert config.label == label
        assert rung.config.model.positions == "rope", "learned positions favour the control (LOG.md, 2026-11-20)"
    tokens = [rung.tokens for rung in LADDER]
    assert tokens == sorted(tokens)
