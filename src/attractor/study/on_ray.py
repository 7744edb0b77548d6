"""Launch many runs on a Ray cluster, where each run is a task with CPUs and GPUs of its own.

Without an address, a cluster is started on this machine's loopback for as long as the launch lasts. Whoever reaches a
cluster can execute code on it, so authentication by token is on, and a cluster that accepts anybody is refused.

Each run has its own worker process, and an interrupt asks it to stop, as in a terminal. A worker that was killed is
replaced, and its run continues from the checkpoint; an error of the run itself is reported. A machine that does not see
the run's folder uses a local folder. It sends the run's progress now and then, and the folder at the end.

The first run of a seed goes to the machine with most room, and the others of that seed to machines of the same kind,
also in a later launch: runs that are compared then round in the same way.
"""

import inspect
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from attractor.errors import InputError, require, require_package
from attractor.files import private_folder, refuse_open_folder
from attractor.runs.lock import RunInUseError
from attractor.runs.machine import environment
from attractor.study.archive import pack, pack_progress, unpack
from attractor.study.launch import (
    IN_USE,
    POLL_SECONDS,
    STOPPED_BY,
    Job,
    Pool,
    WatchJobs,
    attempt,
    available_cores,
    begun_on,
    train_one,
)
from attractor.train.config import Runtime
from attractor.train.interrupt import StopRequest
from attractor.train.process import safe_path

PROGRESS_SECONDS = 5.0
PROGRESS_RATE = 1e5  # bytes a second that a run may send of its progress, so that long metrics are sent less often
ANSWER_SECONDS = 30.0
GPU_LABEL = "accelerator_type:"  # of the resource by which Ray names the model of a machine's GPUs
TOKEN_SOURCES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_imported_for: dict[str, str] = {}  # the variables that were set when Ray was imported here


@dataclass(frozen=True)
class Cluster:
    """The cluster to use, and the resources that a run takes of it."""

    address: str | None = None  # host:port or auto; None: RAY_ADDRESS, or else a new local cluster
    gpus_per_run: float | None = None  # may be a fraction; None: one, unless runs are on the CPU
    max_retries: int = 3  # new attempts of a run whose worker was killed
    scratch: str | None = None  # run in this folder of each machine, even one that sees the run's folder
    every_checkpoint: bool = False  # send back all checkpoints, not only the best and the last
    without_token: bool = False  # accept a cluster that lets in anybody

    def __post_init__(self) -> None:
        gpus = self.gpus_per_run
        part_or_whole = gpus is None or 0 < gpus <= 1 or (gpus > 1 and gpus == int(gpus))
        require(part_or_whole, "gpus_per_run", "a fraction of one or a whole number", gpus, "or set device=cpu")
        require(self.max_retries >= 0, "max_retries", "at least 0", self.max_retries)


def launch(
    jobs: Sequence[Job], n_workers: int | None, runtime: Runtime, watch: WatchJobs, cluster: Cluster = Cluster()
) -> dict[str, str]:
    """Carry out all jobs, `n_workers` at once or as many as the cluster holds, and return the failures by name."""
    if all(job.finished for job in jobs):
        watch([], jobs)
        return {}
    require(runtime.device in ("auto", "cpu", "cuda"), "device", "auto, cpu or cuda", runtime.device, "Ray chooses it")
    with connected(cluster) as ray:
        return RayPool(ray, jobs, n_workers, runtime, cluster).carry_out(jobs, watch)


@contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """Connect to Ray while the block lasts. An existing connection is used, and kept."""
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    with ExitStack() as stack:
        stack.enter_context(safe_path())  # it also takes back the variables that are set for Ray below
        ray = _imported(is_local=address is None, by_token=address is None or not cluster.without_token)
        if ray.is_initialized():
            _refuse_open(ray.get_runtime_context().gcs_address, cluster)
            yield ray
            return
        if threading.current_thread() is threading.main_thread():  # Ray replaces the handler of SIGTERM
            stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        # Ray makes its workers import from the current folder before all others, unless the job is one of its client.
        # A notebook, which imports from that folder itself, needs this; others may be in a folder of a stranger's data.
        options["job_config"] = ray.job_config.JobConfig(_client_job="" not in sys.path)
        if address is None:
            options |= {"address": "local", "num_cpus": available_cores(), "include_dashboard": False}
            # A private folder, and not in TMPDIR, since paths of sockets must be short.
            # Ray makes its own folder readable for all users, so it lies inside one that only this user can enter.
            options["_temp_dir"] = str(stack.enter_context(private_folder("ray-", "/tmp")))
        else:
            next_step = "run the launcher on a machine of the cluster"
            require("://" not in address, "address", "host:port or auto", address, next_step)
            options["address"] = address
            _refuse_open(address, cluster)
            _refuse_stranger(address)
        waits = "wait_for_processes" in inspect.signature(ray.shutdown).parameters  # older versions do not
        stack.callback(ray.shutdown, **{"wait_for_processes": True} if waits else {})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # older versions announce what newer ones do
                ray.init(**options)
        except Exception as error:  # Ray raises errors of any class
            where = "start a cluster here" if address is None else f"join the cluster at '{address}'"
            reason = str(error).partition("\n")[0]
            raise InputError(f"Ray could not {where}: {reason}; mend that and repeat") from error
        yield ray


def _imported(is_local: bool, by_token: bool) -> Any:
    """Set what Ray reads when it is imported, and import it. An existing connection is left as it is."""
    global _imported_for
    imported = sys.modules.get("ray")
    if imported is not None and imported.is_initialized():
        return imported
    wanted = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a run without GPUs sees none
    }
    if by_token:
        wanted["RAY_AUTH_MODE"] = "token"
    if is_local:
        wanted["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # a cluster of one machine has all ports on loopback
    if imported is not None and wanted != _imported_for:
        raise InputError(
            "ray must be imported by the launcher, which first sets what Ray reads at that moment, and it was imported "
            "before, or for another kind of cluster; leave that import out, connect with ray.init() before the launch, "
            "or start another process"
        )
    os.environ.update(wanted)
    if is_local and not any(os.environ.get(name) for name in TOKEN_SOURCES):
        os.environ["RAY_AUTH_TOKEN"] = _token()
    ray = require_package("ray", "ray")
    _imported_for = wanted
    return ray


@cache
def _token() -> str:
    """Return the token of the clusters that this process starts, which is never written to disk. Ray reads it once."""
    return secrets.token_hex(32)


def _refuse_open(address: str, cluster: Cluster) -> None:
    """Refuse a cluster that answers a request without a token, so that the token is not shown to it."""
    without = dict.fromkeys(TOKEN_SOURCES)
    if not cluster.without_token and _lets_in(address, RAY_AUTH_MODE="disabled", **without):
        raise InputError(
            f"the Ray cluster at '{address}' must authenticate by token, and it lets in anybody; start it with "
            "RAY_AUTH_MODE=token (docs/many-gpus.md), or accept it as it is (without_token)"
        )


def _refuse_stranger(address: str) -> None:
    """Refuse a cluster that does not answer: `ray.init` would take minutes to find out, and end in a crash."""
    if not _lets_in(address):
        raise InputError(
            f"address must be that of a running Ray cluster whose token is known here, got '{address}'; give its "
            "token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH (docs/many-gpus.md)"
        )


def _lets_in(address: str, **changes: str | None) -> bool:
    environment = {**os.environ, **changes}
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(
            command,
            env={name: value for name, value in environment.items() if value is not None},
            capture_output=True,
            timeout=ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@dataclass(frozen=True)
class RayTask:
    """The message that tells a worker how to carry out a run."""

    job: Job
    runtime: Runtime
    folder: Path  # the launcher's working directory, where relative paths of corpora start
    proof: Path  # a machine that sees this file sees the run's folder
    scratch: str | None
    away: str  # the name of the local folder on other machines
    every_checkpoint: bool
    mailbox: Any
    progress_seconds: float
    archive: bytes | None = None  # the run's folder so far, for other machines


@dataclass(frozen=True)
class RayOutcome:
    """The result of a task: why it failed, whether it was interrupted, how its worker was killed, and the folder."""

    failure: str | None = None
    interrupted: bool = False
    killed: str = ""
    archive: bytes | None = None  # from a machine that does not see the run's folder


class Mailbox:
    """An actor of the cluster that holds the progress of runs on other machines until the launcher takes it."""

    def __init__(self) -> None:
        self.archives: dict[Path, bytes] = {}

    def post(self, path: Path, archive: bytes) -> None:
        self.archives[path] = archive

    def take(self) -> dict[Path, bytes]:
        archives, self.archives = self.archives, {}
        return archives


@dataclass(frozen=True)
class Kind:
    """What machines have in common whose runs round in the same way."""

    processor: str
    gpus: tuple[str, ...] = ()  # the models of the GPUs that runs use, as Ray calls them

    def made(self, environment: Mapping[str, Any]) -> bool:
        """Return whether a run with this environment may have been made on a machine of this kind."""
        gpus = " ".join(map(str, environment.get("gpus") or []))
        return environment.get("processor") == self.processor and all(model in gpus for model in self.gpus)


class Places:
    """Says where runs go: those of one seed to machines of one kind, on which the first of them began."""

    def __init__(self, begun_before: Mapping[int, Mapping[str, Any]]) -> None:
        """`begun_before` has the environment in which the first run of a seed began in an earlier launch."""
        self.begun_before = begun_before
        self.begun_on: dict[int, Kind] = {}
        self.kinds: dict[str, Kind] = {}  # of the machines, by the names that Ray gives them

    def machine_for(self, seed: int, room: Mapping[str, int]) -> str | None:
        """Return the machine with most room, or None while those of the seed's kind have none.

        A seed may go to any machine if none of its kind is left."""
        kinds = {self.kinds[name] for name in room}
        if seed in self.begun_on:
            wanted = kinds & {self.begun_on[seed]}
        else:
            wanted = {kind for kind in kinds if seed in self.begun_before and kind.made(self.begun_before[seed])}
        free = {name: n for name, n in room.items() if n > 0 and self.kinds[name] in (wanted or kinds)}
        return max(free, key=free.__getitem__, default=None)

    def take(self, seed: int, machine: str) -> None:
        self.begun_on.setdefault(seed, self.kinds[machine])


class RayPool(Pool):
    """The tasks of one launch. Interrupted runs are started again, so `interrupted` stays empty."""

    def __init__(
        self, ray: Any, jobs: Sequence[Job], n_workers: int | None, runtime: Runtime, cluster: Cluster
    ) -> None:
        super().__init__()
        self.ray, self.n_workers, self.cluster = ray, n_workers, cluster
        self.cpus = runtime.threads or 1
        self.gpus = self._gpus_per_run(runtime.device)
        # A run uses the resources that Ray gives it, neither more nor less.
        self.runtime = replace(runtime, threads=self.cpus, device="cuda" if self.gpus else "cpu")
        # Each run has its own worker process, so that peak memory and failures are those of one run.
        self.task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_calls=1, max_retries=0)(carry_out)
        here = ray.get_runtime_context().get_node_id()
        by_launcher = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        self.mailbox = ray.remote(num_cpus=0, scheduling_strategy=by_launcher)(Mailbox).remote()
        self.news = self.mailbox.take.remote()
        self.places = Places(begun_on(jobs))
        self.machine_of: dict[Job, str] = {}  # of the running jobs
        self.attempts: Counter[Job] = Counter()
        self.stopping = False
        self.name = secrets.token_hex(8)
        self.proofs = {job: job.path.absolute().parent / f".seen-{self.name}" for job in jobs}

    def __enter__(self) -> "RayPool":
        for proof in self.proofs.values():
            proof.parent.mkdir(parents=True, exist_ok=True)
            proof.touch()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not KeyboardInterrupt:  # that is a second interrupt by the user
            self.stop()
        for proof in self.proofs.values():
            proof.unlink(missing_ok=True)

    def next_to_start(self, wanted: Sequence[Job]) -> Job | None:
        if self.n_workers is not None and len(self.batches) >= self.n_workers:
            return None
        room = self.room()
        return next((job for job in wanted if self.places.machine_for(job.config.seed, room) is not None), None)

    def room(self) -> dict[str, int]:
        """Return how many more runs fit on each machine that is in the cluster now."""
        machines = {node["NodeID"]: node["Resources"] for node in self.ray.nodes() if node["Alive"]}
        room = {name: fit(resources, self.cpus, self.gpus) for name, resources in machines.items()}
        if not any(room.values()) and not self.batches:
            raise InputError(
                f"a machine of the cluster must have the {self.cpus} CPUs and {self.gpus:g} GPUs of a run, and none "
                "has; ask for fewer threads or gpus_per_run, or join such a machine"
            )
        room = {name: n for name, n in room.items() if n}
        kinds = self.places.kinds
        kinds |= {name: self.kind(name, machines[name]) for name in room.keys() - kinds.keys()}
        taken = Counter(self.machine_of.get(job) for job in self.running)
        return {name: n - taken[name] for name, n in room.items()}

    def kind(self, name: str, resources: dict[str, float]) -> Kind:
        """Ask a machine for the name of its processor. A machine that does not answer is a kind of its own."""
        there = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(name, soft=False)
        asked = self.ray.remote(num_cpus=0, scheduling_strategy=there)(environment).remote()
        try:
            processor = self.ray.get(asked, timeout=ANSWER_SECONDS)["processor"]
        except self.ray.exceptions.RayError:
            processor = name
        gpus = [label.removeprefix(GPU_LABEL) for label in resources if label.startswith(GPU_LABEL)]
        return Kind(processor, tuple(sorted(gpus)) if self.gpus else ())

    def start(self, batch: Sequence[Job]) -> None:
        self.send(*batch)

    def send(self, job: Job) -> None:
        path = job.path.absolute()
        task = RayTask(
            replace(job, path=path),
            self.runtime,
            Path.cwd(),
            self.proofs[job],
            self.cluster.scratch,
            f"attractor-{self.name}-{path.name}",
            self.cluster.every_checkpoint,
            self.mailbox,
            PROGRESS_SECONDS,
            pack(path) if (path / "config.json").exists() else None,
        )
        self.attempts[job] += 1
        self.batches[self.task.options(**self.place(job)).remote(task)] = [job]

    def place(self, job: Job) -> dict[str, Any]:
        """Choose the machine of a run, and return what tells Ray. Ray chooses where none has room, as after a loss."""
        self.machine_of.pop(job, None)
        name = self.places.machine_for(job.config.seed, self.room())
        if name is None:
            return {}
        self.machine_of[job] = name
        self.places.take(job.config.seed, name)
        return {"scheduling_strategy": self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(name, True)}

    def stop(self) -> list[Job]:
        """Ask every run to save and end. Ask only once, since a second interrupt would cut short the saving."""
        if not self.stopping:
            self.stopping = True
            for reference in self.batches:
                self.ray.cancel(reference)
        ended = []
        while self.batches:
            ended += self.collect()
        return ended

    def collect(self) -> list[Job]:
        """Take in the results that have arrived, and return the jobs that have ended."""
        done, _ = self.ray.wait(list(self.batches), num_returns=1, timeout=POLL_SECONDS)
        self._take_progress()
        ended = []
        for reference in done:
            (job,) = self.batches.pop(reference)
            outcome = self._outcome(job, reference)
            again = outcome.killed or outcome.interrupted
            if again and self.stopping:
                continue
            if again and self.attempts[job] <= self.cluster.max_retries:
                self.send(job)
                continue
            ended.append(job)
            if again:
                n = self.attempts[job]
                self.failures[job.name] = (
                    f"its worker ended {n} times before the run was finished ({outcome.killed or 'asked to stop'}); "
                    "what it saved is kept, the same command goes on from there"
                )
            elif outcome.failure is not None:
                self.failures[job.name] = outcome.failure
        return ended

    def _outcome(self, job: Job, reference: Any) -> RayOutcome:
        """Return the outcome of a task, and take in the folder that it sent, if any."""
        errors = self.ray.exceptions
        try:
            outcome: RayOutcome = self.ray.get(reference)
            if outcome.archive is not None:
                unpack(outcome.archive, job.path)
            return outcome
        except errors.TaskCancelledError:
            return RayOutcome(interrupted=True)
        except errors.RayTaskError as error:  # before the run began, as where attractor is not installed
            return RayOutcome(failure=str(error).strip().splitlines()[-1])
        except errors.RayError as error:
            return RayOutcome(killed=type(error).__name__)
        except RunInUseError:
            return RayOutcome(failure=job.failure(IN_USE))
        except (InputError, OSError) as error:
            return RayOutcome(failure=str(error))

    def _take_progress(self) -> None:
        """Take the progress that has arrived, without waiting: no result depends on it."""
        arrived, _ = self.ray.wait([self.news], timeout=0)
        if not arrived:
            return
        running = {job.path.absolute() for job in self.running}
        with suppress(self.ray.exceptions.RayError, RunInUseError):
            for path, archive in self.ray.get(self.news).items():
                if path in running:
                    unpack(archive, path)
        self.news = self.mailbox.take.remote()

    def _gpus_per_run(self, device: str) -> float:
        if device == "cpu" or (device == "auto" and not self.ray.cluster_resources().get("GPU")):
            return 0.0
        return 1.0 if self.cluster.gpus_per_run is None else self.cluster.gpus_per_run


def fit(machine: dict[str, float], cpus: int, gpus: float) -> int:
    """Return how many runs fit on a machine with these resources."""
    by_cpus = int(machine.get("CPU", 0) / cpus)
    by_gpus = int(machine.get("GPU", 0) / gpus + 1e-9) if gpus else by_cpus  # ten tenths of a GPU are one GPU
    return min(by_cpus, by_gpus)


def carry_out(task: RayTask) -> RayOutcome:
    """Carry out one run in a worker of the cluster."""
    if task.scratch is None and task.proof.exists():
        os.chdir(task.folder)
        return _train(task.job, task.runtime)
    path = Path(task.scratch or tempfile.gettempdir()) / task.away
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    refuse_open_folder(path)
    if task.folder.is_dir():
        os.chdir(task.folder)
    if not (path / "config.json").exists() and task.archive is not None:  # otherwise an earlier worker got further
        unpack(task.archive, path)
    with _progress(task, path):
        outcome = _train(replace(task.job, path=path), task.runtime)
    with StopRequest():  # an interrupt must not keep the saved run from arriving
        if (path / "config.json").exists():
            outcome = replace(outcome, archive=pack(path, task.every_checkpoint))
        shutil.rmtree(path)
    return outcome


def _train(job: Job, runtime: Runtime) -> RayOutcome:
    if not (job.path / "metrics.jsonl").exists():
        (job.path / "environment.json").unlink(missing_ok=True)  # it describes the launcher's machine, not this one
    exit_code, reason = attempt([job], lambda: train_one([job], runtime))
    reason = job.failure(IN_USE) if exit_code == IN_USE else reason
    return RayOutcome(failure=reason, interrupted=exit_code in STOPPED_BY)


@contextmanager
def _progress(task: RayTask, path: Path) -> Iterator[None]:
    """Send the progress of a run on this machine to the launcher, now and then."""
    over = threading.Event()

    def send() -> None:
        sent = b""
        while not over.wait(max(task.progress_seconds, len(sent) / PROGRESS_RATE)):
            progress = pack_progress(path)
            if progress != sent:
                task.mailbox.post.remote(task.job.path, progress)
                sent = progress

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
