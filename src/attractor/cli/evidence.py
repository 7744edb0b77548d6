"""Commands about the results of runs and studies: report and claims. They load no PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from tyro.conf import Positional

from attractor.cli.commands import COMMANDS, options_of
from attractor.cli.console import answer, say
from attractor.cli.definitions import definitions
from attractor.cli.parsing import refuse_given
from attractor.cli.study_code import announce_code
from attractor.errors import InputError, require_known
from attractor.files import prepare_place, write_text
from attractor.files.code import papers_folder
from attractor.files.seals import write_sealed


@dataclass(frozen=True)
class ReportArguments:
    source: Positional[Path]
    """run folder, folder of a study (runs/STUDY-SCALE), or a record.json"""
    out: Path | None = None
    """folder to write; by default the source itself"""
    formats: tuple[str, ...] = ("png", "pdf", "svg")
    """file formats of a study's figures"""
    store: Path | None = None
    """also store a study's record here, as PAPER/results/study-NAME-SCALE.json"""


@dataclass(frozen=True)
class ClaimsArguments:
    names: Positional[tuple[str, ...]] = ()
    """folder of papers, by default those of this checkout, and claims to show in full, as C1 C3"""
    root: Path | None = None
    """folder of studies that were run here, to be used as well"""
    write: Path | None = None
    """markdown file that receives all claims and verdicts"""


def report(args: ReportArguments, console: Console) -> None:
    """Write the page of a run, or the report of a study: page, tables, LaTeX and figures.

    attractor report runs/one
    """
    from attractor.report.judged_study import JudgedStudy
    from attractor.report.run_page import write_run_page
    from attractor.report.study_report import write_report
    from attractor.runs.published import without_private_folders
    from attractor.runs.study_record import StudyRecord, read_record

    if not args.source.exists():
        kinds = "a run folder, a study's folder or a record"
        raise InputError(f"source must exist, and '{args.source}' does not; give {kinds} ('attractor runs list')")
    source = folder_around(args.source)
    if (source / "config.json").is_file():
        refuse_given(args, ("store", "formats"), "for a run, which is no study")
        page = write_run_page(source, args.out)
        say(console, str(page))
        answer(console, page=str(page))
        return
    record = read_record(source) if source.is_file() else StudyRecord.read(source)
    if args.out is None and source.is_file():
        raise InputError(f"out must be given where the source is a file, got '{source}'; name a folder")
    prepare_place(args.store)
    try:
        presets = definitions("attention.presets").presets_as_data()
        page = write_report(JudgedStudy(record), args.out or source, args.formats, presets)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:  # a file may hold any JSON
        if isinstance(error, InputError) or not source.is_file():
            raise
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"'{source}' must hold a study's record, and is damaged ({reason}); store it anew") from error
    if args.store is not None:
        flags = {option.dashed for command in COMMANDS for option in options_of(command) if option.kind == "FLAG"}
        write_text(args.store, without_private_folders(record, flags).to_text())
    say(console, str(page))
    answer(console, page=str(page))


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
    """Compare what papers claim with stored runs. Every verdict follows from a written rule.

    attractor claims C1 C3
    """
    from attractor.claims.ledger import RULES, find_records, ledger, read_papers, read_rule_dates, renewed_rule_dates
    from attractor.report.ledger import markdown, print_ledger

    folder, ids = chosen_papers(args.names)
    announce_code(folder, console)
    papers = read_papers(folder)
    claims = tuple(claim for paper in papers.values() for claim in paper.claims)
    known = {claim.id for claim in claims}
    for name in ids:
        if name not in known and name.upper() in known:
            raise InputError(f"claim must be written in capitals, got '{name}'; give {name.upper()}")
        require_known("claim", name, known)
    records = find_records(papers, args.root)
    prepare_place(args.write)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    dates: dict[str, Mapping[str, Any]] = {}
    for place, paper in papers.items():
        of_paper = read_rule_dates(place)
        if args.write is not None:
            of_paper = renewed_rule_dates(of_paper, now, paper.claims, records)
            prepare_place(place / RULES)
            write_sealed(place / RULES, of_paper)
        dates |= of_paper
    entries = ledger(records, claims, dates)
    print_ledger(console, entries, ids)
    shown = [entry for entry in entries if not ids or entry.claim.id in ids]
    verdicts = [{"id": entry.claim.id, "claim": entry.claim.statement, **asdict(entry.verdict)} for entry in shown]
    answer(console, claims=verdicts)
    if args.write is not None:
        write_text(args.write, markdown(papers, entries, records))
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
