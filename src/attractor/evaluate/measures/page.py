"""Write the measures as one HTML file that needs no script, no network and no second file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from attractor.evaluate.measures.figures import Records, curves, exponents, head_maps
from attractor.evaluate.measures.record import MEASURES
from attractor.evaluate.measures.table import rows
from attractor.files import write_bytes, write_json, write_text
from attractor.report.page import fill, show, verbatim
from attractor.report.study_figure import Picture
from attractor.runs.configuration import dotted_fields

HERE = Path(__file__).parent
RECORD, PAGE = "measures.json", "index.html"


def write_record(folder: Path, contents: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, contents)


def write_page(folder: Path, contents: dict[str, Any]) -> Path:
    """Write the record, each figure as a file, and the page; return the path of the page."""
    write_record(folder, contents)
    page, drawn = render(contents)
    for picture in drawn:
        write_bytes(folder / f"{picture.name}.svg", picture.file("svg"))
    write_text(folder / PAGE, page)
    return folder / PAGE


def render(contents: dict[str, Any]) -> tuple[str, list[Picture]]:
    records: Records = contents["models"]
    groups = {
        "Layer by layer": list(curves(records)),
        "Head by head": list(head_maps(records)),
        "Depth as time": list(exponents(records)),
    }
    page = fill(
        str(HERE / "page.html.j2"),  # an absolute path, since `fill` looks in the folder of its module
        style=verbatim("page.css", str(HERE / "page.css")),
        title=" and ".join(record["model"] for record in records),
        records=records,
        facts=[_facts(record) for record in records],
        groups={
            title: [(Markup(p.svg()), p.caption) for p in pictures] for title, pictures in groups.items() if pictures
        },
        tables=[_table(record) for record in records],
        environment={name: show(value) for name, value in dotted_fields(contents["environment"]).items()},
        command=contents["command"],
    )
    return page, [picture for pictures in groups.values() for picture in pictures]


def _facts(record: Any) -> str:
    plan = record["plan"]
    number = f"{record['n_samples']} passage{'s' * (record['n_samples'] != 1)} of {plan['length']:,} tokens"
    return (
        f"{number} of {record['text']}, {record['n_parameters']:,} parameters, {record['dtype']} on {record['device']}"
    )


def _table(record: Any) -> tuple[Sequence[str], list[list[str]]]:
    known = [measure for measure in MEASURES if measure.name in record["by_layer"]]
    headings = ["layer", *(measure.title for measure in known)]
    return headings, list(rows(record, [measure.name for measure in known]))
