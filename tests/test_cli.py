"""The command line ends every wrong input in one line with exit code 2, and carries out every right one."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

from attractor import cli
from attractor.cli import listing, runs
from attractor.cli.commands import COMMANDS, options_of
from attractor.cli.parsing import parse_command
from attractor.errors import RunInterrupted
from attractor.train.config import RECIPES
from in_process import SHORT, TINY, Command, assert_refused


@pytest.fixture
def attractor(attractor: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    return attractor


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("".join(f"{i} squared is {i * i}\n" for i in range(300)))
    return str(path)


@pytest.fixture(scope="module")
def trained_once(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    command = ["attractor", "train", *TINY, *SHORT, "--batch-size=8", f"--corpus={corpus}", f"--out={folder}"]
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(StringIO()):
        patched.setattr(sys, "argv", command)
        cli.main()
    return folder


@pytest.fixture
def trained(attractor: Command, trained_once: Path) -> str:
    shutil.copytree(trained_once, "run")
    return "run"


def test_an_error_line_has_no_colours_of_a_terminal(attractor: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal tyro would draw a coloured box."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        for arguments, part in (
            (["--n-stepz=3"], "did you mean --n-steps? ('attractor train --help' shows all)"),
            (["--lr=fast"], "--lr must be a number, got 'fast' ('attractor train --help' shows all)"),
            (["--betas", "0.9"], "--betas must be two numbers, got '0.9'"),
        ):
            said = attractor("train", *arguments)
            assert_refused(said, part)
            assert not re.search(r"\x1b|[│─╭╰]", said.err)


def test_training_ends_with_its_metric_the_next_command_and_its_folder(attractor: Command, corpus: str) -> None:
    """Criterion: without --out the folder is named for mechanism and configuration, so that the same command finds the
    folder and another configuration never does."""
    asked = ["train", *TINY, *SHORT, f"--corpus={corpus}", "--attention=gated"]
    said = attractor(*asked)
    assert (said.code, said.err) == (0, "")
    *_, measure, page, following, folder = said.out.splitlines()
    assert re.fullmatch(r"perplexity [\d.]+, loss [\d.]+ nats/byte", measure)
    assert page == f"page: {folder}/report.html"
    assert "Samples" in Path(folder, "report.html").read_text()
    assert following == f"generate: attractor generate {folder}"
    assert re.fullmatch(r"runs/gated-[0-9a-f]{8}", folder)
    again = attractor(*asked)
    assert again.out.splitlines() == [f"'{folder}' is finished already", measure, page, following, folder]
    other = attractor(*asked, "--seed=1")
    assert other.out.splitlines()[-1] != folder


def test_a_log_has_a_line_for_each_validation_with_the_numbers_of_a_progress_bar(
    attractor: Command, corpus: str
) -> None:
    said = attractor("train", *TINY, *SHORT, f"--corpus={corpus}", "--eval-every=2", "--log-every=1")
    lines = [line for line in said.out.splitlines() if line.startswith("step ")]
    assert [int(line.split()[1]) for line in lines] == [2, 4, 6]
    for part in ("valid loss", "perplexity", "tok/s", "MB", "MFU n/a"):
        assert part in lines[0]


def test_a_plan_prints_the_first_lines_of_training_and_leaves_no_files(
    attractor: Command, corpus: str, tmp_path: Path
) -> None:
    asked = [*TINY, *SHORT, f"--corpus={corpus}", "--attention=gated"]
    before = sorted(tmp_path.iterdir())
    said = attractor("plan", *asked, "--no-calibrate", "--json")
    assert said.code == 0, said.err
    (plan,) = json.loads(said.out)["plans"]
    assert plan["estimate"] is plan["failure"] is None
    shown = attractor("plan", *asked, "--no-calibrate").out
    assert f"{plan['n_parameters']:,}" in shown
    assert "estimated" not in shown
    assert sorted(tmp_path.iterdir()) == before
    first = attractor("train", *asked).out.splitlines()[0]
    assert first.startswith(f"plan: {plan['n_parameters']:,} parameters, ")
    assert "6 steps of 64 tokens" in first
    assert len(first) <= 100


def test_settings_in_a_file_give_the_run_of_the_same_options(attractor: Command, corpus: str, tmp_path: Path) -> None:
    """Criterion: with a file of these options, and with the config.json of their run, the run is finished already."""
    given = {"attention": "gated", "lr": 2e-3, "betas": [0.9, 0.99], "n-steps": 4, "corpus": corpus}
    words = [str(x) for name, value in given.items() for x in (f"--{name}", *([value], value)[isinstance(value, list)])]
    folder = attractor("train", *TINY, *words, "--no-compile", "--device=cpu").out.splitlines()[-1]
    settings = tmp_path / "settings.toml"
    settings.write_text(
        "compile = false\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())
    )
    for asked in ([*TINY, f"--config={settings}"], [f"--config={folder}/config.json"]):
        code, out, err = attractor("train", *asked, "--device=cpu")
        assert (code, err) == (0, "")
        assert out.splitlines()[0] == f"'{folder}' is finished already"
        said = attractor("plan", *asked, "--lr=0.5", "--attention=standard", "--json", "--no-calibrate")
        (plan,) = json.loads(said.out)["plans"]
        assert [plan["config"][name] for name in ("lr", "betas", "n_steps")] == [0.5, [0.9, 0.99], 4]
        assert plan["label"] == "standard"


@pytest.mark.parametrize("recipe", ["laptop", "fast-slow", "psiqrh", "1b"])
def test_a_stored_configuration_is_read_as_it_is(recipe: str, corpus: str, tmp_path: Path) -> None:
    """Criterion: so are a vocabulary larger than that of the data, and options that are off."""
    config = RECIPES[recipe].replace(corpus=corpus, seq_len=32)
    stored = tmp_path / "config.json"
    stored.write_text(json.dumps(config.to_dict() | {"data": "x", "formulas": {}}))
    assert parse_command(runs.TrainArguments, "train", [f"--config={stored}"]).configured() == config
    changed = parse_command(runs.TrainArguments, "train", [f"--config={stored}", "--lr=0.5"]).configured()
    assert changed == config.replace(lr=0.5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_plan_for_an_absent_gpu_says_what_is_not_measured(attractor: Command, corpus: str) -> None:
    """Criterion: FLOPs and memory are planned as on a CPU, without the batch, which stays there; a line says so."""
    asked = ["plan", *TINY, f"--corpus={corpus}", "--size=small", "--n-heads=2"]
    said, on_gpu, on_cpu = (
        attractor(*asked, *options)
        for options in (["--device=cuda"], ["--device=cuda", "--json"], ["--device=cpu", "--no-calibrate", "--json"])
    )
    assert (said.code, said.err) == (0, "")
    (there,), (here,) = (json.loads(said.out)["plans"] for said in (on_gpu, on_cpu))
    assert there["gpu_time"].endswith(" of an H100 at 40% of its peak")
    assert f"{there['gpu_time']}, by its FLOPs; no GPU is here to measure on" in " ".join(said.out.split())
    assert there["estimate"] is here["gpu_time"] is None
    assert there["flops_per_token"] == here["flops_per_token"]
    assert there["memory"]["total"] == here["memory"]["total"] - here["memory"]["batch"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "options", "eval_batches"),
    [
        ("fast-slow", (), 64),
        ("fast-slow", ("--eval-batches=3",), 3),
        ("laptop", (), RECIPES["laptop"].eval_batches),
        ("sudoku", ("--n-boards=50", "--n-valid-boards=10"), None),
    ],
)
def test_a_text_is_validated_on_a_part_unless_the_options_request_more(
    attractor: Command, corpus: str, recipe: str, options: tuple[str, ...], eval_batches: int | None
) -> None:
    """Studies of a published recipe still validate on the whole set, since the recipe itself is unchanged."""
    on_text = (f"--corpus={corpus}",) if recipe != "sudoku" else ()
    said = attractor("plan", f"--recipe={recipe}", *on_text, *options, "--no-calibrate", "--json")
    (plan,) = json.loads(said.out)["plans"]
    assert plan["config"]["eval_batches"] == eval_batches
    assert RECIPES["fast-slow"].eval_batches is None


def test_plans_of_several_mechanisms_show_their_differences(attractor: Command, corpus: str) -> None:
    said = attractor("plan", "standard", "gated", *TINY, *SHORT, f"--corpus={corpus}", "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert [plan["label"] for plan in told["plans"]] == ["standard", "gated"]
    assert all(plan["estimate"]["total_seconds"] > 0 for plan in told["plans"])
    assert told["differences"] == {"model.attention.output.kind": {"standard": "Plain", "gated": "Gated"}}


def test_the_plan_of_a_run_is_that_of_its_own_configuration(attractor: Command, trained: str) -> None:
    said = attractor("plan", f"--resume={trained}", "--no-calibrate", "--json")
    config = json.loads(Path(trained, "config.json").read_text())
    assert json.loads(said.out)["plans"][0]["n_steps"] == config["n_steps"] == 6


def test_options_change_only_their_fields_of_the_recipe(attractor: Command, trained: str) -> None:
    stored = json.loads(Path(trained, "config.json").read_text())
    recipe = json.loads(json.dumps(RECIPES["laptop"].to_dict()))
    assert {name for name in recipe if stored[name] != recipe[name]} == {
        *("model", "task", "n_steps", "warmup_steps", "seq_len", "batch_size", "eval_batches"),
    }
    changed = {name for name, value in recipe["model"].items() if stored["model"][name] != value}
    assert changed == {"d_model", "n_heads", "n_layers", "d_ff", "max_seq_len"}
    assert stored["warmup_steps"] == 0, "a tenth of the steps, as in the recipe"


def test_a_warm_up_longer_than_the_recipe_fits_a_longer_run(attractor: Command, corpus: str) -> None:
    n_steps = 2 * RECIPES["laptop"].n_steps
    options = [f"--corpus={corpus}", f"--n-steps={n_steps}", f"--warmup-steps={n_steps - 1}", "--no-calibrate"]
    (plan,) = json.loads(attractor("plan", *TINY, *options, "--json").out)["plans"]
    assert (plan["n_steps"], plan["config"]["warmup_steps"]) == (n_steps, n_steps - 1)


@pytest.mark.slow
def test_a_run_starts_from_another_one_of_its_mechanism_with_a_larger_vocabulary(
    attractor: Command, corpus: str
) -> None:
    """There is neither a run of the recipe's mechanism nor one of seed 0."""
    own = [f"--corpus={corpus}", "--attention=gated", "--seed=3"]
    assert attractor("train", *TINY, *SHORT, *own, "--vocab-size=384", "--out=gated-seed3").code == 0
    start = [f"--corpus={corpus}", "--start={attention}-seed{seed}", "--seed=3", "--n-steps=1", "--eval-batches=1"]
    said = attractor("train", *start, "--attention=gated", "--out=tuned")
    assert said.code == 0, said.err
    stored = json.loads(Path("tuned/config.json").read_text())["model"]
    assert (stored["attention"], stored["vocab_size"]) == ("gated", 384)
    assert attractor("plan", *start, "gated", "--no-calibrate").code == 0
    for command in ("plan", "train"):
        said = attractor(command, *start, "--attention=gated", "--d-ff=48", "--out=other")
        assert_refused(said, "start must be a run of the same model", "'blocks.0.mlp.down.weight'")
    assert not Path("other").exists()


def test_sampling_follows_its_seed_and_greedy_generation_does_not(attractor: Command, trained: str) -> None:
    asked = ["generate", trained, "--prompt=7 squared [is]", "--max-new-tokens=24"]
    one, again, other = (attractor(*asked, f"--seed={seed}") for seed in (1, 1, 2))
    assert (one.code, one.err) == (0, "")
    assert one.out == again.out != other.out
    greedy = attractor(*asked, "--temperature=0").out
    assert greedy.startswith("7 squared [is]")
    for option in ("--temperature=0", "--top-k=1", "--top-p=1e-9"):
        assert attractor(*asked, option, "--seed=5").out == greedy


def test_an_empty_prompt_starts_a_document(attractor: Command, trained: str) -> None:
    said = attractor("generate", trained, "--max-new-tokens=8", "--checkpoint=last")
    assert (said.code, said.err) == (0, "")
    assert attractor("generate", trained, "--prompt=abc", "--max-new-tokens=0").out == "abc\n"


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("list", {"mechanisms", "sizes", "recipes", "tasks", "corpora"}),
        ("check gated", {"findings"}),
        ("init own.py", {"file"}),
        ("runs show run", {"run", "state", "result", "configuration", "environment"}),
        ("runs prune .", {"removed", "removable", "bytes"}),
        ("report run", {"page"}),
        ("generate run --max-new-tokens=3", {"prompt", "continuation"}),
        ("evaluate run", {"rows", "checkpoint"}),
        ("train --resume=run", {"run", "valid_loss", "metric"}),
        ("study list", {"studies"}),
        ("claims C1", {"claims"}),
        ("compare run run2", {"report", "rows", "verdicts", "failures"}),
        ("plan standard --no-calibrate", {"plans", "differences"}),
    ],
)
def test_json_is_one_object_and_all_else_is_on_standard_error(
    attractor: Command, trained: str, command: str, keys: set[str]
) -> None:
    shutil.copytree(trained, "run2")
    said = attractor(*command.split(), "--json")
    assert said.code == 0, said.err
    assert keys <= json.loads(said.out).keys()


def test_every_command_but_those_that_serve_or_print_a_script_has_json() -> None:
    without = {name for name in COMMANDS if "json" not in {option.name for option in options_of(name)}}
    assert without == {"watch", "completion"}


@pytest.mark.slow
def test_the_page_of_a_run_can_be_written_again_from_its_folder(attractor: Command, trained: str) -> None:
    """The first page may have the charts of an earlier test, see conftest.py, so two later ones are compared."""
    page = Path(trained, "report.html")
    page.unlink()
    assert attractor("report", trained).out.splitlines() == ["run/report.html"]
    first = page.read_bytes()
    page.unlink()
    assert attractor("report", trained).code == 0
    assert page.read_bytes() == first
    assert attractor("report", trained, "--out=pages").out.splitlines() == ["pages/report.html"]


def test_a_run_that_stops_early_has_a_page(attractor: Command, corpus: str) -> None:
    wild = ["--lr=1e30", "--clip=None", "--max-bad-steps=2", "--n-steps=20", "--warmup-steps=0", "--device=cpu"]
    said = attractor("train", *TINY, *wild, f"--corpus={corpus}", "--out=wild")
    assert said.code == 1
    assert "loss or gradient was not finite 2 steps in a row" in said.err
    assert said.out.splitlines()[-1] == "page: wild/report.html"
    assert "diverged" in Path("wild/report.html").read_text()
    again = attractor("train", *TINY, *wild, f"--corpus={corpus}", "--out=wild")
    assert (again.code, again.err) == (1, said.err)
    assert attractor("runs", "list", ".").out.count("diverged") == 1
    assert not Path("wild/samples.json").exists()


def test_a_run_whose_page_or_samples_fail_is_still_finished(
    attractor: Command, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a reason")

    monkeypatch.setattr("attractor.report.run_page.write_run_page", fails)
    monkeypatch.setattr("attractor.train.samples.keep_samples", fails)
    said = attractor("train", *TINY, *SHORT, f"--corpus={corpus}", "--out=run")
    assert (said.code, said.err) == (0, "")
    assert {"no samples: a reason", "no page: a reason"} <= set(said.out.splitlines())
    assert Path("run/summary.json").exists()


def test_an_interrupted_command_ends_as_a_shell_expects(attractor: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has saved prints a line of its own. Before its first step, and after a second Ctrl-C, there is one
    line, too."""

    def interrupted(*_: object) -> None:
        raise RunInterrupted("saved", signal.SIGTERM)

    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    for action, code, line in (
        (interrupted, 143, "saved"),
        (pressed, 130, "interrupted; the same command starts anew"),
    ):
        monkeypatch.setattr(listing, "say", action)
        said = attractor("list")
        assert said.code == code
        assert said.err.startswith(line)
        assert len(said.err.splitlines()) == 1


def test_a_closed_pipe_is_not_an_error() -> None:
    """Criterion: as in `attractor --help | head -1`, standard error stays empty."""
    reader, writer = os.pipe()
    command = [sys.executable, "-c", "from attractor.cli import main; main()", "--help"]
    process = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    os.close(reader)
    assert process.communicate(timeout=60)[1] == ""


def test_the_commands_leave_the_random_state_of_their_host_alone(attractor: Command, trained: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    attractor("generate", trained, "--max-new-tokens=4")
    assert torch.equal(torch.get_rng_state(), before)
