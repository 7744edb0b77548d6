"""Flip one byte of one file of a run, run every command that reads runs, and repeat with the next file.

`python tests/stress/flip_bytes.py [n_flips] [seed]`; `make stress` does this with 100 flips.

A study of four finished runs and one interrupted run are made through the command line. The flips go over all files of
a finished run, of the interrupted run and of the study's folder in turn; the seed draws the byte and its new value.
After each flip every command starts from a fresh copy. A command may give exactly what it gives of intact files, or it
must name the damage. A traceback, a crash, or another result without a word is a failure.
"""

import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from stress import kills
from stress.commands import Ended, command, forked, import_all, in_child, typed, undrawn

NAMES_DAMAGE = re.compile(r"damaged|changed|checksum|does not|must |missing|left out|cannot be read|another")
UNREAD = (".run.lock", ".write.lock", "report.html")  # nothing reads their content
PROCESSES = 2  # that flip bytes at the same time
CHANGING = re.compile(r"seconds|per_second|bytes|begun|time|speed|version")


def make(root: Path) -> Path:
    """Make a study of four finished runs, an interrupted run, and a folder of stored records."""
    import_all()
    place = root / "whole"
    kills.prepare(place, 12)
    kills.finish(kills.start_forked(place))
    interrupted = forked(typed(*kills.command_of(place / "runs" / "interrupted", 60)), place, **kills.PIPES)
    while kills.newest_step(place / "runs" / "interrupted") < 30:
        time.sleep(0.01)
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate(timeout=60)
    (place / "text.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(40)))
    (place / "papers" / "own").mkdir(parents=True)
    (place / "papers" / "own" / "claims.py").write_text(PAPER)
    stored = "papers/own/results/study-killed-smoke.json"
    ended = command("report", "runs/killed-smoke", "--store", stored, folder=place)
    assert ended.code == 0, ended.text
    return place


def said(ended: Ended, place: Path) -> Any:
    return ended.out


def page(name: str) -> Callable[[Ended, Path], Any]:
    return lambda ended, place: (place / name).read_bytes() if (place / name).exists() else None


def listing(ended: Ended, place: Path) -> Any:
    lines = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    return [{name: value for name, value in line.items() if not CHANGING.search(name)} for line in lines]


def record(ended: Ended, place: Path) -> Any:
    path = place / "runs" / "killed-smoke" / "record.json"
    return json.loads(path.read_text())["cells"] if path.exists() else None


def files(folder: str) -> Callable[[Ended, Path], Any]:
    def digests(ended: Ended, place: Path) -> Any:
        paths = sorted(path for path in (place / folder).rglob("*") if path.is_file())
        return [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]

    return digests


def trained(run: str) -> Callable[[Ended, Path], Any]:
    def end(ended: Ended, place: Path) -> Any:
        if ended.code != 0:
            return None
        try:
            return kills.outcome(place / run)
        except ValueError as error:  # the flip is in a line of the metrics, which then is no JSON
            return str(error)

    return end


def watch(run: str) -> Callable[[Path], Ended]:
    """Fetch the list that `attractor watch` serves, and the page of a run in it."""

    def serve() -> None:
        from attractor.report.live_server import LiveServer

        with LiveServer(Path("runs"), 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            listed = urllib.request.urlopen(server.address).read().decode()
            print(re.sub(r'data-look="\d+"', "", listed))  # counts from the time of its start
            address = f"run/{Path(run).relative_to('runs')}"
            if f'href="/{address}"' in listed:
                print(urllib.request.urlopen(server.address + address).read().decode())
            server.shutdown()

    return lambda place: in_child(serve, place)


def commands(run: str) -> dict[str, tuple[Callable[[Path], Ended], Callable[[Ended, Path], Any]]]:
    """Return the commands that read a run, each with what is to be equal to its result from intact files."""

    def reading(*words: str) -> Callable[[Path], Ended]:
        return lambda place: command(*words, folder=place)

    def reading_undrawn(*words: str) -> Callable[[Path], Ended]:  # `report` draws with the same code
        return lambda place: in_child(undrawn(*words), place)

    return {
        "report of the run": (reading("report", run), page(f"{run}/report.html")),
        "report of the study": (reading("report", "runs/killed-smoke", "--formats", "svg"), record),
        "runs list": (reading("runs", "list", "runs", "--json"), listing),
        "runs show": (reading("runs", "show", run), said),
        "evaluate": (reading("evaluate", run, "--on", "text.txt", "--device=cpu"), said),
        "generate": (reading("generate", run, "--max-new-tokens=8"), said),
        "export": (reading("export", run, "--out", "exported"), files("exported")),
        "train": (reading_undrawn("train", "--resume", run, "--device=cpu", "--threads=1"), trained(run)),
        "study run": (reading_undrawn("study", "run", "killed.py", *STUDY_OPTIONS), record),
        "claims": (reading("claims", "papers", "--root", "runs"), said),
        "watch": (watch(run), said),
    }


PAPER = """
from attractor.claims.claim import Paper

PAPER = Paper("Own", "A paper without claims", "Nobody", None, None, "It has a record.", ())
"""
STUDY_OPTIONS = ("--device=cpu", "--launcher=local", "--workers=1", "--threads=1")


def flip(path: Path, generator: random.Random) -> str:
    content = bytearray(path.read_bytes())
    place, bit = generator.randrange(len(content)), 1 << generator.randrange(8)
    content[place] ^= bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place:,} of {len(content):,}"


def fresh(whole: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(whole, place)


def fault(ended: Ended, result: Any, intact: Any, words: tuple[str, ...]) -> str | None:
    """Return what is wrong with the end of a command, or None."""
    if not ended.is_clean:
        return f"ended with {ended.code}: {ended.text.strip()[-2000:]}"
    lines = [line for line in ended.text.splitlines() if any(word in line for word in words)]
    if result != intact and not any(NAMES_DAMAGE.search(line) for line in lines):
        return f"gave another result without naming the damage ({ended.code}): {ended.text[-300:]}"
    return None


class Flips:
    """A study and its runs, what every command makes of them, and the files in which a byte may be flipped."""

    def __init__(self, root: Path, n_flips: int, seed: int, only: str, say: Callable[[str], Any]) -> None:
        self.root, self.seed, self.whole = root, seed, make(root)
        finished = sorted(path.parent for path in (self.whole / "runs").glob("*/*/summary.json"))[0]
        self.finished = str(finished.relative_to(self.whole))
        self.runs = (self.finished, "runs/interrupted")
        self.targets = list(self._targets(only))
        self.intact = {}
        place = root / "intact"
        for run in dict.fromkeys(run for _, run in self.targets[:n_flips]):
            for name, (run_command, result_of) in commands(run).items():
                fresh(self.whole, place)
                began = time.monotonic()
                ended = run_command(place)
                assert ended.is_clean, f"{name} of intact files: {ended.text}"
                self.intact[run, name] = result_of(ended, place)
                say(f"{name} of {run}: {ended.code}, {time.monotonic() - began:.1f} s")

    def _targets(self, only: str) -> Iterator[tuple[Path, str]]:
        """Yield the files, each with the run whose commands read it."""
        for run in (*self.runs, "runs/killed-smoke"):
            for path in sorted((self.whole / run).rglob("*")):
                is_read = path.name not in UNREAD and "figures" not in path.parts and re.search(only, path.name)
                if path.is_file() and path.stat().st_size and is_read:
                    yield path.relative_to(self.whole), run if run in self.runs else self.finished
        for path in self.whole.glob("papers/*/results/*.json"):
            yield path.relative_to(self.whole), self.finished

    def flip_and_compare(self, number: int) -> tuple[str, list[str]]:
        """Flip a byte; return a line that says where, and the faults of the commands."""
        path, run = self.targets[number % len(self.targets)]
        damaged, place = self.root / f"damaged-{number}", self.root / f"tried-{number}"
        fresh(self.whole, damaged)
        where = f"{path}, {flip(damaged / path, random.Random(f'{self.seed}/{number}'))}"
        words = (path.name, Path(run).name, path.parent.name)
        faults = []
        for name, (run_command, result_of) in commands(run).items():
            fresh(damaged, place)
            ended = run_command(place)
            problem = fault(ended, result_of(ended, place), self.intact[run, name], words)
            if problem is not None:
                faults.append(f"FAULT: {where}: {name} {problem}")
        for folder in (damaged, place):
            shutil.rmtree(folder)
        return f"flip {number + 1:>3}: {where}", faults


def flip_and_compare(root: Path, n_flips: int, seed: int, say: Callable[[str], Any] = print, only: str = "") -> int:
    """Return the number of commands that crashed or gave another result without a word."""
    flips = Flips(root, n_flips, seed, only, say)
    n_faults = 0
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("fork")) as pool:
        for line, faults in pool.map(flips.flip_and_compare, range(n_flips)):
            n_faults += len(faults)
            for text in (*faults, line):
                say(text)
    n_commands = n_flips * len(commands(""))
    extent = f"{n_flips} flipped bytes in {len(flips.targets)} files, {n_commands} commands"
    say(f"{extent}: {n_faults} crashed or said nothing")
    return n_faults


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:3]]
    with tempfile.TemporaryDirectory() as made:
        n_flips, seed = given + [100, 0][len(given) :]
        sys.exit(bool(flip_and_compare(Path(made), n_flips, seed, only=os.environ.get("ONLY", ""))))
