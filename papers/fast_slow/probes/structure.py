"""The probe `structure` checks what FastSlow promises by construction (FastSlow, propositions 21 to 23).

It measures the weights that a run ended with:

    leak     the largest change of a logit before the token that was changed, over all tokens, the gate
             forced open and the injection then scaled by ten                                               (1)
    states   how many slow states a block of P tokens reads, at most                                        (2)
    apart    the largest difference of a logit between the closed gate and the frozen model, at these weights
             and at those of the start                                                                      (3)

By construction (1) and (3) are 0 and (2) is 1, exactly and in any precision. `echo` is the smallest change at the
changed token itself: where it is 0, (1) says nothing.
"""

from typing import Any

import torch
from torch import Tensor

from attractor.models import FastSlow
from attractor.models.language_model import LanguageModel, TokenPlacement
from attractor.study.study import Probe
from attractor.tasks import Task
from attractor.train.config import TrainConfig

from .coupling import coupled, gate_at

LENGTH = 67  # tokens: many blocks, and an incomplete last one
WIDE_OPEN, COUPLING_SCALE = 10.0, 10.0


def structure_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    if not coupled(model):
        return {}
    assert isinstance(model, FastSlow)
    tokens = first_tokens(config.build_task()).to(model.device)
    start = config.model.build(config.seed).to(model.device).eval()
    assert isinstance(start, FastSlow)
    leak, echo = leak_and_echo(model, tokens)
    apart = max(apart_from_frozen(weights, tokens) for weights in (model, start))
    return {"structure": {"leak": leak, "echo": echo, "states": states_per_block(model, tokens), "apart": apart}}


def first_tokens(task: Task) -> Tensor:
    batch = next(iter(task.valid_batches(1, 1)))
    return torch.from_numpy(batch.inputs[:1, :LENGTH])


@torch.no_grad()
def leak_and_echo(model: FastSlow, tokens: Tensor) -> tuple[float, float]:
    """Measure (1). Row t of the batch has token t changed, and both passes have one shape, so they round alike."""
    usual = tokens.expand(tokens.shape[1], -1)
    other = (usual + 1) % model.config.vocab_size
    one_changed = torch.where(torch.eye(len(usual), dtype=torch.bool, device=tokens.device), other, usual)
    with gate_at(model, WIDE_OPEN, COUPLING_SCALE):
        moved = (model(one_changed)[0] - model(usual)[0]).abs().amax(-1)
    return float(moved.tril(-1).max()), float(moved.diagonal().min())


@torch.no_grad()
def states_per_block(model: FastSlow, tokens: Tensor) -> int:
    """Measure (2) on the slow states that the model's own hidden states give."""
    fast, _ = model.hidden(tokens)
    place = TokenPlacement(True, None, torch.arange(tokens.shape[1], device=tokens.device), None)
    with gate_at(model, WIDE_OPEN):
        injected, _ = model.injected(fast, *model.slow_placement(fast, place, None), None)
    return max(len(block.unique(dim=0)) for block in injected[0].split(model.config.pool_factor))


@torch.no_grad()
def apart_from_frozen(model: FastSlow, tokens: Tensor) -> float:
    """Measure (3) at one set of weights."""
    frozen = model.config.replace(frozen=True).build(seed=0).to(model.device).eval()
    frozen.load_state_dict(model.state_dict())
    with gate_at(model, 0.0):
        return float((model(tokens)[0] - frozen(tokens)[0]).abs().max())


STRUCTURE_PROBE = Probe("structure", structure_of_run)
