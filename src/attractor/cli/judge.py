"""The command that judges anybody's numbers: judge."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from attractor.cli.console import say
from attractor.errors import RunStopped, require
from attractor.files import plain, write_text


@dataclass(frozen=True)
class JudgeArguments:
    """Say of each row of a table or log whether it is better than the baseline, worse, no different, or undecided."""

    tables: Annotated[
        Positional[tuple[Path, ...]], arg(help="tables, exports of trackers, logs of trainers, or folders of them")
    ]
    row: Annotated[str | None, arg(help="column that names the rows, or a pattern in paths; by default guessed")] = None
    seed: Annotated[str | None, arg(help="column of the seeds, or a pattern in paths; by default guessed")] = None
    value: Annotated[
        str | None, arg(help="column of the values, or a pattern with one group in lines of a log; by default guessed")
    ] = None
    step: Annotated[str | None, arg(help="column of the steps; by default guessed")] = None
    baseline: Annotated[str | None, arg(help="row that the others are compared with; by default guessed")] = None
    against: Annotated[float | None, arg(help="number to compare all rows with, in place of a baseline")] = None
    margin: Annotated[
        float | None, arg(help="smallest difference that matters; without it nothing is shown to be no different")
    ] = None
    tried: Annotated[int | None, arg(help="ideas that were tried in all; by default the rows")] = None
    looks: Annotated[tuple[int, ...], arg(help="planned numbers of pairs at which the table is read")] = ()
    at: Annotated[str, arg(help="last, best, or the step that counts, the same for all rows")] = "last"
    better: Annotated[str | None, arg(help="lower or higher; by default guessed")] = None
    require: Annotated[
        str | None, arg(help="better: exit with code 1 unless every row is better; by default 0 always")
    ] = None
    json: Annotated[bool, arg(help="print the verdicts as JSON")] = False
    out: Annotated[Path | None, arg(help="folder that receives a page and a LaTeX table; by default none")] = None


def judge(args: JudgeArguments, console: Console) -> None:
    from attractor.report.verdict_table import on_console
    from attractor.runs.observed import judge as judged

    require(bool(args.tables), "tables", "at least one file or folder", "none", "as attractor judge runs.csv")
    require(args.require in (None, "better"), "require", "better, or left out", args.require, "as --require better")
    lower = lower_is_better(args.better)
    named = ("row", "seed", "value", "step", "baseline", "margin", "tried", "looks", "against", "at")
    verdicts = judged(args.tables, lower_is_better=lower, **{name: getattr(args, name) for name in named})
    if args.json:
        print(json.dumps(plain(verdicts.to_dict()), indent=2))
    else:
        console.print(on_console(verdicts))
    if args.out is not None:
        from attractor.report.verdict_page import write_page

        page = write_page(verdicts, args.out)
        write_text(args.out / "verdict.tex", verdicts.to_latex())
        if not args.json:
            say(console, str(page))
    short = [verdict.row for verdict in verdicts.verdicts if verdict.outcome != "better"]
    if args.require == "better" and short:
        raise RunStopped(f"not shown to be better: {', '.join(short[:5])}{', ...' * (len(short) > 5)}")


def lower_is_better(better: str | None) -> bool | None:
    require(better in (None, "lower", "higher"), "better", "lower or higher", better, "as --better lower")
    return None if better is None else better == "lower"


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {"judge": (JudgeArguments, judge)}
