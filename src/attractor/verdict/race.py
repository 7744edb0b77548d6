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
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, Self

from attractor.errors import InputError, require, require_count
from attractor.verdict.command_run import require_command, words_of
from attractor.verdict.formats import compiled
from attractor.verdict.observations import Observations, ObservedRun, Seed
from attractor.verdict.outcome import Verdicts
from attractor.verdict.sequential import Sequential
from attractor.verdict.sequential_rows import SequentialRows

BASELINE = "baseline"
NAME = "at most 64 letters, digits and .+-_ other than 'baseline'"
POLL_SECONDS = 0.05


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


class Race(SequentialRows):
    """A plan and the runs that have ended, with what they decide."""

    def __init__(self, plan: RacePlan, ended: Iterable[EndedRun] = ()) -> None:
        tests = {idea.name: plan.sequential(idea.alpha) for idea in plan.ideas}
        super().__init__(BASELINE, tests, range(1, plan.max_seeds + 1))
        self.plan = plan
        self.runs: dict[tuple[str, int], EndedRun] = {}
        for run in ended:
            self.add(run)

    def add(self, run: EndedRun) -> None:
        self.runs[run.key] = run
        self.observe(run.row, run.seed, run.value, run.problem)

    def expected_seconds(self, row: str) -> float:
        """Return the mean time of the row's runs, or of all runs where it has none, or zero."""
        seconds = [run.seconds for run in self.runs.values() if run.row == row and run.value is not None]
        seconds = seconds or [run.seconds for run in self.runs.values() if run.value is not None]
        return sum(seconds) / len(seconds) if seconds else 0.0

    def seconds_left(self) -> float:
        """Return how long the runs take that open rows need at most, one at a time."""
        return sum(self.expected_seconds(row) for row, _ in self.wanted())


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
        tuple(race.verdict(row, plan.alpha) for row in race.tests),
        lower_is_better=plan.lower_is_better,
        level=1 - plan.alpha,
        margin=plan.margin,
        tried=n,
        looks=plan.looks,
        notes=(note,),
    )
