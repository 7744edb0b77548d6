"""Published accuracies on Sudoku, shown beside our numbers. They were measured on other boards than ours.

The papers call the SATNet boards in distribution and the RRN boards out of distribution.
"""

from dataclasses import dataclass

from attractor.models import AKOrNConfig, ItrSAConfig, PreNormItrSAConfig, RecursiveConfig
from attractor.tasks.sudoku import Sudoku
from attractor.train.config import TrainConfig

MEASURED = "arXiv 2410.13821"
TRM = "arXiv 2510.04871, on Sudoku-Extreme"
ABOUT = "arXiv 2505.19458, a summary's round numbers"  # these disagree with the measured ones


@dataclass(frozen=True)
class PublishedAccuracy:
    part: str  # our validation set that is most like theirs
    n_iterations: int
    n_votes: int
    board_accuracy: float
    source: str


def _about(valid: float, ood_16: float, ood_64: float) -> tuple[PublishedAccuracy, ...]:
    return (
        PublishedAccuracy("valid", 16, 1, valid, ABOUT),
        PublishedAccuracy("ood", 16, 1, ood_16, ABOUT),
        PublishedAccuracy("ood", 64, 1, ood_64, ABOUT),
    )


PRENORM = (PublishedAccuracy("ood", 32, 1, 0.344, MEASURED),)
AKORN = (
    PublishedAccuracy("ood", 128, 1, 0.517, MEASURED),
    PublishedAccuracy("ood", 128, 100, 0.816, MEASURED),
    PublishedAccuracy("ood", 128, 4096, 0.895, MEASURED),
    *_about(0.97, 0.70, 0.60),
)
AKORN_RMS_NORM = _about(0.98, 0.75, 0.80)
ITRSA = _about(0.98, 0.75, 0.85)
RECURSIVE = {mixer: (PublishedAccuracy("valid", 48, 1, x, TRM),) for mixer, x in (("attention", 0.747), ("mlp", 0.874))}
ITRSA_ENERGY = _about(0.85, 0.50, 0.55)


def published(config: TrainConfig) -> tuple[PublishedAccuracy, ...]:
    """Return the published numbers of the model nearest to this one, on boards of the same size."""
    model, task = config.model, config.task
    if not isinstance(task, Sudoku) or task.board_size != 9:
        return ()
    match model:
        case PreNormItrSAConfig():
            return PRENORM
        case ItrSAConfig():
            return ITRSA if model.energy is None else ITRSA_ENERGY
        case AKOrNConfig():
            return AKORN_RMS_NORM if model.rms_norm else AKORN
        case RecursiveConfig():
            return RECURSIVE[model.mixer]
    return ()
