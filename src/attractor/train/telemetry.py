"""What a long run tells about its health, besides its loss: norms, bounds on attention's logits, loss spikes.

    |L_ts| = scale |q_t . k_s| <= scale |q_t| |k_s| <= scale max_t |q_t| max_s |k_s| = the bound of a head    (1)
    spike: loss > median + max(10 MAD, 0.1) of the last 50 losses,   MAD = median |loss - median|           (2)

The bound (Cauchy-Schwarz) costs two norms where the largest logit itself costs all T x S products; it is no maximum.
Both sides of (2) are robust: a spike hardly moves them, and a lasting jump stops being one after 25 steps. Without its
floor a loss that falls to 0, where few batches hold all that is left of it, would be all spikes.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from attractor.models import Transformer
from attractor.tap import capture

WINDOW = 50
DEVIATIONS = 10.0
FLOOR = 0.1  # of the excess, in the loss's own unit


def parameter_norm(model: Transformer) -> Tensor:
    """The norm of all parameters as one vector."""
    norms = torch._foreach_norm([p.detach() for p in model.parameters()])
    return torch.stack(list(norms)).norm()


@torch.no_grad()
def logit_bounds(model: Transformer, tokens: Tensor, autocast: AbstractContextManager[Any]) -> list[float]:
    """(1) for every layer that scores, the largest over its heads, on what is really scored (a soft-cap comes after).

    A forward of its own, without dropout: it draws no random number and touches neither gradients nor a compiled or
    checkpointed step. One short batch, such as a single sequence, is what makes it cheap.
    """
    scales = [cast(float | None, getattr(block.attention.score, "scale", None)) for block in model.layers]
    was_training = model.training
    model.eval()
    with capture("q_coupled", "k_coupled") as seen, autocast:
        model.hidden(tokens)
    model.train(was_training)
    return [
        float((head_norms(q, q.shape[1]) * head_norms(k, q.shape[1])).max() * scale)
        for q, k, scale in zip(seen["q_coupled"], seen["k_coupled"], scales, strict=True)
        if scale is not None
    ]


def head_norms(x: Tensor, n_heads: int) -> Tensor:
    """The largest norm of each head's vectors, B H; a key head that several query heads read stands once for each."""
    return x.float().norm(dim=-1).amax(-1).repeat_interleave(n_heads // x.shape[1], dim=1)


def is_spike(loss: float, before: Sequence[float]) -> bool:
    """(2), judged only by a full window; a loss that is not finite is a skipped step, not a spike."""
    if len(before) < WINDOW or not math.isfinite(loss):
        return False
    middle = median(before)
    deviation = median(abs(value - middle) for value in before)
    return loss > middle + max(DEVIATIONS * deviation, FLOOR)


class TensorBoard:
    """The records of a run as TensorBoard's scalars, in its folder; the run's own files stay the truth."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # an extra: Runtime has made sure that it is there

        # What a crash makes the run live through again is shown once.
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def add(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name in ("step", "tokens") or value is None:
                continue
            parts = {f"{name}/{i}": part for i, part in enumerate(value)} if isinstance(value, list) else {name: value}
            for tag, number in parts.items():
                self.writer.add_scalar(tag, number, record["step"])

    def close(self) -> None:
        self.writer.close()
