"""What the two timescales of a FastSlow do while it trains, on the batch on which the logits are looked at, too.

    gate            tanh gamma                                                                              (1)
    change          |block(x) - x| / |x|, mean over tokens: how far a block is from leaving its input alone (2)
    entropy         of attention's rows in nats, mean over all but the first, which is always 0             (3)
    slow memory     P (1 + mean distance); where the state decays by a, P / (1 - a). In tokens              (4)
    by head         P m, m the effective memory of a head (`analysis/memory.py`); of a map, 1 + mean distance (4')
    residual        |F(z) - z| / |z|, mean over tokens, round by round and evaluation by evaluation         (5)
    contraction     by how much an iteration of z -> F(z) - z grows at u, the largest of all rounds         (6)
    deq_unsolved    share of tokens, over all rounds, whose equilibrium was not reached                     (7)

(4) may be large on average over heads and tokens although most heads of a layer remember next to nothing: (4') tells.
(2), (3) and (4) are lists over the calls of blocks, in order: under several evaluations Post is called several times a
round. The two sides of (4) agree where attention falls by a constant factor, and with neither memory nor distance both
are P, the block itself. F is Post, with the method's own map under "deq"; (6) is `growth_rate` of `fixed_point.py`:
below 1 plain iteration converges there. (6) and (7) cost a few backward passes through Post, so they come with the
evaluations, the others with every look. Nothing here draws from the run's random numbers or keeps a state.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from attractor.analysis.entropy import attention_entropy
from attractor.analysis.memory import decay_length, effective_memory, mean_distance
from attractor.attention import Rotation
from attractor.equilibrium.fixed_point import Step, growth_rate
from attractor.models.fast_slow import FastSlow
from attractor.taps import Seen, capture

Record = dict[str, Any]


@dataclass(frozen=True)
class Convergence:
    """Of Post to its equilibrium, on the probe; what is counted and its residual under "deq" alone."""

    growth: float
    n_tokens: int = 0
    n_unsolved: int = 0
    largest_residual: float = 0.0

    @property
    def record(self) -> Record:
        unsolved = {"deq_unsolved": self.n_unsolved / self.n_tokens} if self.n_tokens else {}
        return {"contraction": self.growth} | unsolved

    @property
    def warning(self) -> str | None:
        """What to tell the user of a run under "deq"; None where all is well."""
        if not self.n_tokens or (self.growth < 1 and not self.n_unsolved):
            return None
        return (
            f"deq {'does' if self.n_unsolved else 'may'} not converge: {self.n_unsolved} of {self.n_tokens} tokens of "
            f"the probe are not solved (largest residual {self.largest_residual:.2g}), and plain iteration grows by "
            f"{self.growth:.2f} a step, where it should be below 1; training goes on with each token's best iterate. "
            "More n_iterations may help"
        )


@dataclass
class Calls:
    """What the blocks of one path did, in the order of their calls."""

    changes: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    memories: list[Tensor] = field(default_factory=list)  # in positions
    by_head: list[Tensor] = field(default_factory=list)  # in positions, head by head


class Vitals:
    """`forward` carries the batch through the model; whether it runs under autocast is its own affair."""

    def __init__(self, model: FastSlow, forward: Callable[[], object]) -> None:
        self.model, self.forward = model, forward

    @torch.no_grad()
    def look(self) -> Record:
        """(1) to (5), from one forward pass in evaluation mode."""
        fast, slow = Calls(), Calls()
        model = self.model
        with capture("weights", "log_decay", "residual") as seen, ExitStack() as watched:
            for calls, stacks in ((fast, (model.pre, model.post)), (slow, (model.slow,))):
                for block in (block for stack in stacks for block in stack):
                    hook = block.register_forward_hook(partial(_note, seen, calls))
                    watched.callback(hook.remove)
            watched.enter_context(_evaluating(model))
            self.forward()
        record = {
            "gate": float(model.gate),
            "fast_change": _numbers(fast.changes),
            "slow_change": _numbers(slow.changes),
            "fast_entropy": _numbers(fast.entropies),
            "slow_entropy": _numbers(slow.entropies),
            "slow_memory": _numbers([model.config.pool_factor * memory for memory in slow.memories]),
            "slow_memory_by_head": [(model.config.pool_factor * heads).tolist() for heads in slow.by_head],
            "residual": [trace.tolist() for trace in seen["residual"]],
        }
        return {name: found for name, found in record.items() if found != []}

    @torch.no_grad()
    def convergence(self) -> Convergence | None:
        """(6) and (7); None without Post."""
        posts = self.posts()
        if not posts:
            return None
        # The same signs each time, so that two looks differ by what has been learned alone.
        signs = torch.Generator().manual_seed(0)
        growth = max(float(growth_rate(partial(_moved, step), u, generator=signs).max()) for step, u in posts)
        solver = self.model.solver
        if solver.method != "deq":
            return Convergence(growth)
        found = [solver.solve(step, u) for step, u in posts]
        return Convergence(
            growth,
            sum(each.residual.numel() for each in found),
            sum(int(each.n_unsolved) for each in found),
            max(float(each.largest_residual) for each in found),
        )

    def posts(self) -> list[tuple[Step, Tensor]]:
        """Of each round, F and u."""
        model = self.model
        if not len(model.post):
            return []
        inputs: list[tuple[Any, ...]] = []
        hook = model.post[0].register_forward_pre_hook(lambda block, given: inputs.append(given))
        try:
            with _evaluating(model):
                self.forward()
        finally:
            hook.remove()

        def step(z: Tensor, evaluation: int, mask: bool | Tensor, rotation: Rotation | None) -> Tensor:
            with _evaluating(model):
                return model.stacked(model.post, z, mask, rotation, None)[0]

        starts = inputs[:: model.solver.n_evaluations]  # the other evaluations go on from there
        return [(partial(step, mask=mask, rotation=rotation), u) for u, mask, rotation, _ in starts]


def in_summary(records: Sequence[Mapping[str, Any]]) -> Record:
    """What a run's summary holds of its looks: how they stood at the last one, and how far the gate ever opened."""
    looks = [record for record in records if "gate" in record]
    if not looks:
        return {}
    last = looks[-1]
    found = {"gate": last["gate"], "gate_largest": max(abs(look["gate"]) for look in looks)}
    found |= {name: last[name] for name in ("fast_change", "slow_change", "slow_memory_by_head") if name in last}
    means = {"slow_memory": last.get("slow_memory"), "residual": [trace[-1] for trace in last.get("residual", [])]}
    found |= {name: fmean(values) for name, values in means.items() if values and None not in values}
    converged: Mapping[str, Any] = next((record for record in reversed(records) if "contraction" in record), {})
    return found | {name: converged[name] for name in ("contraction", "deq_unsolved") if name in converged}


def _note(seen: Seen, calls: Calls, block: nn.Module, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Measure what a block has just done. Its maps are let go at once: they are large."""
    x, moved = inputs[0].flatten(2).float(), output[0].flatten(2).float()
    size = torch.linalg.vector_norm(x, dim=-1).clamp(min=torch.finfo(x.dtype).tiny)
    calls.changes.append((torch.linalg.vector_norm(moved - x, dim=-1) / size).mean())  # (2)
    maps, decays = (seen[name].copy() for name in ("weights", "log_decay"))
    for name in ("weights", "log_decay"):
        seen[name].clear()
    calls.entropies += [attention_entropy(weights).sum(-1).mean() / max(weights.shape[-2] - 1, 1) for weights in maps]
    calls.memories += [decay_length(decay).mean() for decay in decays] or [  # (4)
        1 + mean_distance(weights).mean() for weights in maps
    ]
    calls.by_head += [effective_memory(decay).mean((0, -1)) for decay in decays] or [  # (4')
        1 + mean_distance(weights).mean((0, -1)) for weights in maps
    ]


def _moved(step: Step, z: Tensor) -> Tensor:
    return step(z, 0) - z


def _numbers(values: list[Tensor]) -> list[float]:
    return torch.stack(values).tolist() if values else []  # waits for the device once


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
