"""Runs on a real Ray cluster of this machine equal local ones and survive killed workers, errors and interrupts."""

import gc
import getpass
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attractor.errors import InputError
from attractor.runs.run_folder import RunFolder
from attractor.study import on_ray
from attractor.study.archive import pack, unpack
from attractor.study.launch import Job
from attractor.study.on_ray import Cluster, Kind, Places, RayTask, carry_out, connected, fit, launch
from attractor.train.checkpoint import best_checkpoint, newest_intact
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train
from processes import living_family
from same_runs import assert_same_run

RUNTIME = Runtime(device="cpu", threads=1, save_every=20, log_every=5)
# Ray does not wait for the processes that it starts and kills.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
WITHIN = 90  # seconds, for a busy machine


@pytest.fixture(scope="module")
def base(base: TrainConfig) -> TrainConfig:
    """Return a run that is long enough to be interrupted."""
    return base.replace(n_steps=120, eval_every=60)


@pytest.fixture(scope="module")
def at_home(base: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the same run by the ordinary loop."""
    train(base, tmp_path_factory.mktemp("home") / "run", RUNTIME)
    return tmp_path_factory.getbasetemp() / "home0" / "run"


def started_at_last(stack: ExitStack) -> Any:
    """Start Ray with retries, since its own limit of half a minute is too short on a busy machine."""
    for _ in range(4):
        try:
            return stack.enter_context(connected(Cluster()))
        except InputError as error:
            if "timed out during startup" not in str(error):
                raise
    return stack.enter_context(connected(Cluster()))


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Start a cluster as `launch` does, and check that it leaves no process, file or variable."""
    if find_spec("ray") is None:  # the launcher imports it
        pytest.skip("needs the extra 'ray': pip install -e '.[ray]'")
    variables, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
    of_others = set(living_family(os.getpid()))  # the fork server of earlier tests is still alive
    with ExitStack() as stack:
        before = set(Path("/tmp").glob("ray-*"))
        ray = started_at_last(stack)
        folders = {path for path in set(Path("/tmp").glob("ray-*")) - before if path.owner() == getpass.getuser()}
        yield ray
        started = set(living_family(os.getpid())) - of_others
    del ray
    with warnings.catch_warnings():  # raise these warnings here, and not in a later test
        warnings.filterwarnings("ignore", "subprocess .* is still running", ResourceWarning)
        gc.collect()
    deadline = time.monotonic() + WITHIN
    while left := started & set(living_family(1)) | {pid for pid in started if alive(pid)}:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert folders
    assert not any(folder.exists() for folder in folders)
    assert (dict(os.environ), signal.getsignal(signal.SIGTERM)) == (variables, handler)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Watch:
    """Record the calls of `watch`, and act once, when the first of the running jobs is at a step."""

    at_step: int = 10**9
    act: Any = None
    seen: list[tuple[list[Job], list[Job]]] = field(default_factory=list)
    steps: set[int] = field(default_factory=set)
    acted: bool = False

    def __call__(self, running: Sequence[Job], ended: Sequence[Job]) -> None:
        self.seen.append((list(running), list(ended)))
        for job in running:
            if (job.path / "metrics.jsonl").exists():
                step = max((record["step"] for record in RunFolder.open(job.path).metrics()), default=0)
                self.steps.add(step)
                if step >= self.at_step and not self.acted and not job.finished:
                    self.acted = self.act(job) is not False


def kill(job: Job) -> bool:
    """Kill the process that the lock of the run names, as a system without memory does. Return False if it no longer
    lives, since the records of a killed process are still there when the next one begins."""
    try:
        os.kill(int((job.path / ".run.lock").read_text()), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_runs_are_those_of_the_ordinary_loop_and_a_second_launch_has_nothing_to_do(
    ray: Any, base: TrainConfig, at_home: Path, tmp_path: Path
) -> None:
    """Criterion: weights, metrics and summary have the same bits. The second launch changes nothing and does not
    contact the cluster."""
    jobs = [Job(base, tmp_path / "a"), Job(base.replace(seed=1), tmp_path / "b")]
    watch = Watch()
    assert launch(jobs, None, RUNTIME, watch) == {}
    assert_same_run(jobs[0].path, at_home)
    assert jobs[1].finished
    assert watch.seen[0] == (jobs[: len(watch.seen[0][0])], [])
    assert watch.seen[-1][0] == []
    assert set(watch.seen[-1][1]) == set(jobs)
    assert not list(tmp_path.glob(".*")), "what proves that the folder is in sight is gone"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    watch = Watch()
    assert launch(jobs, None, RUNTIME, watch, Cluster(address="127.0.0.1:1")) == {}
    assert watch.seen == [([], jobs)]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_continues_from_its_checkpoint(
    ray: Any, base: TrainConfig, at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: a run killed after its first checkpoint ends with the bits of an undisturbed run. Without a permitted
    retry it is reported as failed, and a later launch continues from what it had saved."""
    sent: list[Job] = []
    send = on_ray.RayPool.send
    monkeypatch.setattr(on_ray.RayPool, "send", lambda self, job: (sent.append(job), send(self, job)))
    watch = Watch(at_step=25, act=kill)
    slow = replace(RUNTIME, log_every=1)
    jobs = [Job(base, tmp_path / "run")]
    failures = launch(jobs, 1, slow, watch, Cluster(max_retries=0))
    assert watch.acted
    assert list(failures) == ["standard seed 0"]
    why = "its worker ended 1 times before the run was finished (WorkerCrashedError)"
    assert failures["standard seed 0"].startswith(why)
    assert newest_intact(tmp_path / "run" / "checkpoints", print) is not None
    watch = Watch(at_step=65, act=kill)
    assert launch(jobs, 1, slow, watch) == {}
    assert watch.acted
    assert len(sent) == 3, "two launches and one retry"
    train(base, tmp_path / "home", slow)
    assert_same_run(tmp_path / "run", tmp_path / "home")


@pytest.mark.slow
def test_an_error_of_a_run_is_reported_once_and_the_others_finish(
    ray: Any, base: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = base.replace(lr=0.1)
    RunFolder.create(tmp_path / "bad", other.identity(other.build_task()))
    sent: list[Job] = []
    send = on_ray.RayPool.send
    monkeypatch.setattr(on_ray.RayPool, "send", lambda self, job: (sent.append(job), send(self, job)))
    jobs = [Job(base, tmp_path / "bad"), Job(base.replace(seed=1), tmp_path / "good")]
    failures = launch(jobs, None, RUNTIME, Watch())
    assert list(failures) == ["standard seed 0"]
    assert "another configuration: lr is 0.1 there, 0.005 here" in failures["standard seed 0"]
    assert [job.finished for job in jobs] == [False, True]
    assert sent == jobs


@pytest.mark.slow
def test_an_exception_in_watch_leaves_every_run_saved(ray: Any, base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: the caller gets the exception, and the run under way has saved its last step."""
    job = Job(base.replace(n_steps=100_000, eval_every=50_000), tmp_path / "run")

    def enough(_: Job) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        launch([job], 1, RUNTIME, Watch(at_step=5, act=enough))
    saved = max(job.path.glob("checkpoints/step-*"))  # a listing of a folder has no order
    last = max(record["step"] for record in RunFolder.open(job.path).metrics())
    assert int(saved.name.removeprefix("step-")) >= last
    assert not job.finished


@pytest.mark.slow
def test_a_run_that_needs_more_than_any_machine_has_is_refused(ray: Any, base: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must have the 1000 CPUs and 0 GPUs of a run, and none has"):
        launch([Job(base, tmp_path / "run")], None, replace(RUNTIME, threads=1000), Watch())


@pytest.mark.slow
def test_a_run_in_a_workers_own_folder_reports_progress_and_returns_complete(
    ray: Any, base: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: metrics are visible while it runs. At the end the folder is that of an ordinary run with its best and
    its last checkpoint, and the worker keeps nothing."""
    monkeypatch.setattr(on_ray, "PROGRESS_SECONDS", 0.1)
    job = Job(base.replace(n_steps=400, eval_every=100), tmp_path / "run")
    watch = Watch()
    assert launch([job], 1, RUNTIME, watch, Cluster(scratch=str(tmp_path / "scratch"))) == {}
    assert any(0 < step < 400 for step in watch.steps)
    assert list((tmp_path / "scratch").iterdir()) == []
    train(job.config, tmp_path / "home", RUNTIME)
    assert_same_run(job.path, tmp_path / "home")
    best, ours = (best_checkpoint(path / "checkpoints") for path in (tmp_path / "home", job.path))
    assert best is not None
    assert ours is not None
    assert ours.name == best.name
    assert {path.name for path in job.path.glob(".*")} == {".run.lock"}  # only a writer takes turns


def test_a_worker_without_the_folder_continues_from_the_parcel(
    base: TrainConfig, at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: no file appears at the path of the run. The worker returns the complete run, which began at the step
    of the archive."""
    monkeypatch.chdir(tmp_path)
    unpack(pack(at_home, every_checkpoint=True), tmp_path / "half")
    (tmp_path / "half" / "summary.json").unlink()
    halted = RunFolder.open(tmp_path / "half")
    newest = newest_intact(halted.checkpoints, print)
    assert newest is not None
    newest.rename(tmp_path / "set aside")
    halted.keep_until(100)
    errand = RayTask(
        Job(base, tmp_path / "out of sight" / "run"),
        RUNTIME,
        folder=tmp_path,
        proof=tmp_path / "out of sight" / ".seen",
        scratch=str(tmp_path / "scratch"),
        away="attractor-x",
        every_checkpoint=False,
        mailbox=None,
        progress_seconds=1000.0,
        archive=pack(halted.path),
    )
    outcome = carry_out(errand)
    assert (outcome.failure, outcome.interrupted) == (None, False)
    assert not (tmp_path / "out of sight").exists()
    assert outcome.archive is not None
    unpack(outcome.archive, tmp_path / "back")
    assert_same_run(tmp_path / "back", at_home)
    carried_on = (RunFolder.open(tmp_path / "back").summary() or {})["wall_seconds"]
    assert carried_on > 0


DRIVER = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from attractor.errors import InputError, RunStopped
from attractor.study.launch import Job
from attractor.study.on_ray import Cluster, launch
from attractor.train.config import Runtime, TrainConfig

def main():
    config, root, scratch = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] or None
    jobs = [Job(TrainConfig.from_dict(config).replace(seed=seed), root / f"run{seed}") for seed in range(2)]
    try:
        print(launch(jobs, None, Runtime(device="cpu", threads=1), lambda *_: None, Cluster(scratch=scratch)))
    except InputError as error:
        sys.exit(f"refused: {error}")
    except RunStopped as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)

main()
"""


def drive(config: TrainConfig, root: Path, scratch: str = "", **variables: str) -> subprocess.Popen[str]:
    """Run a launcher in a process of its own as a session leader, so that signals reach all of it as from a
    terminal."""
    import json

    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(config.to_dict()), str(root), scratch],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def address(ray: Any) -> str:
    return ray.get_runtime_context().gcs_address


@pytest.mark.slow
def test_a_connection_needs_the_right_token(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: the right token is accepted; a wrong or missing one ends in one line within seconds."""
    on_ray._refuse_open(address(ray), Cluster())
    on_ray._refuse_stranger(address(ray))
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray stores a token there
    for wrong in ("0" * 64, ""):
        monkeypatch.setenv("RAY_AUTH_TOKEN", wrong)
        with pytest.raises(InputError, match="address must be that of a running Ray cluster whose token is known here"):
            on_ray._refuse_stranger(address(ray))


@pytest.mark.slow
def test_a_cluster_started_here_is_on_loopback_alone(ray: Any) -> None:
    host, _, port = address(ray).rpartition(":")
    assert host == "127.0.0.1"
    with socket.create_connection((host, int(port)), timeout=5):
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            udp.connect(("192.0.2.1", 9))  # sends nothing, and gives the address that would be used
        except OSError:
            pytest.skip("this machine has no address but loopback")
        own = udp.getsockname()[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((own, int(port)), timeout=5).close()


def test_a_cluster_without_authentication_is_refused_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: a first request without a token reveals an open cluster, before the token is sent."""
    knocks: list[dict[str, str | None]] = []

    def lets_in(address: str, **changes: str | None) -> bool:
        knocks.append(changes)
        return True

    monkeypatch.setattr(on_ray, "_lets_in", lets_in)
    with pytest.raises(InputError, match="must authenticate by token, and it lets in anybody"):
        on_ray._refuse_open("head:6379", Cluster())
    assert knocks == [{"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": None}]
    on_ray._refuse_open("head:6379", Cluster(without_token=True))
    assert len(knocks) == 1


@pytest.mark.slow
@pytest.mark.parametrize("away", [False, True], ids=["shared", "away"])
def test_ctrl_c_makes_every_run_save_itself(ray: Any, base: TrainConfig, tmp_path: Path, away: bool) -> None:
    """Criterion: the command exits with 130 and one line. Each run is at its path with a checkpoint of its last step
    and no summary."""
    scratch = tmp_path / "scratch"
    long = base.replace(n_steps=1_000_000, eval_every=500_000)
    driver = drive(long, tmp_path / "out", str(scratch) if away else "", RAY_ADDRESS=address(ray))
    try:
        runs = [tmp_path / "out" / f"run{seed}" for seed in range(2)]
        deadline = time.monotonic() + WITHIN
        place = scratch if away else tmp_path / "out"
        while sum(path.stat().st_size > 0 for path in place.glob("*/metrics.jsonl")) < 2:
            assert driver.poll() is None, driver.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGINT)
        _, said = driver.communicate(timeout=WITHIN)
    finally:
        driver.kill()
    assert driver.returncode == 130, said
    (line,) = said.splitlines()
    under_way = "under way: 2, of these with a checkpoint: 2. Resume with the same command"
    assert line.startswith(f"interrupted: 0 of 2 runs ended; {under_way}")
    for run in runs:
        saved = newest_intact(run / "checkpoints", print)
        assert saved is not None
        last = max(record["step"] for record in RunFolder.open(run).metrics())
        assert int(saved.name.removeprefix("step-")) >= last
        assert not RunFolder.open(run).finished
    assert not away or not list(scratch.iterdir())


def test_a_machine_holds_as_many_runs_as_its_scarcest_resource() -> None:
    two = {"CPU": 16.0, "GPU": 2.0}
    asked = [(two, 4, 1), (two, 4, 0), ({"CPU": 64.0, "GPU": 1.0}, 1, 0.1), ({"CPU": 4.0, "GPU": 8.0}, 2, 2)]
    assert [fit(*case) for case in [*asked, ({"CPU": 4.0}, 2, 1), ({}, 1, 0)]] == [2, 4, 10, 2, 0, 0]


def test_runs_of_a_seed_go_to_machines_of_the_kind_on_which_they_began() -> None:
    """Criterion: the runs of a seed wait for a machine of their kind, also if they began in an earlier launch. Only
    where none of that kind is left do they go to another."""
    places = Places({2: {"processor": "B", "gpus": ["NVIDIA H100 80GB"]}, 3: {"processor": "C", "gpus": []}})
    places.kinds |= {"b": Kind("B", ("H100",)), "old": Kind("A"), "older": Kind("A"), "b-card": Kind("B", ("A100",))}
    room = {"old": 1, "older": 2, "b": 1, "b-card": 1}
    assert places.machine_for(1, room) == "older"
    places.take(1, "older")
    assert places.machine_for(1, room | {"older": 0, "b": 9}) == "old"
    assert places.machine_for(1, room | {"older": 0, "old": 0}) is None
    assert places.machine_for(1, {"b": 2, "b-card": 1}) == "b"
    assert places.machine_for(2, room) == "b"
    assert places.machine_for(2, room | {"b": 0}) is None
    assert places.machine_for(3, room) == places.machine_for(4, room) == "older"
    assert places.machine_for(4, {}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus_per_run": 1.5}, "gpus_per_run must be a fraction of one or a whole number, got 1.5"),
        ({"gpus_per_run": 0}, "gpus_per_run must be a fraction of one or a whole number, got 0"),
        ({"max_retries": -1}, "max_retries must be at least 0, got -1"),
    ],
)
def test_impossible_requests_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cluster(**changes)


def test_without_ray_one_line_names_the_package_to_install(
    base: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"package 'ray' must be installed.*pip install -e '\.\[ray\]'"):
        launch([Job(base, tmp_path / "run")], None, RUNTIME, Watch())


def test_a_ray_that_was_imported_before_is_refused_unless_it_is_connected(
    base: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray reads when it is imported whether it stays on loopback and asks for a token."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    before = dict(os.environ)
    with pytest.raises(InputError, match="ray must be imported by the launcher"):
        launch([Job(base, tmp_path / "run")], None, RUNTIME, Watch(), Cluster(without_token=True, address="head:1"))
    assert dict(os.environ) == before
