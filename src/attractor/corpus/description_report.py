"""Report descriptions of corpora side by side, as a table on the console and as a figure."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attractor.console_table import console_table
from attractor.corpus.describe import Description, Settings, describe_all
from attractor.corpus.documents import Document
from attractor.corpus.sources import documents, open_source
from attractor.corpus.text_statistics import ValueWithError
from attractor.errors import InputError
from attractor.files import write_json, write_text
from attractor.numerals import with_prefix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0b84d8", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # distinct for colour-blind readers
GREY = "#8a8a8a"

CAPTION = (
    "± is a standard error over documents. Words are counted with punctuation signs. All from 'word entropy' down is "
    "measured on equal samples: one piece of the same number of words from each document drawn. A corpus is coherent "
    "in what it speaks of where topical dispersion is low, in how it speaks where register dispersion is near 1 and "
    "the spread over documents small, and predictable from its other documents where their perplexity is low."
)


def _with_error(estimate: ValueWithError, digits: int = 3) -> str:
    error = "" if estimate.error is None else f" ±{estimate.error:.{digits}f}"
    return f"{estimate.value:.{digits}f}{error}"


def _ratio(description: Description, n_words: int) -> str:
    ratio = description.type_token_ratios.get(n_words)
    return "" if ratio is None else f"{ratio:.4f}"


ROWS: dict[str, Callable[[Description], str]] = {
    "documents": lambda d: f"{d.sizes.n_documents:,}",
    "words": lambda d: with_prefix(d.sizes.n_words),
    "words in a document": lambda d: f"{d.sizes.mean:,.0f}",
    "  quartiles": lambda d: ", ".join(map(with_prefix, d.sizes.quartiles)),
    "  shorter than a piece": lambda d: f"{d.sizes.too_short:.1%}",
    "sample": lambda d: f"{d.n_pieces:,} x {d.piece_words:,}",
    "  duplicates": lambda d: f"{d.n_duplicates:,}",
    "word entropy (nats)": lambda d: _with_error(d.word_entropy),
    "  given the word before": lambda d: _with_error(d.next_word_entropy),
    "Heaps' exponent": lambda d: _with_error(d.heaps_exponent),
    "types / tokens at 10k": lambda d: _ratio(d, 10_000),
    "  at 100k": lambda d: _ratio(d, 100_000),
    "  at 1M": lambda d: _ratio(d, 1_000_000),
    "cross-document perplexity": lambda d: f"{d.cross_document_perplexity:.1f}",
    "  loss (nats)": lambda d: _with_error(d.cross_document_loss),
    "  spread over documents": lambda d: _with_error(d.cross_document_spread),
    "within-document gain": lambda d: _with_error(d.within_document_gain),
    "topical dispersion": lambda d: _with_error(d.topical_dispersion, 4),
    "register dispersion": lambda d: _with_error(d.register_dispersion, 2),
    "  of the median document": lambda d: f"{d.register_dispersion_median:.2f}",
    "bits per byte, alone": lambda d: _with_error(d.compression.alone),
    "  together": lambda d: f"{d.compression.together:.3f}",
    "  saved": lambda d: f"{d.compression.gain:.1%}",
}

PANELS: dict[str, Callable[[Description], ValueWithError]] = {
    "entropy of the next word (nats)": lambda d: d.next_word_entropy,
    "cross-document loss (nats)": lambda d: d.cross_document_loss,
    "its spread over documents": lambda d: d.cross_document_spread,
    "within-document gain (nats)": lambda d: d.within_document_gain,
    "topical dispersion": lambda d: d.topical_dispersion,
    "register dispersion": lambda d: d.register_dispersion,
    "saved by compressing together": lambda d: ValueWithError(d.compression.gain),
}


def report_sources(
    names: Sequence[str],
    folder: Path,
    settings: Settings,
    console: Console,
    provenance: Mapping[str, Any],
    columns: Sequence[str] | None = None,
    split: str = "train",
) -> list[Description]:
    """Report on any sources that `open_source` reads. Files are named without folder and suffixes."""
    sources = {_label(name): open_source(name, columns, split) for name in names}
    if len(sources) < len(names):
        raise InputError(f"sources must have different names, got {' '.join(names)}; name each once, or rename files")
    identities = {"sources": {label: source.identity for label, source in sources.items()}}
    corpora = {label: documents(source) for label, source in sources.items()}
    return report_descriptions(corpora, folder, settings, console, {**provenance, **identities})


def _label(name: str) -> str:
    path = Path(name)
    return path.name.split(".")[0] or path.name if path.is_file() else name


def report_descriptions(
    corpora: Mapping[str, Iterable[Document]],
    folder: Path,
    settings: Settings,
    console: Console,
    provenance: Mapping[str, Any],
) -> list[Description]:
    """Describe corpora side by side, print the table, and write `describe.json` and `describe.svg` into a folder.

    `provenance`, such as the command and its sources, is stored in the JSON.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with console.status("reading and counting"):
        descriptions = describe_all(corpora, settings)
    corpora_json = [description.to_dict() for description in descriptions]
    stored = {"settings": asdict(settings), "corpora": corpora_json, **provenance}
    write_json(folder / "describe.json", stored)
    write_text(folder / "describe.svg", svg(descriptions))
    console.print(table(descriptions))
    console.print(CAPTION, markup=False, highlight=False)
    return descriptions


portray = report_descriptions  # deprecated name


def table(descriptions: Sequence[Description]) -> Table:
    """Return a table with a row for each descriptor and a column for each corpus."""
    rich_table = console_table(["", *(description.name for description in descriptions)], padding=(0, 1, 0, 0))
    for label, cell in ROWS.items():
        cells = [cell(description) for description in descriptions]
        if any(cells):
            rich_table.add_row(label, *map(Text, cells))
    return rich_table


def figure(descriptions: Sequence[Description]) -> "Figure":
    """Plot the growth of the vocabulary, and seven descriptors with two standard errors to each side.

    Panels have separate scales.
    """
    from matplotlib.figure import Figure

    plot = Figure(figsize=(11.0, 3.0 + 0.5 * len(descriptions)), layout="constrained")
    panels = plot.subplots(2, 4).ravel()
    _draw_growth(panels[0], descriptions)
    for place, (axes, (title, value)) in enumerate(zip(panels[1:], PANELS.items(), strict=True), start=1):
        _draw_estimates(axes, title, descriptions, value, names=place % 4 == 0)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25, linewidth=0.6, color=GREY)
    return plot


def svg(descriptions: Sequence[Description]) -> str:
    """Return the figure as SVG. Equal descriptions give equal bytes."""
    from matplotlib import rc_context
    from matplotlib.text import Text as FigureText

    plot = figure(descriptions)
    for text in plot.findobj(FigureText):
        text.set_parse_math(False)  # a dollar sign in a corpus's name does not begin a formula
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.hashsalt": "corpora", "svg.fonttype": "none"}):
        plot.savefig(file, format="svg", metadata=no_metadata)
    return file.getvalue()


def _draw_growth(axes: "Axes", descriptions: Sequence[Description]) -> None:
    for number, description in enumerate(descriptions):
        words, types = zip(*description.growth, strict=True)
        axes.loglog(words, types, color=COLOURS[number % len(COLOURS)], linewidth=1.6, label=description.name)
    axes.set_title("different words among n words", fontsize=9)
    axes.legend(frameon=False, fontsize=8, handlelength=1.2)


def _draw_estimates(
    axes: "Axes",
    title: str,
    descriptions: Sequence[Description],
    value: Callable[[Description], ValueWithError],
    names: bool,
) -> None:
    for place, description in enumerate(descriptions):
        estimate = value(description)
        bar = None if estimate.error is None else 2 * estimate.error
        colour = COLOURS[place % len(COLOURS)]
        axes.errorbar(estimate.value, place, xerr=bar, color=colour, marker="o", markersize=5, capsize=3)
    labels = [description.name for description in descriptions] if names else []
    axes.set_yticks(range(len(descriptions)), labels)
    axes.set_ylim(len(descriptions) - 0.5, -0.5)
    axes.margins(x=0.15)
    axes.locator_params(axis="x", nbins=4)
    axes.set_title(title, fontsize=9)
