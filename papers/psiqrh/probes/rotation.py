"""The probe `rotation` tests whether a common rotation of queries and keys changes attention scores.

    change = max over layers of  |s(q R, k R) - s(q, k)| / |s(q, k)|,   R a random rotation of a head's space   (1)

s are the scores between a layer's queries and keys on a validation batch, after coupling. A dot product is invariant,
so without coupling (1) is rounding. PsiQRH claims the invariance for its phase activation, whose phases depend on
coordinates.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from attractor.attention import Attention
from attractor.attention.hooks import queries_and_keys
from attractor.models.language_model import LanguageModel
from attractor.study.study import Probe
from attractor.train.config import TrainConfig
from attractor.train.hardware import on_device

N_SEQUENCES = 2


def rotation_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    (batch,) = config.build_task().valid_batches(N_SEQUENCES, 1)
    tokens, _, _ = on_device(batch, model.device)
    layers = zip(model.layers, queries_and_keys(model, tokens), strict=True)
    changes = [change(cast(Attention, block.attention).couple, q.float(), k.float()) for block, (q, k) in layers]
    return {"rotation": {"change": max(changes)}}


def change(couple: nn.Module, q: Tensor, k: Tensor) -> float:
    """Measure (1) for a layer."""
    draw = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(q.shape[-1], q.shape[-1], generator=draw))[0].to(q)

    def scores(q: Tensor, k: Tensor) -> Tensor:
        q, k = couple(q, k)
        return q @ k.mT

    before = scores(q, k)
    return float((scores(q @ turn, k @ turn) - before).norm() / before.norm())


ROTATION_PROBE = Probe("rotation", rotation_of_run)
