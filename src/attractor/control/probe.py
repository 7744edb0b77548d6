"""Observe attention logits during training, on one fixed batch.

    max_logit      the largest logit of every head                                                          (1)
    logit_change   the mean of |L - L'| over all pairs that may attend, L' the logits of the previous look  (2)
    P_norm, P_rate for every part P of the query and key weights (`views.py`), head by head: its Frobenius norm and,
                   where rates are controlled, the rate of the last step relative to the base rate          (3)

Logits are scaled, and taken before any soft-cap. A look is a separate forward pass in evaluation mode without
gradients. It draws no random number and does not influence training. It costs a forward pass, so a short batch keeps it
cheap. The logits are kept until the next look. Anson and Aitchison, "Controlling changes to attention logits", 2025,
figure 4.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attractor.attention.evaluating import evaluating
from attractor.control.heads import known_heads
from attractor.control.layouts import refuse_unknown
from attractor.control.local_rows import LocalRows
from attractor.control.norms import FrobeniusNorm
from attractor.control.rates import HeadRates
from attractor.control.score_inputs import ScoreInputs, ScoreObserver
from attractor.errors import InputError

Look = dict[str, list[list[float]]]  # by quantity: one list per layer, one number per head


class LogitProbe:
    """Look at the logits of the batch that `forward` passes through the model, under autocast if `forward` sets it."""

    def __init__(self, model: nn.Module, forward: Callable[[], object]) -> None:
        self.model, self.forward = model, forward
        self.views = known_heads(model)
        self.shares = {(v.name, part): LocalRows(rows) for v in self.views for part, rows in v.parts().items()}
        self.last: dict[str, Tensor] = {}  # by layer, H B T S

    @torch.no_grad()
    def look(self, rates: HeadRates | None = None) -> Look:
        """Return (1), (3), and from the second look on (2)."""
        if not self.views:
            refuse_unknown(self.model)
        seen: dict[str, list[ScoreInputs]] = {}
        observers = [ScoreObserver(view.module, partial(_note, seen, view.name)) for view in self.views]
        try:
            with evaluating(self.model):
                self.forward()
        finally:
            for observer in observers:
                observer.remove()
        if not seen:
            raise InputError(
                "model must attend through torch's scaled_dot_product_attention or a function of Hugging Face's table, "
                f"for its logits to be seen, but '{self.views[0].name}' did neither in this forward pass: add "
                "`attractor.control.observe(self, q, k, scale=..., causal=True)` to it"
            )
        norms = self._norms()
        look: Look = {}
        for view in self.views:
            if view.name not in seen:  # the layer did not run
                continue
            numbers = self._of_logits(view.name, seen[view.name])
            numbers |= {f"{part}_norm": norms[view.name, part] for part in view.parts()}
            if rates is not None:
                numbers |= {f"{part}_rate": rate for part, rate in rates.rates.get(view.name, {}).items()}
            for name, values in numbers.items():
                look.setdefault(name, []).append(values.tolist())
        return look

    def _norms(self) -> dict[tuple[str, str], Tensor]:
        shares = list(self.shares.values())
        sizes = [share.rows.n_heads for share in shares]
        measure = FrobeniusNorm(shares)
        for index in range(len(shares)):
            measure.measure_share(index)
        return dict(zip(self.shares, measure.norms().split(sizes), strict=True))

    def _of_logits(self, layer: str, calls: list[ScoreInputs]) -> dict[str, Tensor]:
        """Return (1) over all calls of the layer in one pass, and (2) of its last call."""
        largest = torch.stack([logits_of(call)[0].amax((1, 2, 3)) for call in calls])
        logits, allowed = logits_of(calls[-1])
        numbers = {"max_logit": largest.amax(0)}
        finite = logits.masked_fill(~allowed, 0.0)
        if layer in self.last:
            if (before := self.last[layer].to(finite.device)).shape != finite.shape:
                raise InputError(
                    f"the batch of a probe must keep its shape, but the logits of '{layer}' (heads, batch, queries, "
                    f"keys) have the shape {tuple(finite.shape)}, and had {tuple(before.shape)} at the last look; pass "
                    "the same tokens at every look, or make a new LogitProbe"
                )
            change = (finite - before).abs().sum((1, 2, 3))
            numbers["logit_change"] = change / allowed.expand_as(finite).sum((1, 2, 3))
        self.last[layer] = finite
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """Return the logits of the last look, so that a resumed run can compute (2)."""
        return dict(self.last)

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        self.last = dict(stored)


def logits_of(scored: ScoreInputs) -> tuple[Tensor, Tensor]:
    """Return the logits H B T S, with -inf where a query may not attend, and the mask."""
    logits, allowed = scored.logits(torch.arange(scored.q.shape[1], device=scored.q.device))
    return logits.masked_fill(~allowed, float("-inf")).transpose(0, 1), allowed.transpose(0, 1)


def _note(seen: dict[str, list[ScoreInputs]], layer: str, module: nn.Module, scored: ScoreInputs) -> None:
    seen.setdefault(layer, []).append(scored)
