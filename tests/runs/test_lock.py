"""Several processes at once: a run has one owner, and files that several write arrive complete."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from attractor.files import write_json
from attractor.runs.lock import RunInUseError, hold, is_held, turn
from attractor.runs.run_folder import RunFolder, find_runs
from attractor.train.process import fresh_processes

CONFIG = {"label": "standard", "seed": 0}
N_PROCESSES = 4


def side_by_side(work: Callable[..., None], *arguments: object) -> None:
    context = fresh_processes()  # a fork would inherit locks
    processes = [context.Process(target=work, args=(number, *arguments)) for number in range(N_PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * N_PROCESSES


def create_runs(number: int, root: Path) -> None:
    for index in range(3):
        RunFolder.create(root / "shared" / str(index), CONFIG).seal()
        RunFolder.create(root / f"own-{number}-{index}", CONFIG | {"seed": number}).write_summary({"by": number})


def test_several_processes_create_runs_in_one_folder(tmp_path):
    """Criterion: four processes create 12 separate runs, and each creates and seals 3 others, too, as the ranks of a
    distributed run do. All are as their seals say."""
    side_by_side(create_runs, tmp_path)
    runs = find_runs(tmp_path)
    assert len(runs) == 3 * N_PROCESSES + 3
    for run in runs:
        run.refuse_altered()
        if run.path.parent.name != "shared":
            assert run.summary() == {"by": run.config["seed"]}


def test_a_folder_that_becomes_a_run_during_the_check_is_accepted(tmp_path, monkeypatch):
    """Another process creates the run between the check for config.json and the listing of the folder."""
    RunFolder.create(tmp_path, CONFIG).append({"step": 0, "tokens": 0})
    answers = iter([False])
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: next(answers, None) is not False and exists(path))
    assert RunFolder.create(tmp_path, CONFIG).metrics() == [{"step": 0, "tokens": 0}]


def write_comparison(number: int, path: Path) -> None:
    for _ in range(8):
        write_json(path, {"by": number, "rows": [number] * 2000})
        rows = json.loads(path.read_text())
        assert rows["rows"] == [rows["by"]] * 2000


def test_a_file_rewritten_by_several_processes_is_always_one_complete_version(tmp_path):
    side_by_side(write_comparison, tmp_path / "comparison.json")
    assert [child.name for child in tmp_path.iterdir()] == ["comparison.json"]


def hold_until_killed(path: Path, ready: object) -> None:
    with hold(path):
        ready.set()
        signal.pause()


def test_a_second_process_is_refused_until_the_first_is_gone_even_by_kill_9(tmp_path):
    """Criterion: the error is one line with folder, process and next step, and the kernel releases the lock of a killed
    process."""
    context = fresh_processes()
    ready = context.Event()
    process = context.Process(target=hold_until_killed, args=(tmp_path, ready))
    process.start()
    assert ready.wait(60)
    with pytest.raises(RunInUseError) as caught, hold(tmp_path):
        pass
    assert str(caught.value) == (
        f"'{tmp_path}' must be free, and another process (id {process.pid}) carries out this run; "
        "wait until it ends, or stop it and then resume"
    )
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with hold(tmp_path):
        pass


def test_a_file_system_without_locks_is_reported_and_used(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.warns(UserWarning, match="run one process at a time"), hold(tmp_path):
        pass


def test_checking_whether_a_run_is_held_writes_nothing(tmp_path):
    run = RunFolder.create(tmp_path / "run", CONFIG)
    assert run.state == "not begun"
    untouched = tmp_path / "elsewhere"
    untouched.mkdir()
    assert not is_held(untouched)
    assert not list(untouched.iterdir())
    with run.hold(), turn(run.path):  # an owner that is paused while it writes a file keeps nobody waiting
        assert is_held(run.path)
        assert run.state == "running"
        with pytest.raises(RunInUseError, match=f"id {os.getpid()}"), hold(run.path):
            pass
    assert not is_held(run.path)
    run.append({"step": 1, "tokens": 1})
    assert run.state == "interrupted"
    run.write_summary({"steps": 1})
    assert run.state == "finished"


def hold_again_and_again(number: int, path: Path) -> None:
    for _ in range(300):
        if number == 0:
            with hold(path):  # raises RunInUseError if a check held the lock
                pass
        else:
            is_held(path)


def test_a_check_never_keeps_a_process_from_its_run(tmp_path):
    """Criterion: one process takes a run 300 times while three others check whether the run is held."""
    RunFolder.create(tmp_path, CONFIG)
    side_by_side(hold_again_and_again, tmp_path)
