"""Run one case alone before it is timed with others, to measure its first calls and its peak memory.

On a CPU a trial runs in a subprocess, whose memory belongs to the case alone. On a GPU it runs in this process: the
allocator knows how much a case takes, and another process would cost seconds to start.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from attractor.bench.alternate import Result, in_turns
from attractor.bench.passes import Passes
from attractor.bench.peers import PEERS
from attractor.bench.shape import BenchShape
from attractor.bench.subprocess_timing import NotMeasured, free_memory, in_words, run_in_subprocess
from attractor.train.hardware import PeakMemory

COMPILING = 600.0  # seconds that compilation may add to a trial
SMALLEST = BenchShape(vocab_size=16, d_model=32, n_heads=4, n_layers=1, d_ff=32, seq_len=8, n_tokens=8)


@dataclass(frozen=True)
class BenchSetting:
    """How a case is run. A case is a name at a setting."""

    shape: BenchShape
    precision: str
    compiled: bool
    device: torch.device


@dataclass(frozen=True)
class Trial:
    calls: tuple[dict[str, float], ...]  # seconds by pass; the first call is cold and compiles
    peak_memory: int  # bytes of a whole step, weights included

    @property
    def first_seconds(self) -> float:
        """The seconds of forward and step in the first call."""
        return self.calls[0]["forward"] + self.calls[0]["step"]

    def seconds(self, name: str) -> float:
        """Return the median seconds of a pass over the warm calls."""
        return median(call[name] for call in self.calls[1:])

    @property
    def warm_seconds(self) -> float:
        """The median seconds of forward and step."""
        return self.seconds("forward") + self.seconds("step")

    @property
    def compile_seconds(self) -> float:
        """How much longer the first call took than a warm one."""
        return self.first_seconds - self.warm_seconds


def warmed_up(name: str, setting: BenchSetting, n_calls: int) -> tuple[Passes, Trial]:
    """Build a case and call it `n_calls` times. Memory peaks in the second step, when the optimizer has its state."""
    device = setting.device
    _initialise(name, setting)
    memory = PeakMemory(device)
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    passes = Passes(name, setting.shape, setting.precision, setting.compiled, device)
    calls = tuple(passes() for _ in range(n_calls))
    return passes, Trial(calls, memory.read() - held)


def _initialise(name: str, setting: BenchSetting) -> None:
    """Take a tiny step, in which torch and a peer's package import and set up what they need once."""
    for model in dict.fromkeys(("standard", name if name in PEERS else "standard")):
        Passes(model, SMALLEST, setting.precision, False, setting.device)()


def tried(name: str, setting: BenchSetting, n_calls: int, patience: float) -> Trial:
    """Return the trial of a case on a CPU; raise NotMeasured if the case fails."""
    trial = run_in_subprocess(_trial, name, setting, n_calls, patience=patience + COMPILING * setting.compiled)
    assert isinstance(trial, Trial)
    return trial


def _trial(name: str, setting: BenchSetting, n_calls: int) -> Trial:
    return warmed_up(name, setting, n_calls)[1]


def on_device(run: Callable[[], Any], device: torch.device) -> Any:
    """Return what `run` returns in this process; raise NotMeasured if it fails, after its memory is freed."""
    free = free_memory(device)
    try:
        return run()
    except Exception as error:
        reason = in_words(error, free)
    gc.collect()  # here the frames of the error are gone, and the tensors they held can be freed
    if device.type == "cuda":
        torch.cuda.empty_cache()
    raise NotMeasured(reason)


def run_in_turns(
    cases: Mapping[str, Callable[[], Callable[[], Result]]],
    device: torch.device,
    n_rounds: int,
    tell: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, list[Result]], dict[str, str]]:
    """Build all cases, and run them in turns. Return the results of the rounds, and why cases were left out, by name.

    The first case is the baseline, without which no other counts. A case that fails is freed, and others go on."""
    ready: dict[str, Callable[[], Result]] = {}
    failed: dict[str, str] = {}

    def attempt(name: str, run: Callable[[], Any]) -> Any:
        try:
            return None if name in failed else on_device(run, device)
        except NotMeasured as why:
            failed[name] = str(why)
            ready.pop(name, None)
            return None

    for name, build in cases.items():
        if (run := attempt(name, build)) is not None:
            ready[name] = run
    run = None  # from here on `ready` alone holds the models
    laps = in_turns({name: partial(attempt, name, partial(_call, ready, name)) for name in ready}, n_rounds, tell)
    baseline = next(iter(cases))
    if baseline in failed:
        failed |= dict.fromkeys(set(cases) - failed.keys(), f"no baseline: {baseline} {failed[baseline]}")
    return laps, failed


def _call(ready: Mapping[str, Callable[[], Result]], name: str) -> Result:
    return ready[name]()


def release(setting: BenchSetting) -> None:
    """Free the memory of models that are no longer referenced."""
    if setting.compiled:
        torch._dynamo.reset()
    gc.collect()
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()
