"""Help, lists and completion of the command line are complete, and show the values that the code has."""

import shlex
import subprocess
import sys
from dataclasses import MISSING, fields
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
import tyro

from attractor import __version__, cli, console
from attractor.attention.presets import PRESETS, presets_as_data
from attractor.cli import completion, runs
from attractor.cli.commands import COMMANDS, FROM_THE_TASK, FURTHER, help_text, names, options_of, shown
from attractor.cli.definitions import definitions
from attractor.cli.documentation_page import page
from attractor.cli.help import COMMON, help_of_all, help_of_command, is_shown, start_of, value_of
from attractor.cli.parsing import parse_command, refuse_unknown_options, with_settings
from attractor.corpus.documents import CORPORA
from attractor.errors import InputError
from attractor.models import SIZES
from attractor.study.compare import DEFAULT_PRESETS
from attractor.tasks import KINDS
from attractor.train.config import RECIPES
from in_process import Command, command_in_process

PAGE = Path(__file__).parents[1] / "docs" / "command-line.md"
TRAINING = ("train", "compare", "plan")


@pytest.fixture
def attractor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    return command_in_process(monkeypatch, capsys)


def class_of(command: str) -> type:
    """Return the class of a command's arguments, as its imported module has it."""
    module, _, function = COMMANDS[command].partition(".")
    arguments = getattr(import_module(f"attractor.cli.{module}"), function).__annotations__["args"]
    assert isinstance(arguments, type)
    return with_settings(arguments, command)


def test_the_page_follows_from_the_help() -> None:
    assert PAGE.read_text() == page(), "run: python -m attractor.cli.documentation_page docs/command-line.md"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_read_from_the_source_of_a_command_is_what_it_takes(
    attractor: Command, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Criterion: the help read without PyTorch explains every option of the imported class and no other, with its
    default, and shows no None. Completion offers each of them, and no option is a subcommand."""
    code, out, err = attractor(*command.split(), "--help-all")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: attractor {command}")
    assert help_text(command)[0].endswith(".")
    imported = {f.name: f for f in fields(class_of(command))}
    assert {option.name for option in options_of(command)} == set(imported)
    for option in options_of(command):
        default = imported[option.name].default
        assert option.phrase, option.name
        assert option.written in out
        assert option.default != "None"
        assert (option.default == "") == (default is MISSING or option.is_setting)
        if default not in (None, (), "", MISSING) and option.kind != "FLAG":
            assert option.default == shown(default)
        if not option.positional:
            refuse_unknown_options(command, [f"--{option.name}"])
            assert f"--{option.name.replace('_', '-')}" in completion.words_of(command)
    with pytest.raises(SystemExit):
        tyro.cli(class_of(command), args=["--help"])
    assert "subcommands" not in capsys.readouterr().out  # which tyro makes of a union of types
    assert help_of_command(command, ("--help-all",), 10)  # in the narrowest window


def test_tables_read_from_their_source_are_those_of_the_code() -> None:
    """Criterion: recipes, sizes and mechanisms have equal fields, and every name has a phrase."""
    read = definitions("train.config")
    assert {name: recipe.to_dict() for name, recipe in read.SIZES.items()} == {n: s.to_dict() for n, s in SIZES.items()}
    for name, recipe in RECIPES.items():
        for ours, theirs in zip(*((c, c.model, c.task) for c in (recipe, read.RECIPES[name])), strict=True):
            assert repr(ours) == repr(theirs)
    assert definitions("attention.presets").presets_as_data() == presets_as_data()
    assert " ".join(DEFAULT_PRESETS) in {option.default for option in options_of("compare")}
    tables = {"mechanisms": PRESETS, "sizes": SIZES, "recipes": RECIPES, "corpora": CORPORA}
    expected = {kind: list(table) for kind, table in tables.items()} | {"tasks": [kind.kind for kind in KINDS]}
    assert {kind: list(table) for kind, table in names().items()} == expected
    assert all(phrase for table in names().values() for phrase in table.values())


def test_the_common_options_and_further_commands_exist() -> None:
    assert set(COMMON) <= {option.name for command in TRAINING for option in options_of(command)}
    assert set(FURTHER) <= {"help", *COMMANDS}


def test_the_first_help_shows_17_commands_and_names_the_others(attractor: Command) -> None:
    first, everything = attractor("--help").out, attractor("help", "--all").out
    shown_first = [line.split()[0] for line in first.splitlines() if line[:2] == "  " and line[2] != " "]
    newcomers = "compare judge race train report watch runs study claims data list measure evaluate generate"
    assert attractor() == (0, first, "")
    assert shown_first == [*newcomers.split(), "import", "export", "plan"]
    assert all(f"{name}," in first or f"{name} (" in first for name in FURTHER)
    assert all(f"  {command.split()[0]}  " in everything for command in COMMANDS)
    assert attractor("help", "judge").out == attractor("judge", "--help").out


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", TRAINING)
def test_the_help_of_training_fits_a_screen(command: str, width: int) -> None:
    lines = help_of_command(command, (), width).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
def test_all_help_fits_its_width(width: int) -> None:
    for text in (help_of_all(width), *(help_of_command(name, ("--help-all",), width) for name in COMMANDS)):
        described = text.partition("\nexample")[0]  # an example is a line to be copied, which may be long
        assert max(map(len, described.splitlines())) <= width


@pytest.mark.parametrize(
    ("line", "there", "absent"),
    [
        ("", "--n-layers --corpus", "--pool-factor --n-iterations --level --board-size --betas"),
        ("--size fast-slow", "--pool-factor --slow-attention --n-iterations", "--n-layers --oscillator-width --level"),
        ("--recipe=sudoku", "--eta --n-iterations --board-size", "--corpus --pool-factor --gamma"),
        ("--task mqar", "--level --n-pairs --n-layers", "--corpus --board-size"),
        ("--help-all", "--pool-factor --oscillator-width --level --board-size --betas", ""),
    ],
)
def test_options_of_a_model_or_task_are_shown_if_it_is_chosen(line: str, there: str, absent: str) -> None:
    words = help_of_command("train", line.split(), 80).partition("\nexample")[0].split()
    assert set(there.split()) <= set(words)
    assert not set(absent.split()) & set(words)


@pytest.mark.parametrize(
    "line", ["", "--recipe medium", "--size small", "--size fast-slow", "--task mqar", "--recipe mqar --size itrsa"]
)
def test_the_values_in_the_help_are_those_of_the_run(line: str) -> None:
    """Criterion: a run started by this line has the value that its help shows for every setting."""
    start = start_of(line.split())
    config = parse_command(runs.TrainArguments, "train", line.split()).configured()
    checked = 0
    for option in (option for option in options_of("train") if option.is_setting):
        part = next((p for p in (config, config.model, config.task) if hasattr(p, option.name)), None)
        if part is None or option.name in (*FROM_THE_TASK, "task", "length"):
            continue
        value = shown(getattr(part, option.name))
        assert value_of(option, start) == (option.unset if value is None else value), option.name
        checked += is_shown(option, start)
    assert checked >= 20
    assert start.task == config.task.kind
    assert start.family == config.model.family


def test_none_unsets_a_number_that_the_recipe_has() -> None:
    for word in ("None", "none"):
        line = [f"--clip={word}", "--eval-batches", word]
        config = parse_command(runs.TrainArguments, "train", line).configured()
        assert (config.clip, config.eval_batches) == (None, None)
    with pytest.raises(InputError, match="lr must be a number, got 'none'"):
        parse_command(runs.TrainArguments, "train", ["--lr", "None"])


@pytest.mark.parametrize("size", ["itrsa-prenorm", "tiny"])
def test_help_on_boards_shows_the_recipe_and_the_positions_of_boards(size: str) -> None:
    start, recipe = start_of(["--task", "sudoku", "--size", size]), RECIPES["sudoku"]
    assert start.description == f"recipe sudoku, size {size}"
    assert [start.values[name] for name in ("positions", "max_seq_len", "lr")] == ["grid", "81", shown(recipe.lr)]


def test_the_version_and_a_group_of_commands_are_shown(attractor: Command) -> None:
    assert attractor("--version") == (0, f"attractor {__version__}\n", "")
    code, out, _ = attractor("data")
    assert code == 0
    assert all(name in out for name in COMMANDS if name.startswith("data "))


def test_help_for_an_unknown_name_is_refused_as_by_a_run(attractor: Command) -> None:
    for line in ("--recipe labtop", "--size smal", "--task texts"):
        refused, asked = attractor("train", *line.split()), attractor("train", *line.split(), "--help")
        assert refused == asked
        assert refused[0] == 2


def test_the_mechanism_of_the_slow_path_is_named_as_that_of_the_fast_one() -> None:
    line = ["--size=fast-slow", "--slow-attention", "decay", "--attention", "gated"]
    model = parse_command(runs.TrainArguments, "train", line).configured().model
    assert (model.slow_attention, model.attention) == ("decay", "gated")


@pytest.mark.parametrize("example", [each for command in COMMANDS for each in help_text(command)[1]])
def test_every_example_parses(example: str) -> None:
    words = shlex.split(example.partition(" > ")[0])[1:]
    name = cli.command_of(words)
    rest = words[len(name.split()) :]
    refuse_unknown_options(name, rest)
    parse_command(class_of(name), name, rest)


def test_options_may_be_written_with_underscores_and_negated() -> None:
    refuse_unknown_options("plan", ["--n_steps=3", "--no-calibrate", "standard", "--", "--anything"])


def test_the_list_shows_every_name_within_80_columns(attractor: Command) -> None:
    code, out, err = attractor("list")
    assert (code, err) == (0, "")
    first_words = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert {name for table in names().values() for name in table} <= first_words
    for word in ("", *names(), *(name for table in names().values() for name in table)):
        code, out, err = attractor("list", *word.split())
        assert (code, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 80, word
        assert "…" not in out


def test_a_name_in_full_has_the_choices_at_every_stage_and_the_fields(attractor: Command) -> None:
    _, out, _ = attractor("list", "coupled-mla")
    assert all(part in out for part in ("project", "Latent", "couple", "Euler", "dt=0.1", "score", "output", "811,016"))
    _, out, _ = attractor("list", "psiqrh")
    assert all(part in out for part in ("--attention psiqrh", "--recipe psiqrh", "--d-model 256"))


@pytest.mark.parametrize(
    ("line", "there", "absent"),
    [
        ("", "train compare data list --version", "prepare --n-steps"),
        ("data ", "prepare verify", "train"),
        ("data prepare --to", "--tokenizer", "--out"),
        ("train --n-s", "--n-steps --n-slow", "--lr"),
        ("train --attention coupled-", "coupled-euler coupled-mla", "gated"),
        ("train --size ", "small fast-slow", "laptop"),
        ("train --size = fa", "fast-slow", "small"),  # bash splits --size=fa like this
        ("compare ga", "gated", "standard"),
        ("plan --no-", "--no-calibrate", "--calibrate"),
        ("list lap", "laptop", "gated"),
    ],
)
def test_bash_completes_commands_options_and_names(line: str, there: str, absent: str) -> None:
    words = ["attractor", *line.split(" ")]
    typed = f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}; _attractor"
    script = f'{completion.script()}\n{typed}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    offered = set(done.stdout.split())
    assert set(there.split()) <= offered
    assert not set(absent.split()) & offered


def test_a_terminal_shows_that_the_command_waits_and_a_log_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delitem(sys.modules, "torch")
    for stream, seen in ((Terminal(), True), (StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with console.temporary_text("loading ..."):
            assert stream.getvalue() == ("loading ..." if seen else "")
        assert stream.getvalue() == ("loading ...\r           \r" if seen else "")
