"""End a command of many runs with tables, a verdict, the path of the report, and an exit code if runs failed."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from attractor.cli.console import answer, say
from attractor.console import print_line
from attractor.errors import RunStopped
from attractor.runs.study_record import StudyRecord


def report_study(record: StudyRecord, folder: Path, failures: Mapping[str, str], console: Console) -> None:
    """Write the report of a study into its folder, and print its tables and verdict."""
    from attractor.attention.presets import presets_as_data
    from attractor.report.judged_study import JudgedStudy
    from attractor.report.legs import verdict_of
    from attractor.report.study_report import write_report
    from attractor.report.study_table import console_table, console_tables

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
    from attractor.study.results import StudyResult

    result = StudyResult(record)
    answer(console, report=str(page), rows=result.rows, verdicts=result.verdicts, failures=dict(failures))
    if result.legs:
        answer(console, legs=result.legs)
    if failures:
        count = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
        raise RunStopped(f"{count} failed, as said above; the report is of the others. The same command tries again")
