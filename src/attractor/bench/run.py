"""Run `attractor bench` part by part; each part is printed and stored as soon as it is measured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from attractor.bench.cases import N_PROMPT
from attractor.bench.decoding import time_decoding
from attractor.bench.matrix_rate import matrix_rate
from attractor.bench.peers import installed_peers
from attractor.bench.record import Record, machine, of_case, of_decoding
from attractor.bench.shape import BenchShape
from attractor.bench.tables import tables
from attractor.bench.training import counted_flops, time_training
from attractor.bench.trial import BenchSetting
from attractor.console import now_and_then, print_line
from attractor.files import write_json
from attractor.runs.machine import environment
from attractor.train.heap import freed_memory_kept

Tell = Callable[[str], None]
Section = tuple[str, list[Record]]


@dataclass(frozen=True)
class Request:
    names: tuple[str, ...]
    shape: BenchShape
    lengths: tuple[int, ...]
    precisions: tuple[str, ...]
    baseline: str = "standard"
    compiled: bool = False
    n_rounds: int = 7  # 0 skips the passes
    n_decoded: int = 32  # 0 skips decoding
    peers: bool = True
    patience: float = 120.0  # seconds that one case may take at one setting

    @property
    def ours(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.baseline, *self.names)))

    @property
    def everyone(self) -> tuple[str, ...]:
        """Our names and those of peers, which are Transformers."""
        return (*self.ours, *(installed_peers() if self.peers and self.shape.size is None else ()))

    def setting(self, precision: str, seq_len: int, device: torch.device) -> BenchSetting:
        return BenchSetting(replace(self.shape, seq_len=seq_len), precision, self.compiled, device)


@freed_memory_kept()
def bench_all(request: Request, device: torch.device, console: Console, out: Path | None) -> Record:
    """Return the record. It is written to `out` after every part, since a bench may be long and may be interrupted."""
    record: Record = {
        "kind": "bench",
        "environment": environment(),
        "machine": machine(device),
        "baseline": request.baseline,
        "request": asdict(request),
    }
    with telling(console) as tell:
        for key, section in parts(request, device, tell):
            if isinstance(section, list):
                record.setdefault(key, []).extend(section)
            else:
                record[key] = section
            for table in tables({key: section}, record):
                console.print(table, markup=False, highlight=False, soft_wrap=isinstance(table, str))
            if out is not None:
                write_json(out, record)
    if out is not None:
        console.print(str(out), markup=False, highlight=False, soft_wrap=True)
    return record


@contextmanager
def telling(console: Console) -> Iterator[Tell]:
    """Show what is being measured beside a spinner; in a log, print a line from time to time."""
    if console.is_terminal:
        with console.status("") as status:
            yield status.update
        return
    due = now_and_then()

    def tell(doing: str) -> None:
        if due():
            print_line(console, doing)

    yield tell


def parts(request: Request, device: torch.device, tell: Tell) -> Iterator[tuple[str, Any]]:
    tell("products of matrices")
    yield "matrix_rates", {precision: matrix_rate(precision, device) for precision in request.precisions}
    for precision in request.precisions:
        if request.n_rounds:
            yield from training(request, precision, device, tell)
        if request.n_decoded:
            yield "decoding", decoding(request, precision, device, tell)


def training(request: Request, precision: str, device: torch.device, tell: Tell) -> Iterator[Section]:
    shorter: dict[str, tuple[float, float]] = {}
    for seq_len in sorted(request.lengths):
        setting = request.setting(precision, seq_len, device)
        cases = time_training(request.everyone, setting, request.n_rounds, request.patience, shorter, tell)
        for case in cases:
            if case.timings is not None:
                seconds = case.timings["forward"].median_seconds + case.timings["step"].median_seconds
                shorter[case.name] = seconds, counted_flops(case.name, setting)
        yield "training", [of_case(case, setting) for case in cases]


def decoding(request: Request, precision: str, device: torch.device, tell: Tell) -> list[Record]:
    setting = replace(request.setting(precision, N_PROMPT + request.n_decoded, device), compiled=False)
    times = time_decoding(request.everyone, setting, request.n_decoded, tell)
    return [of_decoding(time, precision) for time in times]
