"""The code of pages that train longer than a test may: blocks between ~~~, and notebooks, run here, not in `make test`.

    python docs/run_blocks.py               all pages that have such blocks
    python docs/run_blocks.py docs/x.md     these pages

A page's blocks run in order, those between ``` too, in an empty folder: Python in one namespace, `attractor` commands
as a reader types them. The code of a notebook runs cell by cell.
"""

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
BLOCK = re.compile(
    r"^(?P<fence>```|~~~)(?P<language>python|sh)\n(?P<content>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL
)


def long_pages() -> list[Path]:
    pages = sorted(DOCS.rglob("*.md"))
    long = [page for page in pages if any(block["fence"] == "~~~" for block in BLOCK.finditer(page.read_text()))]
    return [*long, *sorted(DOCS.rglob("*.ipynb"))]


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """Language and content of every block of a page, or of every cell of code of a notebook."""
    text = page.read_text()
    if page.suffix != ".ipynb":
        return [(block["language"], block["content"]) for block in BLOCK.finditer(text)]
    return [("python", "".join(cell["source"])) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def run_page(page: Path) -> None:
    names: dict[str, object] = {}
    for language, content in blocks_of(page):
        if language == "python":
            exec(compile(content, str(page), "exec"), names)
        else:
            for command in content.splitlines():
                if command.startswith("attractor "):
                    run_command(command)


def run_command(command: str) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(command, shell=True, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"`{command}` ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def main() -> None:
    for page in [Path(name).resolve() for name in sys.argv[1:]] or long_pages():
        begun = time.monotonic()
        quiet = contextlib.redirect_stdout(io.StringIO())
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), quiet:
            run_page(page)
        print(f"{page.relative_to(DOCS)}: its code ran in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
