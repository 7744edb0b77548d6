"""The probe `timescales` measures what the theory of two timescales predicts of a FastSlow model.

It measures the weights that a run ended with, and those that it started from:

    lumpability     of each fast attention map by blocks of P, over batch and heads (`lumpability.py`)
    column sums     1' dF/du for Post at u, on one sequence: all 1 where Post is a step of a generator
    contraction     growth rate of z -> F(z) - z at u: below 1 plain iteration finds Post's equilibrium
    slow memory     in tokens, call by call; residuals and the share of tokens not solved by an equilibrium method

All but the column sums are measured on the first sequences of the validation set. See FastSlow, section 8 and remarks
25 and 30; `models/diagnostics.py` defines each quantity exactly.
"""

from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from attractor.attention.hooks import attention_maps
from attractor.equilibrium.master_equation import column_sums
from attractor.models.diagnostics import Diagnostics, summary_of_diagnostics
from attractor.models.fast_slow import FastSlow
from attractor.models.language_model import LanguageModel
from attractor.study.study import Probe
from attractor.train.config import TrainConfig
from attractor.train.hardware import on_device
from attractor.train.start import load_start

from .lumpability import Lumpability, lumpability_profile

N_SEQUENCES = 8


def timescales_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    if not isinstance(model, FastSlow):
        return {"timescales": {}}
    initial = config.model.build(config.seed)
    assert isinstance(initial, FastSlow)
    if config.start_folder is not None:
        load_start(config.start_folder, initial)
    (batch,) = config.build_task().valid_batches(N_SEQUENCES, 1)
    tokens, _, _ = on_device(batch, model.device)
    at_start = measured(initial.to(model.device).eval(), tokens)
    return {"timescales": measured(model, tokens) | {"at_start": at_start}}


@torch.no_grad()
def measured(model: FastSlow, tokens: Tensor) -> dict[str, Any]:
    diagnostics = Diagnostics(model, partial(model.hidden, tokens))
    convergence = diagnostics.convergence()
    records = [diagnostics.look(), *([] if convergence is None else [convergence.record])]
    return summary_of_diagnostics(records) | lumpabilities(model, tokens) | jacobian(model, tokens[:1])


def lumpabilities(model: FastSlow, tokens: Tensor) -> dict[str, Any]:
    """Return the lumpability of each attention call, and the mean defect.

    The slow maps have no blocks and another shape, and are left out.
    """
    maps = [weights for weights in attention_maps(model, tokens) if weights.shape[-1] == tokens.shape[1]]
    profiles = [lumpability_profile(weights, model.config.pool_factor) for weights in maps]
    by_call = {name: [float(getattr(profile, name).mean()) for profile in profiles] for name in Lumpability._fields}
    return {"lumpability": {"defect": fmean(by_call["defect"]), "by_call": by_call}}


def jacobian(model: FastSlow, tokens: Tensor) -> dict[str, Any]:
    posts = Diagnostics(model, partial(model.hidden, tokens)).posts()
    if not posts:
        return {}
    sums = torch.stack([column_sums(post, u) for post, u in posts])
    return {"column_sums": {"lowest": float(sums.min()), "mean": float(sums.mean()), "largest": float(sums.max())}}


TIMESCALES_PROBE = Probe("timescales", timescales_of_run)
