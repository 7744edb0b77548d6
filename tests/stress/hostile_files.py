"""Give attractor 15 hostile corpora and 18 hostile records.

`python tests/stress/hostile_files.py`; `make stress` does this. Each command must end in its own words, with a line for
what it refuses. Nothing of a file may be executed, become a command of LaTeX, or become markup of a page.
"""

import json
import pickle
import re
import shutil
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from attractor.files import plain
from attractor.files.seals import checksum_of, sealed
from attractor.report.latex import MACROS
from attractor.runs.packed_record import packed
from attractor.runs.study_record import read_record
from stress import kills
from stress.commands import Ended, command, import_all

CANARY, SCRIPT = "executed", "<script>alert(1)</script>"
LATEX = re.compile(r"\\(immediate|write|input|openout|catcode|csname|def)\b(?!\{numbers\})")
MACRO = re.compile(
    r"\\attractornumber\{[A-Za-z0-9.,+/ -]+\}\{[^\\{}]*(\\ensuremath\{[^{}]*(\{[^{}]*\})?[^{}]*\})?\}|%[^\r]*|"
)


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path(CANARY),))


class Markup(HTMLParser):
    """Collects the tags of a page, and what would be executed there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.n_scripts, self.hostile = 0, []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.n_scripts += tag == "script"
        for name, value in attributes:
            if name.startswith("on") or "javascript:" in (value or ""):
                self.hostile.append(f"{tag} {name}={value}")
        if tag in ("iframe", "object", "embed", "foreignobject", "img", "link", "base"):
            self.hostile.append(tag)


def corpora(manifest: dict[str, Any], tokens: Path) -> dict[str, Any]:
    """Return changes of a manifest, or of a file beside it, by what they try."""

    def shard(**fields: Any) -> dict[str, Any]:
        first = {**manifest["train"]["shards"][0], **fields}
        return {**manifest, "train": {**manifest["train"], "shards": [first]}}

    tokenizer = manifest["tokenizer"]
    return {
        "objects as dtype": {**manifest, "dtype": "|O"},
        "floats as dtype": {**manifest, "dtype": "<f8"},
        "a list of fields as dtype": {**manifest, "dtype": [["a", "|O"]]},
        "a file above": shard(file="../x"),
        "an absolute path": shard(file=str(tokens)),
        "a device": shard(file="/dev/zero"),
        "a longer file": shard(size=10**15),
        "a negative size": shard(size=-2),
        "a size that is no number": shard(size="2"),
        "another checksum": shard(sha256="0" * 64),
        "a vocabulary that is no number": {**manifest, "tokenizer": {**tokenizer, "vocab_size": "x"}},
        "a smaller vocabulary": {**manifest, "tokenizer": {**tokenizer, "vocab_size": 5}},
        "no shards": {**manifest, "train": []},
        "a deep manifest": "[" * 200_000,
        "a pickle as tokenizer": pickle.dumps(Payload()),
    }


def records(stored: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return changes of a record by what they try. A checksum is added, since anybody can compute one."""
    row = stored["design"]["rows"][1]

    def design(**fields: Any) -> dict[str, Any]:
        return {**stored, "design": {**stored["design"], **fields}}

    def named(name: str) -> dict[str, Any]:
        return json.loads(json.dumps(stored).replace(json.dumps(row)[1:-1], json.dumps(name)[1:-1]))

    def outcome(**fields: Any) -> dict[str, Any]:
        changed = json.loads(json.dumps(stored))
        changed["cells"][0]["outcomes"][0].update(fields)
        return changed

    def shared(**fields: Any) -> dict[str, Any]:
        changed = packed(json.loads(json.dumps(stored)))
        changed["cells"][0]["shared"].update(fields)
        return changed

    return {
        "LaTeX on a second line": design(name="x\n\\immediate\\write18{touch executed}"),
        "LaTeX in a row": named("\\immediate\\write18{touch executed}"),
        "LaTeX by a control character": named("x^^M\\input{/etc/passwd}\r\\write18{touch executed}"),
        "a formula": named("$\\frac{1}$ and $x"),
        "a script in a row": named(f"</script>{SCRIPT}"),
        "a script in the title": design(title=f"</title>{SCRIPT}", question="<img src=x onerror=alert(1)>"),
        "SVG in a row": named('"/></text><svg onload="alert(1)"><foreignObject/>'),
        "markdown in a row": named("[x](javascript:alert(1)) | y\n| --- |"),
        "a terminal's commands": named("\x1b]0;owned\x07\x1b[2J"),
        "line separators": named("a\u2028\u2029\x85b"),
        "a very long row": named("x" * 20_000),
        "a path as name": design(name="../../../executed"),
        "texts for numbers": outcome(summary={"valid_loss": "x", "tokens": []}),
        "a curve of another shape": outcome(curve=[1, 2]),
        "a script in the summary": outcome(
            summary={**stored["cells"][0]["outcomes"][0]["summary"], "device": SCRIPT}, key="<script>"
        ),
        "a shared value of too few runs": shared(key={"_each": ["x"]}),
        "a text for a shared summary": shared(summary="x"),
        "a shared series of two lengths": shared(curve={"_at": [1, 2], "_values": [1.0]}),
    }


def faults_of_report(out: Path, n_scripts: int) -> list[str]:
    """Return what would be executed where the files of a report are opened."""
    faults = []
    for path in [*out.rglob("*.html"), *out.rglob("*.svg")]:
        page = Markup(path.read_text(encoding="utf-8"))
        if page.hostile or page.n_scripts > (n_scripts if path.suffix == ".html" else 0):
            faults.append(f"{path.name} has {page.n_scripts} scripts, {page.hostile[:3]}")
    for path in out.rglob("*.tex"):
        text = "".join(line for line in path.open(encoding="utf-8") if line.rstrip() not in MACROS)
        if command_of_latex := LATEX.search(re.sub(r"\\textbackslash\{\}\w*|%.*", "", text)):
            faults.append(f"{path.name} has the command {command_of_latex[0]}")
    if (out / "numbers.tex").exists():
        lines = (out / "numbers.tex").read_text().split("\n")
        strange = [line for line in lines if line not in MACROS and not MACRO.fullmatch(line)]
        faults += [f"numbers.tex has the line {line[:80]}" for line in strange[:1]]
    table = (out / "table.md").read_text(encoding="utf-8") if (out / "table.md").exists() else ""
    if re.search(r"<(script|svg|img)|(?<!\\)\]\(javascript", table):
        faults.append("table.md has markup")
    return faults


def check(root: Path, say: Any = print) -> int:
    """Return the number of files that had a wrong effect."""
    import_all()
    place = root / "whole"
    kills.prepare(place, 6)
    kills.finish(kills.start_forked(place))
    ended = command("data", "prepare", "squares.txt", "--out=corpus", "--tokenizer=bytes", folder=place)
    assert ended.code == 0, ended.text
    stored_path = place / "results" / "study-killed-smoke.json"
    ended = command("report", "runs/killed-smoke", "--store", str(stored_path), "--formats=svg", folder=place)
    assert ended.code == 0, ended.text
    n_scripts = Markup((place / "runs/killed-smoke/report.html").read_text()).n_scripts
    n_files, n_faults = 0, 0

    def judge(what: str, ended: Ended, faults: list[str], is_refused: bool = False) -> None:
        nonlocal n_faults
        if not ended.is_clean:
            faults = [*faults, f"ended with {ended.code}: {ended.text.strip()[-600:]}"]
        if is_refused and ended.code != 2:
            faults = [*faults, f"was not refused: {ended.text.strip()[-300:]}"]
        if "\x1b" in ended.text:
            faults = [*faults, "reached the terminal"]
        if list(root.rglob(CANARY)) or list(root.parent.glob(CANARY)):
            faults = [*faults, "was executed"]
        n_faults += bool(faults)
        for fault in faults:
            say(f"FAULT: {what}: {fault}")
        said = [line for line in ended.error.splitlines() if line.startswith(("error", "warning"))]
        say(f"{what}: {ended.code}: {(said or ['accepted as it is'])[0][:160]}")

    manifest = json.loads((place / "corpus/manifest.json").read_text())
    for what, change in corpora(manifest, place / "corpus/train-00000.tokens").items():
        shutil.rmtree(place / "hostile", ignore_errors=True)
        shutil.copytree(place / "corpus", place / "hostile")
        np.array([1, 2, 3], "<u2").tofile(place / "x")
        if isinstance(change, bytes):
            (place / "hostile/tokenizer.json").write_bytes(change)
            sums = {**manifest["tokenizer"], "sha256": checksum_of(place / "hostile/tokenizer.json")}
            change = {**manifest, "tokenizer": sums}
        text = change if isinstance(change, str) else json.dumps(change)
        (place / "hostile/manifest.json").write_text(text)
        words = ("train", "--corpus=hostile", "--n-steps=2", "--device=cpu", "--d-model=16", "--n-layers=1")
        judge(f"corpus with {what}", command(*words, "--out=none", folder=place), [], is_refused=True)
        n_files += 1

    for what, change in records(plain(read_record(stored_path).to_dict())).items():
        (place / "hostile.json").write_text(json.dumps(sealed(change)))
        shutil.rmtree(place / "reported", ignore_errors=True)
        ended = command("report", "hostile.json", "--out=reported", "--formats=svg", folder=place)
        judge(f"record with {what}", ended, faults_of_report(place / "reported", n_scripts))
        n_files += 1

    say(f"{n_files} hostile corpora and records: {n_faults} executed, lost or unsaid")
    return n_faults


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(bool(check(Path(made, "in"))) if Path(made, "in").mkdir() is None else 1)
