"""Observations are read from what other programs write, and what cannot be read is refused in a line."""

import gzip
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attractor.errors import InputError
from attractor.verdict.observations import Observations
from attractor.verdict.reading import read_observations

NAN = math.nan


def write(folder: Path, files: dict[str, str]) -> list[Path]:
    paths = [folder / name for name in files]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = files[path.relative_to(folder).as_posix()].encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return paths


def values(observations: Observations) -> dict[str, dict[Any, float]]:
    return {row: observations.values(row) for row, _ in observations}


def trainer_state(*losses: float) -> str:
    """Return the state that Trainer of transformers saves, with training losses between the evaluations."""
    history: list[dict[str, float]] = []
    for n, loss in enumerate(losses, start=1):
        history += [{"epoch": n, "loss": 9.0, "grad_norm": 1.0, "step": 100 * n}]
        history += [{"epoch": n, "eval_loss": loss, "eval_samples_per_second": 7.0, "step": 100 * n}]
    history += [{"epoch": len(losses), "train_loss": 8.0, "train_runtime": 60.0, "step": 100 * len(losses)}]
    return json.dumps({"best_metric": None, "global_step": 100 * len(losses), "log_history": history})


def lm_eval(model: str, acc: float) -> str:
    task = {"alias": "piqa", "acc,none": acc, "acc_stderr,none": 0.01}
    config = {"model": "hf", "model_args": f"pretrained={model},dtype=bfloat16", "random_seed": 0, "numpy_seed": 1234}
    return json.dumps({"results": {"piqa": task}, "n-shot": {"piqa": 0}, "config": config, "model_name": model})


NANO_GPT = """step 0: train loss 10.9, val loss 10.9
iter 0: loss 10.8, time 9.1ms, mfu -100.00%
iter 10: loss 5.4, time 8.1ms, mfu 1.20%
step 250: train loss 2.1, val loss {}
"""
NANOCHAT = """Step 00000 | Validation bpb: 3.2
step 00000/00100 (0.00%) | loss: 11.1 | lrm: 1.00 | dt: 9ms | tok/sec: 57
Step 00100 | Validation bpb: {}
"""
MODDED = """import torch
====================================================================================================
step:0/1750 val_loss:10.8258 train_time:0ms step_avg:nanms
step:1/1750 train_time:120ms step_avg:120.01ms
step:1750/1750 val_loss:{} train_time:180000ms step_avg:102.86ms
"""
JULIA = "epoch=1 [worker 2] held-out nll = {}\nepoch=2 [worker 2] held-out nll = {}\n"
LOOP = """commit\tval_bpb\tmemory_gb\tstatus\tdescription
a1b2c3d\t0.9979\t44.0\tkeep\tbaseline
b2c3d4e\t0.9932\t44.2\tkeep\thigher rate
c3d4e5f\t1.005\t44.0\tdiscard\tuse GELU
d4e5f6a\t0.000000\t0.0\tcrash\tdouble the width
"""
WANDB = """"Name","State","Created","Runtime","seed","model","val/loss","train/loss"
"happy-sun-1","finished","2026-01-02T10:00:00.000Z","120","0","standard","3.3","3.0"
"wise-sea-2","crashed","2026-01-02T11:00:00.000Z","60","1","standard","5.0","4.9"
"calm-oak-3","finished","2026-01-02T12:00:00.000Z","121","0","mine","3.2","2.9"
"late-elm-4","running","2026-01-02T12:30:00.000Z","9","1","mine","7.0","7.1"
"""
CHART = """"Step","std-s0 - val/loss","std-s0 - val/loss__MIN","std-s0 - val/loss__MAX","mine-s0 - val/loss"
"0","9","9","9","9.5"
"10","","","","4.1"
"20","4","4","4",""
"""
MLFLOW = """Start Time,Duration,Run ID,run_id,status,params.seed,params.loss,tags.mlflow.runName,metrics.val_loss
2026-01-02 10:00:00,2.0min,ab,ab,FINISHED,0,mse,standard,3.3
2026-01-02 10:05:00,2.0min,cd,cd,FAILED,0,mse,mine,
"""
LIGHTNING = "epoch,step,val_loss\n0,5,\n0,5,2\n1,10,1\n"
WRITTEN: dict[str, tuple[dict[str, str], dict[str, str], dict[str, dict[Any, float]], str]] = {
    # what: files, options, values by row and seed, a part of the notes
    "table": (
        {"a.csv": "method,seed,val_loss,train_loss\nx,0,1,9\nx,1,nan,9\ny,0,,9\ny,1,-inf,9\n"},
        {},
        {"x": {0: 1.0, 1: NAN}, "y": {0: NAN, 1: -math.inf}},
        "row: 'method', seed: 'seed', value: 'val_loss'",
    ),
    "options": (
        {"a.csv": "method,seed,cue,loss\nx,0,a,1\ny,1,a,2\n"},
        {"row": "cue", "seed": "method", "value": "loss"},
        {"a": {"x": 1.0, "y": 2.0}},
        "row: 'cue', seed: 'method'",
    ),
    "steps": (
        {"a.csv": "method,seed,step,loss\nx,0,10,1\nx,0,2,3\n"},
        {},
        {"x": {0: 1.0}},
        "step: 'step'",
    ),
    "no seeds": ({"a.csv": "method,loss\nx,1\nx,2\ny,3\n"}, {}, {"x": {0: 1.0, 1: 2.0}, "y": {0: 3.0}}, "no seeds"),
    "one number": ({"mine.csv": "loss\n1\n"}, {}, {"mine": {0: 1.0}}, "names of the files"),
    "a table for each run": (
        {f"runs/{row}/seed{seed}/metrics.csv": LIGHTNING for row in "xy" for seed in (0, 1)},
        {},
        {"x": {0: 1.0, 1: 1.0}, "y": {0: 1.0, 1: 1.0}},
        "row: from the names of the files, seed: from the names of the files, value: 'val_loss', step: 'step'",
    ),
    "gzip": ({"mine.s0.csv.gz": "loss\n1\n", "mine.s1.csv.gz": "loss\n2\n"}, {}, {"mine": {0: 1.0, 1: 2.0}}, "table"),
    "a log in gzip": ({"mine.s7.log.gz": NANOCHAT.format(".93")}, {}, {"mine": {7: 0.93}}, "log of nanochat"),
    "markdown": (
        {"note.md": "We ran\n\n| method | seed | **loss** |\n|---|:-:|--:|\n| `x` | 0 | 1 |\n| **y** | 0 | .5\n"},
        {},
        {"x": {0: 1.0}, "y": {0: 0.5}},
        "note.md': table in markdown",
    ),
    "no header": ({"a.tsv": "x\t0\t.5\nx\t1\t1\n"}, {}, {"x": {0: 0.5, 1: 1.0}}, "taken to have no header line"),
    "no header, by place": (
        {"a.csv": "x,0,5e-1,.7\ny,0,1,2\n"},
        {"row": "1", "seed": "2", "value": "4"},
        {"x": {0: 0.7}, "y": {0: 2.0}},
        "row: 'column 1', seed: 'column 2', value: 'column 4'",
    ),
    "a column for each seed": (
        {"a.csv": "method,0,1\nx,1,2\ny,3,nan\n"},
        {},
        {"x": {0: 1.0, 1: 2.0}, "y": {0: 3.0, 1: NAN}},
        "table with a column for each seed",
    ),
    "a column for each row": (
        {"a.csv": "seed,base,mine\n0,3.3,3.2\n1,3.1,nan\n"},
        {},
        {"base": {0: 3.3, 1: 3.1}, "mine": {0: 3.2, 1: NAN}},
        "table with a column for each row",
    ),
    "a column for each row, by pandas": (
        {"a.csv": ",base,mine\n0,3.3,3.2\n1,3.1,3.0\n"},
        {},
        {"base": {0: 3.3, 1: 3.1}, "mine": {0: 3.2, 1: 3.0}},
        "table with a column for each row",
    ),
    "an object of seeds for each row": (
        {"a.json": '{"x": {"7": 1.5, "11": 2.5}, "y": {"7": 1.7, "11": null}}'},
        {},
        {"x": {7: 1.5, 11: 2.5}, "y": {7: 1.7, 11: NAN}},
        "table with a column for each seed",
    ),
    "columns as pandas writes them in JSON": (
        {"a.json": '{"x": {"0": 1.5, "1": 2.5}, "y": {"0": 1.7, "1": 2.7}}'},
        {},
        {"x": {0: 1.5, 1: 2.5}, "y": {0: 1.7, 1: 2.7}},
        "table with a column for each row",
    ),
    "an object for each run": (
        {"a.json": '{"x-s0": {"loss": 1}, "x-s1": {"loss": 2}, "y-s0": {"loss": 3}}'},
        {},
        {"x": {0: 1.0, 1: 2.0}, "y": {0: 3.0}},
        "row and seed: from 'name', as 'x-s0'",
    ),
    "a row by two columns": (
        {"a.csv": "model,size,seed,loss\nx,1,0,1\nx,2,0,2\ny,1,0,3\n"},
        {"row": "model,size"},
        {"x, 1": {0: 1.0}, "x, 2": {0: 2.0}, "y, 1": {0: 3.0}},
        "row: 'model,size', seed: 'seed'",
    ),
    "numbers that every row has": (
        {f"{row}-{n}.log": f"loss {n}.5\n" for row in ("x", "y-2") for n in (1, 2)},
        {"value": "loss (.*)"},
        {"x": {1: 1.5, 2: 2.5}, "y-2": {1: 1.5, 2: 2.5}},
        "seed: from the names of the files",
    ),
    "numbers that tell rows apart": (
        {"a.csv": "name,loss\nx-2,1\nx-4,2\ny-2,3\ny-4,4\nz,5\n"},
        {},
        {"x-2": {0: 1.0}, "x-4": {0: 2.0}, "y-2": {0: 3.0}, "y-4": {0: 4.0}, "z": {0: 5.0}},
        "no seeds",
    ),
    "columns called seed 1 and s2": ({"a.csv": ',"seed 1",s2\nx,1,2\n'}, {}, {"x": {1: 1.0, 2: 2.0}}, "each seed"),
    "steps, then a column for each seed": ({"m.csv": "step,0,1\n5,.1,.2\n"}, {"value": "3"}, {"m": {0: 0.2}}, "table"),
    "pandas": ({"a.csv": ",name,seed,acc\n0,x,0.0,5\n1,y,0.0,6\n"}, {}, {"x": {0: 5.0}, "y": {0: 6.0}}, "value: 'acc'"),
    "W&B": ({"wandb.csv": WANDB}, {}, {"standard": {0: 3.3, 1: NAN}, "mine": {0: 3.2}}, "until their runs end"),
    "W&B, by a setting": (
        {"a.csv": "Name,State,lr,seed,acc\nsun,x,1e-3,0,1\nsea,x,1e-3,1,2\noak,x,2e-3,0,3\nelm,x,2e-3,1,4\n"},
        {},
        {"1e-3": {0: 1.0, 1: 2.0}, "2e-3": {0: 3.0, 1: 4.0}},
        "row: 'lr', which alone tells runs of a seed apart",
    ),
    "settings without names": (
        {"a.csv": "lr,seed,loss\n1e-3,0,1\n1e-3,1,2\n2e-3,0,3\n2e-3,1,4\n"},
        {},
        {"1e-3": {0: 1.0, 1: 2.0}, "2e-3": {0: 3.0, 1: 4.0}},
        "row: 'lr', which alone",
    ),
    "a schedule is no setting": (
        {"a.csv": "step,lr,seed,loss\n1,1e-3,0,1\n1,1e-3,1,2\n2,2e-3,0,3\n2,2e-3,1,4\n"},
        {},
        {"a": {0: 3.0, 1: 4.0}},
        "names of the files",
    ),
    "W&B, by one of two settings": (
        {"a.csv": "Name,lr,wd,seed,acc\nsun,1,.1,0,1\nsea,1,.1,1,2\noak,2,.2,0,3\nelm,2,.2,1,4\n"},
        {},
        {"sun": {0: 1.0}, "sea": {1: 2.0}, "oak": {0: 3.0}, "elm": {1: 4.0}},
        "or --row 'lr', 'wd', which tell",
    ),
    "W&B chart": ({"chart.csv": CHART}, {}, {"std": {0: 4.0}, "mine": {0: 4.1}}, "chart of W&B"),
    "MLflow": ({"runs.csv": MLFLOW}, {}, {"standard": {0: 3.3}, "mine": {0: NAN}}, "value: 'metrics.val_loss'"),
    "Trainer": (
        {
            "out/mine-seed0/checkpoint-100/trainer_state.json": trainer_state(3.0),
            "out/mine-seed0/checkpoint-200/trainer_state.json": trainer_state(3.0, 2.5),
            "out/standard-seed0/trainer_state.json": trainer_state(3.1, NAN),
        },
        {},
        {"mine": {0: 2.5}, "standard": {0: NAN}},
        "trainer_state.json of Hugging Face",
    ),
    "lm-eval": (
        {f"results_2026-01-01T1{seed}.json": lm_eval(f"mine-seed{seed}", 0.6 + seed) for seed in (0, 1)},
        {},
        {"mine": {0: 0.6, 1: 1.6}},
        "row and seed: from 'model', as 'mine-seed0', value: 'piqa acc'",
    ),
    "nanoGPT": (
        {"mine_seed_0.log": NANO_GPT.format("2.3"), "mine_seed_1.log": NANO_GPT.format("nan"), "mine_seed_2.log": ""},
        {},
        {"mine": {0: 2.3, 1: NAN, 2: NAN}},
        "mine_seed_2.log' has no value: its run counts as failed",
    ),
    "nanoGPT without validation": ({"a.s3.txt": "iter 5: loss 2.5, time 8ms\n"}, {}, {"a": {3: 2.5}}, "training only"),
    "nanochat": ({"mine.s7.log": NANOCHAT.format(".93")}, {}, {"mine": {7: 0.93}}, "log of nanochat"),
    "modded-nanogpt": ({"abc.txt": MODDED.format("3.2791")}, {}, {"abc": {0: 3.2791}}, "log of modded-nanogpt"),
    "any log": (
        {"seed1/mine.out": JULIA.format(4, "3e0"), "seed1/theirs.out": JULIA.format(5, "inf")},
        {"value": r"nll = (\S+)"},
        {"mine": {1: 3.0}, "theirs": {1: math.inf}},
        "without steps",
    ),
    "any log, with all said": (
        {"mine=1.out": JULIA.format(4, 3), "mine=2.out": JULIA.format(4, 2)},
        {"value": r"nll = (\S+)", "step": r"epoch=(\d+)", "row": r"/(\w+)=", "seed": r"=(\d+)\.out"},
        {"mine": {1: 3.0, 2: 2.0}},
        "2 files are read as log",
    ),
    "loop of ideas": (
        {"results.tsv": LOOP},
        {},
        {"baseline": {0: 0.9979}, "higher rate": {0: 0.9932}, "use GELU": {0: 1.005}, "double the width": {0: NAN}},
        "results of a loop of ideas",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRITTEN)
@pytest.mark.parametrize("as_folder", [False, True], ids=["files", "folder"])
def test_what_other_programs_write_is_read(what: str, as_folder: bool, tmp_path: Path) -> None:
    files, options, expected, note = WRITTEN[what]
    paths = write(tmp_path, files)
    observations = read_observations([tmp_path] if as_folder else paths, **options)
    assert str(values(observations)) == str(expected) or values(observations) == expected  # nan is no other nan
    assert note in "; ".join(observations.notes)


def test_curves_costs_and_fates_of_runs_are_kept(tmp_path: Path) -> None:
    [log, loop, state] = write(
        tmp_path, {"a.log": MODDED.format(3), "r.tsv": LOOP, "trainer_state.json": trainer_state(2, 1)}
    )
    run = read_observations([log]).rows["a"][0]
    assert (run.curve, run.seconds) == (((0.0, 10.8258), (1750.0, 3.0)), 180.0)
    [goes_on] = write(tmp_path, {"b.log": NANO_GPT.format(3) + NANO_GPT.format(2)})  # the later of two values counts
    assert read_observations([goes_on]).rows["b"][0].curve == ((0.0, 10.9), (250.0, 2.0))
    ideas = read_observations([loop])
    assert not ideas.seeded
    assert [run.kept for _, runs in ideas for run in runs.values()] == [True, True, False, None]
    [run] = [run for _, runs in read_observations([state]) for run in runs.values()]
    assert (run.curve, run.seconds) == (((100.0, 2.0), (200.0, 1.0)), 60.0)


def events(folder: Path, **scalars: float) -> Path:
    """Write an event file of TensorBoard as its own writer does."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    writer = EventFileWriter(str(folder))
    for tag, number in scalars.items():
        for step in (1, 2):
            old = Summary.Value(tag=f"{tag}/loss", simple_value=number * step)
            new = Summary.Value(tag=f"{tag}/tensor", tensor=make_tensor_proto(number))
            text = Summary.Value(tag="text", tensor=make_tensor_proto("words"))
            writer.add_event(Event(step=step, summary=Summary(value=[old, new, text])))
    writer.close()
    [path] = folder.iterdir()
    return path


def test_event_files_are_read(tmp_path: Path) -> None:
    for seed in (0, 1):
        events(tmp_path / "mine" / f"seed_{seed}", val=1.5 + seed, train=9.0)
    observations = read_observations([tmp_path])
    assert values(observations) == {"mine": {0: 3.0, 1: 5.0}}
    assert observations.rows["mine"][0].curve == ((1.0, 1.5), (2.0, 3.0))
    assert observations.value == "val/loss"
    assert read_observations([tmp_path], value="val/tensor").values("mine") == {0: 1.5, 1: 2.5}


def test_an_event_file_that_was_cut_is_read_up_to_there_and_a_damaged_one_refused(tmp_path: Path) -> None:
    path = events(tmp_path / "mine", val=2.0)
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    assert values(read_observations([path])) == {"mine": {0: 2.0}}
    for at in (len(content) - 8, len(content) // 2, 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
        with pytest.raises(InputError, match=r"is damaged: the checksum"):
            read_observations([path])


def folder_with_a_pipe(folder: Path) -> None:
    (folder / "input").mkdir()
    os.mkfifo(folder / "input" / "a.log")


Make = Callable[[Path], object]
REFUSED: dict[str, tuple[dict[str, str] | Make, dict[str, str], str]] = {
    "no path": ({}, {}, "at least one file"),
    "absent": (lambda folder: None, {}, "cannot be read"),
    "no rows": ({"a.csv": "method,loss\n"}, {}, "with rows below"),
    "text among numbers": ({"a.csv": "method,loss\nx,1\nx,1\ny,oops\n"}, {}, "'loss' .* row 3 of '.*' has 'oops'"),
    "two columns of values": ({"a.csv": "method,val_loss,val_acc\nx,1,2\n"}, {}, "'val_loss', 'val_acc' .*--value"),
    "a setting beside a number": ({"a.csv": "seed,width,x\n0,64,.1\n1,64,.2\n"}, {}, "'width', 'x' .*--value"),
    "no header, two numbers": ({"a.csv": "x,.1,.2\ny,.3,.4\n"}, {}, "'column 2', 'column 3' .*--value"),
    "a place beyond the columns": ({"a.csv": "x,.1\ny,.3\n"}, {"value": "3"}, "a column, got '3'; .*'row', 'value'"),
    "a metric of texts": ({"a.csv": "method,loss\nx,5%\n"}, {}, "'loss' must hold numbers, and row 1 of .* has '5%'"),
    "no column of values": ({"a.csv": "method,seed\nx,1\n"}, {}, "none seems to; give --value"),
    "unknown column": ({"a.csv": "method,loss\nx,1\n"}, {"seed": "sed"}, "a column, got 'sed'; .* 'method', 'loss'"),
    "unknown value": ({"a.csv": "method,loss\nx,1\n"}, {"value": "los"}, "a column, got 'los'; .* 'method', 'loss'"),
    "empty row": ({"a.csv": "method,loss\nx,1\n,2\n"}, {}, "'method' must be filled, and in row 2 of"),
    "empty seed": ({"a.csv": "method,seed,loss\nx,1,1\nx,,2\n"}, {}, "'seed' must be filled, and in row 2 of"),
    "repeats of a seed": ({"a.csv": "method,seed,loss\nx,1,1\nx,1,2\n"}, {}, "'x' with seed 1 .* give --step"),
    "steps twice": ({"a.csv": "method,step,loss\nx,1,1\nx,1,2\n"}, {}, "two at step 1 .*--seed"),
    "a line without its step": ({"a.csv": "method,step,loss\nx,1,1\nx,,2\n"}, {}, "row 2 of '.*' has a value and none"),
    "no run has ended": ({"a.csv": "method,loss,state\nx,1,running\n"}, {}, "got 'runs under way alone'; wait until"),
    "wide row": ({"a.csv": "method,loss\nx,1,2\n"}, {}, "3 fields where the header has 2"),
    "empty log": ({"a.log": ""}, {}, "is empty"),
    "unknown log": ({"a.log": "epoch 1, held-out 3\nepoch 2, held-out 2\n"}, {}, "--value 'val_loss:"),
    "expression without a match": ({"a.log": NANO_GPT}, {"value": "bpb: (.*)"}, "value must be in a line .*'bpb: "),
    "broken expression": ({"a.log": "loss 3\n"}, {"value": "loss ([0-9"}, "must be a regular expression"),
    "expression with two groups": ({"a.log": "loss 3\n"}, {"value": "(loss) (.)"}, "must have one group"),
    "expression that finds text": ({"a.log": "loss 3\nloss of it\n"}, {"value": r"loss (\S+)"}, "row 2 of .* has 'of'"),
    "value without a group": ({"a.log": "epoch 3\n"}, {"value": "epoch"}, "value must be in a line"),
    "step without a match": ({"a.log": "loss 3\n"}, {"value": "loss (.)", "step": "at (.)"}, "step must be in each"),
    "row without a match": ({"a.log": NANO_GPT.format(1)}, {"row": "(no)pe"}, "row must match the path"),
    "two logs of a seed": (
        {"a-s0.log": NANO_GPT.format(1), "a_s0.log": NANO_GPT.format(2)}, {}, "two at step 0 .* told apart",
    ),
    "neither table nor log": ({"a.py": "pass"}, {}, "must be a table or the log of a known program"),
    "binary": (lambda folder: (folder / "input").write_bytes(b"\x7fELF\0\0"), {}, "not binary data"),
    "not UTF-8": (lambda folder: (folder / "input").write_bytes(b"\xff\xfe"), {}, "UTF-8"),
    "pipe": (lambda folder: os.mkfifo(folder / "input"), {}, "regular file"),
    "empty folder": (lambda folder: (folder / "input").mkdir(), {}, "holds tables or logs"),
    "folder with a pipe": (folder_with_a_pipe, {}, "holds tables or logs"),
    "device": (lambda folder: (folder / "input").symlink_to("/dev/zero"), {}, "regular file"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_a_line(case: str, tmp_path: Path) -> None:
    files, options, message = REFUSED[case]
    if isinstance(files, dict):
        paths = write(tmp_path, files)
    else:
        files(tmp_path)
        paths = [tmp_path / "input"]
    with pytest.raises(InputError, match=message) as error:
        read_observations(paths, **options)
    assert "\n" not in str(error.value)
