"""QK-clip: scale down a head's query and key weights where its largest logit S passed a threshold.

    gamma_h = threshold / S_h where S_h > threshold, else 1                                                 (1)
    dot product:  W_q,h and W_k,h each times sqrt(gamma_h)                                                  (2)
    latent:       W_uq,h and W_uk,h each times sqrt(gamma_h), W_qr,h times gamma_h                          (3)
    a key head that several query heads read is not scaled, and W_q,h (W_uq,h) takes the whole gamma_h      (4)

The clip acts after every step of the optimizer. S is the largest logit since the previous step (`logit_maxima.py`).
W_kr, W_dq, W_dkv and the value weights are not scaled; a bias is scaled like the rows of its weight. The heads of a
group ask for different factors, and each would shrink the shared key for all others, hence (4). After (1) to (4) the
logits of a layer, for the same input, are gamma_h times what they were. Its input changes too, as the layers before it
are clipped. A head whose logits stayed within the threshold keeps its weights bit for bit.

MuonClip: Kimi Team, "Kimi K2", 2025, arXiv 2507.20534, section 2.1. QuacK: Anson and Aitchison, "Controlling changes to
attention logits", 2025, section 4 compares the two. (4) is an addition of this project.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor, nn

from attractor.control import optimizer_hooks as hooks
from attractor.control.heads import query_key_heads
from attractor.control.local_rows import is_sharded, local_region
from attractor.control.logit_maxima import HeadMaxima, LogitMaxima
from attractor.control.process_groups import groups_of, refuse_other_layers
from attractor.control.score_inputs import refuse_unseen
from attractor.control.views import DotProduct, QueryKeyHeads, Rows
from attractor.errors import InputError, require

NAME = "QKClip"
NO_HEAD = -1


@dataclass(frozen=True, eq=False)
class ClippedRows:
    """Rows that (2) to (4) scale: those of head i are multiplied by gamma of head of[i], to the power[i]."""

    name: str  # of the part in the view, such as "query"
    rows: Rows
    of: tuple[int, ...]
    power: tuple[float, ...]

    @cached_property
    def by_row(self) -> tuple[Tensor, Tensor]:
        """`of` and `power` of every row of the weight. Rows of no head index a last entry of gamma, 1."""
        rows, device = self.rows, self.rows.weight.device
        of = torch.full((rows.weight.shape[rows.axis],), NO_HEAD, device=device)
        power = torch.ones(len(of), device=device)
        of[rows.index] = torch.tensor(self.of, device=device).repeat_interleave(rows.width)
        power[rows.index] = torch.tensor(self.power, device=device).repeat_interleave(rows.width)
        return of, power

    def apply(self, gamma: Tensor) -> None:
        of, power = self.by_row
        factors = torch.cat([gamma, gamma.new_ones(1)]).to(of.device)[of] ** power
        scale_along(self.rows.weight, factors, self.rows.axis)
        if self.rows.bias is not None:
            scale_along(self.rows.bias, factors, 0)


def clipped_rows(view: QueryKeyHeads) -> list[ClippedRows]:
    """Return the rows that (2), (3) and (4) scale in one layer."""
    names = ("query", "key") if isinstance(view, DotProduct) else ("uq", "uk")
    query, key = (view.parts()[name] for name in names)
    readers = [[head for head, read in enumerate(view.reads) if read == part] for part in range(key.n_heads)]
    has_one_reader = [len(heads) == 1 for heads in readers]
    heads = tuple(range(view.n_heads))
    power = tuple(0.5 if has_one_reader[read] else 1.0 for read in view.reads)
    clipped = [ClippedRows(names[0], query, heads, power)]
    if any(has_one_reader):
        first_reader = tuple(heads[0] if heads else 0 for heads in readers)
        clipped.append(
            ClippedRows(names[1], key, first_reader, tuple(0.5 if alone else 0.0 for alone in has_one_reader))
        )
    if not isinstance(view, DotProduct) and view.qr is not None:
        clipped.append(ClippedRows("qr", view.qr, heads, (1.0,) * view.n_heads))
    return clipped


def scale_along(parameter: Tensor, factors: Tensor, axis: int) -> None:
    """Multiply the parameter by the factors along the axis. Every process scales its part of a sharded parameter."""
    begins, shape = local_region(parameter)
    here = factors.narrow(0, begins[axis], shape[axis])
    local_values(parameter).mul_(here.view([-1 if i == axis else 1 for i in range(parameter.ndim)]))


def local_values(tensor: Tensor) -> Tensor:
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


class QKClip:
    """Clip after every step of the optimizer, or of the last of several in each round, until `remove()`.

    `last` holds the maxima of the last step by layer. `n_clipped` counts clipped heads over all steps. A checkpoint
    needs no other state of the clip, since observations last from one step to the next only. On several processes the
    maxima are those of `process_group`: one group, several, or () for this process alone. Left out, it follows from a
    DistributedDataParallel wrapper that is given as the model, or from the mesh of sharded weights.
    """

    def __init__(self, model: nn.Module, optimizer: Any, threshold: float = 100.0, process_group: Any = None) -> None:
        is_threshold = isinstance(threshold, Real) and not isinstance(threshold, bool) and 0 < threshold < math.inf
        require(is_threshold, "threshold", "positive and finite", threshold, "30 and 100 are usual")
        self.threshold = float(threshold)
        self.optimizers = hooks.unwrapped(optimizer)
        self.views = query_key_heads(model)
        self._clipped = {view.name: clipped_rows(view) for view in self.views}
        hooks.refuse_second_copy(self.optimizers, NAME)
        named = {f"{part.name} of '{layer}'": part.rows for layer, parts in self._clipped.items() for part in parts}
        hooks.refuse_shared(named, NAME)
        hooks.refuse_out_of_reach(self.optimizers, named, NAME)
        for view in self.views:
            refuse_obstacle(view)
            refuse_unseen(view.name, view.module)
            _refuse_frozen(view, self._clipped[view.name])
        groups = groups_of(model, self.views, process_group)
        for same in dict.fromkeys(groups):
            layers = {view.name: view.n_heads for view, its in zip(self.views, groups, strict=True) if its == same}
            refuse_other_layers(layers, same, next(iter(self.views[0].parts().values())).weight.device)
        hooks.attach(self.optimizers, NAME, after=("QuacK", "FixedRates"))
        self.maxima = LogitMaxima(self.views, threshold, groups=groups)
        self._rounds = hooks.Rounds(len(self.optimizers))
        self._was_cut = False
        self._hooks = hooks.around_steps(self.optimizers, None, self._after)
        self.last: dict[str, HeadMaxima] = {}
        self.count_from(0)

    def count_from(self, n_before: int) -> None:
        """Continue a count of clipped heads, as that of a run that is resumed."""
        self._n_before = n_before
        self._n_clipped: Tensor | None = None

    @property
    def n_clipped(self) -> int:
        """How often a head was clipped, over all layers and steps."""
        return self._n_before + (0 if self._n_clipped is None else int(self._n_clipped))

    def remove(self) -> None:
        if not self._hooks:  # it was removed before, and the optimizers may have another clip by now
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.maxima.remove()
        hooks.detach(self.optimizers, NAME)

    def _after(self, number: int) -> None:
        # A GradScaler that skips a step does not call this hook, unless the optimizer is fused. The maxima go on to
        # count, as no weight has changed.
        is_complete, was_cut = self._rounds.end(number)
        if not (is_complete or was_cut):
            return
        # After the clip for a round that was cut off, the rest of the next round may follow without a forward pass.
        if not (self._was_cut and len(self.maxima.unseen) == len(self.views)):
            self._clip()
        self._was_cut = was_cut and not is_complete

    @torch.no_grad()
    def _clip(self) -> None:
        unseen = set(self.maxima.unseen)
        for view in self.views:
            if view.name in unseen:
                _refuse_unseen_training(view, self._clipped[view.name])
        self.last = self.maxima.read()
        self.maxima.reset()
        for view in self.views:  # weights may have been frozen since
            _refuse_frozen(view, self._clipped[view.name])
        for name, of_layer in self.last.items():
            # A smaller change would be rounded off.
            rounding = torch.finfo(self._clipped[name][0].rows.weight.dtype).eps
            over = of_layer.logits > self.threshold * (1 + rounding)
            gamma = torch.where(over, self.threshold / of_layer.logits, 1.0)  # (1)
            for part in self._clipped[name]:
                part.apply(gamma)
            n_over = over.sum()
            self._n_clipped = n_over if self._n_clipped is None else self._n_clipped + n_over


def refuse_obstacle(view: QueryKeyHeads) -> None:
    if not view.obstacle:
        return
    next_step = "QuacK controls how fast its logits change"
    if "QK-norm" in view.obstacle:
        next_step = (
            "QK-norm bounds the logits already, and clipping would do nothing; train without qk_norm (or take a "
            "model without it: Qwen2 in Qwen3's place), or control its rates with QuacK"
        )
    raise InputError(
        f"model must have logits that scale with its weights, but in '{view.name}' {view.obstacle}: {next_step}"
    )


def _refuse_unseen_training(view: QueryKeyHeads, clipped: Iterable[ClippedRows]) -> None:
    """Refuse a layer that trains, as its gradients say, but whose logits were not seen since the last step."""
    gradients = [part.rows.weight.grad for part in clipped]
    if any(bool(local_values(gradient).any()) for gradient in gradients if gradient is not None):
        raise InputError(
            f"QKClip must see the attention logits of '{view.name}', but saw none since the last step, though it has "
            "gradients: attach before torch.compile's first call and train in training mode (model.train()); if its "
            "code computes logits itself, add `attractor.control.observe(self, q, k, scale=..., causal=True)` to it"
        )


def _refuse_frozen(view: QueryKeyHeads, clipped: Iterable[ClippedRows]) -> None:
    for part in clipped:
        if any(p is not None and not p.requires_grad for p in (part.rows.weight, part.rows.bias)):
            raise InputError(
                f"model must train all weights that QKClip may scale, but the {part.name} weights of '{view.name}' are "
                "frozen: set requires_grad, or train without QKClip"
            )
