"""The command that measures speed."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from attractor.attention.presets import PRESETS
from attractor.attention.stage import require
from attractor.errors import RunInterrupted, unknown
from attractor.train.config import Runtime

if TYPE_CHECKING:
    import torch

    from attractor.bench.run import Request

TRACES = Path("runs") / "profiles"
ALL = "all"
MAIN = ("gqa", "mla", "coupled-euler", "coupled-hamiltonian", "differential", "gated", "psiqrh")
PRECISION = {"cpu": ("fp32",), "cuda": ("bf16",)}


@dataclass(frozen=True)
class Bench:
    """Time mechanisms and their installed peers in turns: passes, memory, decoding, kernels against the roofline."""

    presets: Annotated[
        Positional[tuple[str, ...]], arg(help="names, NAME:FIELD=VALUE too, or 'all'; none: the main ones")
    ] = ()
    baseline: Annotated[str, arg(help="what speeds are relative to")] = "standard"
    size: Annotated[str | None, arg(help="a named model's width, heads, layers and MLP")] = None
    d_model: int | None = None
    heads: int | None = None
    layers: int | None = None
    d_ff: Annotated[int | None, arg(help="width of the MLP; by default the size's, or four times d_model")] = None
    vocab: int | None = None
    lengths: Annotated[tuple[int, ...], arg(help="of sequences, as 512 1024 2048")] = (512,)
    tokens: Annotated[int | None, arg(help="of a step; so many sequences as fit, and at least one")] = None
    precision: Annotated[tuple[str, ...], arg(help="fp32, bf16 or both; by default what the device is for")] = ()
    compile: Annotated[bool, arg(help="by torch.compile, peers too; the time it takes stands apart")] = False
    rounds: Annotated[int, arg(help="measured steps of each case; 0 leaves the passes out")] = 7
    decode: Annotated[int, arg(help="tokens to decode; 0 leaves it out")] = 32
    peers: Annotated[bool, arg(help="time what is installed of Hugging Face and x-transformers, too")] = True
    kernels: Annotated[bool, arg(help="hold every stage against the roofline")] = True
    curves: Annotated[bool, arg(help="fit how costs grow with length, width and steps")] = False
    patience: Annotated[float, arg(help="seconds that one case may take at one length")] = 120.0
    profile: Annotated[bool, arg(help="say where the time of a step goes instead, by part and in a trace")] = False
    two_timescales: Annotated[bool, arg(help="time FastSlow on a CPU instead, against dense layers")] = False
    device: str = Runtime.device
    out: Annotated[Path | None, arg(help="a JSON file for every measured second")] = None
    figure: Annotated[Path | None, arg(help="an SVG, PNG or PDF file")] = None


def request_of(args: Bench, device: "torch.device") -> "Request":
    """What is asked for, checked, on this device."""
    from attractor.bench.cases import PRECISIONS, our_config
    from attractor.bench.run import Request
    from attractor.bench.shape import ON_CPU, ON_CUDA, shape_of_size

    shape = ON_CUDA if device.type == "cuda" else ON_CPU
    if args.size is not None:
        shape = shape_of_size(args.size, shape)
    given = {
        "d_model": args.d_model,
        "n_heads": args.heads,
        "n_layers": args.layers,
        "d_ff": args.d_ff if args.d_model is None or args.d_ff is not None else 4 * args.d_model,
        "vocab_size": args.vocab,
        "n_tokens": args.tokens,
    }
    shape = replace(shape, **{field: value for field, value in given.items() if value is not None})
    for precision in args.precision:
        if precision not in PRECISIONS:
            raise unknown("precision", precision, PRECISIONS)
    require(len(args.lengths) > 0 and min(args.lengths) >= 1, "lengths", "one or more of at least 1", args.lengths)
    require(args.rounds >= 0, "rounds", "at least 0", args.rounds)
    require(args.decode >= 0, "decode", "at least 0", args.decode)
    require(args.patience > 0, "patience", "positive", args.patience)
    names = args.presets or MAIN
    if names == (ALL,):
        names = tuple(PRESETS)
    request = Request(
        names,
        shape,
        args.lengths,
        args.precision or PRECISION[device.type],
        args.baseline,
        args.compile,
        args.rounds,
        args.decode,
        args.peers,
        args.kernels,
        args.curves,
        args.patience,
    )
    for name in request.ours:
        our_config(name, shape)
    return request


def bench(args: Bench, console: Console) -> None:
    from attractor.bench.figure import draw, kind_of
    from attractor.bench.profile import profile_table
    from attractor.bench.run import bench_all, profiles
    from attractor.files import prepare_place
    from attractor.train.hardware import resolve_device

    if args.two_timescales:
        from attractor.bench import two_timescales

        require(args.rounds >= 1, "rounds", "at least 1 with two_timescales", args.rounds)
        two_timescales.main(args.rounds)
        return
    if args.figure is not None:
        kind_of(args.figure)
    prepare_place(args.figure)
    prepare_place(args.out)
    device = resolve_device(args.device)
    request = request_of(args, device)
    if args.profile:
        for profile in profiles(request, device, TRACES if args.out is None else args.out.parent):
            console.print(profile_table(profile))
            console.print(str(profile.trace), markup=False, highlight=False, soft_wrap=True)
        return
    try:
        record = bench_all(request, device, console, args.out)
    except KeyboardInterrupt:
        kept = f"'{args.out}' has each part that was done" if args.out is not None else "nothing is kept without --out"
        raise RunInterrupted(f"interrupted: {kept}; the same command begins anew", signal.SIGINT) from None
    if args.figure is not None:
        draw(record, args.figure)
        console.print(str(args.figure), markup=False, highlight=False, soft_wrap=True)


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {"bench": (Bench, bench)}
