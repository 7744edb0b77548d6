"""A race decides as its plan says, errs at most at the planned rate, and neither repeats nor loses a run."""

import ast
import itertools
import json
import math
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from attractor.verdict import command_run
from attractor.verdict.command_run import CommandRun, last_value
from attractor.verdict.race import BASELINE, EndedRun, Race, RacePlan, carry_out, verdicts_of
from attractor.verdict.sequential import Sequential
from in_process import Command
from processes import living_family

SETTINGS = RacePlan("b {seed}", "([0-9.]+)", margin=1.0, max_seeds=6)
NANOGPT_LIKE = """
import random, sys
seed, gain = int(sys.argv[1]), float(sys.argv[2])
loss = 2.3 + random.Random(seed).gauss(0, .05) - gain + random.Random(seed + 1000 * (gain > 0)).gauss(0, .002)
for step in range(0, 300, 100):
    print(f"step {step}: train loss {loss + 1 / (step + 1) - .2:.4f}, val loss {loss + 1 / (step + 1):.4f}", flush=True)
"""
AWK_PROGRAM = 'BEGIN { srand(seed + 97 * gain); print "seed", seed; print "loss=" 2 + rand() - gain }'
AWK = f"awk -v seed={{seed}} -v gain=GAIN '{AWK_PROGRAM}'"


class Answered:
    """A run that has ended as soon as it begins."""

    def __init__(self, value: float) -> None:
        self.value = value

    def poll(self):
        return self.value, ""

    def end(self) -> None: ...


def simulated(plan, value_of, ended=(), **options):
    """Return the race of a plan whose runs have these values, and the outcomes in order."""
    race, recorded = Race(plan, ended), list(ended)
    carry_out(race, lambda row, seed: Answered(value_of(row, seed)), recorded.append, **options)
    return race, recorded


def values(rows, seed, effect=0.0, n_seeds=6):
    """Return normal values of rows by seed; those of the baseline and the rows share part of their noise."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=n_seeds)
    drawn = {row: shared + rng.normal(size=n_seeds) + effect * (row != BASELINE) for row in (BASELINE, *rows)}
    return lambda row, seed: drawn[row][seed - 1]


@pytest.fixture
def attractor(attractor, tmp_path) -> Command:
    (tmp_path / "train.py").write_text(NANOGPT_LIKE)
    return attractor


def line_of(gain, *more):
    python = f"{sys.executable} train.py {{seed}}"
    rows = ["--baseline", f"{python} 0", "--row", f"mine={python} {gain}", "--value", "val loss ([0-9.]+)"]
    return ["race", *rows, "--margin", ".05", *more]


def outcomes(folder="race"):
    return [json.loads(line) for line in Path(folder, "outcomes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("looks", [(), (3, 6)])
@pytest.mark.parametrize("n_at_once", [1, 3])
def test_decisions_are_those_of_the_sequential_test_on_the_same_numbers(looks, n_at_once):
    """Criterion: outcome, pairs and interval of each row equal those of `Sequential`, and a decided row begins no run.
    With several runs at once, some may be under way by then."""
    plan = RacePlan("b {seed}", "([0-9.]+)", 1.0, 6, looks).with_ideas(dict.fromkeys("rs", "r {seed}"))
    for draw in range(60):
        value_of = values("rs", draw, effect=(draw % 3 - 1) * 2.0)
        race, recorded = simulated(plan, value_of, n_at_once=n_at_once)
        for idea in plan.ideas:
            differences = [value_of(idea.name, s) - value_of(BASELINE, s) for s in range(1, 7)]
            test = Sequential(0.05 / 3, 1.0, 6, looks=looks)
            alone = next(d for n in test.looks if (d := test.look(differences[:n])).final)
            found = race.decisions[idea.name]
            assert (found.outcome, found.interval.n) == (alone.outcome, alone.interval.n)
            assert found.interval.mean == pytest.approx(alone.interval.mean)
            verdict = verdicts_of(race)[idea.name]
            assert (verdict.outcome in ("better", "worse")) <= (verdict.adjusted_p <= 0.05)
            assert (verdict.outcome == "undecided") <= (verdict.adjusted_p > 0.05)
            n_runs = sum(run.row == idea.name for run in recorded)
            assert alone.interval.n <= n_runs < alone.interval.n + n_at_once
        assert max(Counter(run.key for run in recorded).values()) == 1


def test_runs_alternate_and_the_baseline_is_reused_for_ideas_that_join_later():
    plan = SETTINGS.with_ideas({"r": "r {seed}"})
    race, first = simulated(plan, lambda row, seed: float(seed % 2 and row != BASELINE))
    assert [run.key for run in first] == [(row, seed) for seed in range(1, 7) for row in (BASELINE, "r")]
    decided = race.decisions["r"]
    race, both = simulated(plan.with_ideas({"s": "s {seed}"}), lambda row, seed: -9.0 - seed, first)
    assert both[: len(first)] == first
    assert {run.row for run in both[len(first) :]} == {"s"}
    assert race.decisions["r"] == decided


@pytest.mark.parametrize("batches", [["a"], ["abc"], ["a", "b", "c", "d"], ["ab", "cdefg", "h"]])
def test_the_shares_of_all_ideas_stay_below_alpha(batches):
    plan = SETTINGS
    for batch in batches:
        plan = plan.with_ideas({name: f"{name} {{seed}}" for name in batch})
    shares = [idea.alpha for idea in plan.ideas]
    assert len(shares) == sum(map(len, batches))
    assert sum(shares) == pytest.approx(0.05 * len(shares) / (len(shares) + 1))
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares[: len(batches[0])])) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("effect", "margin", "wrong"), [(0.0, 0.01, ("better", "worse")), (-3.0, 3.0, ("no difference",))]
)
def test_a_thousand_races_err_at_most_at_the_planned_rate(effect, margin, wrong):
    """Criterion: over two ideas and a third that joins in a second race, at most 10% of races call a row better or
    worse without a difference, and at most 10% call a difference of the margin, the worst case, none. The rate is above
    2%, so that the test could notice twice the planned one."""
    base = RacePlan("b {seed}", "([0-9.]+)", margin, 6, alpha=0.1)
    plan = base.with_ideas({"r": "r {seed}", "s": "s {seed}"})
    joined = plan.with_ideas({"t": "t {seed}"})
    errors = 0
    for draw in range(1000):
        value_of = values("rst", draw, effect)
        _, recorded = simulated(plan, value_of)
        race, _ = simulated(joined, value_of, recorded)
        errors += any(verdict.outcome in wrong for verdict in verdicts_of(race).verdicts)
    assert 0.02 < errors / 1000 < 0.1 + 3 * math.sqrt(0.1 * 0.9 / 1000)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverged_run_leaves_its_row_undecided_and_says_so(value):
    plan = SETTINGS.with_ideas(dict.fromkeys("rs", "r {seed}"))
    race, recorded = simulated(plan, lambda row, seed: value if (row, seed) == ("r", 2) else float(seed + (row == "s")))
    found = verdicts_of(race)["r"]
    assert (found.outcome, found.n, list(found.lost)) == ("undecided", 1, [2])
    assert f"Not compared: seed 2 (diverged: its last value is {value})." in found.sentence
    assert sum(run.row == "r" for run in recorded) == 2
    assert verdicts_of(race)["s"].n > 2
    stored = [EndedRun.from_dict(json.loads(json.dumps(run.to_dict()))) for run in recorded]
    assert [run.problem for run in stored] == [run.problem for run in recorded]


def test_a_budget_begins_no_run_that_is_not_expected_to_end_in_time():
    plan = SETTINGS.with_ideas({"r": "r {seed}"})
    known = [EndedRun(row, 1, 1.0, seconds=100.0) for row in (BASELINE, "r")]
    race, recorded = simulated(plan, values("r", 0), known, budget=99.0)
    assert recorded == known
    assert race.seconds_left() == 1000.0
    assert Race(plan, known[:1]).expected_seconds("r") == 100.0  # a row without runs takes as long as the others
    assert "1 of at most 6 pairs have been run; the same command goes on" in verdicts_of(race)["r"].reason


def test_a_nanogpt_like_trainer_races(attractor):
    """Criterion: the last matched value counts, logs are kept, the same command repeats no run, and another row is
    counted as a further idea."""
    said = attractor(*line_of(0.2, "--max-seeds", "4"))
    assert said.code == 0, said.err
    assert "mine: better." in said.out
    first = outcomes()
    for run in first:
        log = Path("race", run["row"], f"seed-{run['seed']}.log").read_text()
        assert log.splitlines()[-1].endswith(f"val loss {run['value']:.4f}")
    assert [idea["alpha"] for idea in json.loads(Path("race/race.json").read_text())["ideas"]] == [0.05 / 2]
    again = attractor(*line_of(0.2, "--max-seeds", "4"))
    assert outcomes() == first
    assert again.out.splitlines()[1:] == said.out.splitlines()[-len(again.out.splitlines()) + 1 :]
    other = line_of(0.2, "--max-seeds", "4", "--json")
    other[other.index("--row") + 1] = f"other={sys.executable} train.py {{seed}} 0"
    found = json.loads(attractor(*other).out)
    assert found["tried"] == 2
    assert {verdict["row"]: verdict["outcome"] for verdict in found["verdicts"]}["mine"] == "better"
    assert outcomes()[: len(first)] == first
    assert {run["row"] for run in outcomes()[len(first) :]} <= {"other", BASELINE}
    assert "'race' holds a race, whose looks are not counted here" in attractor("judge", "race").out


@pytest.mark.parametrize(("row", "outcome"), [("3", "better"), ("-3", "worse")])
def test_a_trainer_in_awk_races_under_a_shell_and_two_at_a_time(attractor, row, outcome):
    rows = ["--baseline", AWK.replace("GAIN", "0"), "--row", "mine=" + AWK.replace("GAIN", row) + " | tail -n 1"]
    settings = ["--value", "loss=(.+)", "--margin", ".1", "--shell", "--jobs", "2", "--looks", "3", "6"]
    said = attractor("race", *rows, *settings, "--max-seeds", "6", "--json")
    assert said.err.startswith("Lower loss is taken to be better. Plan in ")
    (verdict,) = json.loads(said.out)["verdicts"]
    assert verdict["outcome"] == outcome, said
    assert verdict["n"] in (3, 6)


def test_the_better_side_is_guessed_from_the_pattern_and_may_be_given(attractor):
    Path("train.py").write_text(NANOGPT_LIKE.replace("val loss", "accuracy"))
    line = line_of(0.2, "--max-seeds", "4", "--value", "accuracy ([0-9.]+)")
    for more, side, outcome in (((), "Higher accuracy is taken to be", "worse"), (("--better", "lower"), "", "better")):
        said = attractor(*line, *more, "--out", outcome)
        assert side in said.out
        assert f"mine: {outcome}." in said.out


LAST = {
    "the last match of a line counts": ("loss 3.5 loss 2.5\n", 2.5),
    "carriage returns end lines": ("loss 3.5\rloss 2.5\r", 2.5),
    "NaN that the pattern does not match": ("loss 3.5\nloss nan\n", math.nan),
    "infinity": ("loss 3.5\nloss -inf, then\n", math.nan),
    "words that only begin so": ("loss 3.5\ninfo: nano\n", 3.5),
    "a full stop after the number": ("the loss 2.5.\n", 2.5),
    "bytes that are no text": (b"\xff\xfe loss 2.5 \xff\n".decode("latin-1"), 2.5),
}


CUT = {
    "the last digit": ("loss.*([0-9.]+)", "'7' of '2.347'"),
    "no exponent": ("lr ([0-9.]+)", "'1.5' of '1.5e-05'"),
    "no sign": ("reward[^0-9]*([0-9.]+)", "'2.5' of '-2.5'"),
}


@pytest.mark.parametrize("case", CUT)
def test_a_part_of_a_number_is_no_value(case, tmp_path):
    pattern, said = CUT[case]
    (tmp_path / "log").write_text("lr 1.5e-05\nreward: -2.5\nloss 2.347\n")
    value, reason = last_value(tmp_path / "log", pattern)
    assert value is None
    assert f"takes {said}; its group must take all of it" in reason


@pytest.mark.parametrize("case", LAST)
@pytest.mark.parametrize("pattern", [r"loss ([0-9.]+)", r"loss (\d\.\d)", r"loss (?P<value>\S+?),?\s"])
def test_the_value_is_the_last_that_the_log_holds(case, pattern, tmp_path):
    text, value = LAST[case]
    (tmp_path / "log").write_text(text, encoding="latin-1", newline="")
    assert last_value(tmp_path / "log", pattern)[0] == pytest.approx(value, nan_ok=True)


FAILING = {
    "exit code": ("sh -c 'echo \033[31mred; exit 3; {seed}'", "exit code 3; its log ends with: [31mred"),
    "a pattern that matches nothing": ("echo seed {seed}", "the value 'val loss ([0-9.]+)' matches nothing"),
    "a command that does not exist": ("no-such-program {seed}", "it cannot be started:"),
    "a killed process": ("sh -c 'kill -9 $$; {seed}'", "it was killed"),
    "a timeout": ("sh -c 'sleep 60; {seed}'", "it took longer than the timeout of 2 s"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_row_that_fails_stops_and_is_repeated_on_request_alone(attractor, case):
    command, reason = FAILING[case]
    line = line_of(0.2, "--max-seeds=2", "--timeout=2s", f"--row=broken={command}")
    said = attractor(*line)
    assert said.code == 1
    assert f"broken seed 1: failed: {reason}" in said.out
    assert "\033" not in said.out
    assert "runs failed: 1; see race/broken/seed-1.log. --retry-failed repeats them" in said.err
    n = Counter((run["row"], run["seed"]) for run in outcomes())
    assert n["broken", 1] == 1
    assert ("broken", 2) not in n
    assert n["mine", 2] == 1
    assert attractor(*line).code == 1
    assert len(outcomes()) == n.total()
    assert attractor(*line, "--retry-failed").code == 1
    assert len(outcomes()) == n.total() + 1
    line[-1] = f"--row=broken={sys.executable} train.py {{seed}} 0"  # a command that never had a value may be mended
    assert attractor(*line).code == 0


@pytest.mark.parametrize("case", FAILING)
def test_a_baseline_that_fails_at_once_ends_the_race_in_one_line(attractor, case):
    command, reason = FAILING[case]
    line = line_of(0.2, "--timeout=2s")
    said = attractor(*line[:2], command, *line[3:])
    assert said.code == 2
    assert f"error: baseline must run and print a value, and seed 1 failed: {reason}" in said.err
    assert len(said.err.splitlines()) == 1
    assert attractor(*line_of(0.2, "--max-seeds=2")).code == 0  # nothing was seen, so the plan may change


WRONG = {
    "no seed in the baseline": ({"--baseline": "python train.py"}, "baseline must be a command with {seed}"),
    "no seed in a row": ({"--row": "mine=python train.py"}, "row mine must be a command with {seed}"),
    "an open quote": ({"--row": "mine='train {seed}"}, "row mine must be words as a shell reads them"),
    "no name": ({"--row": "train {seed}"}, "row must be NAME=COMMAND, got 'train {seed}'"),
    "a name that is a path": ({"--row": "../up=train {seed}"}, "row must be NAME=COMMAND with a name of"),
    "the name of the baseline": ({"--row": "baseline=train {seed}"}, "row must be NAME=COMMAND with a name of"),
    "no group": ({"--value": "loss"}, "value must have one group"),
    "no pattern": ({"--value": "("}, "value must be a regular expression, and '(' is none"),
    "no margin": ({"--margin": "0"}, "margin must be above zero, got 0.0"),
    "a negative margin": ({"--margin": "-1"}, "margin must be above zero, got -1.0"),
    "one seed": ({"--max-seeds": "1"}, "max_seeds must be an integer of at least 2, got 1"),
    "looks beyond the last": ({"--looks": "12"}, "looks must be rising numbers of pairs from 2 up that end with 2"),
    "neither lower nor higher": ({"--better": "more"}, "better must be lower or higher, got 'more'"),
    "no jobs": ({"--jobs": "0"}, "jobs must be an integer of at least 1, got 0"),
    "a budget without a unit": ({"--budget": "3"}, "budget must be a time with its unit, got '3'"),
    "a timeout of zero": ({"--timeout": "0s"}, "timeout must be above zero"),
    "two rows of one name": ({"--row=mine": "again {seed}"}, "two are called 'mine'"),
    "two rows of one folder": ({"--row=Mine": "again {seed}"}, "row must be a name that no other row has"),
    "the plan of another margin": ({"--margin": ".1", "--out": "raced"}, "margin must be as in the plan of 'raced'"),
    "the plan of another baseline": ({"--baseline": "x {seed}", "--out": "raced"}, "baseline must be as in the plan"),
    "another command of a row": ({"--row": "mine=x {seed}", "--out": "raced"}, "row mine must be"),
    "a plan that was changed": ({"--out": "changed"}, "does not have the content that was written (checksum)"),
    "a damaged plan": ({"--out": "damaged"}, "must hold the plan of a race, and is damaged"),
    "damaged outcomes": ({"--out": "torn"}, "must hold a run's outcome a line, and is damaged"),
}


def test_wrong_input_ends_in_one_line_and_starts_nothing(attractor):
    right = line_of(0.2, "--max-seeds", "2")
    assert attractor(*right, "--out", "raced").code == 0
    plan, ended = Path("raced/race.json").read_text(), Path("raced/outcomes.jsonl").read_text()
    for folder, files in {
        "changed": {"race.json": plan.replace("0.025", "0.05")},
        "damaged": {"race.json": plan[:40]},
        "torn": {"race.json": plan, "outcomes.jsonl": "{}\n" + ended},
    }.items():
        Path(folder).mkdir()
        for name, text in files.items():
            Path(folder, name).write_text(text)
    before = sorted(path for path in Path().rglob("*") if not path.name.startswith("."))
    for case, (changes, message) in WRONG.items():
        line = list(right)
        for option, value in changes.items():
            if option in line:
                line[line.index(option) + 1] = value
            else:
                line += [f"{option}={value}"] if "=" in option else [option, value]
        said = attractor(*line)
        assert said.code == 2, (case, said)
        assert message in said.err, (case, said)
        assert len(said.err.splitlines()) == 1, case
        found = sorted(path for path in Path().rglob("*") if not path.name.startswith("."))
        assert [path for path in found if path not in before] in ([], [Path("race")]), case


RUN_SH = """
echo "start $1 $2" >> FOLDER/said
sleep .1
echo "value $(( $2 % 3 ))"
echo "end $1 $2" >> FOLDER/said
"""
KILLED = """
import os, random, signal, sys, time
from attractor import cli

chance, n_kills = random.Random(0), int(sys.argv.pop(1))
cli.parse(sys.argv[1:])  # loads what the command needs
for kill in range(n_kills + 1):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        cli.main()
        os._exit(0)
    if kill < n_kills:
        time.sleep(chance.uniform(0.02, 0.4))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    outcomes, said = (open(name).read() if os.path.exists(name) else "" for name in ("race/outcomes.jsonl", "said"))
    print(repr((os.waitstatus_to_exitcode(status), outcomes, len(said))), flush=True)
"""


def race_of_scripts(folder, *more):
    (folder / "run.sh").write_text(RUN_SH.replace("FOLDER", str(folder)))
    of = {row: f"sh {folder}/run.sh {row} {{seed}}" for row in (BASELINE, "one", "two")}
    rows = [f"--baseline={of[BASELINE]}", *(f"--row={row}={of[row]}" for row in ("one", "two"))]
    return ["race", *rows, "--value=value (.+)", "--margin=.5", *more]


def processes_of(folder):
    """Return the process ids whose command line names a folder."""
    return [
        int(place.parent.name)
        for place in Path("/proc").glob("[0-9]*/cmdline")
        if place.exists() and str(folder) in place.read_text(errors="replace")
    ]


@pytest.mark.slow
def test_twenty_kills_repeat_no_recorded_run_and_lose_none(tmp_path):
    """Criterion: after each SIGKILL, the outcomes that were recorded stay, none of their runs starts again, and at the
    end every run was recorded once. Some kills struck a run under way."""
    (tmp_path / "driver.py").write_text(KILLED)
    line = race_of_scripts(tmp_path, "--max-seeds=12", "--looks=12", "--jobs=2")
    driver = [sys.executable, "driver.py", "20", *line]
    done = subprocess.run(driver, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    kills = [ast.literal_eval(shown) for shown in done.stdout.splitlines()]
    assert [code for code, _, _ in kills] == [-signal.SIGKILL] * 20 + [0]
    said = (tmp_path / "said").read_text()
    for (_, before, n_said), (_, after, _) in itertools.pairwise(kills):
        whole = before[: before.rfind("\n") + 1]
        assert after.startswith(whole)
        recorded = {f"start {run['row']} {run['seed']}" for run in map(json.loads, whole.splitlines())}
        assert recorded.isdisjoint(said[n_said:].splitlines())
    n = Counter((run["row"], run["seed"]) for run in map(json.loads, kills[-1][1].splitlines()))
    assert n == Counter((row, seed) for row in (BASELINE, "one", "two") for seed in range(1, 13))
    starts = Counter(text for text in said.splitlines() if text.startswith("start"))
    assert max(starts.values()) > 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_however_a_race_ends_so_do_all_its_processes(number, code, tmp_path):
    """Criterion: no process is left, though `sh` protects its background processes from SIGINT. An interrupted race
    says how to go on."""
    line = race_of_scripts(tmp_path, "--max-seeds=2", "--jobs=2", f"--out={tmp_path}/race")
    line[1] = f"--baseline=sh -c 'sleep 600 & sleep 600; echo {tmp_path} {{seed}}'"
    command = [sys.executable, "-m", "attractor", *line]
    race = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while len(family := living_family(race.pid)) < 5 or not (tmp_path / "race/outcomes.jsonl").exists():
        assert race.poll() is None
        time.sleep(0.05)
    race.send_signal(number)
    said = race.communicate(timeout=60)[1]
    deadline = time.monotonic() + 60
    while living := [process for process in family if living_family(process)]:
        assert time.monotonic() < deadline, living
        time.sleep(0.05)
    assert race.returncode == code
    assert not processes_of(tmp_path)
    if code > 0:
        assert said.startswith("interrupted: ")
        assert "Resume with the same command: attractor race " in said


@pytest.mark.parametrize(("ignored", "ends"), [("", 2), ("INT", 15), ("INT TERM", 9)])
def test_a_command_that_ignores_signals_gets_stronger_ones(ignored, ends, tmp_path, monkeypatch):
    ladder = [(0.2 * step, number) for step, (_, number) in enumerate(command_run.LADDER)]
    monkeypatch.setattr(command_run, "LADDER", ladder)
    script = f"trap '' {ignored or 'USR1'}; echo ready; while true; do sleep 0.02; done; {tmp_path}"
    run = CommandRun(["sh", "-c", script], tmp_path / "log", "(.)")
    while "ready" not in (tmp_path / "log").read_text():
        assert run.poll() is None
    run.end()
    while run.poll() is None:
        time.sleep(0.01)
    assert run.n_signals == [2, 15, 9].index(ends) + 1
    assert not processes_of(tmp_path)
