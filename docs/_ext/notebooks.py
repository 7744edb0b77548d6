"""Notebooks as pages: their text as it is, their code as blocks, and below each block what it gave.

A notebook is kept without outputs. `run_blocks.py` runs it before the site is built, and leaves a copy with outputs in
EXECUTED. Without such a copy, or with one of other code, the page has no outputs.
"""

import json
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

SUFFIX = ".ipynb"
EXECUTED = Path(__file__).parents[2] / "dist" / "notebooks"
Cell = dict[str, Any]


def convert(app: Sphinx, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    if page.suffix == SUFFIX:
        app.env.note_dependency(str(EXECUTED / page.name))
        source[0] = in_markdown(source[0], EXECUTED / page.name)


def in_markdown(notebook: str, executed: Path | None = None) -> str:
    cells = json.loads(notebook)["cells"]
    if executed is not None and executed.is_file():
        copies = json.loads(executed.read_text())["cells"]
        if [copy["source"] for copy in copies] == [cell["source"] for cell in cells]:
            cells = copies
    return "\n\n".join(map(cell_in_markdown, cells)) + "\n"


def cell_in_markdown(cell: Cell) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    commands = text.startswith("!")
    code = "```sh\n" + re.sub("^!", "", text, flags=re.MULTILINE) if commands else f"```python\n{text}"
    return "\n\n".join([f"{code}\n```", *(output_in_markdown(output["data"]) for output in cell["outputs"])])


def output_in_markdown(data: dict[str, str]) -> str:
    """Return the richest form of an output. A block of HTML ends at an empty line, so it must hold none."""
    if "image/png" in data:
        return f'<img class="output" src="data:image/png;base64,{data["image/png"]}" alt="The figure of this block.">'
    if "text/html" in data:
        html = re.sub(r"\n\s*(?=\n)", "", data["text/html"])
        return f'<div class="output">\n{html}\n</div>'
    return f"````\n{data['text/plain']}\n````"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_suffix(SUFFIX, "markdown")
    app.connect("source-read", convert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
