"""Notebooks as pages: their text as it is, their code as blocks. `run_blocks.py` runs the code."""

import json

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class NotebookParser(MystParser):
    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(in_markdown(inputstring), document)


def in_markdown(notebook: str) -> str:
    return "\n\n".join(map(cell_in_markdown, json.loads(notebook)["cells"])) + "\n"


def cell_in_markdown(cell: dict[str, str | list[str]]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
