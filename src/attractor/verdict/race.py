"""A race of ideas against a baseline: seed after seed, until the sequential test that was planned decides each idea.

The tool counts the looks and the ideas because it makes them. The looks at one idea are those of `Sequential`. The
ideas of a folder share its error rate alpha. Ideas that raise their number from n to m receive, each,

    a = alpha / ((n + 1) (m + 1))                                                                           (1)

before their first run, and keep it. The m - n ideas of that race spend (m - n) a = alpha / (n + 1) - alpha / (m + 1)
together. Summed over all races of the folder, this is alpha - alpha / (m + 1) < alpha for any m. By Bonferroni's
inequality, which holds for any dependence between ideas, the chance of any false "better" or "worse" in the folder is
at most alpha, and so is that of any false "no difference". The first race tests each of its m ideas at alpha / (m + 1):
it counts one more idea, whose share is for later races. A decided idea stays as it was decided.

Two conditions are the user's. Which idea comes next may follow from earlier verdicts, but not from the noise in those
seeds of the baseline that the next idea is compared with. And the values of a seed must differ from those of another as
independent runs do.

Pairs count in the order of the seeds, whichever run ended first, since a look at the fastest runs is no random sample.
A run without a finite value ends the test of its row as undecided: without it, the other seeds would be selected.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, Self

from attractor.errors import InputError, require, require_count
from attractor.verdict.command_run import require_command, words_of
from attractor.verdict.formats import compiled
from attractor.verdict.intervals import correlation, seed_differences, summary
from attractor.verdict.observations import Observations, ObservedRun, Seed
from attractor.verdict.outcome import Outcome, Verdict, Verdicts
from attractor.verdict.power import detectable_with_power, pairs_needed
from attractor.verdict.sequential import Decision, Sequential, p_over_looks
from attractor.verdict.t_tests import paired_t_test

BASELINE = "baseline"
NAME = "at most 64 letters, digits and .+-_ other than 'baseline'"
POLL_SECONDS = 0.05
OUTCOMES: dict[str, Outcome] = {"better": "better", "worse": "worse", "no relevant difference": "no difference"}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Idea:
    """A row that is raced against the baseline, with its share (1) of the error rate."""

    name: str
    command: str
    alpha: float
    date: str  # when it joined the race, before its first run


@dataclass(frozen=True)
class RacePlan:
    """What is fixed before the first run. Only ideas can be added later."""

    baseline: str
    value: str
    margin: float
    max_seeds: int
    looks: tuple[int, ...] = ()  # numbers of pairs; none: all from 2 up
    alpha: float = 0.05
    lower_is_better: bool = True
    shell: bool = False
    timeout: float | None = None  # seconds after which a run counts as failed
    date: str = ""
    ideas: tuple[Idea, ...] = ()

    def __post_init__(self) -> None:
        require_command("baseline", self.baseline, self.shell)
        compiled("value", self.value)
        require(0 < self.margin < math.inf, "margin", "above zero", self.margin, "name the difference that matters")
        require_count("max_seeds", self.max_seeds, least=2, next_step="one pair gives no interval")
        require(self.timeout is None or self.timeout > 0, "timeout", "above zero", self.timeout)
        object.__setattr__(self, "looks", self.sequential(self.alpha).looks)

    def sequential(self, alpha: float) -> Sequential:
        better: Literal["lower", "higher"] = "lower" if self.lower_is_better else "higher"
        return Sequential(alpha, self.margin, self.max_seeds, better, self.looks)

    def command(self, row: str) -> str:
        return self.baseline if row == BASELINE else next(idea.command for idea in self.ideas if idea.name == row)

    def words(self, row: str, seed: int) -> list[str]:
        return words_of(self.command(row), seed, self.shell)

    def with_ideas(self, commands: Mapping[str, str], with_values: Iterable[str] = ()) -> Self:
        """Return the plan with these rows as well. A row keeps its command as soon as one of its runs had a value."""
        for name, command in commands.items():
            fits = re.fullmatch(r"[a-z0-9][a-z0-9.+_-]{0,63}", name.lower()) and name.lower() != BASELINE
            require(bool(fits), "row", f"NAME=COMMAND with a name of {NAME}", name)
            require_command(f"row {name}", command, self.shell)
        known = {idea.name: idea for idea in self.ideas}
        for name in commands.keys() & known.keys() & set(with_values):
            rule = f"{known[name].command!r} as in its first runs"
            require(commands[name] == known[name].command, f"row {name}", rule, commands[name], "choose another name")
        mended = tuple(replace(idea, command=commands.get(idea.name, idea.command)) for idea in self.ideas)
        new = {name: command for name, command in commands.items() if name not in known}
        n, m = len(known), len(known) + len(new)
        share = self.alpha / ((n + 1) * (m + 1))  # (1)
        added = tuple(Idea(name, command, share, now()) for name, command in new.items())
        folded = [idea.name.lower() for idea in (*mended, *added)]
        require(
            len(folded) == len(set(folded)), "row", "a name that no other row has, capitals aside", sorted(commands)
        )
        return replace(self, ideas=(*mended, *added))

    def differing(self, other: "RacePlan") -> list[str]:
        """Return the names of the settings in which two plans differ, ideas and dates aside."""
        names = [f.name for f in fields(self) if f.name not in ("date", "ideas")]
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        ideas = tuple(Idea(**idea) for idea in stored["ideas"])
        return cls(**{**stored, "looks": tuple(stored["looks"]), "ideas": ideas})


@dataclass(frozen=True)
class EndedRun:
    """The outcome of a run: a value, which may be NaN, or the reason why there is none."""

    row: str
    seed: int
    value: float | None
    failure: str = ""
    seconds: float = 0.0
    command: str = ""
    date: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.row, self.seed

    @property
    def problem(self) -> str:
        """Why the run cannot be compared; empty where it can."""
        if self.value is None:
            return f"failed: {self.failure}"
        return "" if math.isfinite(self.value) else f"diverged: its last value is {self.value}"

    def to_dict(self) -> dict[str, Any]:
        finite = self.value is None or math.isfinite(self.value)
        return asdict(self) | ({} if finite else {"value": str(self.value)})  # JSON has no NaN

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        value = stored["value"]
        return cls(**{**stored, "value": None if value is None else float(value)})


class BegunRun(Protocol):
    """A run under way, as `CommandRun`: `poll` returns None, or its value and the reason why there is no value."""

    def poll(self) -> tuple[float | None, str] | None: ...

    def end(self) -> None: ...


class Race:
    """A plan and the runs that have ended, with what they decide."""

    def __init__(self, plan: RacePlan, ended: Iterable[EndedRun] = ()) -> None:
        self.plan = plan
        self.runs: dict[tuple[str, int], EndedRun] = {}
        self.tests = {idea.name: plan.sequential(idea.alpha) for idea in plan.ideas}
        self.differences: dict[str, list[float]] = {name: [] for name in self.tests}
        self.decisions: dict[str, Decision] = {}  # of each row, the first that is final
        self.stopped: set[str] = set()  # rows that cannot be decided, since a run has no finite value
        self.first_problem: dict[str, int] = {}  # the first seed of a row without a finite value
        for run in ended:
            self.add(run)

    def add(self, run: EndedRun) -> None:
        self.runs[run.key] = run
        if run.problem:
            self.first_problem[run.row] = min(run.seed, self.first_problem.get(run.row, run.seed))
        for row in self.tests if run.row == BASELINE else [run.row]:
            self._look(row)

    def is_open(self, row: str) -> bool:
        return row not in self.decisions and row not in self.stopped

    def _look(self, row: str) -> None:
        """Count the pairs that are complete, and make each planned look once."""
        differences, test = self.differences[row], self.tests[row]
        while self.is_open(row):
            seed = len(differences) + 1
            pair = [self.runs.get((of, seed)) for of in (row, BASELINE)]
            if any(run is not None and run.problem for run in pair):
                self.stopped.add(row)
                return
            ours, theirs = pair
            if ours is None or theirs is None or ours.value is None or theirs.value is None:
                return
            differences.append(seed_differences({seed: ours.value}, {seed: theirs.value})[seed])
            if seed in test.looks and (decision := test.look(differences)).final:
                self.decisions[row] = decision

    def wanted(self, under_way: Iterable[tuple[str, int]] = ()) -> Iterator[tuple[str, int]]:
        """Yield the runs that open rows still need at most, seed after seed, the baseline first."""
        begun = {*self.runs, *under_way}
        last = {
            row: min(self.first_problem.get(of, self.plan.max_seeds) for of in (row, BASELINE)) for row in self.tests
        }
        for seed in range(1, self.plan.max_seeds + 1):
            rows = [row for row in self.tests if self.is_open(row) and seed <= last[row]]
            yield from ((row, seed) for row in [BASELINE, *rows] if rows and (row, seed) not in begun)

    def expected_seconds(self, row: str) -> float:
        """Return the mean time of the row's runs, or of all runs where it has none, or zero."""
        seconds = [run.seconds for run in self.runs.values() if run.row == row and run.value is not None]
        seconds = seconds or [run.seconds for run in self.runs.values() if run.value is not None]
        return sum(seconds) / len(seconds) if seconds else 0.0

    def seconds_left(self) -> float:
        """Return how long the runs take that open rows need at most, one at a time."""
        return sum(self.expected_seconds(row) for row, _ in self.wanted())

    def standing(self, row: str) -> str:
        """Say in a few words where a row stands."""
        if row in self.decisions:
            return OUTCOMES.get(self.decisions[row].outcome, "undecided")
        return "stopped, undecided" if row in self.stopped else f"open, pairs: {len(self.differences[row])}"


def carry_out(
    race: Race,
    begin: Callable[[str, int], BegunRun],
    record: Callable[[EndedRun], None],
    n_at_once: int = 1,
    budget: float = math.inf,
    is_interrupted: Callable[[], bool] = lambda: False,
    tell: Callable[[EndedRun], None] = lambda run: None,
) -> None:
    """Carry out the runs that the race wants, until all rows are decided, the budget is spent or it is interrupted.

    `begin` starts a run of a row and a seed. `record` receives each outcome before it counts, and `tell` afterwards. A
    run is begun only if it is expected to end within the budget of seconds. Runs that are under way at an interruption
    are ended and not recorded.
    """
    began = time.monotonic()
    under_way: dict[tuple[str, int], tuple[BegunRun, float]] = {}
    try:
        while not is_interrupted():
            for row, seed in race.wanted(under_way):
                now_is = time.monotonic()
                if len(under_way) == n_at_once or now_is - began + race.expected_seconds(row) > budget:
                    break
                under_way[row, seed] = begin(row, seed), now_is
            if not under_way:
                return
            ended = {key: answer for key, (run, _) in under_way.items() if (answer := run.poll()) is not None}
            if not ended or any(failure for _, failure in ended.values()):
                time.sleep(POLL_SECONDS)  # a signal to all processes may end a run before it is noticed here
            if is_interrupted():
                return
            for (row, seed), (value, failure) in ended.items():
                _, since = under_way.pop((row, seed))
                command = race.plan.command(row)
                run = EndedRun(row, seed, value, failure, time.monotonic() - since, command, now())
                if value is None and row == BASELINE and not any(of == BASELINE for of, _ in race.runs):
                    raise InputError(f"baseline must run and print a value, and seed {seed} {run.problem}; mend it")
                record(run)
                race.add(run)
                tell(run)
    finally:
        ending = [run_under_way for run_under_way, _ in under_way.values()]
        for run_under_way in ending:
            run_under_way.end()
        while ending := [run_under_way for run_under_way in ending if run_under_way.poll() is None]:
            time.sleep(POLL_SECONDS)


def verdicts_of(race: Race) -> Verdicts:
    """Return the verdicts on all ideas of a race, also of one that is not over."""
    plan = race.plan
    rows: dict[str, dict[Seed, ObservedRun]] = {row: {} for row in (BASELINE, *race.tests)}
    for (row, seed), run in sorted(race.runs.items()):
        if run.value is not None:
            rows[row][seed] = ObservedRun(run.value, seconds=run.seconds, date=run.date)
    n = len(plan.ideas)
    counted = "1 idea and all looks" if n == 1 else f"{n} ideas and all looks"
    note = (
        f"The chance of a false verdict is at most {plan.alpha:.3g} over {counted} of this folder, and those to come."
    )
    return Verdicts(
        Observations(rows, plan.value),
        BASELINE,
        tuple(_verdict(race, idea) for idea in plan.ideas),
        lower_is_better=plan.lower_is_better,
        level=1 - plan.alpha,
        margin=plan.margin,
        tried=n,
        looks=plan.looks,
        notes=(note,),
    )


def _verdict(race: Race, idea: Idea) -> Verdict:
    plan, row, looks = race.plan, idea.name, race.plan.looks
    decision = race.decisions.get(row)
    n = len(race.differences[row]) if decision is None else decision.interval.n
    differences = race.differences[row][:n]
    lost: dict[Seed, str] = {
        run.seed: run.problem if run.row == row else f"the baseline {run.problem}"
        for run in race.runs.values()
        if run.row in (row, BASELINE) and run.problem
    }
    outcome = OUTCOMES.get(decision.outcome, "undecided") if decision is not None else "undecided"
    if row in race.stopped:
        reason = f"After {n} pairs a run had no value, and to leave it out would be a choice of runs by their outcome"
    elif decision is None:
        reason = f"{n} of at most {plan.max_seeds} pairs have been run; the same command goes on"
    elif outcome == "undecided":
        reason = f"All {n} pairs show neither a difference nor one within the margin of {plan.margin:g}"
    elif outcome == "no difference":
        reason = f"After {n} pairs the difference lies within the margin of {plan.margin:g}"
    else:
        reason = f"After {n} pairs a difference is shown at a look that was planned"
    verdict = Verdict(row, outcome, f"{reason}.", "paired", n, lost=lost)
    if n < looks[0]:
        return verdict if n == 0 else replace(verdict, difference=summary(differences).mean)
    at = max(look for look in looks if look <= n)  # the latest look, whose interval holds over all looks
    interval = plan.sequential(plan.alpha).look(differences[:at]).interval  # of this comparison alone
    p_values = [paired_t_test(differences[:look]).p for look in looks if look <= at]
    spread = summary(differences[:at]).standard_deviation
    adjusted = p_over_looks(p_values, looks) * plan.alpha / idea.alpha
    more = pairs_needed(spread, plan.margin, level=idea.alpha) if spread and outcome == "undecided" else None
    return replace(
        verdict,
        n=at,
        difference=interval.mean,
        low=interval.low,
        high=interval.high,
        p=p_values[-1],
        adjusted_p=min(1.0, adjusted),
        spread=spread,
        correlation=correlation(*([race.runs[of, n].value or 0.0 for n in range(1, at + 1)] for of in (row, BASELINE))),
        detectable=detectable_with_power(spread, at, level=idea.alpha) if spread else None,
        further_seeds=None if more is None else max(0, more - at),
    )
