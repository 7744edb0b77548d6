"""Find the largest attention logit of every head since the last reset, at almost no cost.

    S_h = max over b, t, s of scale q_h,bt . k_g,bs,  where t may attend to s                               (1)
    S_h <= scale max_t |q_h,bt| max_s |k_g,bs| =: bound, for the worst b                                    (2)

Both use the queries and keys that are really scored (`score_inputs.py`), before any soft-cap. A head whose bound (2) is
within the threshold cannot have passed it. It is screened out at a cost of O(T K), and its bound is reported instead of
its maximum, marked as not exact. For all other heads, and for all heads without a threshold, (1) is computed in fp32 or
wider: in blocks of queries, or on a GPU without storing logits.

Only forward passes in training mode count, over micro-batches and the processes that train the same layers
(`process_groups.py`), also those without gradients, as a model may repeat its layers. Evaluations between two steps do
not count. Non-finite logits do not count either, since they do not say how far to clip. Under tensor parallelism a
process scores some of the heads, and reports on those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.distributed
from torch import Tensor, nn

from attractor.control.process_groups import Groups, LocalHeads
from attractor.control.score_inputs import ScoreInputs, ScoreObserver, refuse_unseen
from attractor.control.views import QueryKeyHeads
from attractor.errors import InputError
from attractor.kernels.fallback import exceeds_32_bits, use_kernel
from attractor.kernels.precision import without_autocast

NEVER = float("-inf")  # the maximum over nothing
CPU_BLOCK = 2**20  # logits at a time that fit into a processor's cache
GPU_BLOCK = 2**26  # logits at a time that fill an accelerator
ROUNDING = 1 + 1e-4  # covers the rounding of norms and products in fp32, so that no bound is below its maximum
MAX_WIDTH = 256  # of a head in the kernel
MAX_WAITING = 2**28  # bytes of queries and keys that may wait until the bounds are compared with the threshold


@dataclass(frozen=True, eq=False)
class HeadMaxima:
    """The largest logits of one layer by head: (1) where `exact`, else the bound (2); -inf where nothing was scored."""

    logits: Tensor  # H
    exact: Tensor  # H, boolean


@dataclass(eq=False)
class _Layer:
    """The maxima (1) and bounds (2) of a layer since the last reset."""

    name: str
    heads: LocalHeads
    groups: Groups
    device: torch.device
    values: Tensor | None = None  # 2 H

    def count(self, exact: Tensor, bound: Tensor) -> None:
        """Count the maxima and bounds of the heads that this process scores."""
        values = torch.stack([exact, bound]).nan_to_num(NEVER, NEVER, NEVER)
        if len(exact) < self.heads.n_heads:
            scored = self.heads.scored(self.name, len(exact))
            values = values.new_full((2, self.heads.n_heads), NEVER).index_copy_(1, scored.to(values.device), values)
        self.device = values.device
        self.values = values if self.values is None else torch.maximum(self.values, values)

    def so_far(self) -> Tensor:
        """Return the maxima and the bounds: 2 H."""
        if self.values is None:
            return torch.full((2, self.heads.n_heads), NEVER, device=self.device)
        return self.values


class LogitMaxima:
    """Observe the layers of the views until `remove()`.

    With `at_once` the bounds are compared with the threshold layer by layer, else all together, because reading values
    of a device waits for it. None means layer by layer on a CPU only. `groups` are those of every view, over which the
    maxima are taken; None means this process alone."""

    def __init__(
        self,
        views: list[QueryKeyHeads],
        threshold: float | None = None,
        at_once: bool | None = None,
        groups: Sequence[Groups] | None = None,
    ) -> None:
        for view in views:
            refuse_unseen(view.name, view.module)
        # The views are not stored: an observer must not keep the model alive.
        self.threshold, self.at_once = threshold, at_once
        self._layers = [
            _Layer(view.name, LocalHeads(view), of_view, next(iter(view.parts().values())).weight.device)
            for view, of_view in zip(views, [()] * len(views) if groups is None else groups, strict=True)
        ]
        self._waiting: list[tuple[_Layer, ScoreInputs, Tensor]] = []  # with their bounds (2)
        self._observers = [
            ScoreObserver(view.module, partial(self._observe, layer))
            for view, layer in zip(views, self._layers, strict=True)
        ]

    def remove(self) -> None:
        for observer in self._observers:
            observer.remove()
        self.reset()

    def reset(self) -> None:
        self._waiting.clear()
        for layer in self._layers:
            layer.values = None

    @property
    def unseen(self) -> list[str]:
        """The layers that have scored nothing in this process."""
        waiting = [layer for layer, *_ in self._waiting]
        return [layer.name for layer in self._layers if layer.values is None and layer not in waiting]

    @torch.no_grad()
    def read(self) -> dict[str, HeadMaxima]:
        """Return the maxima of every layer since the last reset. All processes of the groups must call it together."""
        self._settle()
        device = self._layers[0].device
        maxima: dict[str, HeadMaxima] = {layer.name: cast(HeadMaxima, None) for layer in self._layers}
        for groups in dict.fromkeys(layer.groups for layer in self._layers):  # one message for all layers of a group
            layers = [layer for layer in self._layers if layer.groups == groups]
            values = torch.cat([layer.so_far().to(device) for layer in layers], dim=1)
            for group in groups:
                torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX, group)
            for layer, (exact, bound) in zip(
                layers, values.split([of.heads.n_heads for of in layers], dim=1), strict=True
            ):
                maxima[layer.name] = HeadMaxima(torch.maximum(exact, bound), exact >= bound)
        return maxima

    def _observe(self, layer: _Layer, module: nn.Module, scored: ScoreInputs) -> None:
        if scored.q.shape[1] > layer.heads.n_heads:  # fewer are those of a tensor-parallel process
            raise InputError(
                f"'{layer.name}' must score {layer.heads.n_heads} query heads at most, as its view says, got "
                f"{scored.q.shape[1]} in queries of {tuple(scored.q.shape)}, read as B H T K; correct the view, or the "
                "call of `observe`"
            )
        if module.training:
            self._count(layer, scored)

    @torch.no_grad()
    def _count(self, layer: _Layer, scored: ScoreInputs) -> None:
        if self.threshold is None:
            exact = exact_maxima(scored, torch.arange(scored.q.shape[1], device=scored.q.device))
            layer.count(exact, torch.full_like(exact, NEVER))
            return
        self._waiting.append((layer, scored, logit_bound(scored)))
        at_once = scored.q.device.type == "cpu" if self.at_once is None else self.at_once
        if at_once or sum(waiting.nbytes for _, waiting, _ in self._waiting) > MAX_WAITING:
            self._settle()

    def _settle(self) -> None:
        """Compare all waiting bounds with the threshold, and compute the maxima of the heads above it."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        threshold, device = cast(float, self.threshold), waiting[0][2].device
        # A bound that is not a number (padding may hold anything) screens nothing out.
        within = torch.cat([(bound <= threshold).to(device) for *_, bound in waiting]).cpu()
        by_layer = within.split([len(bound) for *_, bound in waiting])
        for (layer, scored, bound), screened_out in zip(waiting, by_layer, strict=True):
            exact = torch.full_like(bound, NEVER)
            if not screened_out.all():
                heads = (~screened_out).nonzero().flatten().to(exact.device)
                exact[heads] = exact_maxima(scored, heads)
            layer.count(exact, bound.masked_fill(~screened_out.to(exact.device), NEVER))


@torch.no_grad()
def logit_bound(scored: ScoreInputs) -> Tensor:
    """Return (2) by head, over all positions, masked or not."""
    wide = torch.promote_types(scored.q.dtype, torch.float32)
    q, k = (torch.linalg.vector_norm(x, dim=-1, dtype=wide).amax(-1) for x in (scored.q, scored.k))  # B H and B J
    return ((q * k[:, scored.reads]).amax(0) * (scored.scale * ROUNDING)).float()


@torch.no_grad()
def exact_maxima(scored: ScoreInputs, heads: Tensor) -> Tensor:
    """Return (1) of these heads."""
    if use_kernel("the largest logits", scored.q, _kernel_obstacle(scored)):
        from attractor.kernels.gpu.maxima import largest_logits

        return largest_logits(
            scored.q, scored.k, scored.scale, heads, scored.causal, cast(Tensor | None, scored.allowed)
        )
    with without_autocast(scored.q):
        wide = torch.promote_types(scored.q.dtype, torch.float32)
        q, k = scored.q, scored.k
        is_subset = len(heads) < q.shape[1]
        if is_subset or k.shape[1] < q.shape[1]:
            k = k[:, scored.reads[heads]]
        if is_subset:
            q = q[:, heads]
        q, k = q.to(wide), k.to(wide)
        n_queries, n_keys = q.shape[2], k.shape[2]
        size = CPU_BLOCK if q.device.type == "cpu" else GPU_BLOCK
        rows = max(size // (q.shape[0] * q.shape[1] * n_keys), 16)
        largest = torch.full((len(heads),), NEVER, dtype=wide, device=q.device)
        for start in range(0, n_queries, rows):
            stop = min(start + rows, n_queries)
            first, last, allowed = scored.keys_of(start, stop, heads)
            logits = q[:, :, start:stop] @ k[:, :, :last].mT
            if allowed is not None:
                logits[..., first:].masked_fill_(~allowed, NEVER)
            largest = torch.maximum(largest, logits.amax((0, 2, 3)))
        return (largest * scored.scale).float()


def _kernel_obstacle(scored: ScoreInputs) -> str | None:
    q, k, allowed = scored.q, scored.k, scored.allowed
    if q.dtype != k.dtype or q.dtype == torch.float64 or q.shape[-1] > MAX_WIDTH:
        return f"it takes one precision below fp64 and heads up to {MAX_WIDTH} wide, not {q.dtype} of {q.shape[-1]}"
    if exceeds_32_bits(q, k):
        return "offsets within a sequence exceed 32 bits"
    if allowed is None or (isinstance(allowed, Tensor) and allowed.dtype == torch.bool):
        return None
    return "it takes boolean masks only"
