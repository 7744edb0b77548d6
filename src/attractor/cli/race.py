"""The command that runs ideas against a baseline until a planned test decides: race."""

import math
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tyro.conf import UseAppendAction

from attractor.cli.console import answer, command_line, say
from attractor.cli.judge import lower_is_better
from attractor.console import in_time, seconds_of
from attractor.errors import InputError, RunInterrupted, RunStopped, require, require_count
from attractor.runs.lock import hold
from attractor.train.interrupt import StopRequest
from attractor.verdict.command_run import CommandRun
from attractor.verdict.judge import better_side
from attractor.verdict.race import EndedRun, Race, RacePlan, carry_out, now, verdicts_of
from attractor.verdict.race_folder import PLAN, append_outcome, open_race
from attractor.verdict.reading import value_name


@dataclass(frozen=True)
class RaceArguments:
    baseline: str
    """command of the baseline, with {seed} where the seed stands"""
    value: str
    """regular expression with one group; the last match that a run prints is its value"""
    margin: float
    """smallest difference in the value that matters to you"""
    row: UseAppendAction[tuple[str, ...]] = ()
    """an idea as NAME=COMMAND, once for each; by default those in out"""
    max_seeds: int = 8
    """most seeds of a row: 1, 2, 3 and so on"""
    looks: tuple[int, ...] = ()
    """numbers of pairs at which to test, the last max_seeds; by default all from 2 up"""
    alpha: float = 0.05
    """accepted chance of a wrong verdict, over all looks and all ideas in out"""
    better: str | None = None
    """lower or higher; by default guessed"""
    budget: str | None = None
    """begin no run that would end later than this, as 90s, 10m or 3h; by default none"""
    timeout: str | None = None
    """longest time of a run, which then has failed; by default none"""
    jobs: int = 1
    """runs at the same time"""
    shell: bool = False
    """give the commands to /bin/sh, so that pipes and variables work"""
    retry_failed: bool = False
    """repeat recorded runs that failed; those that diverged stay"""
    out: Path = Path("race")
    """folder of the plan, the outcomes and the logs"""


def race(args: RaceArguments, console: Console) -> None:
    """Run ideas against a baseline, seed by seed, and stop each as soon as a test planned in advance decides it. Any
    program can race that takes a seed and prints a number. The same command goes on where an earlier one ended; with
    another row it adds that idea, and counts it.

        attractor race --baseline 'python a.py {seed}' --row b='python b.py {seed}' --value 'loss ([0-9.]+)' --margin .1
    """
    budget = math.inf if args.budget is None else seconds_of(args.budget)
    timeout = None if args.timeout is None else seconds_of(args.timeout, "timeout")
    require_count("jobs", args.jobs)
    commands = rows_of(args.row)
    settings = (args.baseline, args.value, args.margin, args.max_seeds, args.looks, args.alpha)
    guessed, guess = better_side(value_name(args.value))
    lower = lower_is_better(args.better)
    plan = RacePlan(*settings, guessed if lower is None else lower, args.shell, timeout, now())
    plan.with_ideas(commands)  # refuses wrong rows before a folder is made
    args.out.mkdir(parents=True, exist_ok=True)
    with hold(args.out), StopRequest() as stop:
        running = open_race(args.out, plan, commands, args.retry_failed)
        looks = " ".join(map(str, running.plan.looks))
        side = guess if lower is None else f"{args.better} is better."
        say(console, f"{side} Plan in {args.out / PLAN}: looks at {looks} pairs, seeds from 1 up")
        shown_standings = {row: running.standing(row) for row in running.tests}

        def begin(row: str, seed: int) -> CommandRun:
            log = args.out / row / f"seed-{seed}.log"
            return CommandRun(running.plan.words(row, seed), log, args.value, timeout)

        def record(run: EndedRun) -> None:
            append_outcome(args.out, run)

        def tell(run: EndedRun) -> None:
            shown = run.problem or f"{run.value:.6g}"
            left = in_time(running.seconds_left() / args.jobs)
            standings = {row: running.standing(row) for row in running.tests}
            changed = "; ".join(f"{row} {text}" for row, text in standings.items() if shown_standings.get(row) != text)
            shown_standings.update(standings)
            ahead = f"; at most {left} left" if next(running.wanted(), None) else ""
            took = in_time(run.seconds)
            say(console, f"{run.row} seed {run.seed}: {shown}, {took}{changed and f'; {changed}'}{ahead}")

        carry_out(running, begin, record, args.jobs, budget, lambda: stop.signal_number is not None, tell)
        if stop.signal_number is not None:
            raise RunInterrupted(
                f"interrupted: {len(running.runs)} runs are recorded; those under way were ended and will start anew. "
                f"Resume with the same command: {command_line()}",
                stop.signal_number,
            )
    show(running, args, console)


def rows_of(rows: tuple[str, ...]) -> dict[str, str]:
    commands: dict[str, str] = {}
    for text in rows:
        name, equals, command = text.partition("=")
        require(bool(equals), "row", "NAME=COMMAND", text, "as --row mine='python train.py --mine --seed {seed}'")
        if name in commands:
            raise InputError(f"row must have a name of its own, and two are called '{name}'; rename one")
        commands[name] = command
    return commands


def show(running: Race, args: RaceArguments, console: Console) -> None:
    """Print the verdicts, write their page, and say what is missing."""
    from attractor.report.table import on_console
    from attractor.report.verdict_page import write_page

    verdicts = verdicts_of(running)
    answer(console, **verdicts.to_dict())
    console.print(on_console(verdicts))
    say(console, str(write_page(verdicts, args.out)))
    if missing := list(running.wanted()):
        left = in_time(running.seconds_left() / args.jobs)
        say(console, f"the budget leaves at most {len(missing)} runs to do, {left}; the same command does them")
    failed = [run for run in running.runs.values() if run.value is None]
    if failed:
        logs = ", ".join(str(args.out / run.row / f"seed-{run.seed}.log") for run in failed)
        raise RunStopped(f"runs failed: {len(failed)}; see {logs}. --retry-failed repeats them")
