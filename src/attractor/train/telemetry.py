"""Measures of a long run's health besides its loss: the norm of the parameters, a probe of attention, loss spikes.

    probe: the first sequence of the validation set, up to 128 tokens (`control/probe.py`, `models/diagnostics.py`)
    spike: loss > median + max(10 MAD, 0.1) of the last 50 losses,   MAD = median |loss - median|           (1)

The bound in (1) is robust: a spike hardly changes it, and a lasting jump counts as spikes for 25 steps alone.
Without the floor of 0.1, a loss that falls to 0 would be all spikes, since few batches then hold what is left of it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from attractor.models.language_model import LanguageModel
from attractor.tasks import Task
from attractor.train.checkpoint import WINDOW

PROBE_LENGTH = 128
DEVIATIONS = 10.0
FLOOR = 0.1  # smallest excess of a spike, in the unit of the loss
BY_HEAD = ("max_logit", "logit_change")  # kept for every head, too
TRAJECTORIES = (*BY_HEAD, "gate", "fast_entropy", "slow_entropy", "slow_memory", "residual", "contraction")
MOST_LOOKS = 64  # largest number of looks that a stored trajectory keeps


def parameter_norm(model: LanguageModel) -> Tensor:
    """Return the norm of all parameters as one vector."""
    norms = torch._foreach_norm([p.detach() for p in model.parameters()])
    return torch.stack(list(norms)).norm()


def probe_tokens(task: Task) -> Tensor:
    """Return the probe: held-out tokens, the same for every run on these data."""
    (first,) = task.valid_batches(1, 1, task.valid_sets[0])
    tokens = first.inputs[:1] if first.real is None else first.inputs[:1, first.real[0]]
    return torch.from_numpy(tokens[:, :PROBE_LENGTH])


def over_training(records: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the largest logit of the probe over layers, heads and looks, and after two looks the mean change.

    A number that is not finite is stored as null, and then the largest and the mean are null, too."""
    looks = [record for record in records if "max_logit" in record]
    largest = list(_flat([look["max_logit"] for look in looks]))
    changes = list(_flat([look.get("logit_change", []) for look in looks]))
    over_looks = (("max", max, largest), ("change", fmean, changes))
    return {name: None if None in numbers else over(numbers) for name, over, numbers in over_looks if numbers}


def trajectories(records: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """Return, by name, one number of each look. At most MOST_LOOKS looks are kept, with four digits each."""
    by_name = {}
    for name in TRAJECTORIES:
        looks = ((step, _over_heads(name, value)) for step, value in _looks(records, name))
        by_name[name] = [[step, _short(value)] for step, value in looks if value is not None]
    return {name: looks for name, looks in by_name.items() if looks}


def trajectories_by_head(records: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """Return, by name, the numbers of all heads at each look, layer after layer."""
    by_name = {
        name: [[step, [x if x is None else _short(x) for x in _flat(value)]] for step, value in _looks(records, name)]
        for name in BY_HEAD
    }
    return {name: looks for name, looks in by_name.items() if looks}


def _looks(records: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, Any]]:
    looks = [(record["step"], record[name]) for record in records if name in record]
    stride = math.ceil(len(looks) / MOST_LOOKS) or 1
    return looks[(len(looks) - 1) % stride :: stride]  # the last look is among them


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _over_heads(name: str, value: Any) -> float | None:
    """Return the largest logit, or the mean of other numbers; None if one of them is null, since it was not finite."""
    numbers = list(_flat([trace[-1] for trace in value] if name == "residual" else value))  # of the last evaluation
    return None if None in numbers else max(numbers) if name == "max_logit" else fmean(numbers)


def _flat(value: Any) -> Iterator[Any]:
    return (number for part in value for number in _flat(part)) if isinstance(value, list) else iter((value,))


def of_same_segment(losses: Sequence[float], n_segments: int) -> Sequence[float]:
    """Return those losses that the next one is compared with: all, or those of the same segment of their batch.

    Where a batch stays for several segments, its loss falls from step to step, and rises with the next batch."""
    return losses[-n_segments::-n_segments]


def is_spike(loss: float, before: Sequence[float]) -> bool:
    """Return whether (1) holds. A window of losses must be full; a non-finite loss is a skipped step, not a spike."""
    if len(before) < WINDOW or not math.isfinite(loss):
        return False
    middle = median(before)
    deviation = median(abs(value - middle) for value in before)
    return loss > middle + max(DEVIATIONS * deviation, FLOOR)


class TensorBoard:
    """Writes the records of a run for TensorBoard, beside the run's own files, which remain the source.

    Of the heads of a layer, or the evaluations of a round, it shows the largest value.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # an extra, whose presence Runtime has checked

        # Steps that a resumed run repeats are shown once.
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def add(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name in ("step", "tokens") or value is None:
                continue
            parts = {f"{name}/{i}": part for i, part in enumerate(value)} if isinstance(value, list) else {name: value}
            for tag, part in parts.items():
                self.writer.add_scalar(tag, max(part) if isinstance(part, list) else part, record["step"])

    def close(self) -> None:
        self.writer.close()
