"""Write a study's report: a folder with the page, tables for text and for papers, figures, and the record itself.

report.html      everything on one page          table.md, table.tex, numbers.tex
record.json      the record of the study         figures/NAME.png, .pdf and .svg
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attractor.errors import require_known
from attractor.files import write_bytes, write_text
from attractor.report.canvas import METADATA
from attractor.report.judged_study import JudgedStudy
from attractor.report.latex import in_latex, numbers
from attractor.report.study_figure import pictures
from attractor.report.study_page import render
from attractor.report.study_table import markdown


def write_report(
    judged: JudgedStudy,
    folder: Path,
    formats: Sequence[str] = ("png", "pdf", "svg"),
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write the report into `folder`, which is made where it is not there, and return the path of the page.

    `presets` are mechanisms as data, by name: a mechanism that a run spells out is shown by the nearest of them.
    """
    for kind in formats:
        require_known("format of figures", kind, METADATA)
    drawn = pictures(judged)
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    write_text(page, render(judged, drawn, presets))
    for picture in drawn:
        for kind in formats:
            write_bytes(figures / f"{picture.name}.{kind}", picture.file(kind))
    write_text(folder / "record.json", judged.record.to_text())
    write_text(folder / "table.md", markdown(judged))
    write_text(folder / "table.tex", in_latex(judged))
    write_text(folder / "numbers.tex", numbers(judged))
    return page
