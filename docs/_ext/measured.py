"""Tables of what was measured, read from records when the site is built: costs, verdicts, results and comparisons.

:::{costs} overhead                     a study's name; `rows` chooses some of its rows
:rows: standard, coupled-euler
:::

:::{results} recurrent-models           the rows of a study of one column that have runs
:scale: desk
:quantities: boards; largest exponent   some of its quantities
:::

:::{verdicts} C1 C4
:::
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from math import exp, log
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attractor.claims.ledger import Entry, find_records, ledger, read_papers, read_rule_dates
from attractor.console import with_prefix
from attractor.errors import InputError
from attractor.report.judged_study import JudgedStudy
from attractor.report.ledger import HEADINGS, cells
from attractor.report.study_table import console_tables, results
from attractor.runs.study_record import Cell, StudyRecord, read_record
from attractor.verdict.intervals import mean_interval
from attractor.verdict.words import UNKNOWN

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
COST_HEADINGS = ("mechanism", "parameters", "forward", "step", "peak memory")
N_LEADING = 3  # the row, its seeds and its parameters
VERDICT_HEADINGS = ("id", "claim", "published", "ours", "interval", "verdict")


@cache
def entries() -> dict[str, Entry]:
    papers = read_papers(ROOT / "papers")
    claims = [claim for paper in papers.values() for claim in paper.claims]
    dates = {claim: since for folder in papers for claim, since in read_rule_dates(folder).items()}
    return {entry.claim.id: entry for entry in ledger(find_records(papers), claims, dates)}


def cost_rows(record: StudyRecord, chosen: Sequence[str]) -> list[tuple[str, ...]]:
    """Each row against the study's baseline: times by pairs of rounds, with 95% intervals; memory as one ratio."""
    baseline = record.cell(record.design.baseline)
    unknown = set(chosen) - set(record.design.rows)
    if unknown:
        raise InputError(f"rows must be of {', '.join(record.design.rows)}, got {', '.join(sorted(unknown))}")
    cells = [record.cell(row) for row in record.design.rows if row in chosen or not chosen]
    return [(cell.row, _parameters(cell), *_against(cell, baseline)) for cell in cells]


def _parameters(cell: Cell) -> str:
    return with_prefix(cell.outcomes[0].summary["n_parameters"])


def _against(cell: Cell, baseline: Cell) -> tuple[str, str, str]:
    ours, theirs = cell.outcomes[0].summary, baseline.outcomes[0].summary
    if cell.row == baseline.row:
        return "baseline", "baseline", f"{theirs['peak_memory_bytes'] / 1e6:.0f} MB"
    memory = ours["peak_memory_bytes"] / theirs["peak_memory_bytes"]
    return _speed(ours, theirs, "forward"), _speed(ours, theirs, "step"), f"{memory:.2f}x"


def _speed(ours: dict[str, list[float]], theirs: dict[str, list[float]], of: str) -> str:
    """Throughput as a multiple of the baseline's: the mean over rounds that timed both in turns."""
    seconds = f"{of}_seconds"
    if seconds not in ours:
        return UNKNOWN
    found = mean_interval([log(b / a) for a, b in zip(ours[seconds], theirs[seconds], strict=True)])
    if found.low is None or found.high is None:
        return f"{exp(found.mean):.2f}x"
    return f"{exp(found.mean):.2f}x [{exp(found.low):.2f}, {exp(found.high):.2f}]"


def setting(record: StudyRecord) -> str:
    """What was timed, and on what."""
    config = record.cell(record.design.baseline).config
    model, machine = config["model"], record.environments
    shape = f"{model['n_layers']} layers of width {model['d_model']}" if "n_layers" in model else "the model"
    processors = ", ".join(machine.get("processor", []))
    cores = ", ".join(machine.get("cores", []))
    return (
        f"Throughput as multiples of the baseline's, with 95% intervals over rounds in turns; {shape}, batches of "
        f"{config['batch_size']} x {config['seq_len']} tokens, {processors}, {cores} cores. "
        f"From study-{record.design.name}-{record.design.scale}.json."
    )


def stored(study: str, scale: str) -> Path:
    """Return the path of the record of a study of a paper."""
    (path,) = ROOT.glob(f"papers/*/results/study-{study}-{scale}.json")
    return path


def record_path(directive: SphinxDirective) -> Path:
    """The stored record that a directive names by a study and a scale; the page depends on it."""
    path = stored(directive.arguments[0], directive.options.get("scale", "laptop"))
    directive.env.note_dependency(str(path))
    return path


class Costs(SphinxDirective):
    required_arguments = 1
    option_spec = {"rows": directives.unchanged, "scale": directives.unchanged}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        path = record_path(self)
        record = read_record(path)
        chosen = [row.strip() for row in self.options.get("rows", "").split(",") if row.strip()]
        return [
            table(COST_HEADINGS, cost_rows(record, chosen), "costs"),
            nodes.paragraph("", setting(record), classes=["source"]),
        ]


def result_rows(record: StudyRecord, chosen: Sequence[str]) -> tuple[list[str], list[list[str]], str]:
    """The headings and rows of a study's results, for the rows that have runs, with the line on seeds and budget."""
    judged = JudgedStudy(record)
    unknown = set(chosen) - {measure.title for measure in judged.headlines}
    if unknown:
        known = ", ".join(measure.title for measure in judged.headlines)
        raise InputError(f"quantities must be of {known}, got {', '.join(sorted(unknown))}")
    shown = results(judged, judged.families[0])
    (column,) = record.design.columns
    kept = [n for n, heading in enumerate(shown.headings) if n < N_LEADING or heading.rstrip(" ↓↑") in chosen]
    rows = [[row[n].text for n in kept] for row in shown.rows if judged.cell(row[0].text, column).outcomes]
    return [shown.headings[n] for n in kept], rows, shown.caption[0]


class Results(SphinxDirective):
    required_arguments = 1
    option_spec = {"scale": directives.unchanged, "quantities": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        path = record_path(self)
        chosen = [name.strip() for name in self.options["quantities"].split(";")]
        headings, rows, caption = result_rows(read_record(path), chosen)
        source = f"{caption} From {path.relative_to(ROOT)}."
        return [table(headings, rows, "costs"), nodes.paragraph("", source, classes=["source"])]


class Verdicts(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        for path in ROOT.glob("papers/*/results/study-*.json"):
            self.env.note_dependency(str(path))
        chosen = [entries()[name] for name in self.arguments[0].split()]
        kept = [HEADINGS.index(heading) for heading in VERDICT_HEADINGS]
        rows = [[cells(entry)[place] for place in kept] for entry in chosen]
        return [table(VERDICT_HEADINGS, rows, "verdicts")]


def colour_verdicts(_: Sphinx, page: nodes.document) -> None:
    for found in page.findall(nodes.table):
        head, *rows = found.findall(nodes.row)
        headings = [cell.astext() for cell in head]
        for row in rows if "verdict" in headings else ():
            cell = row[headings.index("verdict")]
            if (status := re.match("holds|fails|partly|unclear|not run", cell.astext())) is not None:
                cell["classes"].append(status[0].replace(" ", "-"))


class Comparison(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = RESULTS / f"compare-{self.arguments[0]}.json"
        self.env.note_dependency(str(path))
        headings, rows, caption, verdict = compared(read_record(path))
        captions = [nodes.paragraph("", line, classes=["source"]) for line in caption]
        told = nodes.bullet_list("", *(nodes.list_item("", nodes.paragraph("", line)) for line in verdict))
        return [table(headings, rows, "costs"), *captions, nodes.paragraph("", "The verdict:"), told]


def compared(record: StudyRecord) -> tuple[Sequence[str], list[list[str]], Sequence[str], list[str]]:
    """What a comparison prints: headings, rows and captions of its table, and the verdict but for the command."""
    judged = JudgedStudy(record)
    printed, *_ = console_tables(judged)
    rows = [[entry.text for entry in row] for row in printed.rows]
    return (
        printed.headings,
        rows,
        printed.caption,
        [line.text for line in judged.verdict() if line.subject != "What next"],
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], kind: str) -> nodes.table:
    def row(cells: Sequence[str]) -> nodes.row:
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", cell)) for cell in cells))

    columns = [nodes.colspec(colwidth=1) for _ in headings]
    group = nodes.tgroup(
        "", *columns, nodes.thead("", row(headings)), nodes.tbody("", *map(row, rows)), cols=len(headings)
    )
    return nodes.table("", group, classes=[kind])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("costs", Costs)
    app.add_directive("results", Results)
    app.add_directive("verdicts", Verdicts)
    app.add_directive("comparison", Comparison)
    app.connect("doctree-read", colour_verdicts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
