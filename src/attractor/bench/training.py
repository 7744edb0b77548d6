"""Time training steps of all cases at one setting, in turns with the baseline.

    forecast    seconds of a step, scaled by counted FLOPs from the last shorter length                     (1)
    trial       the case alone: peak memory, first call, a warm step                                        (2)
    turns       groups whose weights and moments fit half of the free memory, each with the baseline        (3)

A case that would take longer than `patience` by (1) or (2), or that fails, is left out with its reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from attractor.bench.alternate import Timing
from attractor.bench.cases import our_config
from attractor.bench.passes import PASSES, Passes
from attractor.bench.subprocess_timing import NotMeasured, free_memory
from attractor.bench.trial import BenchSetting, Trial, release, run_in_turns, tried, warmed_up
from attractor.console import in_time
from attractor.train.parts import forward_flops, parameters_by_part, without_data

N_CALLS = 2  # calls in a trial
STATE_BYTES = 12  # per parameter between steps: weight and two moments


@dataclass(frozen=True)
class TimedCase:
    """A case at one setting, either timed or left out for a reason."""

    name: str
    n_parameters: int | None  # None if the model was not built
    trial: Trial | None = None
    timings: Mapping[str, Timing] | None = None
    left_out: str | None = None


def counted_flops(name: str, setting: BenchSetting) -> float:
    """Return the FLOPs of a forward pass over the batch. A peer's are those of our model that computes the same."""
    shape = setting.shape
    return sum(forward_flops(our_config(name, shape), shape.seq_len).values()) * shape.batch_size * shape.seq_len


def counted_parameters(name: str, setting: BenchSetting) -> int:
    return sum(parameters_by_part(without_data(our_config(name, setting.shape))).values())


def time_training(
    names: Sequence[str],
    setting: BenchSetting,
    n_rounds: int,
    patience: float,
    shorter: Mapping[str, tuple[float, float]],
    tell: Callable[[str], None] = lambda doing: None,
) -> list[TimedCase]:
    """Return a case for each name; the first name is the baseline. `shorter` holds the seconds and FLOPs of a step at a
    shorter length, by name."""
    cases: dict[str, TimedCase] = {}
    trials: dict[str, Trial] = {}
    for name in names:
        try:
            tell(f"{name}: alone")
            refuse_long(forecast(name, setting, shorter), n_rounds, patience, "by its FLOPs")
            if setting.device.type == "cpu":
                trials[name] = tried(name, setting, N_CALLS, patience)
                refuse_long(trials[name].warm_seconds, n_rounds, patience, "as its trial says")
        except NotMeasured as why:
            cases[name] = TimedCase(name, None, trials.get(name), left_out=str(why))
    baseline, *others = names
    if baseline in cases:
        reason = f"no baseline: {baseline} {cases[baseline].left_out}"
        return [cases.get(name) or TimedCase(name, None, left_out=reason) for name in names]
    states = {name: STATE_BYTES * counted_parameters(name, setting) for name in names}
    room = free_memory(setting.device) // 2
    for group in groups(baseline, [name for name in others if name not in cases], states, room):
        timed = _group(group, setting, n_rounds, trials, tell)
        cases = timed | cases  # a table shows the baseline of the first group
        release(setting)
    return [cases[name] for name in names]


def groups(baseline: str, others: Sequence[str], states: Mapping[str, int], room: int) -> list[list[str]]:
    """Split the names into groups that fit into memory; a single model is tried even if it seems not to fit."""
    split = [[baseline]]
    for name in others:
        held = sum(states[member] for member in split[-1])
        if len(split[-1]) > 1 and held + states[name] > room:
            split.append([baseline])
        split[-1].append(name)
    return split


def forecast(name: str, setting: BenchSetting, shorter: Mapping[str, tuple[float, float]]) -> float:
    """Return (1) in seconds, or 0 if no shorter length was measured."""
    if name not in shorter:
        return 0.0
    seconds, flops = shorter[name]
    return seconds * counted_flops(name, setting) / flops


def refuse_long(seconds: float, n_rounds: int, patience: float, source: str) -> None:
    if (whole := seconds * (n_rounds + N_CALLS)) > patience:
        raise NotMeasured(f"would take {in_time(whole)} {source}, more than {in_time(patience)}")


def _group(
    group: Sequence[str], setting: BenchSetting, n_rounds: int, trials: Mapping[str, Trial], tell: Callable[[str], None]
) -> dict[str, TimedCase]:
    """Time a group in turns. Each model stays on the device until all rounds are done."""
    warm: dict[str, Trial] = {}
    n_parameters: dict[str, int] = {}

    def build(name: str) -> Passes:
        tell(f"{name}: first steps")
        passes, warm[name] = warmed_up(name, setting, N_CALLS)
        n_parameters[name] = passes.n_parameters
        return passes

    doing = f"{len(group)} in turns, {setting.precision}, length {setting.shape.seq_len}"
    cases = {name: partial(build, name) for name in group}
    laps, failed = run_in_turns(
        cases, setting.device, n_rounds, lambda done: tell(f"{doing}: round {done} of {n_rounds}")
    )
    return {
        name: TimedCase(name, None, trials.get(name), left_out=failed[name])
        if name in failed
        else TimedCase(name, n_parameters[name], trials.get(name, warm[name]), _timings(laps, name, group[0]))
        for name in group
    }


def _timings(laps: Mapping[str, Sequence[Mapping[str, float]]], name: str, baseline: str) -> dict[str, Timing]:
    return {
        part: Timing(tuple(lap[part] for lap in laps[name]), tuple(lap[part] for lap in laps[baseline]))
        for part in PASSES
    }
