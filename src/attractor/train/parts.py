"""A model by its parts: how many parameters each has, and how many FLOPs a token costs there.

    forward    counted by torch on the model as it runs, without data (on the meta device)                  (1)
    causal     a score stage computes (T + 1) / 2 keys for a token on average, where torch counts T         (2)
    backward   each product of the forward pass is two in the backward pass: twice the forward              (3)

FLOPs are those of matrix products, two for a multiplication and an addition. Filling up (a fused kernel takes one width
for queries and values) counts, since it is computed; recomputing (activation checkpointing) does not, as is the custom.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from attractor.attention.config import STAGES
from attractor.models import Transformer, TransformerConfig

PARTS = ("embedding", "positions", *STAGES, "mlp", "norms", "readout")
BACKWARD = 2  # (3)


def without_data(config: TransformerConfig) -> Transformer:
    """The model's shapes alone."""
    with torch.device("meta"):
        return config.build()


def part_of(name: str) -> str:
    """The part that a parameter belongs to. Norms of queries and keys are the coupling's."""
    if inside := re.match(r"blocks\.\d+\.attention\.(\w+)", name):
        return inside[1] if inside[1] in STAGES else "couple"
    if re.match(r"blocks\.\d+\.mlp\.", name):
        return "mlp"
    first = name.split(".")[0]
    return {"embedding": "embedding", "positions": "positions", "head": "readout"}.get(first, "norms")


def parameters_by_part(model: Transformer) -> dict[str, int]:
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        counts[part_of(name)] += parameter.numel()
    return counts


@lru_cache(maxsize=64)
def _counted(config: TransformerConfig, seq_len: int) -> Mapping[str, int]:
    """FLOPs of one sequence by module, as torch counts them: all pairs of positions."""
    tokens = torch.zeros(1, seq_len, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        without_data(config)(tokens)
    return {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}  # (1)


def forward_flops(config: TransformerConfig, seq_len: int) -> dict[str, float]:
    """FLOPs of a token by part, on average over a sequence; what has none is 0."""
    counted = _counted(config, seq_len)

    def inside(pattern: str) -> int:
        return sum(n for name, n in counted.items() if re.fullmatch(rf"Transformer\.blocks\.\d+\.{pattern}", name))

    flops: dict[str, float] = {stage: inside(rf"attention\.{stage}") for stage in STAGES}
    flops["mlp"] = inside("mlp")
    flops["readout"] = counted["Global"] - sum(flops.values())
    by_weights = inside(r"attention\.score\.\w+")  # a linear map inside the stage knows no pairs
    seen = (seq_len + 1) / (2 * seq_len) if config.causal else 1.0  # (2)
    flops["score"] = by_weights + (flops["score"] - by_weights) * seen
    return {part: n / seq_len for part, n in flops.items()}


def training_flops_per_token(model: Transformer, seq_len: int) -> float:
    return (1 + BACKWARD) * sum(forward_flops(model.config, seq_len).values())
