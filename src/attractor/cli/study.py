"""Commands about studies: study run, list, plan."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text
from tyro.conf import Positional

from attractor.cli.console import answer, say
from attractor.cli.options import Carrying, runtime_of
from attractor.cli.parsing import refuse_file
from attractor.cli.study_code import announce_code
from attractor.console import print_line, waiting
from attractor.errors import InputError, RunStopped
from attractor.files.code import STUDIES, paper_around, papers_folder
from attractor.train.config import Runtime
from attractor.train.hardware import resolve_device

if TYPE_CHECKING:
    from attractor.runs.study_record import Design, StudyRecord
    from attractor.study.study import Study


@dataclass(frozen=True)
class StudyListArguments:
    folder: Positional[Path | None] = None
    """folder of study files or of papers; by default the papers of this checkout"""


@dataclass(frozen=True, kw_only=True)
class StudyPlanArguments:
    file: Positional[Path]
    """study file, as in papers/*/studies/; it is Python and is executed"""
    scale: str | None = None
    """smoke, laptop, desk, bench, paper or own; by default the only one of the study, or smoke"""
    root: Path = Path("runs")
    """folder of runs and reports"""
    seeds: tuple[int, ...] | None = None
    """seeds of every row, also as 0-7; by default the scale's"""
    device: str = Runtime.device


@dataclass(frozen=True)
class StudyRunArguments(StudyPlanArguments, Carrying):
    launcher: str = "auto"
    """local, stacked, ray or torchrun; auto is the faster of local and stacked"""
    workers: int | None = None
    """runs at the same time, or processes per run under torchrun; by default one per core, one on a GPU, and under
    torchrun one process per GPU"""
    from_record: Path | None = None
    """stored record (PAPER/results/study-NAME-SCALE.json) whose runs are not run again"""
    rows: tuple[str, ...] | None = None
    """rows whose runs are carried out, each in quotes; by default all"""
    columns: tuple[str, ...] | None = None
    """columns whose runs are carried out; by default all"""
    part: str = "1/1"
    """share of the runs that this machine carries out, as 2/3"""
    gpus_per_run: float | None = None
    """GPUs per run on a Ray cluster, or a fraction of one; by default automatic"""
    parallel: str = Runtime.parallel
    collective_timeout: float = Runtime.collective_timeout
    on_divergence: str = Runtime.on_divergence
    """a run that diverged stops, or goes back: stop or rollback (not where runs are stacked)"""


def study_run(args: StudyRunArguments, console: Console) -> None:
    """Carry out the unfinished runs of a study, and write its report. If it is interrupted, the same command continues.

    attractor study run papers/coupled_qk/studies/coupling-ablation.py --scale laptop
    """
    from attractor.runs.study_record import STUDY_FILE, read_record
    from attractor.study.plan import Conduct
    from attractor.study.run import run_study
    from attractor.study.study import load_study

    announce_code(args.file, console)
    study = load_study(args.file)
    scale = scale_of(args, study)
    command = shlex.join(["attractor", *(_within_its_folder(args.file, word) for word in sys.argv[1:])])
    conduct = Conduct(
        scale=scale,
        root=args.root,
        launcher=args.launcher,
        workers=args.workers,
        seeds=args.seeds,
        rows=args.rows,
        columns=args.columns,
        part=args.part,
        command=command,
        from_record=None if args.from_record is None else read_record(args.from_record),
        gpus_per_run=args.gpus_per_run,
    )
    runtime = runtime_of(args)
    if scale != "smoke" and not (conduct.folder_of(study) / STUDY_FILE).exists():  # at its first start
        seeds = args.seeds or study.on(scale).seeds
        print_chances(args.file, study.design(scale, seeds, command), console)
    record, failures = run_study(study, conduct, runtime, console)
    report_study(record, conduct.folder_of(study), failures, console)


def scale_of(args: StudyPlanArguments, study: "Study") -> str:
    return args.scale or (next(iter(study.scales)) if len(study.scales) == 1 else "smoke")


def _within_its_folder(file: Path, word: str) -> str:
    """Shorten the absolute path of the study's file, since a record is published and must not name private folders."""
    n_parts = 4 if paper_around(file) is not None else 2  # as papers/PAPER/studies/NAME.py
    return "/".join(file.parts[-n_parts:]) if file.is_absolute() and word == str(file) else word


def report_study(record: "StudyRecord", folder: Path, failures: Mapping[str, str], console: Console) -> None:
    """Write the report of a study into its folder, and print its tables and verdict. Failed runs end the command."""
    from attractor.attention.presets import presets_as_data
    from attractor.report.judged_study import JudgedStudy
    from attractor.report.legs import verdict_of
    from attractor.report.study_report import write_report
    from attractor.report.study_table import console_table, console_tables
    from attractor.study.results import StudyResult

    judged = JudgedStudy(record)
    page = write_report(judged, folder, presets=presets_as_data())
    for table in console_tables(judged):
        console.print(console_table(table))
        for text in table.caption:
            print_line(console, text)
    console.print()
    for line in verdict_of(judged):
        print_line(console, line.text)
    console.print()
    say(console, str(page))
    result = StudyResult(record)
    answer(console, report=str(page), rows=result.rows, verdicts=result.verdicts, failures=dict(failures))
    if result.legs:
        answer(console, legs=result.legs)
    if failures:
        count = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
        raise RunStopped(f"{count} failed, as said above; the report is of the others. The same command tries again")


def study_plan(args: StudyPlanArguments, console: Console) -> None:
    """Show the runs of a study before they run: their costs, what is finished, and which claims they can decide.

    attractor study plan papers/coupled_qk/studies/coupling-ablation.py --scale desk
    """
    from attractor.study.plan import Conduct, plan_study, print_runs
    from attractor.study.study import load_study

    announce_code(args.file, console)
    study = load_study(args.file)
    conduct = Conduct(scale=scale_of(args, study), root=args.root, seeds=args.seeds)
    resolve_device(args.device)
    planned = plan_study(study, conduct, Runtime(args.device))
    console.print(Text(f"{study.title} ({study.source})\n{study.question}"))
    if planned.before is not None:
        console.print(Text(f"first, the runs from which this study starts, of {planned.before.design.name}:"))
        print_runs(planned.before.chosen, (), planned.before.design.budget, console)
        console.print(Text("then, those of this study:"))
    print_runs(planned.jobs, planned.waiting, study.budget, console)
    print_chances(args.file, planned.design, console)
    runs = [{"run": str(job.path), "label": job.name, "finished": job.finished} for job in planned.jobs]
    answer(console, title=study.title, question=study.question, runs=runs)


def print_chances(file: Path, design: "Design", console: Console) -> None:
    """Say of every claim of the study's paper whether this scale and these seeds can decide it."""
    from attractor.claims.ledger import find_records, read_papers
    from attractor.claims.planning import of_losses, what_it_can_decide

    around = paper_around(file)
    if around is None:
        return
    claims = (claim for paper in read_papers(around).values() for claim in paper.claims if claim.id in design.claims)
    rules = {claim.id: claim.rule for claim in claims if claim.rule is not None and of_losses(claim.rule) is not None}
    if not rules:
        return
    stored = [record for record in find_records([around]) if record.design.name == design.name]
    console.print()
    for claim, rule in rules.items():
        with waiting(f"{claim}: judging simulated studies"):
            decides = what_it_can_decide(rule, design, stored)
        print_line(console, f"{claim}: {decides}")


def study_list(args: StudyListArguments, console: Console) -> None:
    """Show the studies of a folder: the question, the published table and the scales of each.

    attractor study list
    """
    from attractor.study.outline import outline_of

    folder = args.folder or papers_folder() or Path()
    refuse_file(folder)
    by_depth = (sorted(folder.glob(pattern)) for pattern in (f"*/{STUDIES}/*.py", f"{STUDIES}/*.py", "*.py"))
    files = next(filter(None, by_depth), [])  # what lies above studies is none
    if not files:
        raise InputError(f"folder must hold study files, and '{folder}' holds none; give papers/ of the repository")
    outlines = []
    for file in files:
        try:
            study = outline_of(file)
        except InputError as error:  # a damaged file does not hide the others
            say(console, str(error))
            continue
        scales = f"; scales {', '.join(study.scales)}" if study.scales else ""
        claims = f"; claims {', '.join(study.claims)}" if study.claims else ""
        console.print(Text(f"{file}: {study.title}", style="bold"), soft_wrap=True)
        say(console, f"  {study.question}\n  {study.source}{scales}{claims}")
        outlines.append({"file": str(file), **asdict(study)})
    answer(console, studies=outlines)
