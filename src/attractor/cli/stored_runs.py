"""Commands about stored runs: runs list, show, compare and prune, and watch."""

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text
from tyro.conf import Positional

from attractor.cli.console import answer, command_line, say
from attractor.cli.definitions import definitions
from attractor.cli.parsing import refuse_file
from attractor.console import with_prefix
from attractor.errors import InputError, LeftOutWarning, require, require_known

if TYPE_CHECKING:
    from attractor.runs.filters import Condition
    from attractor.runs.index import IndexedRun

RUNS = Path("runs")
KEPT = ("best", "last", "none")
PRUNED_SHOWN = 20  # at most so many runs are listed with the checkpoints to remove
DAMAGED_SHOWN = 5  # at most so many damaged runs are named
SHOWN = ("label", "seed", "state", "steps", "loss")


@dataclass(frozen=True)
class Selection:
    """Options of the commands that take the runs of a folder which meet conditions."""

    folder: Positional[Path] = RUNS
    """folder of runs"""
    where: tuple[str, ...] = ()
    """conditions that runs must meet, as --where "attention=gated lr>1e-3\""""


@dataclass(frozen=True)
class RunsListArguments(Selection):
    sort: str = ""
    """field to sort by; by default the path"""
    columns: tuple[str, ...] = ()
    """further fields to show"""
    limit: int = 50
    """most runs to show"""
    json: bool = False
    """print all fields of every run, one JSON object a line"""


@dataclass(frozen=True)
class RunsShowArguments:
    run: Positional[Path]
    """run folder"""


@dataclass(frozen=True)
class RunsCompareArguments(Selection):
    baseline: str | None = None
    """row that the others are compared with; by default guessed"""
    out: Path | None = None
    """folder of the report; by default a new one in runs/"""


@dataclass(frozen=True)
class RunsPruneArguments(Selection):
    keep: str = "best"
    """checkpoint of a finished run that stays: best, last or none"""
    yes: bool = False
    """remove them without asking"""


@dataclass(frozen=True)
class WatchArguments:
    folder: Positional[Path] = RUNS
    """a folder of runs, or one run; by default runs"""
    port: int = 8642
    """the port of 127.0.0.1 to listen on; 0 takes a free one"""


def selected(
    folder: Path, where: Sequence[str], names: Sequence[str] = ()
) -> tuple[list["IndexedRun"], tuple["Condition", ...], list[str]]:
    """Return the runs of a folder that meet all conditions, the conditions, and the fields of all runs there.

    Damaged runs meet no condition. Further `names` of fields must be known, too."""
    from attractor.runs.filters import conditions, full_name
    from attractor.runs.index import indexed_runs

    runs = indexed_runs(folder, definitions("attention.presets").presets_as_data())
    if not runs:
        raise InputError(f"folder must hold runs, and '{folder}' holds none; a run is a folder with config.json")
    known = sorted({name for run in runs for name in run.fields})
    asked = conditions(where, known)
    for name in names:
        full_name(name, known)
    for run in [run for run in runs if run.problem][:DAMAGED_SHOWN]:
        warnings.warn(f"damaged: {run.key}: {run.problem}", LeftOutWarning, stacklevel=2)
    return [run for run in runs if all(condition.holds(run.fields) for condition in asked)], asked, known


def runs_list(args: RunsListArguments, console: Console) -> None:
    """List the runs of a folder. Conditions filter them; the fields that they name become columns.

    attractor runs list --where "attention=gated lr>1e-3" --sort loss
    """
    from attractor.report.table import InConsole
    from attractor.runs.filters import full_name

    require(args.limit >= 1, "limit", "at least 1", args.limit, "leave it out for 50, or --json prints every run")
    runs, asked, known = selected(args.folder, args.where, [*args.columns, *filter(None, [args.sort])])
    extra = dict.fromkeys([condition.field for condition in asked] + [full_name(name, known) for name in args.columns])
    if args.sort:
        field = full_name(args.sort, known)
        extra[field] = None
        runs.sort(key=lambda run: _order(run.fields.get(field)))
    if args.json:
        for run in runs:
            print(json.dumps({"run": f"{args.folder / run.key}", "problem": run.problem, **run.fields}))
        return
    columns = [*SHOWN, *(name for name in extra if name not in SHOWN)]
    rows = [
        [run.key, *("damaged" if run.problem and name == "state" else _cell(name, run.fields) for name in columns)]
        for run in runs[: args.limit]
    ]
    console.print(InConsole(["run", *columns], rows))
    left = f"; {len(runs) - args.limit} more, --limit shows them" if len(runs) > args.limit else ""
    console.print(f"{len(runs)} runs{left}", highlight=False)


def runs_show(args: RunsShowArguments, console: Console) -> None:
    """Show what is known of a run: its results, its configuration and its checkpoints.

    attractor runs show runs/one
    """
    from attractor.runs.configuration import dotted_fields, named
    from attractor.runs.run_folder import RunFolder
    from attractor.train.checkpoint import best_checkpoint, list_checkpoints

    run = RunFolder.open(args.run)
    checkpoints = [path.name for path in list_checkpoints(run.checkpoints)]
    best = best_checkpoint(run.checkpoints)
    parts = {
        "state": {"state": run.state, "checkpoints": ", ".join(checkpoints) or "none", "best": best and best.name},
        "result": dotted_fields(run.summary() or {}),
        "configuration": dotted_fields(named(run.config, definitions("attention.presets").presets_as_data())),
        "environment": dotted_fields(run.environment),
    }
    for title, fields in parts.items():
        if fields:
            console.print(Text(title, style="bold"))
        for name, value in fields.items():
            say(console, f"  {name}: {value}")
    answer(console, run=str(run.path), **parts)


def runs_compare(args: RunsCompareArguments, console: Console) -> None:
    """Compare the finished runs of a folder that meet the conditions, as `attractor compare RUN RUN` does.

    attractor runs compare --where "corpus=notes.txt"
    """
    from attractor.cli.study import report_study
    from attractor.runs.run_folder import ENDED
    from attractor.study.stored_runs import compare_runs
    from attractor.verdict.judge import BASELINES

    def place(run: "IndexedRun") -> int:  # the first row is the baseline
        label = run.fields.get("label")
        return BASELINES.index(label) if label in BASELINES else len(BASELINES)

    runs, _, _ = selected(args.folder, args.where)
    paths = [args.folder / run.key for run in sorted(runs, key=place) if run.state in ENDED]
    if len(paths) < 2:
        raise InputError(
            f"at least 2 finished runs must meet the conditions, got {len(paths)}; 'attractor runs list' shows all"
        )
    record, folder = compare_runs(paths, args.out, command_line(), args.baseline)
    report_study(record, folder, {}, console)


def runs_prune(args: RunsPruneArguments, console: Console) -> None:
    """Remove checkpoints that are not needed any more. It shows what it would remove, and asks first.

    attractor runs prune --keep best --yes
    """
    from attractor.runs.run_folder import RunFolder
    from attractor.train.checkpoint import remove_checkpoint, superfluous

    require_known("keep", args.keep, KEPT)
    runs, _, _ = selected(args.folder, args.where)
    removable: dict[Path, list[Path]] = {}
    for run in runs:
        path = args.folder / run.key
        if run.state == "running":
            say(console, f"{run.key}: left as it is, since it is {run.state}")
        if run.state == "running" or run.problem:
            continue
        try:
            removable[path] = superfluous(path, args.keep, RunFolder.open(path).finished)
        except InputError as error:  # one damaged run stops nothing
            say(console, f"{run.key}: left as it is: {error}")
    removable = {path: checkpoints for path, checkpoints in removable.items() if checkpoints}
    for path, checkpoints in list(removable.items())[:PRUNED_SHOWN]:
        say(console, f"{path.relative_to(args.folder)}: {', '.join(checkpoint.name for checkpoint in checkpoints)}")
    if len(removable) > PRUNED_SHOWN:
        say(console, f"and those of {len(removable) - PRUNED_SHOWN} more runs")
    for line in needed_by_studies(args.folder, removable):
        say(console, line)
    sizes = {path: sum(file.stat().st_size for file in path.rglob("*")) for part in removable.values() for path in part}
    what = f"{len(sizes)} checkpoints of {with_prefix(sum(sizes.values()))}B"
    asked = bool(sizes) and not args.yes and console.is_terminal and sys.stdin.isatty()
    if not args.yes and not (asked and console.input(f"remove {what}? [y/N] ").strip().lower() in ("y", "yes")):
        console.print("nothing was removed" if asked else f"would remove {what}; --yes removes them", highlight=False)
        answer(console, removed=0, removable=[str(path) for path in sizes], bytes=sum(sizes.values()))
        return
    n_removed = n_bytes = 0
    for path, checkpoints in removable.items():
        try:
            with RunFolder.open(path).hold():  # a run that was resumed meanwhile is left alone
                for checkpoint in checkpoints:
                    remove_checkpoint(checkpoint)
                    n_removed, n_bytes = n_removed + 1, n_bytes + sizes[checkpoint]
        except InputError as error:
            say(console, f"{path.relative_to(args.folder)}: left as it is: {error}")
    console.print(f"removed {n_removed} checkpoints of {with_prefix(n_bytes)}B", highlight=False)
    answer(console, removed=n_removed, bytes=n_bytes)


def watch(args: WatchArguments, console: Console) -> None:
    """Show the runs of a folder in a browser on this machine, and follow them while they train.

    attractor watch runs
    """
    from attractor.report.live_server import LiveServer

    refuse_file(args.folder)
    with LiveServer(args.folder, args.port) as server:
        say(console, f"{server.address} shows the runs in '{args.folder}'; Ctrl-C ends")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say(console, f"no longer watching '{args.folder}'; runs go on")


def needed_by_studies(folder: Path, removable: Mapping[Path, Sequence[Path]]) -> list[str]:
    """Return a line for each study near the folder whose runs lose checkpoints, with what it can no longer do."""
    from attractor.runs.study_record import STUDY_FILE, study_runs

    pruned = {path.resolve() for path in removable}
    lines = []
    places = (folder, Path(normpath(folder / "..")))  # a study may stand beside its pool of runs or around it
    names = (STUDY_FILE, f"*/{STUDY_FILE}")
    for study in sorted({file for place in places for name in names for file in place.glob(name)}):
        try:
            _, runs = study_runs(study.parent)
        except InputError as error:
            lines.append(f"{study.parent}: whether it needs these checkpoints is not known: {error}")
            continue
        n_runs = len(pruned & {path.resolve() for by_seed in runs.values() for path in by_seed.values()})
        if n_runs:
            lines.append(
                f"{study.parent}: {n_runs} of these runs belong to this study; its record stays, but probes of the "
                "removed weights can no longer be measured, and runs that start from them cannot be repeated"
            )
    return lines


def _order(value: Any) -> tuple[int, Any]:
    """Return a sort key: numbers come first, by size, then texts, and missing values last."""
    if value is None:
        return 2, ""
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _cell(name: str, fields: dict[str, Any]) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if name == "begun":
        return datetime.fromtimestamp(value).strftime("%Y-%m-%d %H:%M")
    return f"{value:.5g}" if isinstance(value, float) else str(value)
