"""From what a person typed to a command's arguments; what was wrong, in one line."""

import re
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from itertools import dropwhile, pairwise, takewhile
from typing import Any, cast

import tyro

from attractor.errors import InputError, unknown

BAD_VALUE = r"Error parsing (\S+): no type matching (?:\{None\}\|)?(.+) could be .* \[(.*)\]"
KINDS = {"INT": "a whole number", "FLOAT": "a number", "{FLOAT FLOAT}": "two numbers", "{INT INT}": "two whole numbers"}
KINDS |= {"INT|{auto}": "a whole number or auto"}


def parse_among(commands: dict[str, type], program: str, argv: Sequence[str]) -> Any:
    """The arguments of one of these commands; tyro's several lines about a mistake become one."""
    argv = list(argv) or ["--help"]
    if argv[0] not in commands and not argv[0].startswith("-"):
        raise unknown("command", argv[0], commands, see=f"'{program} --help' shows all")
    said = StringIO()
    try:
        with redirect_stderr(said):
            return tyro.extras.subcommand_cli_from_dict(cast(Any, commands), prog=program, args=argv)
    except SystemExit as stopped:
        if stopped.code:
            shown = f"{program} {argv[0]}" if argv[0] in commands else program
            raise InputError(_in_one_line(said.getvalue(), argv, shown)) from stopped
        raise


def is_rule(line: str) -> bool:
    return re.fullmatch("─+|-{3,}", line) is not None  # what tyro draws depends on the encoding of standard output


def _in_one_line(said: str, argv: Sequence[str], command: str) -> str:
    """What stands in tyro's box up to the first rule, and the nearest options that it offers below."""
    titled = [line.strip("│╭╰╮╯ ") for line in re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()]
    lines = list(dropwhile(is_rule, titled[1:]))
    complaint = " ".join(takewhile(lambda line: line and not is_rule(line), lines))
    if complaint.startswith("Unrecognized"):
        strays = re.findall(r"(\S+) \(applied to", complaint) or complaint.partition(": ")[2].split(", ")
        complaint = f"unknown option {', '.join([stray for stray in strays if stray.startswith('-')] or strays)}"
    elif wrong := re.match(BAD_VALUE, complaint):
        complaint = f"{wrong[1]} must be {KINDS.get(wrong[2], wrong[2])}, got {wrong[3]}"
    offered = [after.split()[0] for line, after in pairwise(lines) if line.startswith(("Perhaps", "Arguments similar"))]
    near = [name for name in offered if name not in argv]
    guess = f"; did you mean {', '.join(near)}?" if near else ""
    return f"{complaint}{guess} ('{command} --help' shows all)"
