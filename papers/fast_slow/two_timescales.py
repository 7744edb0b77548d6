"""Compare FastSlow with four dense layers of its own block: steps by length, share of the slow path, cached decoding.

    share = 1 - t(frozen) / t(coupled)   of a forward pass; the frozen model is the same without slow path  (1)

Each measurement is reported with its forecast by FLOPs. The gate is open, so that no computation can be skipped. The
cases of a comparison take turns, so that a change of the machine's speed affects all of them alike.

    python papers/fast_slow/two_timescales.py RECORD.json
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from attractor.bench.alternate import Timing, alternate
from attractor.bench.cases import decoding, forward_pass, random_tokens
from attractor.bench.record import Record, machine
from attractor.files import write_json
from attractor.models import SIZES, FastSlowConfig
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.runs.machine import environment
from attractor.train.parts import forward_flops

COUPLED = FastSlowConfig()
DENSE = SIZES["dense-minimind"].replace(mlp=COUPLED.mlp)
TOKENS = 4096  # per step; a longer sequence makes a step by itself
OPEN = 0.5  # the value of gamma, so that tanh gamma is 0.46
LENGTHS = (256, 1024, 4096)
N_DECODED = 256
CPU = torch.device("cpu")
Clock = Callable[[], float]
# Other processes disturb processor time less. Of a GPU's work it says nothing.
CLOCKS: dict[str, Clock] = {"wall clock": time.perf_counter, "processor time": time.process_time}


@dataclass(frozen=True)
class SpeedComparison:
    """A time as a multiple of the dense model's, or a share of time, with its forecast by FLOPs."""

    what: str
    measured: float
    low: float  # quartiles over rounds
    high: float
    forecast: float

    def __str__(self) -> str:
        return f"{self.what}: {self.measured:.3f} ({self.low:.3f} to {self.high:.3f}); FLOPs: {self.forecast:.3f}"


def with_open_gate(config: ModelConfig[LanguageModel], device: torch.device = CPU) -> LanguageModel:
    model = config.build(seed=0).to(device)
    with torch.no_grad():
        for name in config.gates:
            model.get_parameter(name).fill_(OPEN)
    return model


def tokens_of(seq_len: int, device: torch.device) -> Tensor:
    return random_tokens(COUPLED.vocab_size, max(1, TOKENS // seq_len), seq_len).to(device)


def forward_and_backward(
    config: ModelConfig[LanguageModel], seq_len: int, device: torch.device = CPU
) -> Callable[[], None]:
    model, tokens = with_open_gate(config, device).train(), tokens_of(seq_len, device)

    def run() -> None:
        model.loss(tokens[:, :-1], tokens[:, 1:])[0].backward()
        model.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def step_time(
    seq_len: int, n_rounds: int, clock: Clock = time.perf_counter, device: torch.device = CPU
) -> SpeedComparison:
    configs = {"dense": DENSE, "coupled": COUPLED}
    cases = {name: forward_and_backward(config, seq_len, device) for name, config in configs.items()}
    timing = alternate(cases, "dense", n_rounds, clock=clock)["coupled"]
    forecast = flops(COUPLED, seq_len) / flops(DENSE, seq_len)
    return of_times(f"forward and backward at T={seq_len}, as a multiple of the dense model's time", timing, forecast)


def slow_share(
    seq_len: int, n_rounds: int, clock: Clock = time.perf_counter, device: torch.device = CPU
) -> SpeedComparison:
    """Measure the share of the slow path by (1)."""
    configs = {"coupled": COUPLED, "frozen": COUPLED.replace(frozen=True)}
    tokens = tokens_of(seq_len, device)
    cases = {
        name: forward_pass(with_open_gate(config, device).eval(), tokens, "fp32") for name, config in configs.items()
    }
    time = of_times("", alternate(cases, "coupled", n_rounds, clock=clock)["frozen"], 0.0)
    parts = forward_flops(COUPLED, seq_len)
    forecast = (parts["slow path"] + parts["injection"]) / sum(parts.values())
    what = f"share of the slow path in a forward pass at T={seq_len}"
    return SpeedComparison(what, 1 - time.measured, 1 - time.high, 1 - time.low, forecast)


def decoding_speed(
    batch_size: int, n_tokens: int, n_rounds: int, clock: Clock = time.perf_counter, device: torch.device = CPU
) -> SpeedComparison:
    """Measure cached decoding speed relative to the dense model; their FLOPs differ only in what they attend to."""
    configs = {"dense": DENSE, "coupled": COUPLED}
    cases = {
        name: decoding(with_open_gate(config, device), n_tokens, batch_size=batch_size)
        for name, config in configs.items()
    }
    timing = alternate(cases, "dense", n_rounds, warm_up=1, clock=clock)["coupled"]
    low, high = timing.spread
    forecast = flops(DENSE, n_tokens) / flops(COUPLED, n_tokens)
    what = f"{n_tokens} tokens decoded, batch {batch_size}, speed of dense"
    return SpeedComparison(what, timing.ratio, low, high, forecast)


def of_times(what: str, timing: Timing, forecast: float) -> SpeedComparison:
    low, high = timing.spread
    return SpeedComparison(what, 1 / timing.ratio, 1 / high, 1 / low, forecast)


def flops(config: ModelConfig[LanguageModel], seq_len: int) -> float:
    return sum(forward_flops(config, seq_len).values())


def comparisons(
    n_rounds: int, lengths: Sequence[int] = LENGTHS, clock: Clock = time.perf_counter, device: torch.device = CPU
) -> Iterator[SpeedComparison]:
    """Measure steps at each length, the share of the slow path at the longest one, and decoding."""
    for seq_len in lengths:
        yield step_time(seq_len, n_rounds, clock, device)
    yield slow_share(max(lengths), n_rounds, clock, device)
    for batch_size in (1, 8):
        yield decoding_speed(batch_size, N_DECODED, n_rounds, clock, device)


def main(
    n_rounds: int, lengths: Sequence[int] = LENGTHS, device: torch.device = CPU, out: Path | None = None
) -> Record:
    """Print all comparisons, on a CPU on one thread and by both clocks; return the record, and write it to `out`."""
    for seq_len in lengths:
        COUPLED.require_length(seq_len)
    if device.type == "cpu":
        torch.set_num_threads(1)
    record: Record = {
        "kind": "two timescales",
        "environment": environment(),
        "machine": machine(device),
        "models": {name: config.to_dict() for name, config in (("coupled", COUPLED), ("dense", DENSE))},
        "method": "cases in turns in one process; medians of rounds, and the middle half of the rounds' ratios",
        "n_rounds": n_rounds,
        "lengths": list(lengths),
        "comparisons": [],
    }
    for clock_name, clock in CLOCKS.items():
        if device.type == "cuda" and clock is time.process_time:
            continue
        for comparison in comparisons(n_rounds, lengths, clock, device):
            print(f"{clock_name}, {comparison}", flush=True)
            record["comparisons"].append({"clock": clock_name, **asdict(comparison)})
            if out is not None:
                write_json(out, record)
    return record


if __name__ == "__main__":
    main(n_rounds=7, out=Path(sys.argv[1]))
