"""Parse the words of a line into a command's arguments, and report a mistake in one line."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import field, fields, make_dataclass, replace
from io import StringIO
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from attractor.cli.commands import WITH_JSON, names, options_of
from attractor.cli.config_file import WHOLE, as_words, settings_in
from attractor.cli.help import COMMON
from attractor.errors import InputError, nearest

BAD_VALUE = r"Error parsing (\S+): no type matching (?:\{None\}\|)?(.+?)(?:\|\{none\})? could be .* \[(.*)\]"
BAD_NUMBERS = (
    r"Error parsing (\S+): (?:Could not find valid parse|invalid literal|could not convert)[^:]*: \[?('.*')\]?$"
)
RECIPE = ("recipe", "size", "epochs")  # options that choose settings
TRUTHS = ("true", "false", "yes", "no", "on", "off")  # that some write behind a flag
NO_VALUE = r"Missing value for argument '(--[\w-]+)"
RANGE = "whole numbers with a space between them, or a range as 0-3"
KINDS = {"INT": "a whole number", "FLOAT": "a number", "{FLOAT FLOAT}": "two numbers", "{INT INT}": "two whole numbers"}
KINDS |= {"INT|{auto}": "a whole number or auto", "INT ...": RANGE, "{[INT [INT ...]]}": RANGE}
KINDS |= {"{[FLOAT [FLOAT ...]]}": "numbers with a space between them"}


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

    words = [*_in_words_of_tyro(name, argv)]
    message = StringIO()
    try:
        with redirect_stderr(message):
            return tyro.cli(kind, prog=f"attractor {name}", args=words, add_help=False)
    except SystemExit as stopped:
        raise InputError(_in_one_line(message.getvalue(), name)) from stopped


def _in_words_of_tyro(name: str, argv: Sequence[str]) -> Iterator[str]:
    """Yield the words of a line with each number of a range, as 0-3, and with a value of each flag of a setting.

    A setting that is not given stays None, so tyro wants a value of a flag that is given, and "none" for None."""
    flags = [option for option in options_of(name) if option.is_setting and option.kind == "FLAG"]
    values = {form: f"{o.dashed}={value}" for o in flags for form, value in ((o.dashed, True), (o.negated, False))}
    several = {option.dashed for option in options_of(name) if option.kind == "INT ..."}
    settings = {option.dashed for option in options_of(name) if option.is_setting}
    option = ""
    for word in argv:
        option = word.partition("=")[0].replace("_", "-") if word.startswith("--") else option
        span = re.fullmatch(r"(?:--[\w-]+=)?(\d{1,5})-(\d{1,5})", word)
        if span is not None and option in several:
            yield from [option] * word.startswith("--")
            yield from map(str, range(int(span[1]), int(span[2]) + 1))
        else:
            unset = word[:-4] + "none" if option in settings and re.search("(^|=)None$", word) else word
            yield values.get(word.replace("_", "-"), unset)


def refuse_unknown_options(name: str, argv: Sequence[str]) -> None:
    """Refuse options that the command does not have, before anything is imported for it."""
    options = [option for option in options_of(name) if not option.positional]
    written = {option.dashed for option in options}
    flags = {form: option for option in options if option.kind == "FLAG" for form in (option.dashed, option.negated)}
    words = [*takewhile(lambda word: word != "--", argv)]
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    strays = [word for word in given if word.replace("_", "-") not in written | flags.keys()]
    if strays:
        by_place = {option.dashed: option.written for option in options_of(name) if option.positional}
        by_place["--attention"] = by_place.get("--mechanisms", "")
        as_words = [word for stray in strays if (word := by_place.get(stray))]
        common_first = sorted(options, key=lambda option: (option.name not in COMMON, option.name))
        known = [option.dashed[2:] for option in common_first]
        near = [f"--{match}" for stray in strays if (match := nearest(stray[2:].replace("_", "-"), known))]
        guess = f"; did you mean {', '.join(near)}?" if near else ""
        guess = f"; write attractor {name} {' '.join(as_words)}" if as_words else guess
        raise InputError(f"unknown option {', '.join(strays)}{guess} ('attractor {name} --help' shows all)")
    for word, following in zip(words, [*words[1:], ""], strict=False):
        form, equals, value = word.replace("_", "-").partition("=")
        if form in flags and (equals or following.lower() in TRUTHS):
            option = flags[form]
            got = f"got '{value if equals else following}'; write {option.dashed} or {option.negated}"
            raise InputError(f"{option.name} must be given without a value, {got}")


def given(args: Any, names: Iterable[str]) -> list[str]:
    """Return those of the names whose options have another value than the default."""
    defaults = {f.name: f.default for f in fields(args)}
    return [name for name in names if getattr(args, name) != defaults[name]]


def refuse_given(args: Any, names: Iterable[str], beside: str) -> None:
    for name in given(args, names):
        value = getattr(args, name)
        shown = " ".join(map(str, value if isinstance(value, tuple) else (value,)))
        raise InputError(f"{name} must be left out {beside}, got '{shown}'; leave it out")


def refuse_file(folder: Path) -> None:
    if folder.is_file():
        raise InputError(f"folder must be a folder, and '{folder}' is a file; give '{folder.parent}'")


def is_rule(line: str) -> bool:
    return re.fullmatch("─+|-{3,}", line) is not None  # tyro's rules depend on the encoding of standard output


def _in_one_line(message: str, name: str) -> str:
    """Return the text in tyro's box up to the first rule. Put a known complaint in the words of this command line."""
    options = {option.dashed: option for option in options_of(name)}
    titled = [line.strip("│╭╰╮╯ ") for line in re.sub(r"\x1b\[[0-9;]*m", "", message).splitlines()]
    lines = list(dropwhile(is_rule, titled[1:]))
    complaint = " ".join(takewhile(lambda line: line and not is_rule(line), lines))
    if complaint.startswith("Unrecognized"):
        word = complaint.partition(": ")[2]
        is_mechanism = word in names()["mechanisms"] and "--attention" in options
        steps = [f"write --attention {word}"] if is_mechanism else []
        steps += [f"write {o.written} before options" for o in options.values() if o.positional and "..." in o.kind]
        complaint = "; ".join([f"unknown word {word}", *steps])
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
