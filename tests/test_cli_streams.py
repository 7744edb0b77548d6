"""What happens to a command whose output is closed, full, ASCII alone, or without a reader."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from attractor.cli import streams
from attractor.cli.streams import SIGPIPE, OutputLost, Stream
from attractor.runs.run_folder import RunFolder
from attractor.train.interrupt import StopRequest
from processes import in_fresh_process
from stress.signals import send_and_check

N_BYTES = 300_000  # more than a pipe holds


class Pipe:
    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader, self.writer = os.fdopen(reader, "rb", buffering=0), os.fdopen(writer, "wb", buffering=0)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    monkeypatch.setattr(StopRequest, "was_made", False)
    pipe = Pipe()
    with pipe.reader, pipe.writer:
        yield pipe


def test_a_reader_that_goes_away_asks_a_run_to_stop(pipe: Pipe) -> None:
    """Criterion: the run sees SIGPIPE, and what is written later disappears without an error."""
    stream = Stream(pipe.writer.fileno())
    assert stream.write(b"read") == 4
    pipe.reader.close()
    with StopRequest() as stop:
        assert stream.write(b"lost") == 4
        assert stop.signal_number == SIGPIPE
    assert stream.loss == "the reader of the output went away"
    assert stream.write(b"lost") == 4


def test_without_a_run_the_command_ends(pipe: Pipe) -> None:
    pipe.reader.close()
    with pytest.raises(OutputLost) as lost:
        Stream(pipe.writer.fileno()).write(b"lost")
    assert lost.value.code == 128 + SIGPIPE
    assert Stream(pipe.writer.fileno(), is_output=False).write(b"lost") == 4, "standard error has nobody to report to"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is imitated by a device of Linux")
def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StopRequest, "was_made", False)
    with Path("/dev/full").open("wb") as full:
        with pytest.raises(OSError, match="No space left") as error:
            Stream(full.fileno()).write(b"lost")
        assert error.value.filename == "standard output"
        stream = Stream(full.fileno())
        with StopRequest() as stop:
            stream.write(b"lost")
        assert (stop.signal_number, stream.loss) == (SIGPIPE, "the output is lost: No space left on device")


def test_a_full_pipe_does_not_hold_up_a_run_that_is_to_stop(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: a pipe that nobody empties is given up PATIENCE seconds after the request to stop; a pipe that is read
    loses nothing."""
    monkeypatch.setattr(streams, "PATIENCE", 0.1)
    with io.BufferedWriter(Stream(pipe.writer.fileno())) as writer, StopRequest() as stop:  # type: ignore[type-var]
        stop.note(signal.SIGTERM)
        started = time.monotonic()
        writer.write(b"." * N_BYTES)
        writer.flush()
        assert time.monotonic() - started < 30
    assert 0 < len(pipe.reader.read(N_BYTES)) < N_BYTES


def test_a_slow_reader_loses_nothing(pipe: Pipe) -> None:
    """Criterion: all bytes arrive although the pipe holds fewer and its reader comes late."""
    arrived: list[int] = []

    def read() -> None:
        time.sleep(3 * streams.POLL_SECONDS)
        while sum(arrived) < N_BYTES:
            arrived.append(len(pipe.reader.read(10_000)))

    reader = threading.Thread(target=read)
    reader.start()
    with io.BufferedWriter(Stream(pipe.writer.fileno())) as writer:  # type: ignore[type-var]
        writer.write(b"." * N_BYTES)
    reader.join(timeout=60)
    assert sum(arrived) == N_BYTES


INTERRUPTED_IMPORT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background processes without it
class Interrupting:
    def find_spec(self, name, *_):
        if name == "MODULE":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["attractor", "plan"]
from attractor.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["rich.console", "torch"])
def test_ctrl_c_while_modules_load_ends_in_a_line(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT.replace("MODULE", module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130
    assert done.stderr == "interrupted while the command was loading, before it did anything\n"


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
def test_closed_streams_are_no_obstacle(closed: str) -> None:
    """Criterion: the command ends with 0. Where standard output is closed, a line says so."""
    closing = {"stdout": "1>&-", "stderr": "2>&-", "both": "1>&- 2>&-"}[closed]
    shell = ["sh", "-c", f'"$0" -m attractor list recipes {closing}', sys.executable]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    said = "standard output is closed, so nothing is shown\n"
    assert done.stderr == (said if closed == "stdout" else "")
    assert bool(done.stdout) == (closed == "stderr")


COMMANDS_OF_A_TERMINAL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="a terminal is imitated by one of POSIX")
@pytest.mark.parametrize("words", [["runs", "list", "."], ["runs", "show", "run"], ["nope{}"]])
@pytest.mark.parametrize("on_terminal", [True, False])
def test_no_text_of_others_commands_a_terminal(tmp_path: Path, words: list[str], on_terminal: bool) -> None:
    """Criterion: names of a run, of its folder and of a command are shown with their control characters spelled."""
    hostile, folder = COMMANDS_OF_A_TERMINAL, tmp_path / f"a{COMMANDS_OF_A_TERMINAL}"
    RunFolder.create(folder / "run", {"label": f"model{hostile}", "seed": 0, "model": {}, "n_steps": 1})
    reader, writer = os.openpty() if on_terminal else os.pipe()
    command = [sys.executable, "-m", "attractor", *(word.format(hostile) for word in words)]
    environment = os.environ | {"ATTRACTOR_CACHE": str(tmp_path), "TERM": "xterm", "COLUMNS": "200"}
    place = folder if words[-1] != "." else tmp_path
    process = subprocess.Popen(command, cwd=place, stdout=writer, stderr=writer, env=environment)
    os.close(writer)
    said = b""
    with suppress(OSError):  # by which a terminal tells that nobody writes any more
        while part := os.read(reader, 4096):
            said += part
    os.close(reader)
    process.wait(timeout=120)
    text = said.decode()
    assert not any(sign in text for sign in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e")), text
    assert "\\u001b]0;owned" in text


def test_ascii_output_spells_other_letters_out(tmp_path: Path) -> None:
    file = tmp_path / "caf\u00e9.py"
    file.write_text('STUDY = Study(title="\u03b1 \u2264 1", question="", source="")\n')
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "attractor", "study", "list", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert rb"caf\xe9.py" in done.stdout
    command = [sys.executable, "-m", "attractor", "train", "--lr=fast"]
    refused = subprocess.run(command, capture_output=True, timeout=120, env=environment, text=True)
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: --lr must be a number, got 'fast'"), "no box, which tyro would draw of hyphens"


CASES = [("train", SIGPIPE, "reader gone"), ("train", SIGPIPE, "reader of both gone")]
CASES += [("stacked", SIGPIPE, "reader gone"), ("train", signal.SIGHUP, "terminal closed")]
CASES += [("train", signal.SIGTERM, "full pipe"), ("local", signal.SIGINT, "repeated")]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen through /proc")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_lost_output_or_a_repeated_signal_saves_and_ends_in_one_line(
    case: tuple[str, int, str], tmp_path: Path
) -> None:
    """Criterion: that of `stress/signals.py`, twice, so that the second time continues from what the first saved."""
    in_fresh_process(send_and_check, tmp_path, [case, case], seed=0)
