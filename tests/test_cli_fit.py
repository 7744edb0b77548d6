"""Commands refuse sizes that cannot fit into memory, choose batches that do, and plan several processes."""

import json
from pathlib import Path

import pytest

from attractor.train import fit
from in_process import SHORT, TINY, Command, assert_refused

OVERSIZED = {
    "width": (["--d-model=1000000"], ["d_model must leave", "got 1000000", "give a smaller d_model"]),
    "batch": (["--batch-size=100000000"], ["batch_size must leave", "got 100000000", "give a smaller batch_size"]),
    "depth": (["--n-layers=10000000"], ["n_layers must leave", "give a smaller n_layers"]),
    "vocabulary": (["--vocab-size=200000000"], ["vocab_size must leave", "give a smaller vocab_size"]),
    "overflow": (["--d-model=1000000000000"], ["d_model must be at most 268,435,456, got 1000000000000"]),
    "batch of no integer": ([f"--batch-size={10**30}"], ["batch_size must leave"]),
}

EXECUTED = "'study.py' is Python code from outside of attractor's repository, and is executed now\n"
STUDY = """
from attractor.study import Axis, Quantity, Scale, Study
from attractor.train.config import RECIPES
base = RECIPES["laptop"].replace(d_model=WIDTH, batch_size=8, n_steps=2, warmup_steps=0)
STUDY = Study(title="t", question="q", source="s", rows=Axis("attention", {"standard": {}}),
    baseline="standard", scales={"smoke": Scale(base, (0, 1))}, quantities=(Quantity("l", "valid_loss"),))
"""


@pytest.fixture
def attractor(attractor: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(fit, "free_bytes", lambda device: 2**34)
    return attractor


@pytest.mark.parametrize("command", [["train"], ["plan"], ["compare", "standard"]], ids=lambda command: command[0])
@pytest.mark.parametrize("case", OVERSIZED)
def test_a_run_that_cannot_fit_is_refused_in_one_line_before_anything_is_written(
    attractor: Command, command: list[str], case: str, tmp_path: Path
) -> None:
    options, parts = OVERSIZED[case]
    assert_refused(attractor(*command, "--device=cpu", *options), *parts)
    assert not list(tmp_path.iterdir())


def test_a_long_sequence_is_refused_with_the_accumulation_that_fits(attractor: Command) -> None:
    said = attractor("train", "--device=cpu", "--batch-size=8", "--seq-len=200000")
    assert_refused(said, "batch_size must leave", "give accumulation=")


def test_a_study_of_runs_that_cannot_fit_is_refused_and_one_of_many_workers_too(
    attractor: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = Path("study.py")
    study.write_text(STUDY.replace("WIDTH", "400_000"))
    said = attractor("study", "run", "study.py", "--device=cpu")
    assert_refused(said, "d_model must leave", "got 400000", printed=EXECUTED)
    study.write_text(STUDY.replace("WIDTH", "64"))
    monkeypatch.setattr(fit, "free_bytes", lambda device: 2**24)
    said = attractor("study", "run", "study.py", "--device=cpu", "--workers=2", "--launcher=local")
    assert_refused(said, "workers must be few enough", "got 2", "give --workers 1", printed=EXECUTED)
    assert not Path("runs").exists()


def test_a_run_first_reports_its_memory_and_soon_its_duration(attractor: Command) -> None:
    code, out, err = attractor("train", *TINY, *SHORT, "--log-every=2", "--out=run")
    assert code == 0, err
    first, *lines = out.splitlines()
    assert first.startswith("plan: ")
    assert first.endswith(" MB")
    assert "; at least " in first
    assert sum("of steps ahead, at the speed of the first ones" in line for line in lines) == 1


def test_a_finished_run_is_shown_on_a_machine_that_could_not_train_it(
    attractor: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attractor("train", *TINY, *SHORT, "--out=run")[0] == 0
    monkeypatch.setattr(fit, "free_bytes", lambda device: 1)
    assert attractor("train", "--resume=run", "--device=cpu")[0] == 0
    Path("run/summary.json").unlink()
    said = attractor("train", "--resume=run", "--device=cpu")
    assert_refused(said, "must leave the run within the memory that is free")


def test_auto_stores_the_chosen_batch_and_accumulation(attractor: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [option for option in TINY if "batch" not in option]
    code, out, err = attractor("train", *sizes, *SHORT, "--batch-size=auto", "--out=roomy")
    assert code == 0, err
    assert out.splitlines()[0].startswith("batch_size=auto: accumulation=1 with batch_size=4, so that 4 sequences go")
    monkeypatch.setattr(fit, "free_bytes", lambda device: fit.RESERVED + 2**19)
    code, out, err = attractor("train", *sizes, *SHORT, "--batch-size=auto", "--out=narrow")
    assert code == 0, err
    stored = [json.loads(Path(run, "config.json").read_text()) for run in ("roomy", "narrow")]
    assert [config["batch_size"] for config in stored] == [4, 4]
    assert stored[0]["accumulation"] == 1 < stored[1]["accumulation"]
    (plan,) = json.loads(attractor("plan", *sizes, *SHORT, "--batch-size=auto", "--no-calibrate", "--json")[1])["plans"]
    assert plan["config"]["accumulation"] == stored[1]["accumulation"]


def test_keep_sets_the_number_of_kept_checkpoints(attractor: Command) -> None:
    assert attractor("train", *TINY, *SHORT, "--save-every=1", "--eval-every=6", "--keep=3", "--out=run")[0] == 0
    names = [path.name for path in sorted(Path("run/checkpoints").glob("step-*"))]
    assert names == ["step-00000004", "step-00000005", "step-00000006"]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_several_processes_are_planned_by_a_single_one(attractor: Command, parallel: str) -> None:
    asked = ["plan", "--batch-size=16", "--device=cpu", "--devices=8", f"--parallel={parallel}"]
    code, out, err = attractor(*asked, "--json")
    assert code == 0, err
    (plan,) = json.loads(out)["plans"]
    shared = plan["distributed"]
    assert (shared["devices"], shared["parallel"], shared["sequences_per_micro_batch"]) == (8, parallel, 2)
    assert shared["memory"] == plan["memory"]
    assert plan["estimate"] is None
    shown = attractor(*asked)[1]
    for part in (f"8 ({parallel})", "sends a step", "memory of each, at least", "gradients", "optimizer"):
        assert part in shown
    assert ("gathered layer" in shown) == (parallel == "fsdp")
