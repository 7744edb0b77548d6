"""Probes measure finished runs, and write the measures to probes.json beside each run.

The probe `attention maps` averages over heads and validation batches, for every layer: the entropy of rows (with the
first row, where it is always 0, and without), the effective rank, the leading singular value's share, the spectral gap,
and the mass on the first position. It also keeps the maps of a validation sequence, for pictures. Each softmax map of
differential attention counts. The probe `elsewhere` measures validation losses on corpora that the run never saw.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from attractor.analysis import attention_entropy, sink_mass, spectral_profile
from attractor.attention.hooks import attention_maps
from attractor.console import SignOfLife, in_time, print_line, run_progress
from attractor.errors import InputError
from attractor.files.seals import read_sealed, write_sealed
from attractor.models.language_model import LanguageModel
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import HEATMAPS, PROBES_FILE
from attractor.study.launch import Job
from attractor.study.study import Probe
from attractor.tasks.text import TextTask
from attractor.train import checkpoint
from attractor.train.config import Runtime, TrainConfig
from attractor.train.evaluate import validate
from attractor.train.hardware import on_device, resolve_device

N_BATCHES = 25  # CoupledQK, table 12
BATCH_SIZE = 8
PICTURED_HEADS = 4
PICTURED_LENGTH = 64
MEASURES = ("entropy", "entropy_after_first_row", "effective_rank", "top_share", "spectral_gap", "sink_mass")


def probe_runs(jobs: Sequence[Job], probe: Probe, runtime: Runtime, console: Console) -> None:
    """Measure every finished run that has not been measured. Print why a run cannot be measured, and go on.

    A terminal shows which run is measured beside the bar, and a log in a line for each run that takes long.
    """
    todo = [job for job in jobs if job.finished and job.diverged is None and not _is_done(job, probe.name)]
    if not todo:
        return
    torch.set_num_threads(runtime.threads or 1)  # more threads wait for one another where other work uses the cores
    device = resolve_device(runtime.device)
    with run_progress(console) as progress:
        bar = progress.add_task(probe.name, total=len(todo), numbers="")
        for number, job in enumerate(todo, 1):
            progress.update(bar, numbers=job.name)
            try:
                with _sign_of_life(console, f"{probe.name} of {job.name}, run {number} of {len(todo)}"):
                    _probe_run(job, probe, device)
            except InputError as error:
                print_line(console, f"{job.name}: {probe.name} not measured: {error}")
            progress.advance(bar)


def _sign_of_life(console: Console, doing: str) -> AbstractContextManager[Any]:
    if console.is_terminal or console.quiet:
        return nullcontext()
    return SignOfLife(partial(print_line, console), lambda seconds: f"{doing}: {in_time(seconds)} so far")


def _is_done(job: Job, name: str) -> bool:
    try:
        return name in probes_of(job).get("done", [])
    except InputError:
        return False


def _probe_run(job: Job, probe: Probe, device: torch.device) -> None:
    known = probes_of(job)
    model = job.config.model.build(job.config.seed)
    if probe.weights != "first":
        path = (last_weights if probe.weights == "last" else best_weights)(RunFolder.open(job.path))
        if path is None:
            raise InputError("the run has no checkpoint")
        checkpoint.load_weights(path, model)
    with torch.no_grad():
        measured = probe.measure(model.to(device).eval(), job.config)
    probes = known | measured | {"done": [*known.get("done", []), probe.name]}
    write_sealed(job.path / PROBES_FILE, probes)


def probes_of(job: Job) -> dict[str, Any]:
    return read_sealed(job.path / PROBES_FILE) or {}


def best_weights(run: RunFolder) -> Any:
    return checkpoint.best_checkpoint(run.checkpoints) or last_weights(run)


def last_weights(run: RunFolder) -> Any:
    return checkpoint.newest_intact(run.checkpoints, lambda text: None)


def maps_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    """Return the mean measures by layer, and the attention maps of one sequence."""
    sums: Tensor | None = None
    pictures: dict[str, Any] = {}
    n_batches = 0
    for batch in config.build_task().valid_batches(BATCH_SIZE, N_BATCHES):
        tokens, _, _ = on_device(batch, model.device)
        maps = attention_maps(model, tokens)
        pictures = pictures or pictured(maps)
        measured = torch.stack([torch.stack(measures(weights)) for weights in maps])  # layers x measures
        sums = measured if sums is None else sums + measured
        n_batches += 1
    assert sums is not None
    means = (sums / n_batches).T.tolist()
    return {"n_batches": n_batches, HEATMAPS: pictures} | dict(zip(MEASURES, means, strict=True))


ATTENTION_MAPS = Probe("attention maps", maps_of_run)


def losses_elsewhere(model: LanguageModel, config: TrainConfig, corpora: Sequence[str]) -> dict[str, Any]:
    """Return validation losses by corpus, with the run's precision, windows and number of batches."""
    tasks = {corpus: config.replace(corpus=corpus).build_task() for corpus in corpora}
    return {
        "elsewhere": {corpus: validate(model, task, config).loss for corpus, task in tasks.items()},
        "elsewhere_bytes_per_token": {
            corpus: task.bytes_per_token for corpus, task in tasks.items() if isinstance(task, TextTask)
        },
    }


def measures(weights: Tensor) -> list[Tensor]:
    """Return the means over batch and heads, in the order of MEASURES."""
    entropy = attention_entropy(weights)
    numbers = [entropy, entropy[..., 1:], *spectral_profile(weights), sink_mass(weights)]
    return [number.mean().cpu() for number in numbers]


def pictured(maps: Sequence[Tensor]) -> dict[str, Any]:
    """Return maps of the first sequence: some heads of the first, the middle and the last layer."""
    layers = sorted({0, len(maps) // 2, len(maps) - 1})
    shown = [maps[layer][0, :PICTURED_HEADS, :PICTURED_LENGTH, :PICTURED_LENGTH].cpu() for layer in layers]
    rounded = [[[[round(x, 3) for x in row] for row in head] for head in layer.tolist()] for layer in shown]
    return {"layers": layers, "heads": list(range(shown[0].shape[0])), "maps": rounded}
