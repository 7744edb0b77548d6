"""The command that judges anybody's numbers: judge."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

from attractor.cli.console import answer, say
from attractor.errors import RunStopped, require
from attractor.files import write_text


@dataclass(frozen=True)
class JudgeArguments:
    tables: Positional[tuple[Path, ...]]
    """tables, exports of trackers, logs of trainers, or folders of them"""
    row: str | None = None
    """column that names the rows, or several as A,B, or a pattern in paths; by default guessed"""
    seed: str | None = None
    """column of the seeds, or a pattern in paths; by default guessed"""
    value: str | None = None
    """column of the values, or a pattern with one group in lines of a log; by default guessed"""
    step: str | None = None
    """column of the steps; by default guessed"""
    baseline: str | None = None
    """row that the others are compared with; by default guessed"""
    against: float | None = None
    """number to compare all rows with, in place of a baseline"""
    margin: float | None = None
    """smallest difference that matters; without it nothing is shown to be no different"""
    tried: int | None = None
    """ideas that were tried in all; by default the rows"""
    looks: tuple[int, ...] = ()
    """planned numbers of pairs at which the table is read"""
    at: str = "last"
    """last, best, or the step that counts, the same for all rows"""
    better: str | None = None
    """lower or higher; by default guessed"""
    require: str | None = None
    """better: exit with code 1 unless every row is better; by default 0 always"""
    out: Path | None = None
    """folder that receives a page and a LaTeX table; by default none"""


def judge(args: JudgeArguments, console: Console) -> None:
    """Say of each row of a table or log whether it is better than the baseline, worse, no different, or undecided.

    attractor judge runs.csv --margin 0.003
    attractor judge logs --value 'val_loss:([0-9.]+)' --out judged
    """
    from attractor.report.table import on_console
    from attractor.runs.observed import judge as judged

    require(bool(args.tables), "tables", "at least one file or folder", "none", "as attractor judge runs.csv")
    require(args.require in (None, "better"), "require", "better, or left out", args.require, "as --require better")
    lower = lower_is_better(args.better)
    named = ("row", "seed", "value", "step", "baseline", "margin", "tried", "looks", "against", "at")
    verdicts = judged(args.tables, lower_is_better=lower, **{name: getattr(args, name) for name in named})
    answer(console, **verdicts.to_dict())
    console.print(on_console(verdicts))
    if args.out is not None:
        from attractor.report.verdict_page import write_page

        page = write_page(verdicts, args.out)
        write_text(args.out / "verdict.tex", verdicts.to_latex())
        say(console, str(page))
    short = [verdict.row for verdict in verdicts.verdicts if verdict.outcome != "better"]
    if args.require == "better" and short:
        raise RunStopped(f"not shown to be better: {', '.join(short[:5])}{', ...' * (len(short) > 5)}")


def lower_is_better(better: str | None) -> bool | None:
    require(better in (None, "lower", "higher"), "better", "lower or higher", better, "as --better lower")
    return None if better is None else better == "lower"
