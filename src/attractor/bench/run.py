"""`attractor bench`: the alternating comparison of training steps, and of cached against uncached decoding."""

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attractor.bench.alternate import Timing, alternate
from attractor.bench.cases import PEERS, BenchShape, decoding, our_step, peer_step
from attractor.evidence.run import environment
from attractor.files import write_json
from attractor.models import SIZES
from attractor.numerals import with_prefix

BASELINE = "standard"


def bench_training(
    presets: Sequence[str], shape: BenchShape, precision: str, n_rounds: int, device: torch.device, console: Console
) -> dict[str, Timing]:
    """Every preset, and every peer that is installed, against `standard` in the same rounds."""
    cases = {name: our_step(name, shape, precision, device) for name in dict.fromkeys((BASELINE, *presets))}
    if find_spec("transformers") is not None:
        cases |= {name: peer_step(name, shape, precision, device) for name in PEERS}
    with console.status(f"{precision}: {len(cases)} cases, {n_rounds} rounds") as status:
        return alternate(
            cases, BASELINE, n_rounds, tell=lambda done: status.update(f"{precision}: round {done} of {n_rounds}")
        )


def bench_decoding(n_tokens: int, n_rounds: int, device: torch.device) -> dict[str, Timing]:
    """The small model, with its cache and without."""
    small = SIZES["small"].replace(vocab_size=320)
    cases = {
        name: decoding(small.build(seed=0).to(device), n_tokens, name == "cached") for name in ("uncached", "cached")
    }
    return alternate(cases, "uncached", n_rounds, warm_up=0)


def timing_table(title: str, timings: dict[str, Timing], tokens: int) -> Table:
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, title_justify="left")
    table.add_column("case")
    for heading in ("ms", "tok/s", "speed", "middle half"):
        table.add_column(heading, justify="right")
    for name, timing in timings.items():
        low, high = timing.spread
        speed = with_prefix(tokens / timing.median_seconds)
        table.add_row(
            name, f"{1e3 * timing.median_seconds:.0f}", speed, f"{timing.ratio:.3f}", f"{low:.3f} to {high:.3f}"
        )
    return table


def bench_all(
    presets: Sequence[str],
    precisions: Sequence[str],
    n_rounds: int,
    n_decoded: int,
    device: torch.device,
    console: Console,
    out: Path | None,
) -> None:
    """Print a table for each precision and one for decoding; keep every measured second where asked to."""
    shape = BenchShape()
    kept: dict[str, Any] = {"shape": asdict(shape), "threads": torch.get_num_threads(), "device": str(device)}
    for precision in precisions:
        timings = bench_training(presets, shape, precision, n_rounds, device, console)
        tokens = shape.batch_size * shape.seq_len
        console.print(timing_table(f"a training step, {precision}, against {BASELINE}", timings, tokens))
        kept[f"training {precision}"] = seconds(timings)
    if n_decoded:
        timings = bench_decoding(n_decoded, min(n_rounds, 3), device)
        console.print(timing_table(f"{n_decoded} tokens decoded by the small model", timings, n_decoded))
        kept["decoding"] = seconds(timings)
    if out is not None:
        write_json(out, kept | {"environment": environment()})
        console.print(str(out), markup=False, highlight=False, soft_wrap=True)


def seconds(timings: dict[str, Timing]) -> dict[str, Any]:
    return {
        name: {"seconds": timing.seconds, "ratio": timing.ratio, "middle_half": timing.spread}
        for name, timing in timings.items()
    }
