"""The command that prints a script with which the shell completes commands, options and names: completion."""

from dataclasses import dataclass

from rich.console import Console

from attractor.cli.commands import COMMANDS, NAMED, names, options_of

TAKE_NAMES = NAMED | {"baseline": "mechanisms", "corpus": "corpora", "on": "corpora"}
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
    """The command takes no options."""


def show_completion(args: CompletionArguments, console: Console) -> None:
    """Print a script that makes bash or zsh complete commands, options and names. Write it to a file, and add `source
    FILE` to ~/.bashrc or ~/.zshrc.

        attractor completion > ~/.attractor-completion
    """
    console.print(script(), markup=False, highlight=False, soft_wrap=True, end="")


def script() -> str:
    """Return one script for both shells; zsh emulates the completion of bash."""
    groups = sorted({name.split()[0] for name in COMMANDS if " " in name})
    first = dict.fromkeys(name.split()[0] for name in COMMANDS)
    choices = {"": " ".join([*first, "help", "--help", "--version"])}
    choices |= {
        group: " ".join(name.split()[1] for name in COMMANDS if name.startswith(f"{group} ")) for group in groups
    }
    choices |= {name: " ".join(words_of(name)) for name in COMMANDS}
    values = {f"--{option.replace('_', '-')}": " ".join(names()[kind]) for option, kind in TAKE_NAMES.items()}
    return SCRIPT % {
        "groups": "|".join(groups),
        "values": "\n".join(branch(8, option, words) for option, words in values.items()),
        "commands": "\n".join(branch(16, f'"{name}"', words) for name, words in choices.items()),
    }


def branch(indent: int, pattern: str, choices: str) -> str:
    return f"{'':{indent}}{pattern}) choices='{choices}' ;;"


def words_of(name: str) -> list[str]:
    """Return the words that may follow a command: its options, and names if it takes any."""
    options = options_of(name)
    written = [option.written.split()[0] for option in options if not option.positional]
    of_list = [name for kind, table in names().items() for name in (kind, *table)]
    of_mechanisms = [*names()["mechanisms"]] if "mechanism" in {option.name.rstrip("s") for option in options} else []
    taken = of_list if name == "list" else of_mechanisms
    everything = ["--help-all"] if any(option.is_setting for option in options) else []
    forms = [option.replace("[no-]", no) for option in written for no in ("", "no-")]
    return list(dict.fromkeys([*taken, *forms, "--help", *everything]))
