"""The ladder of pilots, from the shortest to the longest, and the choice of the longest that fits into a time budget.

    wall = allowance (sum of all runs / workers + longest run (1 - 1 / workers))                            (1)

The first steps of a run on this machine give its time. A rung is taken only where all pairs of seeds fit, since a
longer run with fewer pairs would decide less.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attractor.claims.pilot import CONTROL_SEEDS, Pilot
from attractor.errors import InputError
from attractor.models import TransformerConfig
from attractor.runs.configuration import config_hash
from attractor.train.calibrate import CalibrationError, RunCosts, calibrate, occasions
from attractor.train.config import RECIPES, Runtime, TrainConfig

FEWEST_PAIRS = 2  # one pair has no interval
ALLOWANCE = 1.3  # runs side by side are slower than a timed run alone, and processes take time to start


@dataclass(frozen=True)
class Rung:
    """A rung of the ladder. Small vocabularies, many small steps and RoPE make context matter early."""

    name: str
    config: TrainConfig

    @property
    def tokens(self) -> int:
        return self.config.n_steps * self.config.tokens_per_step


def rung(name: str, base: TrainConfig, n_steps: int) -> Rung:
    """Make a rung that evaluates at its last step alone, on more validation text than the recipe, for less noise."""
    return Rung(name, base.replace(n_steps=n_steps, warmup_steps=n_steps // 10, eval_every=n_steps, eval_batches=64))


_MIDDLE = RECIPES["laptop"].replace(
    model=TransformerConfig(
        vocab_size=320, d_model=128, n_heads=4, n_layers=4, d_ff=384, max_seq_len=256, positions="rope"
    ),
    batch_size=16,
    seq_len=128,
    lr=2e-3,
)
# On the first rung the control was .32 nats worse than the baseline, and .37 after a quarter more steps (LOG.md,
# 2026-11-20, the default comparison).
# Each pilot reports the gap on its own corpus.
LADDER = (
    rung("laptop", RECIPES["laptop"], 560),
    rung("laptop, 2 x as long", RECIPES["laptop"], 1_120),
    rung("laptop, 4 x as long", RECIPES["laptop"], 2_240),
    rung("0.9M parameters", _MIDDLE, 1_000),
    rung("0.9M parameters, 4 x as long", _MIDDLE, 4_000),
)


@dataclass(frozen=True)
class Choice:
    """A rung, the largest number of pairs of seeds, and the time that they take where no arm is closed early."""

    rung: Rung
    n_max: int
    seconds: float
    pair_seconds: float  # for one more pair of baseline and rival


def choose(
    ladder: Sequence[Rung],
    pilot: Pilot,
    seconds_of_run: Callable[[Rung, str], float],
    n_workers: int,
    left: Callable[[], float],
) -> Choice:
    """Return the largest rung on which all pairs of `pilot` fit, or else the first with as many pairs as fit.

    `seconds_of_run` times the baseline of a rung first, and the other arms only where the rung may still fit. Timing
    takes time, too, so `left()`, the remaining seconds of the budget, is read again after each timing.
    """
    chosen: Choice | None = None
    for rung in ladder:
        alone = seconds_of_run(rung, pilot.baseline)
        if chosen is not None and wall([alone] * pilot.n_max, n_workers) > left():
            break
        others = {label: seconds_of_run(rung, label) for label in pilot.arms if label != pilot.baseline}
        rivals = [others[rival] for rival in pilot.rivals]
        once = CONTROL_SEEDS * [others[pilot.control]]
        walls = {n: wall(n * [alone, *rivals] + once, n_workers) for n in range(FEWEST_PAIRS, pilot.n_max + 1)}
        seconds_left = left()
        n_fitting = max((n for n, seconds in walls.items() if seconds <= seconds_left), default=0)
        if chosen is not None and n_fitting < pilot.n_max:
            break
        if not n_fitting:
            needed = math.ceil(walls[FEWEST_PAIRS])
            raise InputError(
                f"budget must hold at least {FEWEST_PAIRS} pairs of seeds, which take about {needed} s here, "
                f"and {max(0, math.floor(seconds_left))} s are left after timing; give --budget {needed // 60 + 2}m"
            )
        pair = ALLOWANCE * (alone + max(rivals)) / min(2, n_workers)
        chosen = Choice(rung, n_fitting, walls[n_fitting], pair)
        if n_fitting < pilot.n_max:
            break
    assert chosen is not None
    return chosen


def wall(runs: Sequence[float], n_workers: int) -> float:
    return ALLOWANCE * (sum(runs) / n_workers + max(runs) * (1 - 1 / n_workers))  # (1)


class RunTimes:
    """Estimates the seconds of a run on this machine. Rungs that differ in steps alone share a measurement."""

    def __init__(self, runtime: Runtime, config_of: Callable[[Rung, str], TrainConfig]) -> None:
        self.runtime, self.config_of = runtime, config_of
        self.measured: dict[str, RunCosts] = {}

    def __call__(self, rung: Rung, label: str) -> float:
        config = self.config_of(rung, label)
        key = config_hash(config.replace(n_steps=1, warmup_steps=0, eval_every=1).to_dict())
        if key not in self.measured:
            try:
                self.measured[key] = calibrate(config, self.runtime)
            except CalibrationError as failed:
                raise InputError(f"'{label}' cannot be tried at '{rung.name}': {failed}") from failed
        measured = self.measured[key]
        n_evaluations, n_saves = occasions(config, self.runtime)
        return (
            measured.start_seconds
            + measured.first_step_seconds
            + config.n_steps * measured.step_seconds
            + n_evaluations * measured.evaluation_seconds
            + n_saves * measured.save_seconds
        )
