"""Commands about the results of runs and studies: report and claims. They load no PyTorch."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from attractor.cli.console import say
from attractor.cli.tables import tables
from attractor.errors import InputError, unknown
from attractor.files import prepare_place, sealed, write_json

if TYPE_CHECKING:
    from attractor.runs.study_record import Cell, StudyRecord

RESULTS = Path("results")


@dataclass(frozen=True)
class ReportArguments:
    """Write the page of a run, or the report of a study: page, tables, LaTeX and figures."""

    source: Annotated[Positional[Path], arg(help="run folder, folder of a study (runs/STUDY-SCALE), or a record.json")]
    out: Annotated[Path | None, arg(help="folder to write; by default the source itself")] = None
    formats: Annotated[tuple[str, ...], arg(help="file formats of a study's figures")] = ("png", "pdf", "svg")
    store: Annotated[Path | None, arg(help="also store a study's record here, as results/study-NAME-SCALE.json")] = None


@dataclass(frozen=True)
class ClaimsArguments:
    """Compare what the papers claim with stored runs. Every verdict follows from a written rule."""

    ids: Annotated[
        Positional[tuple[str, ...]], arg(help="claims to show in full, as C1 C3; by default a table of all")
    ] = ()
    results: Annotated[Path, arg(help="folder of stored records (study-*.json)")] = RESULTS
    root: Annotated[Path | None, arg(help="folder of studies that were run here, to be used as well")] = None
    write: Annotated[Path | None, arg(help="markdown file that receives all claims and verdicts")] = None


def report(args: ReportArguments, console: Console) -> None:
    from attractor.files import write_text
    from attractor.papers.ledger import read_record
    from attractor.report.judged_study import JudgedStudy
    from attractor.report.run_page import write_run_page
    from attractor.report.study_report import write_report
    from attractor.runs.study_record import StudyRecord

    if not args.source.exists():
        kinds = "a run folder, a study's folder or a record"
        raise InputError(f"source must exist, and '{args.source}' does not; give {kinds} ('attractor runs list')")
    source = folder_around(args.source)
    if (source / "config.json").is_file():
        for name, usual in (("store", None), ("formats", ReportArguments.formats)):
            if getattr(args, name) != usual:
                value = getattr(args, name)
                raise InputError(f"{name} must be left out for a run, which is no study, got '{value}'; leave it out")
        say(console, str(write_run_page(source, args.out)))
        return
    record = read_record(source) if source.is_file() else StudyRecord.read(source)
    if args.out is None and source.is_file():
        raise InputError(f"out must be given where the source is a file, got '{source}'; name a folder")
    prepare_place(args.store)
    try:
        page = write_report(JudgedStudy(record), args.out or source, args.formats, tables().presets)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:  # a file may hold any JSON
        if isinstance(error, InputError) or not source.is_file():
            raise
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"'{source}' must hold a study's record, and is damaged ({reason}); store it anew") from error
    if args.store is not None:
        write_text(args.store, without_private_folders(record).to_text())
    say(console, str(page))


def without_private_folders(record: "StudyRecord") -> "StudyRecord":
    """Return the record without the folders of absolute paths, since a stored record is published."""
    options = [option for command in tables().commands for option in tables().options_of(command)]
    flags = {f"--{option.name.replace('_', '-')}" for option in options if option.kind == "FLAG"}
    kept: list[str] = []
    for word in shlex.split(record.design.command):
        option, _, value = word.partition("=")
        if not any(Path(part).is_absolute() for part in (value or option).split(",")):
            kept.append(word)
        elif not value and kept and kept[-1].startswith("--") and kept[-1] not in flags:
            kept.pop()  # the option whose value the path is
    cells = tuple(map(_without_private_folders, record.cells))
    return replace(record, design=replace(record.design, command=shlex.join(kept)), cells=cells)


def _without_private_folders(cell: "Cell") -> "Cell":
    """Return the cell with the names of files in place of their absolute paths, which a field may hold as a list with
    commas, and which the summaries repeat."""
    from attractor.runs.configuration import dotted_fields

    texts = [value for value in dotted_fields(cell.config).values() if isinstance(value, str)]
    parts = {part.strip() for text in texts for part in text.split(",")}
    paths = sorted((part for part in parts if Path(part).is_absolute()), key=len, reverse=True)

    def shortened(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shortened(content) for name, content in value.items()}
        if isinstance(value, str):
            for path in paths:
                value = value.replace(path, Path(path).name)
        return value

    outcomes = tuple(replace(outcome, summary=shortened(outcome.summary)) for outcome in cell.outcomes)
    return replace(cell, config=shortened(cell.config), outcomes=outcomes)


def folder_around(source: Path) -> Path:
    """Return the folder of the run or study that `source` means.

    `source` may also be a file of that folder, the pool of a study's runs, or a folder that contains a single study."""
    from attractor.runs.study_record import POOL, STUDY_FILE

    belongs_to_parent = source.name in ("report.html", "record.json", STUDY_FILE, POOL)
    for place in [source, source.parent] if belongs_to_parent else [source]:
        if any((place / name).is_file() for name in ("config.json", STUDY_FILE)):
            return place
    studies = sorted(path.parent for path in source.glob(f"*/{STUDY_FILE}")) if source.is_dir() else []
    if len(studies) > 1:
        names = ", ".join(str(study) for study in studies[:5])
        raise InputError(f"source must be one study, and '{source}' holds {len(studies)}: {names}; give one of them")
    return studies[0] if studies else source


def refuse_missing(results: Path) -> None:
    if results != RESULTS and not results.is_dir():
        raise InputError(f"results must be a folder of stored records, and '{results}' is none; check the path")


def claims(args: ClaimsArguments, console: Console) -> None:
    from attractor.papers import CLAIMS
    from attractor.papers.ledger import RULES, find_records, ledger, read_rule_dates, renewed_rule_dates
    from attractor.report.ledger import print_ledger, write_ledger

    refuse_missing(args.results)
    known = {claim.id for claim in CLAIMS}
    for name in args.ids:
        if name not in known and name.upper() in known:
            raise InputError(f"claim must be written in capitals, got '{name}'; give {name.upper()}")
        if name not in known:
            raise unknown("claim", name, known)
    records = find_records(args.results, args.root)
    if not records:
        raise InputError(
            f"results must be a folder of stored records (study-*.json), and '{args.results}' holds none; "
            "give that of the repository, as --results PATH/results"
        )
    prepare_place(args.write)
    dates = read_rule_dates(args.results)
    if args.write is not None:
        dates = renewed_rule_dates(dates, datetime.now(UTC).isoformat(timespec="seconds"))
        write_json(args.results / RULES, sealed(dates))
    entries = ledger(records, rule_dates=dates)
    print_ledger(console, entries, args.ids)
    if args.write is not None:
        write_ledger(args.write, entries, records)
        say(console, str(args.write))


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {
    "report": (ReportArguments, report),
    "claims": (ClaimsArguments, claims),
}
