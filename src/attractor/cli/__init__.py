"""The command line: one thin function per command.

Every option is a field of a config and is checked there. A wrong input ends in one line and exit code 2. The module of
a command is imported when the command is chosen; help and lists come from `tables.py` and need no command's module.
"""

import os
import re
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

from rich.console import Console

from attractor.__main__ import ctrl_c_ends_at_once
from attractor.cli.console import Heartbeat, LogConsole, say
from attractor.cli.help import GROUPS_OF_COMMANDS, help_of_all, help_of_command, help_of_group
from attractor.cli.streams import SIGPIPE, OutputLost, end_streams, guard_streams, loss_of_output
from attractor.cli.tables import tables
from attractor.errors import (
    DamageWarning,
    InputError,
    LeftOutWarning,
    RankLostError,
    RunInterrupted,
    RunStopped,
    part_not_installed,
    unknown,
)
from attractor.files import next_step
from attractor.train.interrupt import SIGNALS, Deadline, StopRequest

_LEFT_OUT: list[str] = []  # warnings about damaged runs and studies that this command left out
_PYTHONS_OWN = warnings.showwarning
WIDTH_OF_A_LOG = 120
INTERRUPTED = "interrupted; the same command goes on from what is saved"
RESUMABLE = ("compare", "train", "race", "data prepare", "study run")  # commands that go on from what is saved
HELP = ("-h", "--help", "--help-all")
COMMANDS = {  # each with its module, whose own COMMANDS holds the argument class and the function
    "compare": "runs",
    "train": "runs",
    "plan": "runs",
    "judge": "judge",
    "race": "race",
    "watch": "watch",
    "generate": "runs",
    "evaluate": "evaluate",
    "measure": "measure",
    "solve": "solve",
    "bench": "bench",
    "import": "hugging_face",
    "convert": "hugging_face",
    "export": "hugging_face",
    "data prepare": "data",
    "data verify": "data",
    "study run": "study",
    "study plan": "study",
    "study list": "study",
    "runs list": "stored_runs",
    "runs show": "stored_runs",
    "runs compare": "stored_runs",
    "runs prune": "stored_runs",
    "report": "evidence",
    "claims": "evidence",
    "list": "listing",
    "completion": "completion",
}
WITHOUT_PYTORCH = ("listing", "completion", "watch", "stored_runs", "evidence", "data", "judge", "race")


def main() -> None:
    warnings.showwarning = say_damage
    if sys.stdout is None and sys.stderr is not None:
        print("standard output is closed, so nothing is shown", file=sys.stderr)
    guard_streams()
    quiet = os.environ.get("RANK", "0") != "0"  # under torchrun one process speaks for all
    console = Console(quiet=quiet) if sys.stdout.isatty() else LogConsole(width=WIDTH_OF_A_LOG, quiet=quiet)
    _LEFT_OUT.clear()
    try:
        run_line(sys.argv[1:], console)
        sys.stdout.flush()
        if _LEFT_OUT:  # damaged runs or studies are missing in the result
            sys.exit(1)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except RankLostError as lost:
        if lost.speaks:
            print(lost, file=sys.stderr)
        time.sleep(2.0)  # torchrun names the first process that ends as the cause
        end_streams()
        os._exit(lost.exit_code)  # Python would wait for threads of the broken process group, or abort in them
    except RunStopped as stopped:
        if StopRequest.ends_process and isinstance(stopped, RunInterrupted):
            for number in SIGNALS:  # a second signal must not interrupt the last line or Python's exit
                signal.signal(number, signal.SIG_IGN)
        loss = f"{loss_of_output()}: " if stopped.exit_code == 128 + SIGPIPE else ""
        if not quiet:
            print(f"{loss}{stopped}", file=sys.stderr)
        sys.exit(stopped.exit_code)
    except OutputLost:
        if goes_on():
            print(f"{loss_of_output()}: {INTERRUPTED}", file=sys.stderr)
        raise
    except KeyboardInterrupt:  # before the first step
        print(interrupted(), file=sys.stderr)
        sys.exit(130)
    except OSError as error:  # a folder that cannot be written, a full disk
        place = f": '{error.filename}'" if error.filename else ""
        print(f"error: {error.strerror or error}{place}; {next_step(error)}", file=sys.stderr)
        sys.exit(2)
    finally:
        end_streams()


def goes_on() -> bool:
    """Whether this command goes on from what an earlier one saved."""
    return " ".join(sys.argv[1:]).startswith(RESUMABLE)


def interrupted() -> str:
    return INTERRUPTED if goes_on() else "interrupted; the same command starts anew"


def say_damage(message: Warning | str, category: type[Warning], *place: Any, **further: Any) -> None:
    """Print a warning of a damaged file as one line, and any other as Python does."""
    if issubclass(category, DamageWarning):
        if issubclass(category, LeftOutWarning):
            _LEFT_OUT.append(str(message))
        print(f"warning: {message}", file=sys.stderr)
    else:
        _PYTHONS_OWN(message, category, *place, **further)


def run_line(argv: Sequence[str], console: Console) -> None:
    """Run the command of a line, or print its help."""
    words = list(argv) or ["--help"]
    text = f"attractor {version('attractor')}" if words[0] == "--version" else requested_help(words)
    if text is None:
        with Heartbeat(console, f"attractor {command_of(words)}"), Deadline(interrupted):
            try:
                args, run = parse(words)
                run(args, console)
            except InputError as error:
                error.args = (f"{error}{missing_next_step(str(error), command_of(words))}",)
                raise
            except (RunStopped, OSError):
                raise
            except Exception as error:
                use = f"'attractor {command_of(words)}'"
                if (refused := part_not_installed(error, "train", use) or in_code_of_a_study(error)) is None:
                    raise
                raise refused from error
    else:
        say(console, text)


def in_code_of_a_study(error: Exception) -> InputError | None:
    """Return the line that names the place in the code of a study, such as a mechanism, that led to an error."""
    loading = sys.modules.get("attractor.claims.loading")  # without it no study was executed
    return None if loading is None else loading.error_in_executed_code(error)


def missing_next_step(message: str, name: str) -> str:
    """Return the next step of an error about the value of an option, where the message names none."""
    refused = re.match(r"(\w+) must be [^;]*$", message)
    if refused is None or refused[1] not in {option.name for option in tables().options_of(name)}:
        return ""
    return f"; 'attractor {name} --help' shows what --{refused[1].replace('_', '-')} may be and its usual value"


def parse(words: Sequence[str]) -> tuple[Any, Callable[[Any, Console], None]]:
    """Return the arguments of the command that a line begins with, and the function that takes them."""
    from attractor.cli.parsing import parse_command, refuse_unknown_options  # tyro takes time, and help needs none

    name = command_of(words)
    rest = words[len(name.split()) :]
    refuse_unknown_options(name, rest)
    arguments, run = module_of(name).COMMANDS[name.split()[-1]]
    return parse_command(arguments, name, rest), run


def requested_help(words: Sequence[str]) -> str | None:
    """Return the help that a line requests, or None."""
    width = shutil.get_terminal_size().columns
    if words[0] in HELP:
        return help_of_all(width)
    if words[0] in GROUPS_OF_COMMANDS and (not words[1:] or words[1] in HELP):
        return help_of_group(words[0], width)
    if not set(HELP) & set(words):
        return None
    name = command_of(words)
    return help_of_command(name, words[len(name.split()) :], width)


def command_of(words: Sequence[str]) -> str:
    """Return the command that a line begins with, which has one or two words."""
    first, name = words[0], " ".join(words[:2])
    within = [command.split()[1] for command in COMMANDS if command.startswith(f"{first} ")]
    if within and name not in COMMANDS:
        raise unknown("command", words[1], within, see=f"'attractor {first} --help' shows all")
    if not within and first not in COMMANDS:
        raise unknown("command", first, {word.split()[0] for word in COMMANDS}, see="'attractor --help' shows all")
    return name if within else first


def module_of(name: str) -> ModuleType:
    """Import the module of a command. Loading PyTorch takes seconds, so a terminal says that it is loading."""
    module = f"attractor.cli.{COMMANDS[name]}"
    if COMMANDS[name] in WITHOUT_PYTORCH:
        return import_module(module)
    with temporary_text("loading PyTorch ..."), ctrl_c_ends_at_once():
        import_module("torch")
        return import_module(module)


@contextmanager
def temporary_text(text: str) -> Iterator[None]:
    """Show a text on the terminal while PyTorch loads, and remove it afterwards; a log shows nothing."""
    is_shown = sys.stderr.isatty() and "torch" not in sys.modules
    if is_shown:
        print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print("\r" + " " * len(text) + "\r", end="", file=sys.stderr, flush=True)
