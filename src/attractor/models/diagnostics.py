"""Diagnose the two timescales of a FastSlow while it trains, on the fixed batch of the probe (`train/telemetry.py`).

    gate            tanh gamma                                                                              (1)
    change          |block(x) - x| / |x|, mean over tokens: how much a block changes its input              (2)
    entropy         of attention's rows in nats, mean over all rows but the first, whose entropy is 0       (3)
    slow memory     P (1 + mean distance); where the state decays by a, P / (1 - a). In tokens              (4)
    by head         P m, where m is a head's effective memory (`analysis/memory.py`), or 1 + mean distance (4')
    residual        |F(z) - z| / |z|, mean over tokens, for each round and each evaluation of F             (5)
    contraction     the growth rate at u of z -> F(z) - z, or with a forcing of F; the largest of all rounds  (6)
    unsolved        share of tokens, over all rounds, whose residual is above the solver's tolerance        (7)

F is Post; in (5) and (7), under "deq" and with a forcing, it is the map that the method iterates. (7) is measured
unless the method is "single". P is the pool factor. (2), (3) and (4) are lists over the calls of blocks in order, so a
Post that is evaluated several times a round appears several times. The mean in (4) can be large although most heads
remember next to nothing; (4') shows that. The two sides of (4) agree where attention falls by a constant factor.
Without any memory, both are P, the block itself. (6) is `growth_rate` of `equilibrium/fixed_point.py`; below 1, plain
iteration of the map converges.

(6) needs a few backward passes through Post, so (6) and (7) are measured at evaluations; the rest is measured at every
look at the probe. Measuring draws no random numbers of the run and keeps no state.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from attractor.analysis.entropy import attention_entropy
from attractor.analysis.memory import decay_length, effective_memory, mean_distance
from attractor.attention import Rotation
from attractor.attention.evaluating import evaluating
from attractor.attention.hooks import Seen, capture
from attractor.equilibrium.fixed_point import FORCED, IMPLICIT, growth_rate
from attractor.models.fast_slow import FastSlow
from attractor.models.language_model import LanguageModel

Record = dict[str, Any]


@dataclass(frozen=True)
class Convergence:
    """How well Post converges to its equilibrium on the probe. A single pass has no tokens to count."""

    method: str
    growth: float
    tolerance: float
    n_tokens: int = 0
    n_unsolved: int = 0
    largest_residual: float = 0.0

    @property
    def record(self) -> Record:
        unsolved = {"unsolved": self.n_unsolved / self.n_tokens} if self.n_tokens else {}
        return {"contraction": self.growth} | unsolved

    @property
    def warning(self) -> str | None:
        """A line for the user where the method does not, or may not, reach its equilibrium."""
        has_growth = self.method in (*IMPLICIT, *FORCED)  # methods that (6) says something about
        if not self.n_tokens or not (self.n_unsolved or (has_growth and self.growth >= 1)):
            return None
        growth = f", and plain iteration grows by {self.growth:.2f} a step, where it should be below 1"
        of_deq = "; training goes on with each token's best iterate" if self.method in IMPLICIT else ""
        return (
            f"{self.method} {'does' if self.n_unsolved else 'may'} not reach its equilibrium: {self.n_unsolved} of "
            f"{self.n_tokens} tokens of the probe have a residual above {self.tolerance:g} (largest "
            f"{self.largest_residual:.2g}){growth if has_growth else ''}{of_deq}. More n_iterations may help, or a "
            "larger solver_tolerance if this residual is small enough for you"
        )


@dataclass
class BlockCalls:
    """Measures of the blocks of one path, in the order of their calls."""

    changes: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    memories: list[Tensor] = field(default_factory=list)  # in positions
    by_head: list[Tensor] = field(default_factory=list)  # in positions, head by head


def diagnostics_of(model: LanguageModel, forward: Callable[[], object]) -> "Diagnostics | None":
    """Return what is logged of the model's family in training, besides its logits, on the batch that `forward` runs.

    The models do not import this module, so that an exported model carries none of its measures.
    """
    return Diagnostics(model, forward) if isinstance(model, FastSlow) else None


class Diagnostics:
    """Measures of a model on the batch that `forward` carries through it, under autocast if `forward` sets it."""

    def __init__(self, model: FastSlow, forward: Callable[[], object]) -> None:
        self.model, self.forward = model, forward

    @torch.no_grad()
    def look(self) -> Record:
        """Measure (1) to (5) in one forward pass in evaluation mode."""
        fast, slow = BlockCalls(), BlockCalls()
        model = self.model
        with capture("weights", "log_decay", "residual") as seen, ExitStack() as hooks:
            for calls, stacks in ((fast, (model.pre, model.post)), (slow, (model.slow,))):
                for block in (block for stack in stacks for block in stack):
                    hook = block.register_forward_hook(partial(_measure_block, seen, calls))
                    hooks.callback(hook.remove)
            hooks.enter_context(evaluating(model))
            self.forward()
        record = {
            "gate": float(model.gate),
            "fast_change": _numbers(fast.changes),
            "slow_change": _numbers(slow.changes),
            "fast_entropy": _numbers(fast.entropies),
            "slow_entropy": _numbers(slow.entropies),
            "slow_memory": _numbers([model.pool_factor * memory for memory in slow.memories]),
            "slow_memory_by_head": [(model.pool_factor * heads).tolist() for heads in slow.by_head],
            "residual": [trace.tolist() for trace in seen["residual"]],
        }
        return {name: value for name, value in record.items() if value != []}

    @torch.no_grad()
    def convergence(self) -> Convergence | None:
        """Measure (6) and (7); None for a model without Post."""
        posts = self.posts()
        if not posts:
            return None
        # The same signs at each evaluation, so that a difference between two evaluations comes from training alone.
        signs = torch.Generator().manual_seed(0)
        solver = self.model.solver
        iterated = [(f if solver.method in FORCED else partial(_moved, f), u) for f, u in posts]
        growth = max(float(growth_rate(step, u, generator=signs).max()) for step, u in iterated)
        if solver.method == "single":
            return Convergence(solver.method, growth, solver.tolerance)
        with capture("token_residual") as seen, evaluating(self.model):
            self.forward()
        residuals = torch.cat([residual.flatten() for residual in seen["token_residual"]])
        n_unsolved, largest = int((residuals > solver.tolerance).sum()), float(residuals.max())
        return Convergence(solver.method, growth, solver.tolerance, len(residuals), n_unsolved, largest)

    def posts(self) -> list[tuple[Callable[[Tensor], Tensor], Tensor]]:
        """Return F and u of each round."""
        model = self.model
        if not len(model.post):
            return []
        inputs: list[tuple[Any, ...]] = []
        hook = model.post[0].register_forward_pre_hook(lambda block, arguments: inputs.append(arguments))
        try:
            with evaluating(model):
                self.forward()
        finally:
            hook.remove()

        def post(z: Tensor, mask: bool | Tensor, rotation: Rotation | None) -> Tensor:
            with evaluating(model):
                return model.stacked(model.post, z, mask, rotation, None)[0]

        starts = inputs[:: model.solver.n_iterations]  # further evaluations of a round start from the first
        return [(partial(post, mask=mask, rotation=rotation), u) for u, mask, rotation, _ in starts]


def summary_of_diagnostics(records: Sequence[Mapping[str, Any]]) -> Record:
    """Return the diagnostics that a run's summary holds: their last values, and the largest opening of the gate."""
    looks = [record for record in records if "gate" in record]
    if not looks:
        return {}
    last, gates = looks[-1], [look["gate"] for look in looks]
    # Null stands for a number that was not finite.
    summary = {"gate": last["gate"], "gate_largest": None if None in gates else max(map(abs, gates))}
    summary |= {name: last[name] for name in ("fast_change", "slow_change", "slow_memory_by_head") if name in last}
    means = {"slow_memory": last.get("slow_memory"), "residual": [trace[-1] for trace in last.get("residual", [])]}
    summary |= {name: fmean(values) for name, values in means.items() if values and None not in values}
    converged: Mapping[str, Any] = next((record for record in reversed(records) if "contraction" in record), {})
    return summary | {name: converged[name] for name in ("contraction", "unsolved") if name in converged}


def _measure_block(
    seen: Seen, calls: BlockCalls, block: nn.Module, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]
) -> None:
    """Measure a block right after its call, and release its attention maps, which are large."""
    x, moved = inputs[0].flatten(2).float(), output[0].flatten(2).float()
    size = torch.linalg.vector_norm(x, dim=-1).clamp(min=torch.finfo(x.dtype).tiny)
    calls.changes.append((torch.linalg.vector_norm(moved - x, dim=-1) / size).mean())  # (2)
    maps, decays = (seen[name].copy() for name in ("weights", "log_decay"))
    for name in ("weights", "log_decay"):
        seen[name].clear()
    calls.entropies += [attention_entropy(weights)[..., 1:].mean().nan_to_num() for weights in maps]
    # Beside a sink, which is nowhere, rows sum to less than one.
    distances = [
        mean_distance(weights) / weights.sum(-1).clamp(min=torch.finfo(torch.float32).tiny) for weights in maps
    ]
    calls.memories += [decay_length(decay).mean() for decay in decays] or [  # (4)
        1 + distance.mean() for distance in distances
    ]
    calls.by_head += [effective_memory(decay).mean((0, -1)) for decay in decays] or [  # (4')
        1 + distance.mean((0, -1)) for distance in distances
    ]


def _moved(post: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    return post(z) - z


def _numbers(values: list[Tensor]) -> list[float]:
    return torch.stack(values).tolist() if values else []  # waits for the device once
