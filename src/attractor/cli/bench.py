"""The command that measures speed: bench."""

import signal
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from tyro.conf import Positional

from attractor.attention.presets import PRESETS
from attractor.cli.console import answer
from attractor.errors import RunInterrupted, require, require_known
from attractor.files import prepare_place
from attractor.train.config import Runtime
from attractor.train.hardware import resolve_device

if TYPE_CHECKING:
    import torch

    from attractor.bench.run import Request

ALL = "all"
MAIN = ("gqa", "mla", "coupled-euler", "coupled-hamiltonian", "differential", "gated", "psiqrh")
LENGTHS = (512,)
PRECISION = {"cpu": ("fp32",), "cuda": ("bf16",)}


@dataclass(frozen=True)
class BenchArguments:
    mechanisms: Positional[tuple[str, ...]] = ()
    """names, also as NAME:FIELD=VALUE, or 'all'; by default the seven main ones"""
    baseline: str = "standard"
    """the mechanism that speeds are relative to"""
    size: str | None = None
    """a Transformer or FastSlow whose width, heads, layers and MLP are used; by default as suits the device"""
    d_model: int | None = None
    """width of the model; by default the size's"""
    n_heads: int | None = None
    """attention heads per layer; by default the size's"""
    n_layers: int | None = None
    """number of layers; by default the size's"""
    d_ff: int | None = None
    """hidden width of the MLP; by default the size's, or four times a given d_model"""
    vocab_size: int | None = None
    """tokens in the vocabulary; by default the size's"""
    lengths: tuple[int, ...] = ()
    """sequence lengths to measure; by default 512"""
    tokens: int | None = None
    """tokens per step, in as many sequences as fit; by default as suits the device"""
    precision: tuple[str, ...] = ()
    """fp32, bf16 or both; by default fp32 on a CPU and bf16 on a GPU"""
    compile: bool = False
    """use torch.compile, for other libraries too; compile time is shown apart"""
    rounds: int = 7
    """measured steps per case; 0 measures no steps"""
    decode: int = 32
    """tokens to decode per case; 0 measures no decoding"""
    peers: bool = True
    """also time transformers and x-transformers where they are installed"""
    patience: float = 120.0
    """seconds that one case may take at one length"""
    device: str = Runtime.device
    out: Path | None = None
    """JSON file that receives every measurement"""


def request_of(args: BenchArguments, device: "torch.device") -> "Request":
    """Check the arguments, and return the request for this device."""
    from attractor.bench.cases import our_config
    from attractor.bench.matrix_rate import DTYPES
    from attractor.bench.run import Request
    from attractor.bench.shape import ON_CPU, ON_CUDA, shape_of_size

    shape = ON_CUDA if device.type == "cuda" else ON_CPU
    if args.size is not None:
        shape = shape_of_size(args.size, shape)
        if shape.size is not None and args.n_layers is not None:
            rule = f"left out with size '{args.size}', which has several stacks"
            require(False, "n_layers", rule, args.n_layers, "change a stack in a name, such as standard:n_slow=3")
    given: dict[str, Any] = {} if args.d_model is None else {"d_ff": 4 * args.d_model}
    for name in ("d_model", "n_heads", "n_layers", "d_ff", "vocab_size", "tokens"):
        if (value := getattr(args, name)) is not None:
            require(value >= 1, name, "at least 1", value, "leave it out for what suits the device")
            given["n_tokens" if name == "tokens" else name] = value
    shape = replace(shape, **given)
    for precision in args.precision:
        require_known("precision", precision, DTYPES)
    lengths = tuple(dict.fromkeys(args.lengths or LENGTHS))  # each once
    require(args.rounds >= 0, "rounds", "at least 0", args.rounds)
    require(args.decode >= 0, "decode", "at least 0", args.decode)
    require(args.patience > 0, "patience", "positive", args.patience)
    names = args.mechanisms or MAIN
    if names == (ALL,):
        names = tuple(PRESETS)
    request = Request(
        names,
        shape,
        lengths,
        args.precision or PRECISION[device.type],
        args.baseline,
        args.compile,
        args.rounds,
        args.decode,
        args.peers,
        args.patience,
    )
    for name, seq_len in product(request.ours, lengths):
        our_config(name, replace(shape, seq_len=seq_len)).require_length(seq_len)
    return request


def bench(args: BenchArguments, console: Console) -> None:
    """Time mechanisms against each other and against other libraries. Training steps, memory and decoding are measured.

    attractor bench coupled-euler mla --lengths 512 2048
    """
    from attractor.bench.run import bench_all

    require(min(args.lengths, default=1) >= 1, "lengths", "one or more of at least 1", args.lengths)
    prepare_place(args.out)
    device = resolve_device(args.device)
    request = request_of(args, device)
    try:
        record = bench_all(request, device, console, args.out)
    except KeyboardInterrupt:
        state = f"'{args.out}' has each part that was done" if args.out is not None else "nothing is kept without --out"
        raise RunInterrupted(f"interrupted: {state}; the same command begins anew", signal.SIGINT) from None
    answer(console, **record)
