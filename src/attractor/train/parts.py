"""The parameters of each part of a model, and the FLOPs that a token costs there.

    forward    torch counts the FLOPs while the model runs without data, on the meta device                 (1)
    causal     a score over pairs computes (T + 1) / 2 keys for a token on average, or with a window W the
               mean of min(t, W), where torch counts all keys of a block; on the slow path, T is the number
               of slow positions                                                                            (2)
    backward   each product of the forward pass becomes two products: twice the FLOPs of the forward pass   (3)
    iterated   the first iteration of a recurrent model is counted, and the second one for each of the others    (4)
    own        a module of one's own that cannot run without data, since its operations depend on values or are
               no operations of torch, counts as two for each of its parameters                             (5)

FLOPs are those of matrix products: two for a multiplication and an addition. Padding counts, where a fused kernel takes
one width for queries and values, even if a CPU trains without it. By convention, what activation checkpointing
recomputes does not count.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn

from attractor.attention import Attention
from attractor.attention.config import STAGES
from attractor.attention.score.window import pairs_computed, pairs_seen
from attractor.attention.whole import WholeLayer
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel

# Patterns of the names of blocks in a model. A recurrent model has a single block, or attention outside any block.
FAST, SLOW = r"(?:(?:blocks|pre|post)\.\d+\.|block\.|)", r"slow\.\d+\."
MIXING = "(?:attention|mlp)_mixing"  # of residual streams
OF_ENERGY = ("query", "key", "turn", "strength")  # weights of attention that is the gradient of an energy
PARTS = ("embedding", "positions", *STAGES, "mlp", "norms", "slow path", "injection", "readout")
OF_TWO_TIMESCALES = ("slow path", "injection")  # parts that FastSlow alone has
BACKWARD = 2  # (3)
BY_PARAMETERS = "its own module cannot run without data, and counts as two FLOPs a parameter"  # (5)


def without_data(config: ModelConfig[LanguageModel]) -> LanguageModel:
    """Return the model on the meta device, where parameters have shapes but no values."""
    with torch.device("meta"):
        return config.build()


def part_of(name: str, model: LanguageModel) -> str:
    """Return the part that a parameter belongs to. Norms of queries and keys belong to the coupling."""
    if inside := re.match(rf"{FAST}attention\.(\w+)", name):
        return "project" if inside[1] in OF_ENERGY else inside[1] if inside[1] in STAGES else "couple"
    if re.match(rf"{FAST}mlp\.", name):
        return "mlp"
    return model.part_of_module.get(name.split(".")[0], "norms")


def parameters_by_part(model: LanguageModel) -> dict[str, int]:
    counts = {part: 0 for part in PARTS if part not in OF_TWO_TIMESCALES}
    for name, parameter in model.named_parameters():
        part = part_of(name, model)
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


class _ProductOfParameters(nn.Module):
    """Stands in for a module: a product with as many parameters, of which nothing is computed on the meta device."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.n_parameters = sum(parameter.numel() for parameter in module.parameters())

    def forward(self, x: Tensor) -> Tensor:
        x @ x.new_empty(x.shape[-1], self.n_parameters // x.shape[-1])
        return x


@lru_cache(maxsize=64)
def _counted(config: ModelConfig, seq_len: int) -> tuple[Mapping[str, int], Mapping[str, int | None], bool]:
    """Return the FLOPs of one sequence by module, the windows of attention over pairs by module, and whether (5).

    Torch counts all pairs of positions that are multiplied."""
    from torch.utils.flop_counter import FlopCounterMode  # imports triton, a quarter of a second

    tokens = torch.zeros(1, seq_len, dtype=torch.long, device="meta")
    model = without_data(config).eval()  # in training, noise would be drawn from torch's generator

    def counted(**how: int) -> dict[str, int]:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens, **how)
        return {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}

    def counted_in_whole() -> dict[str, int]:
        if not isinstance(model, RecurrentModel):
            return counted()
        once, twice = counted(n_iterations=1), counted(n_iterations=2)
        return {name: n + (model.n_iterations - 1) * (twice[name] - n) for name, n in once.items()}  # (4)

    whole_layers: list[WholeLayer] = []
    try:
        flops = counted_in_whole()
    except Exception:
        whole_layers = [module for module in model.modules() if isinstance(module, WholeLayer)]
        if not whole_layers:
            raise
        for layer in whole_layers:
            layer.module = _ProductOfParameters(layer.module)  # (5)
        flops = counted_in_whole()
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    return (
        flops,
        {name: layer.window for name, layer in layers.items() if layer.config.score.over_pairs},
        bool(whole_layers),
    )


def counted_by_parameters(config: ModelConfig, seq_len: int) -> bool:
    """Whether a module of the model counts as in (5)."""
    return _counted(config, seq_len)[2]


def forward_flops(config: ModelConfig, seq_len: int) -> dict[str, float]:
    """Return the FLOPs of a token by part, on average over a sequence; parts without products have 0."""
    counted, windows, _ = _counted(config, seq_len)

    def inside(stacks: str, pattern: str) -> int:
        return sum(n for name, n in counted.items() if re.fullmatch(rf"\w+\.{stacks}{pattern}", name))

    def scores(stacks: str, length: int) -> float:
        total = float(inside(stacks, r"attention\.score"))
        for window in dict.fromkeys(windows.values()) if config.causal and length > 0 else ():
            layers = "|".join(re.escape(name) for name, its_window in windows.items() if its_window == window)
            layers = rf"(?={stacks}attention\.)(?:{layers})\.score"
            computed = inside("", layers) - inside("", rf"{layers}\.\w+")  # a linear map inside is not over pairs
            total += computed * (pairs_seen(length, window) / pairs_computed(length, window)) - computed  # (2)
        return total

    flops: dict[str, float] = {stage: inside(FAST, rf"attention\.{stage}") for stage in STAGES}
    flops["project"] += inside(FAST, "attention") - sum(flops.values())  # attention without stages
    flops["couple"] += inside("", "convolution") + inside(FAST, "mixing")
    flops["mlp"] = inside(FAST, "mlp")
    if mixing := inside(FAST, MIXING):
        flops["norms"] = mixing
    n_slow = config.slow_length(seq_len)
    if n_slow:
        flops["slow path"] = inside(SLOW, "attention") + inside(SLOW, "mlp") + inside(SLOW, MIXING)
        flops["injection"] = sum(n for name, n in counted.items() if re.fullmatch(r"\w+\.injection", name))
    flops["readout"] = counted["Global"] - sum(flops.values())
    flops["score"] = scores(FAST, seq_len)
    if n_slow:
        flops["slow path"] += scores(SLOW, n_slow) - inside(SLOW, r"attention\.score")
    return {part: n / seq_len for part, n in flops.items()}


def training_flops(config: ModelConfig, seq_len: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the FLOPs of a token in a training step by part, of the forward and of the backward pass."""
    flops, shares = forward_flops(config, seq_len), config.shares_of_training
    forward, backward = ({part: share * n for part, n in flops.items()} for share in shares)
    return forward, {part: BACKWARD * n for part, n in backward.items()}


def training_flops_per_token(config: ModelConfig, seq_len: int) -> float:
    return sum(sum(flops.values()) for flops in training_flops(config, seq_len))
