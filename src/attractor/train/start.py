"""Start a run from the weights of another run, as fine-tuning does. Everything but the readout must fit.

If `start` is a comparison, a new run starts from its counterpart there: the run of the same mechanism and seed. In any
other path, `{attention}` and `{seed}` stand for those of the new run.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from attractor.corpus.data_paths import searched_places
from attractor.errors import InputError
from attractor.models.config import ModelConfig
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import STUDY_FILE, pool_of, read_study
from attractor.train import checkpoint

READOUT = "head.weight"


def counterpart(path: Path, label: str, seed: int) -> Path:
    """Return the run at this path, or the run of that label and seed if the path is a comparison."""
    if not path.exists():
        raise InputError(f"start must be a run or a comparison, but '{path}' does not exist; {searched_places(path)}")
    if not (path / STUDY_FILE).exists():
        return path
    _, keys = read_study(path)
    runs = {row: pool_of(path) / of_row[seed] for (row, _), of_row in keys.items() if seed in of_row}
    candidates = {run for row, run in runs.items() if label in (row, RunFolder.open(run).config.get("label"))}
    if len(candidates) != 1:
        raise InputError(
            f"start must be a run, or a comparison with one run of '{label}' with seed {seed}, and '{path}' has "
            f"{len(candidates)}; give another folder or other seeds"
        )
    return candidates.pop()


def chosen_checkpoint(run: Path, which: str = "best") -> Path:
    """Return the best checkpoint of a run, or the last one: on request, or if the run never evaluated."""
    folder = RunFolder.open(run).checkpoints
    best = checkpoint.best_checkpoint(folder) if which == "best" else None
    path = best or checkpoint.newest_intact(folder, lambda text: print(text, file=sys.stderr))
    if path is None:
        raise InputError(f"run must have a checkpoint, and '{run}' has none yet; train it first")
    checkpoint.verify_or_refuse(path)
    return path


def weights_fingerprint(run: Path, config: ModelConfig) -> str:
    """Return the checksum of the weights that a run would start from, and refuse a model that they do not fit."""
    with torch.device("meta"):
        model = config.build()
    manifest = json.loads((load_start(run, model) / checkpoint.MANIFEST).read_text())
    return str(manifest["sha256"]["model.safetensors"])


def load_start(run: Path, model: nn.Module) -> Path:
    """Load the best weights of a run into a model, and return their checkpoint.

    A readout of another shape keeps its initial weights.
    """
    path = chosen_checkpoint(run)
    with checkpoint.foreign_refused(path):
        stored = load_file(path / "model.safetensors")
    wanted = model.state_dict()  # whose tensors are the model's own
    for name in sorted(stored.keys() | wanted.keys()):
        there, here = (tuple(part[name].shape) if name in part else "absent" for part in (stored, wanted))
        if there == here:
            with torch.no_grad():
                wanted[name].copy_(stored[name])
        elif name != READOUT:
            raise InputError(
                f"start must be a run of the same model, but '{name}' is {there} in '{run}' and {here} here; leave "
                "model options out"
            )
    return path
