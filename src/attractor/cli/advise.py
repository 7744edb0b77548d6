"""The command that says which mechanism to use on a corpus: advise."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from attractor.cli.console import command_line
from attractor.console import seconds_of, waiting
from attractor.train.config import Runtime


@dataclass(frozen=True)
class AdviseArguments:
    corpus: str
    """named corpus, text file, table or prepared folder"""
    column: str | None = None
    """column of a table that holds the text; by default 'text' or the only one"""
    budget: str = "10m"
    """time that the pilot may take here, as 90s, 10m or 2h"""
    margin: float = 0.01
    """smallest difference in loss that matters to you, in nats per token"""
    alpha: float = 0.05
    """accepted chance of a wrong answer, over all looks and rivals"""
    max_seeds: int = 8
    """most seeds per mechanism"""
    rivals: tuple[str, ...] = (
        "coupled-euler",
        "differential",
    )
    """mechanisms to compare with standard attention"""
    workers: int | None = None
    """runs at the same time; by default as many as the machine has room for"""
    out: Path | None = None
    """folder to write; by default a new one in runs/"""
    device: str = Runtime.device


def advise(args: AdviseArguments, console: Console) -> None:
    """Say which mechanism to use on a corpus, and how sure that is. It runs the smallest pilot that can decide.

    attractor advise --corpus notes.txt --budget 30m
    """
    from attractor.study.advise import PilotRequest
    from attractor.study.advise import advise as run_pilot
    from attractor.tasks.text import load_corpus

    given = {name: value for name, value in vars(args).items() if name not in ("budget", "device")}
    request = PilotRequest(**given, budget=seconds_of(args.budget), command=command_line())
    with waiting(f"reading {args.corpus}"):
        load_corpus(args.corpus, args.column)
    run_pilot(request, Runtime(args.device), console)
