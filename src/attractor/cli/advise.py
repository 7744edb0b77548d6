"""The command that says which mechanism to use on a corpus: advise."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import arg

from attractor.cli.console import command_line
from attractor.numerals import seconds_of
from attractor.sign_of_life import waiting
from attractor.train.config import Runtime


@dataclass(frozen=True)
class AdviseArguments:
    """Say which mechanism to use on a corpus, and how sure that is. It runs the smallest pilot that can decide."""

    corpus: Annotated[str, arg(help="named corpus, text file, table or prepared folder")]
    column: Annotated[
        str | None, arg(help="column of a table that holds the text; by default 'text' or the only one")
    ] = None
    budget: Annotated[str, arg(help="time that the pilot may take here, as 90s, 10m or 2h")] = "10m"
    margin: Annotated[float, arg(help="smallest difference in loss that matters to you, in nats per token")] = 0.01
    alpha: Annotated[float, arg(help="accepted chance of a wrong answer, over all looks and rivals")] = 0.05
    max_seeds: Annotated[int, arg(help="most seeds per mechanism")] = 8
    rivals: Annotated[tuple[str, ...], arg(help="mechanisms to compare with standard attention")] = (
        "coupled-euler",
        "differential",
    )
    workers: Annotated[
        int | None, arg(help="runs at the same time; by default as many as the machine has room for")
    ] = None
    out: Annotated[Path | None, arg(help="folder to write; by default a new one in runs/")] = None
    device: Annotated[str, arg(help="cpu, cuda or auto")] = Runtime.device


def advise(args: AdviseArguments, console: Console) -> None:
    from attractor.study.advise import PilotRequest
    from attractor.study.advise import advise as run_pilot
    from attractor.tasks.text import load_corpus

    given = {name: value for name, value in vars(args).items() if name not in ("budget", "device")}
    request = PilotRequest(**given, budget=seconds_of(args.budget), command=command_line())
    with waiting(f"reading {args.corpus}"):
        load_corpus(args.corpus, args.column)
    run_pilot(request, Runtime(args.device), console)


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {"advise": (AdviseArguments, advise)}
