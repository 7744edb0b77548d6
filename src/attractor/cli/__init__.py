"""The command line: one thin function per command.

Every option is a field of a config and is checked there; what a person gave wrongly ends in one line and exit code 2.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from attractor.cli import bench, convert, data, evaluate, evidence, exchange, measure, runs, solve, study
from attractor.cli.parsing import parse_among
from attractor.errors import InputError, RunStopped
from attractor.train.interrupt import Deadline

WIDTH_OF_A_LOG = 120
INTERRUPTED = "interrupted; the same command goes on from what is saved"
COMMANDS = {
    name: command
    for part in (runs, bench, evaluate, solve, measure, exchange, convert, evidence)
    for name, command in part.COMMANDS.items()
}
GROUPS = {"data": (data.Data, data.COMMANDS), "study": (study.Studies, study.COMMANDS)}  # of several words


def parse(argv: Sequence[str]) -> Any:
    """The command's arguments."""
    if argv[0] in GROUPS:
        _, commands = GROUPS[argv[0]]
        return parse_among({name: made for name, (made, _) in commands.items()}, f"attractor {argv[0]}", argv[1:])
    words = {name: made for name, (made, _) in COMMANDS.items()} | {name: made for name, (made, _) in GROUPS.items()}
    return parse_among(words, "attractor", argv)


def main() -> None:
    quiet = os.environ.get("RANK", "0") != "0"  # under torchrun one process speaks for all
    console = Console(quiet=quiet) if sys.stdout.isatty() else Console(width=WIDTH_OF_A_LOG, quiet=quiet)
    try:
        args = parse(sys.argv[1:] or ["--help"])
        every = [*COMMANDS.values(), *(each for _, commands in GROUPS.values() for each in commands.values())]
        run = next(run for made, run in every if type(args) is made)
        with Deadline(lambda: INTERRUPTED):
            run(args, console)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except RunStopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:  # before the first step, or a second time
        print(INTERRUPTED, file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe went away
        sys.exit(1)
    except OSError as error:  # a folder that cannot be written, a full disk
        place = f" '{error.filename}'" if error.filename else ""
        print(f"error: {error.strerror or error}:{place}; make room there or choose another place", file=sys.stderr)
        sys.exit(2)
