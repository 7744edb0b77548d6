"""Load a trained run: its configuration, and its model with the weights of a checkpoint."""

import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attractor.errors import require_known
from attractor.kernels.precision import autocast
from attractor.models.language_model import LanguageModel
from attractor.runs.run_folder import RunFolder
from attractor.train import checkpoint
from attractor.train.config import TrainConfig
from attractor.train.formulas import FORMULAS, formulas_of
from attractor.train.start import chosen_checkpoint

CHECKPOINTS = ("best", "last")


@dataclass(frozen=True)
class Finished:
    config: TrainConfig
    model: LanguageModel
    checkpoint: str  # the name of the checkpoint whose weights the model has

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in the precision in which the run was trained and validated."""
        return autocast(self.model.device, self.config.precision)


def finished_run(path: Path, device: torch.device, which: str = CHECKPOINTS[0]) -> Finished:
    """Load the run in a folder with its best weights, or with its last ones."""
    require_known("checkpoint", which, CHECKPOINTS)
    stored = RunFolder.open(path).config
    config = TrainConfig.from_dict(stored)
    _warn_of_other_code(path, config, stored.get("formulas", {}))
    chosen = chosen_checkpoint(path, which)
    model = config.model.build(config.seed)
    checkpoint.load_weights(chosen, model)
    return Finished(config, model.to(device), chosen.name)


def _warn_of_other_code(path: Path, config: TrainConfig, trained: dict[str, Any]) -> None:
    """Warn if the file of a mechanism that is defined outside attractor has changed since the run was trained."""
    for kind, checksum in formulas_of(config).items():
        if kind not in FORMULAS and trained.get(kind) != checksum:
            warnings.warn(
                f"'{path}' was trained with another {kind}: the checksum of its file was {trained.get(kind)} and is "
                f"{checksum} now, so the model may compute something else; load the file as it was then",
                stacklevel=3,
            )
