"""Parse the words of a line into a command's arguments, and report a mistake in one line."""

import re
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import field, make_dataclass, replace
from difflib import get_close_matches
from io import StringIO
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from attractor.cli.commands import WITH_JSON, names, options_of
from attractor.cli.config_file import WHOLE, as_words, settings_in
from attractor.errors import InputError

BAD_VALUE = r"Error parsing (\S+): no type matching (?:\{None\}\|)?(.+) could be .* \[(.*)\]"
BAD_NUMBERS = (
    r"Error parsing (\S+): (?:Could not find valid parse|invalid literal|could not convert)[^:]*: \[?('.*')\]?$"
)
MOST_SEEDS = 1000  # of a range
RECIPE = ("recipe", "size", "epochs")  # options that choose settings
NO_VALUE = r"Missing (?:value for argument|from attractor [^:]*:) '?(--[\w-]+)"
KINDS = {"INT": "a whole number", "FLOAT": "a number", "{FLOAT FLOAT}": "two numbers", "{INT INT}": "two whole numbers"}
KINDS |= {"INT|{auto}": "a whole number or auto", "INT ...": "whole numbers", "{[INT [INT ...]]}": "whole numbers"}


def with_settings(arguments: type, name: str) -> type:
    """Return the class of a command's arguments; that of a command that trains has an option for every setting."""
    further = [*arguments.settings()] if hasattr(arguments, "settings") else []
    if name in WITH_JSON:
        further.append(("json", bool, field(default=False)))
    return make_dataclass(arguments.__name__, further, bases=(arguments,), frozen=True, kw_only=True)


def parse_command(arguments: type, name: str, argv: Sequence[str]) -> Any:
    """Return the arguments of a command. Options of a file of settings hold where the line does not give them."""
    kind = with_settings(arguments, name)
    args = _parsed(kind, name, argv)
    if not isinstance(path := getattr(args, "config", None), Path):
        return args
    values = settings_in(path)
    if WHOLE in values:
        return args
    kinds = {option.name: option.kind for option in options_of(name) if option.is_setting or option.name in RECIPE}
    try:
        refuse_unknown_options(name, [f"--{key}".replace("_", "-") for key in values])
        from_file = _parsed(kind, name, as_words(values, kinds))
    except InputError as error:
        raise InputError(f"config '{path}': {error}") from error
    return replace(args, **{key: getattr(from_file, key) for key in values if getattr(args, key) is None})


def _parsed(kind: type, name: str, argv: Sequence[str]) -> Any:
    """Return the arguments in words; several lines of tyro about a mistake become one."""
    import tyro  # it takes time to load, which the refusal of an unknown option need not wait for

    message = StringIO()
    try:
        with redirect_stderr(message):
            return tyro.cli(kind, prog=f"attractor {name}", args=with_ranges(argv), add_help=False)
    except SystemExit as stopped:
        raise InputError(_in_one_line(message.getvalue(), name)) from stopped


def with_ranges(argv: Sequence[str]) -> list[str]:
    """Return the words of a line with every seed of a range, as 0-3 in `--seeds 0-3 8`."""
    words: list[str] = []
    option = ""
    for word in argv:
        option = word if word.startswith("-") else option
        ends = re.fullmatch(r"(\d{1,9})-(\d{1,9})", word.removeprefix("--seeds="))
        seeds = range(int(ends[1]), int(ends[2]) + 1) if ends and option.startswith("--seeds") else range(0)
        is_range = 0 < len(seeds) <= MOST_SEEDS
        words += ["--seeds"] * (word.startswith("--seeds=") and is_range)
        words += map(str, seeds) if is_range else [word]
    return words


def refuse_unknown_options(name: str, argv: Sequence[str]) -> None:
    """Refuse options that the command does not have, before anything is imported for it."""
    options = [option for option in options_of(name) if not option.positional]
    written = {f"--{option.name}".replace("_", "-") for option in options}
    known = written | {f"--no-{option[2:]}" for option in written}
    given = [word.partition("=")[0] for word in takewhile(lambda word: word != "--", argv) if word.startswith("--")]
    strays = [word for word in given if word.replace("_", "-") not in known]
    if strays:
        near = [match for stray in strays for match in get_close_matches(stray, written, n=1)]
        guess = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"unknown option {', '.join(strays)}{guess} ('attractor {name} --help' shows all)")


def is_rule(line: str) -> bool:
    return re.fullmatch("─+|-{3,}", line) is not None  # tyro's rules depend on the encoding of standard output


def _in_one_line(message: str, name: str) -> str:
    """Return the text in tyro's box up to the first rule. Put a known complaint in the words of this command line."""
    options = {f"--{option.name}".replace("_", "-"): option for option in options_of(name)}
    titled = [line.strip("│╭╰╮╯ ") for line in re.sub(r"\x1b\[[0-9;]*m", "", message).splitlines()]
    lines = list(dropwhile(is_rule, titled[1:]))
    complaint = " ".join(takewhile(lambda line: line and not is_rule(line), lines))
    if complaint.startswith("Unrecognized"):
        word = complaint.partition(": ")[2]
        is_mechanism = word in names()["mechanisms"] and "--attention" in options
        complaint = f"unknown word {word}" + (f"; write --attention {word}" if is_mechanism else "")
    elif (without := re.match(NO_VALUE, complaint)) and without[1] in options:
        complaint = f"{options[without[1]].name} must have a value; write {options[without[1]].written}"
    elif wrong := re.match(BAD_VALUE, complaint):
        complaint = f"{wrong[1]} must be {KINDS.get(wrong[2], wrong[2])}, got {wrong[3]}"
    elif (wrong := re.match(BAD_NUMBERS, complaint)) and wrong[1] in options:
        kind = options[wrong[1]].kind
        complaint = f"{wrong[1]} must be {KINDS.get(kind, kind)}, got {wrong[2]}"
    elif complaint.startswith("Missing from"):
        required = [option for option in options_of(name) if not option.default and not option.is_setting]
        missing = [option.name for option in required if option.phrase in complaint]
        written = " ".join(option.written for option in required)
        complaint = f"{' and '.join(missing)} must be given; write attractor {name} {written}"
    return f"{complaint} ('attractor {name} --help' shows all)"
