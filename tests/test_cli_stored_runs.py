"""The commands about stored runs list, show, compare and prune them."""

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from attractor.runs.run_folder import RunFolder
from attractor.train.checkpoint import list_checkpoints
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train
from in_process import command_in_process

RUNTIME = Runtime(device="cpu", threads=1, save_every=2, keep=3, telemetry_every=None)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    (folder / "squares.txt").write_text("".join(f"{n} squared is {n * n}.\n" for n in range(3000)))
    base = TrainConfig().replace(
        d_model=16, n_heads=2, n_layers=1, d_ff=16, n_steps=6, warmup_steps=1, batch_size=2, seq_len=16, eval_every=2,
        corpus=str(folder / "squares.txt"), eval_batches=2,
    )  # fmt: skip
    for attention in ("standard", "gated"):
        for seed in (0, 1):
            train(base.replace(attention=attention, seed=seed), folder / "runs" / f"{attention}-{seed}", RUNTIME)
    return folder


@pytest.fixture
def attractor(monkeypatch, capsys, pool):
    monkeypatch.chdir(pool)
    return command_in_process(monkeypatch, capsys)


def test_runs_are_listed_filtered_and_sorted(attractor):
    code, out, _ = attractor("runs", "list")
    assert code == 0
    assert all(f"{attention}-{seed}" in out for attention in ("standard", "gated") for seed in (0, 1))
    assert out.splitlines()[-1] == "4 runs"
    code, out, _ = attractor("runs", "list", "--where", "attention=gated seed<1", "--columns", "d_model")
    assert (code, out.splitlines()[-1]) == (0, "1 runs")
    assert "model.d_model" in out
    code, out, _ = attractor("runs", "list", "--sort", "loss", "--json")
    stored = [json.loads(line) for line in out.splitlines()]
    assert [run["loss"] for run in stored] == sorted(run["loss"] for run in stored)
    assert Path(stored[0]["run"], "config.json").is_file()
    code, out, _ = attractor("runs", "list", "--where", "seed=7", "--sort", "loss")
    assert (code, out.splitlines()[-1]) == (0, "0 runs")


def test_show_prints_the_content_of_a_run(attractor):
    code, out, _ = attractor("runs", "show", "runs/gated-0")
    assert code == 0
    for line in ("  state: finished", "  model.attention: gated", "  steps: 6"):
        assert line in out


def test_runs_are_compared_by_their_common_fields(attractor):
    code, out, err = attractor("runs", "compare", "--where", "corpus~squares.txt seed=0", "--out", "compared")
    assert (code, err) == (0, "")
    assert Path(out.splitlines()[-1]) == Path("compared/report.html")
    code, _, err = attractor("runs", "compare", "--where", "label=gated seed=0")
    assert code == 2
    assert "at least 2 finished runs must meet the conditions, got 1" in err


def test_only_unneeded_files_are_pruned_and_only_on_request(attractor):
    folders = [Path("runs/gated-0/checkpoints"), Path("runs/standard-0/checkpoints")]
    before = [list_checkpoints(folder) for folder in folders]
    best = f"step-{json.loads((folders[0] / 'best.json').read_text())['step']:08d}"
    code, out, _ = attractor("runs", "prune", "--where", "label=gated")
    assert code == 0
    named = [", ".join(path.name for path in paths) for paths in ([p for p in before[0] if p.name != best],)]
    assert f"gated-0: {named[0]}" in out.splitlines()
    assert out.splitlines()[-1].startswith("would remove 4 checkpoints")
    assert [list_checkpoints(folder) for folder in folders] == before
    code, out, _ = attractor("runs", "prune", "--where", "label=gated", "--yes")
    assert out.splitlines()[-1].startswith("removed 4 checkpoints")
    assert [path.name for path in list_checkpoints(folders[0])] == [best]
    assert list_checkpoints(folders[1]) == before[1]


def test_a_run_that_a_process_holds_is_not_pruned(attractor, pool):
    folder = RunFolder.open(Path("runs/standard-1"))
    before = list_checkpoints(folder.checkpoints)
    with folder.hold():
        code, out, _ = attractor("runs", "prune", "--keep", "none", "--where", "label=standard seed=1", "--yes")
    assert code == 0
    assert "standard-1: left as it is: " in out
    assert out.splitlines()[-1].startswith("removed 0 checkpoints")
    assert list_checkpoints(folder.checkpoints) == before


@pytest.mark.parametrize("linked", ["checkpoints", "checkpoints/step-00000001"])
def test_pruning_leaves_what_lies_behind_a_link(attractor, pool, tmp_path, linked):
    folder = Path("runs/standard-1")
    name = next(path.name for path in list_checkpoints(folder / "checkpoints"))
    place = folder / linked.replace("step-00000001", name)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = sorted((tmp_path / "elsewhere").rglob("*"))
    assert attractor("runs", "prune", "--keep", "none", "--where", "label=standard seed=1", "--yes")[0] == 0
    assert sorted((tmp_path / "elsewhere").rglob("*")) == before != []
    assert place.is_symlink()


def test_pruning_asks_a_person_and_names_the_studies_of_the_runs(attractor, pool, monkeypatch):
    folder = pool / "runs/standard-0/checkpoints"
    before = list_checkpoints(folder)
    assert attractor("runs", "compare", "--where", "label=standard", "--out", "around")[0] == 0
    line = "around: 1 of these runs belong to this study; its record stays, but "
    assert line in attractor("runs", "prune", "--where", "seed=0 label=standard")[1]
    monkeypatch.chdir("runs")
    assert "../" + line in attractor("runs", "prune", ".", "--where", "seed=0 label=standard")[1]
    monkeypatch.chdir("..")
    questions = []
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(Console, "input", lambda self, question: questions.append(question) or "n")
    code, out, _ = attractor("runs", "prune", "--where", "seed=0 label=standard", "--keep", "none")
    assert (code, out.splitlines()[-1]) == (0, "nothing was removed")
    assert questions[0].startswith(f"remove {len(before)} checkpoints of ")
    assert list_checkpoints(folder) == before
    monkeypatch.setattr(Console, "input", lambda self, question: "y")
    code, out, _ = attractor("runs", "prune", "--where", "seed=0 label=standard")
    assert out.splitlines()[-1].startswith(f"removed {len(before) - 1} checkpoints of ")
    assert len(list_checkpoints(folder)) == 1


@pytest.mark.filterwarnings("default::attractor.errors.LeftOutWarning")
def test_a_damaged_run_is_finished_anew(attractor):
    Path("runs/standard-1/summary.json").write_text("")
    code, out, err = attractor("runs", "list")
    assert code == 1
    assert "standard-1" in out
    assert err.startswith("warning: damaged: standard-1: ")
    code, out, _ = attractor("train", "--resume", "runs/standard-1", "--device", "cpu")
    assert code == 0
    assert "damaged: summary.json: the file must hold one JSON object; it is kept as summary.json.damaged" in out
    assert "finished" in attractor("runs", "show", "runs/standard-1")[1]
