"""Commands about what was found: report, claims, advise."""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from attractor.cli.waiting import waiting
from attractor.errors import InputError
from attractor.files import write_json
from attractor.train.config import Runtime

RESULTS = Path("results")


@dataclass(frozen=True)
class Report:
    """Write the page of a run, or the report of a study anew: page, tables, LaTeX, figures."""

    source: Annotated[
        Positional[Path],
        arg(help="the folder of a run, the folder of a study, as STUDY-SCALE under runs/, or a record.json"),
    ]
    out: Annotated[Path | None, arg(help="where to; by default the folder itself")] = None
    formats: Annotated[tuple[str, ...], arg(help="of a study's figures: png, pdf, svg")] = ("png", "pdf", "svg")
    store: Annotated[
        Path | None, arg(help="keep the record of a study there too, as results/study-NAME-SCALE.json")
    ] = None


@dataclass(frozen=True)
class Claims:
    """Hold what the papers claim against stored runs: published, ours, and a verdict by a rule written before."""

    ids: Annotated[Positional[tuple[str, ...]], arg(help="claims to show in full, as C1 C3; none: a table of all")] = ()
    results: Annotated[Path, arg(help="a folder of stored records, study-*.json")] = RESULTS
    root: Annotated[Path | None, arg(help="studies that were run here, as well")] = None
    write: Annotated[Path | None, arg(help="a markdown file to write the ledger to")] = None


@dataclass(frozen=True)
class Advise:
    """Run the smallest pilot on a corpus that can decide, and say which mechanism to use, and how sure that is."""

    corpus: Annotated[str, arg(help="a corpus by name, a file of text or a table, or a prepared folder")]
    column: Annotated[str | None, arg(help="of a table; by default 'text', or the only one of strings")] = None
    budget: Annotated[str, arg(help="wall clock on this machine, as 90s, 10m or 2h")] = "10m"
    margin: Annotated[float, arg(help="the smallest difference that matters, in nats")] = 0.01
    alpha: Annotated[float, arg(help="the chance of a wrong answer, over all looks and rivals")] = 0.05
    max_seeds: int = 8
    rivals: Annotated[tuple[str, ...], arg(help="mechanisms to hold against standard")] = (
        "coupled-euler",
        "differential",
    )
    workers: Annotated[int | None, arg(help="runs side by side")] = None
    out: Annotated[Path | None, arg(help="the folder to write; by default one under runs/")] = None
    device: Annotated[str, arg(help="cpu, cuda or auto")] = Runtime.device


def report(args: Report, console: Console) -> None:
    from attractor.attention.presets import presets_as_data
    from attractor.evidence.study import StudyRecord
    from attractor.files import plain, write_text
    from attractor.papers.ledger import read_record
    from attractor.report.run_page import write_run_page
    from attractor.report.study_report import write_report

    if (args.source / "config.json").is_file():
        if args.store is not None:
            raise InputError(f"store must be left out for a run, which has no record of a study, got '{args.store}'")
        console.print(str(write_run_page(args.source, args.out)), markup=False, highlight=False, soft_wrap=True)
        return
    record = read_record(args.source) if args.source.is_file() else StudyRecord.read(args.source)
    if args.out is None and args.source.is_file():
        raise InputError(f"out must be given where the source is a file, got '{args.source}'; name a folder")
    page = write_report(record, args.out or args.source, args.formats, presets_as_data())
    if args.store is not None:
        write_text(args.store, json.dumps(plain(record.to_dict()), ensure_ascii=False, allow_nan=False) + "\n")
    console.print(str(page), markup=False, highlight=False, soft_wrap=True)


def claims(args: Claims, console: Console) -> None:
    from attractor.papers.ledger import RULES, find_records, ledger, read_rule_dates, renewed_rule_dates
    from attractor.report.ledger import print_ledger, write_ledger

    dates = read_rule_dates(args.results)
    if args.write is not None:
        dates = renewed_rule_dates(dates, datetime.now(UTC).date().isoformat())
        write_json(args.results / RULES, dates)
    entries = ledger(find_records(args.results, args.root), rule_dates=dates)
    print_ledger(console, entries, args.ids)
    if args.write is not None:
        write_ledger(args.write, entries)
        console.print(str(args.write), markup=False, highlight=False, soft_wrap=True)


def advise(args: Advise, console: Console) -> None:
    from attractor.study.advise import Advise as Options
    from attractor.study.advise import advise as carry_out
    from attractor.study.advise import seconds_of
    from attractor.tasks.text import load_corpus

    given = {name: value for name, value in vars(args).items() if name not in ("budget", "device")}
    command = shlex.join(["attractor", *sys.argv[1:]])
    options = Options(**given, budget=seconds_of(args.budget), command=command)
    with waiting(f"reading {args.corpus}"):
        load_corpus(args.corpus, args.column)
    carry_out(options, Runtime(args.device), console)


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {
    "report": (Report, report),
    "claims": (Claims, claims),
    "advise": (Advise, advise),
}
