"""The command line: one thin function per command.

Every option is a field of a config and is checked there. A wrong input ends in one line and exit code 2. The module of
a command is imported when the command is chosen; help and completion read their texts from its source.
"""

import json
import os
import re
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from attractor.cli.commands import COMMANDS, GROUPS, WITH_JSON, options_of
from attractor.cli.help import help_of_all, help_of_command, help_of_group
from attractor.cli.parsing import parse_command, refuse_unknown_options
from attractor.cli.streams import SIGPIPE, OutputLost, end_streams, guard_streams, loss_of_output
from attractor.console import ctrl_c_ends_at_once, temporary_text
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
from attractor.files import next_step, plain
from attractor.train.interrupt import SIGNALS, Deadline, StopRequest

if TYPE_CHECKING:
    from rich.console import Console

_LEFT_OUT: list[str] = []  # warnings about damaged runs and studies that this command left out
_PYTHONS_OWN = warnings.showwarning
WIDTH_OF_A_LOG = 120
INTERRUPTED = "interrupted; the same command goes on from what is saved"
RESUMABLE = ("compare", "train", "race", "data prepare", "study run")  # commands that go on from what is saved
HELP = ("-h", "--help", "--help-all")
WITHOUT_PYTORCH = ("listing", "completion", "stored_runs", "evidence", "data", "judge", "race")


def main() -> None:
    warnings.showwarning = say_damage
    if sys.stdout is None and sys.stderr is not None:
        print("standard output is closed, so nothing is shown", file=sys.stderr)
    guard_streams()
    quiet = os.environ.get("RANK", "").strip("0").isdigit()  # under torchrun one process speaks for all
    _LEFT_OUT.clear()
    try:
        words = sys.argv[1:] or ["--help"]
        text = requested_text(words)
        if text is None:
            run_line(words, quiet)
        elif not quiet:
            print(text)
        sys.stdout.flush()
        if _LEFT_OUT:  # damaged runs or studies are missing in the result
            sys.exit(1)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except RankLostError as lost:
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


def run_line(words: Sequence[str], quiet: bool) -> None:
    """Run the command of a line."""
    name = command_of(words)
    refuse_unknown_options(name, words[len(name.split()) :])
    with ctrl_c_ends_at_once():  # rich takes time to load, and help needs none
        from attractor.cli.console import FilteredConsole, heartbeat

    as_json = "--json" in words and name in WITH_JSON
    width = None if sys.stdout.isatty() or as_json else WIDTH_OF_A_LOG
    console = FilteredConsole(quiet=quiet, stderr=as_json, width=width)
    with heartbeat(console, f"attractor {name}"), Deadline(interrupted):
        try:
            args, run = parse(words)
            try:
                run(args, console)
            finally:
                if as_json and console.answer and not quiet:
                    print(json.dumps(plain(console.answer), indent=2, default=str))
        except InputError as error:
            error.args = (f"{error}{missing_next_step(str(error), name)}",)
            raise
        except (RunStopped, OSError):
            raise
        except MemoryError as error:
            raise InputError(f"memory must suffice for 'attractor {name}', and does not; give it more") from error
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # of tokenizers, and no Exception
                raise InputError(f"tokenizer must split any text, and fails ({error}); give another one") from error
            if not isinstance(error, Exception | SystemExit):
                raise
            use = f"'attractor {name}'"
            if (refused := part_not_installed(error, "train", use) or in_code_of_a_study(error)) is None:
                raise
            raise refused from error


def in_code_of_a_study(error: BaseException) -> InputError | None:
    """Return the line that names the place in the code of a study, such as a mechanism, that led to an error."""
    loading = sys.modules.get("attractor.files.code")  # without it no study was executed
    return None if loading is None else loading.error_in_executed_code(error)


def missing_next_step(message: str, name: str) -> str:
    """Return the next step of an error about the value of an option, where the message names none."""
    refused = re.match(r"(\w+) must be [^;]*$", message)
    if refused is None or refused[1] not in {option.name for option in options_of(name)}:
        return ""
    return f"; 'attractor {name} --help' shows what --{refused[1].replace('_', '-')} may be and its usual value"


def parse(words: Sequence[str]) -> tuple[Any, Callable[[Any, "Console"], None]]:
    """Return the arguments of the command that a line begins with, and the function that takes them."""
    name = command_of(words)
    module, _, function = COMMANDS[name].partition(".")
    run = getattr(imported(module), function)
    return parse_command(run.__annotations__["args"], name, words[len(name.split()) :]), run


def requested_text(words: Sequence[str]) -> str | None:
    """Return the version or the help that a line requests, or None."""
    if words[0] == "--version":
        from importlib.metadata import version  # which takes longer to load than all else here

        return f"attractor {version('attractor')}"
    width = shutil.get_terminal_size().columns
    if words[0] == "help" and words[1:2] and words[1] not in ("--all", *HELP):
        words = [*words[1:], "--help"]
    if words[0] in ("help", *HELP):
        return help_of_all(width, "--all" in words)
    if words[0] in GROUPS and (not words[1:] or words[1] in HELP):
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
        raise unknown(
            "command", first, {"help", *(word.split()[0] for word in COMMANDS)}, see="'attractor --help' shows all"
        )
    return name if within else first


def imported(module: str) -> ModuleType:
    """Import the module of a command. Loading PyTorch takes seconds, so a terminal says that it is loading."""
    name = f"attractor.cli.{module}"
    if module in WITHOUT_PYTORCH:
        return import_module(name)
    with temporary_text("loading PyTorch ..."), ctrl_c_ends_at_once():
        import_module("torch")
        return import_module(name)
