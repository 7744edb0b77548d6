"""Commands about the results of runs and studies: report and claims. They load no PyTorch."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from attractor.claims.loading import papers_folder
from attractor.cli.console import say
from attractor.cli.study_code import announce_code
from attractor.cli.tables import tables
from attractor.errors import InputError, unknown
from attractor.files import prepare_place
from attractor.seals import write_sealed

if TYPE_CHECKING:
    from attractor.runs.study_record import Cell, StudyRecord


@dataclass(frozen=True)
class ReportArguments:
    """Write the page of a run, or the report of a study: page, tables, LaTeX and figures."""

    source: Annotated[Positional[Path], arg(help="run folder, folder of a study (runs/STUDY-SCALE), or a record.json")]
    out: Annotated[Path | None, arg(help="folder to write; by default the source itself")] = None
    formats: Annotated[tuple[str, ...], arg(help="file formats of a study's figures")] = ("png", "pdf", "svg")
    store: Annotated[
        Path | None, arg(help="also store a study's record here, as PAPER/results/study-NAME-SCALE.json")
    ] = None


@dataclass(frozen=True)
class ClaimsArguments:
    """Compare what papers claim with stored runs. Every verdict follows from a written rule."""

    names: Annotated[
        Positional[tuple[str, ...]],
        arg(help="folder of papers, by default the five of this checkout, and claims to show in full, as C1 C3"),
    ] = ()
    root: Annotated[Path | None, arg(help="folder of studies that were run here, to be used as well")] = None
    write: Annotated[Path | None, arg(help="markdown file that receives all claims and verdicts")] = None


def report(args: ReportArguments, console: Console) -> None:
    from attractor.files import write_text
    from attractor.report.run_page import write_run_page
    from attractor.report.study_report import write_report
    from attractor.runs.study_record import StudyRecord, read_record

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
        page = write_report(record, args.out or source, args.formats, tables().presets)
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


def claims(args: ClaimsArguments, console: Console) -> None:
    from attractor.claims.ledger import (
        RULES,
        find_records,
        ledger,
        read_papers,
        read_rule_dates,
        renewed_rule_dates,
    )
    from attractor.report.ledger import print_ledger, write_ledger

    folder, ids = chosen_papers(args.names)
    announce_code(folder, console)
    papers = read_papers(folder)
    claims = tuple(claim for paper in papers.values() for claim in paper.claims)
    known = {claim.id for claim in claims}
    for name in ids:
        if name not in known and name.upper() in known:
            raise InputError(f"claim must be written in capitals, got '{name}'; give {name.upper()}")
        if name not in known:
            raise unknown("claim", name, known)
    records = find_records(papers, args.root)
    prepare_place(args.write)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    dates: dict[str, Any] = {}
    for place, paper in papers.items():
        of_paper = read_rule_dates(place)
        if args.write is not None:
            of_paper = renewed_rule_dates(of_paper, now, paper.claims)
            prepare_place(place / RULES)
            write_sealed(place / RULES, of_paper)
        dates |= of_paper
    entries = ledger(records, claims, dates)
    print_ledger(console, entries, ids)
    if args.write is not None:
        write_ledger(args.write, papers, entries, records)
        say(console, str(args.write))


def chosen_papers(names: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the folder of papers that a command names, or that of this checkout, and the claims that it names."""
    folders = [name for name in names if Path(name).is_dir() or Path(name).name != name]
    if len(folders) > 1:
        raise InputError(f"folder must be one folder of papers, got {' and '.join(folders)}; give one of them")
    folder = Path(folders[0]) if folders else papers_folder()
    if folder is None:
        raise InputError(
            "folder must be named, since this installation has no papers of its own; clone attractor's repository, and "
            "give its papers/"
        )
    return folder, [name for name in names if name not in folders]


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {
    "report": (ReportArguments, report),
    "claims": (ClaimsArguments, claims),
}
