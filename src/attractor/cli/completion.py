"""The command that prints a script with which the shell completes commands, options and names: completion."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from attractor.cli.tables import tables

NAMES = {  # options that take names, and the kind of names
    "--attention": "mechanisms",
    "--slow-attention": "mechanisms",
    "--baseline": "mechanisms",
    "--rivals": "mechanisms",
    "--size": "sizes",
    "--recipe": "recipes",
    "--task": "tasks",
    "--corpus": "corpora",
    "--on": "corpora",
}
OF_MECHANISMS = ("compare", "plan", "bench")  # commands whose positional arguments are mechanisms
SCRIPT = """\
# Completion for attractor in bash and zsh: source this file from ~/.bashrc or ~/.zshrc.
if [ -n "${ZSH_VERSION-}" ]; then
    type compdef > /dev/null 2>&1 || { autoload -Uz compinit && compinit; }
    autoload -Uz bashcompinit && bashcompinit
fi
_attractor() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}" choices=
    case "$command" in %(groups)s) [ "$COMP_CWORD" -gt 2 ] && command="$command ${COMP_WORDS[2]}" ;; esac
    [ "$COMP_CWORD" -eq 1 ] && command=
    [ "$previous" = = ] && previous="${COMP_WORDS[COMP_CWORD-2]}"
    [ "$current" = = ] && previous="${COMP_WORDS[COMP_CWORD-1]}" && current=
    case "$previous" in
%(values)s
        *)
            case "$command" in
%(commands)s
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$choices" -- "$current"))
}
complete -o default -F _attractor attractor
"""


@dataclass(frozen=True)
class CompletionArguments:
    """Print a script that makes bash or zsh complete commands, options and names.

    Write it to a file, and add `source FILE` to ~/.bashrc or ~/.zshrc.
    """


def show_completion(args: CompletionArguments, console: Console) -> None:
    console.print(script(), markup=False, highlight=False, soft_wrap=True, end="")


def script() -> str:
    """Return one script for both shells; zsh emulates the completion of bash."""
    commands = tables().commands
    groups = sorted({name.split()[0] for name in commands if " " in name})
    choices = {"": " ".join([*dict.fromkeys(name.split()[0] for name in commands), "--help", "--version"])}
    choices |= {
        group: " ".join(name.split()[1] for name in commands if name.startswith(f"{group} ")) for group in groups
    }
    choices |= {name: " ".join(words_of(name)) for name in commands}
    return SCRIPT % {
        "groups": "|".join(groups),
        "values": "\n".join(branch(8, option, " ".join(tables().kinds[kind])) for option, kind in NAMES.items()),
        "commands": "\n".join(branch(16, f'"{name}"', words) for name, words in choices.items()),
    }


def branch(indent: int, pattern: str, choices: str) -> str:
    return f"{'':{indent}}{pattern}) choices='{choices}' ;;"


def words_of(name: str) -> list[str]:
    """Return the words that may follow a command: its options, and names if it takes any."""
    written = [option.written.split()[0] for option in tables().options_of(name) if not option.positional]
    options = [option.replace("[no-]", no) for option in written for no in ("", "no-")]
    kinds = tables().kinds
    listed_kinds = ("mechanisms", "sizes", "recipes", "tasks", "corpora")
    of_list = [name for kind in listed_kinds for name in (kind, *kinds[kind])]
    names = {"list": of_list}.get(name, [*kinds["mechanisms"]] if name in OF_MECHANISMS else [])
    everything = ["--help-all"] if tables().commands[name].settings else []
    return list(dict.fromkeys([*names, *options, "--help", *everything]))


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {
    "completion": (CompletionArguments, show_completion)
}
