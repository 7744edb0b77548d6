"""Write verdicts for the console, at any width, and for markdown. `Verdicts` writes its other forms itself."""

from rich.console import Group
from rich.text import Text

from attractor.report.table import InConsole, in_markdown
from attractor.verdict.outcome import N_TEXTS, Verdicts
from attractor.verdict.words import markdown_escaped


def on_console(verdicts: Verdicts) -> Group:
    """Return the table of verdicts and its sentences, for a console to print."""
    return Group(InConsole(*verdicts.table(), n_labels=N_TEXTS), "", *map(Text, verdicts.sentences()))


def markdown(verdicts: Verdicts) -> str:
    said = [f"- {markdown_escaped(sentence)}" for sentence in verdicts.sentences()]
    return "\n".join([in_markdown(*verdicts.table(), n_texts=N_TEXTS), *said, ""])
