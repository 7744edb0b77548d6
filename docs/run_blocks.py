"""The code of pages that train longer than a test may: blocks between ~~~, and notebooks, run here, not in `make test`.

    python docs/run_blocks.py               all pages that have such blocks
    python docs/run_blocks.py docs/x.md     these pages

A page's blocks run in order, those between ``` too, in an empty folder: Python in one namespace, `attractor` commands
as a reader types them. The code of a notebook runs cell by cell, commands after an exclamation mark included. A copy
with what the cells gave goes to dist/notebooks/, from where the site shows it.
"""

import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).resolve().parent
EXECUTED = DOCS.parent / "dist" / "notebooks"
BLOCK = re.compile(
    r"^(?P<fence>```|~~~)(?P<language>python|sh)\n(?P<content>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL
)


def long_pages() -> list[Path]:
    pages = sorted(DOCS.rglob("*.md"))
    long = [page for page in pages if any(block["fence"] == "~~~" for block in BLOCK.finditer(page.read_text()))]
    return [*long, *sorted(DOCS.rglob("*.ipynb"))]


def run_page(page: Path) -> None:
    names: dict[str, object] = {}
    for block in BLOCK.finditer(page.read_text()):
        if block["language"] == "python":
            exec(compile(block["content"], str(page), "exec"), names)
        else:
            for command in block["content"].splitlines():
                if command.startswith("attractor "):
                    run_command(command)


def run_notebook(page: Path, executed: Path = EXECUTED) -> None:
    notebook = json.loads(page.read_text())
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            value = run_commands(source) if source.startswith("!") else run_cell(source, str(page), names)
            cell["outputs"] = [] if value is None else [output_of(value)]
    executed.mkdir(parents=True, exist_ok=True)
    (executed / page.name).write_text(json.dumps(notebook))


def run_cell(source: str, page: str, names: dict[str, object]) -> object:
    """Run the code of a cell and return the value of its last line, where that is an expression."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), page, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), page, "eval"), names)


def run_commands(source: str) -> "Printed":
    """Run the commands of a cell, each a line after an exclamation mark, and return what they print."""
    return Printed("".join(run_command(line.removeprefix("!")) for line in source.splitlines()).rstrip())


class Printed(str):
    """A text that a notebook shows as it is, without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


def output_of(value: object) -> dict[str, object]:
    """Return a value as a notebook stores it: as text, and as HTML or a picture where it can be shown so."""
    data = {"text/plain": repr(value)}
    if hasattr(value, "_repr_html_") and (html := value._repr_html_()) is not None:
        data["text/html"] = html
    if hasattr(value, "_repr_png_"):
        picture, _ = value._repr_png_()
        data["image/png"] = base64.b64encode(picture).decode()
    return {"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data}


def run_command(command: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(command, shell=True, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"`{command}` ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> None:
    for page in [Path(name).resolve() for name in sys.argv[1:]] or long_pages():
        begun = time.monotonic()
        quiet = contextlib.redirect_stdout(io.StringIO())
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), quiet:
            run = run_notebook if page.suffix == ".ipynb" else run_page
            run(page)
        print(f"{page.relative_to(DOCS)}: its code ran in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
