"""Measures of a finished run's attention maps, kept beside the run in probes.json.

Of every layer, over heads and validation batches: the entropy of rows (with the first row, which is always 0, and
without), effective rank, the leading singular value's share, the spectral gap, and the mass on the first position. And
the maps of one validation sequence, for pictures. Of differential attention each of the two softmax maps counts.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from attractor.analysis import attention_entropy, sink_mass, spectral_profile
from attractor.evidence.run import RunFolder
from attractor.evidence.study import PROBES_FILE
from attractor.files import write_json
from attractor.observe import attention_maps
from attractor.study.launch import Job
from attractor.tasks import Task
from attractor.train import checkpoint
from attractor.train.config import Runtime, TrainConfig
from attractor.train.console import print_line, run_progress
from attractor.train.hardware import on_device, resolve_device

N_BATCHES = 25  # CoupledQK, table 12
BATCH_SIZE = 8
PICTURED_HEADS = 4
PICTURED_LENGTH = 64
MEASURES = ("entropy", "entropy_after_first_row", "effective_rank", "top_share", "spectral_gap", "sink_mass")


def probe_runs(jobs: Sequence[Job], runtime: Runtime, console: Console) -> None:
    """Probe every finished run that has not been; a run whose weights are gone is said and passed over."""
    todo = [job for job in jobs if job.finished and not (job.path / PROBES_FILE).exists()]
    if not todo:
        return
    if runtime.threads is not None:
        torch.set_num_threads(os.cpu_count() or 1)  # all training is over
    with run_progress(console) as progress:
        bar = progress.add_task("attention maps", total=len(todo), numbers="")
        for job in todo:
            path = best_weights(RunFolder.open(job.path))
            if path is None:
                print_line(console, f"{job.name}: not probed, since it has no checkpoint")
            else:
                model = job.config.model.build(job.config.seed)
                checkpoint.load_weights(path, model)
                device = resolve_device(runtime.device)
                write_json(job.path / PROBES_FILE, probe(model.to(device).eval(), job.config, job.config.build_task()))
            progress.advance(bar)


def best_weights(run: RunFolder) -> Any:
    return checkpoint.best_checkpoint(run.checkpoints) or checkpoint.newest_intact(run.checkpoints, lambda text: None)


@torch.no_grad()
def probe(model: Any, config: TrainConfig, task: Task) -> dict[str, Any]:
    """Means by layer, and the maps of one sequence."""
    sums: Tensor | None = None
    pictures: dict[str, Any] = {}
    n_batches = 0
    for batch in task.valid_batches(BATCH_SIZE, N_BATCHES):
        tokens, _, _ = on_device(batch, model.device)
        maps = attention_maps(model, tokens)
        pictures = pictures or pictured(maps)
        measured = torch.stack([torch.stack(measures(weights)) for weights in maps])  # layers x measures
        sums = measured if sums is None else sums + measured
        n_batches += 1
    assert sums is not None
    means = (sums / n_batches).T.tolist()
    return {"n_batches": n_batches, "heatmaps": pictures} | dict(zip(MEASURES, means, strict=True))


def measures(weights: Tensor) -> list[Tensor]:
    """In the order of MEASURES, each the mean over batch and heads."""
    entropy = attention_entropy(weights)
    numbers = [entropy, entropy[..., 1:], *spectral_profile(weights), sink_mass(weights)]
    return [number.mean().cpu() for number in numbers]


def pictured(maps: Sequence[Tensor]) -> dict[str, Any]:
    """The first, middle and last layer, some heads each, of the first sequence."""
    layers = sorted({0, len(maps) // 2, len(maps) - 1})
    shown = [maps[layer][0, :PICTURED_HEADS, :PICTURED_LENGTH, :PICTURED_LENGTH].cpu() for layer in layers]
    rounded = [[[[round(x, 3) for x in row] for row in head] for head in layer.tolist()] for layer in shown]
    return {"layers": layers, "heads": list(range(shown[0].shape[0])), "maps": rounded}
