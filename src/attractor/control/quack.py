"""QuacK: a step moves the query and key weights of a head less, the larger the norms of the weights they multiply.

So no step can change the logits by more than the first one could. A change of one part changes the logits by at most
its own size times the gain of the part, which is the product of the norms of the other matrices:

    query  |W_k,g|                    key  max |W_q,h|                                                      (1)
    uq     q |W_uk,g| kv              uk   q max |W_uq,h| kv                                                (2)
    qr     q |W_kr|                   kr   q max |W_qr,h|                                                   (3)
    dkv    q max |W_uq,h| |W_uk,g|                                                                          (4)
    dq     max( max |W_uq,h| |W_uk,g| kv,  max |W_qr,h| |W_kr| )                                            (5)
    s = tau gain_0 / gain,   q = |W_dq|,   kv = |W_dkv|                                                     (6)

s is the factor on the step. g = reads[h] is the key head of query head h, each maximum is over the query heads that
read the part, and gain_0 is the gain when QuacK was attached. Limit: at tau = 1 the first step is the bare optimizer's.
Where gain or gain_0 is 0, s is tau: an initial gain of 0 sets no scale, and with a gain of 0 no change reaches the
logits.

A norm on a latent of width C, c = sqrt(C) gamma u / |u| with u = W x, makes c independent of the size of W. It is
|c| <= sqrt(C) |gamma|, where gamma stands for a diagonal matrix. A step of W turns u only:

    |dc| = sqrt(C) |gamma (1 - u u^T / |u|^2) dW x| / |u|  <=  sqrt(C) |gamma| |dW| / (rho |W|)             (7)

with rho = |W x| / (|W| |x|), which does not depend on the size of W either. Inputs x are themselves normalised to
|x| = sqrt(D). So with a norm, and in units of |x|:

    q  = sqrt(C/D) |gamma_q|          kv = sqrt(C/D) |gamma_kv|                                             (8)
    gamma_q, gamma_kv   sqrt(C/D) times (5), (4)                                                            (9)
    dq  (5) q / |W_dq|                dkv  (4) kv / |W_dkv|                                                 (10)

The norm's gains change logits as a matrix does, so they are parts with rates of their own. (10) bounds the change by
that of the first step at inputs with the same rho. In (10) |W| counts at most as at the start, since a larger |W| need
not mean a larger |W x| for the inputs at hand. Besides, gradients are orthogonal to such a W, so a rate that grew with
|W| would make |W| grow exponentially.

Anson and Aitchison, "Controlling changes to attention logits", 2025, algorithms 1 and 2 and appendix B. The maximum of
(1), for heads that share a key, several parts of `kr` and (7) to (10) are not in the paper; they follow from the same
bound.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from attractor.control.norms import NORMS
from attractor.control.rates import HeadRates
from attractor.control.views import DotProduct, LatentHeads, QueryKeyHeads
from attractor.errors import InputError, require_known


def gains(view: QueryKeyHeads, norms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gains (1) to (5) and (8) to (10) of every part, of shape `... heads` like the norms."""
    if isinstance(view, DotProduct):
        return {
            "query": _read(norms["key"], view.reads),  # (1)
            "key": _largest(norms["query"], view.reads, view.key.n_heads),
        }
    # The size of each latent for inputs of size 1, and of a norm's output for gains of 1.
    q, unit_q = _latent_size(norms, "dq", "gamma_q", view)
    kv, unit_kv = _latent_size(norms, "dkv", "gamma_kv", view)
    read = _read(norms["uk"], view.reads)
    content = (norms["uq"] * read).amax(-1, keepdim=True)
    by_part = {
        "uq": q * read * kv,  # (2)
        "uk": q * _largest(norms["uq"], view.reads, view.uk.n_heads) * kv,
        "dkv": q * content,  # (4)
        "dq": content * kv,
    }
    if view.qr is not None and view.kr is not None:
        read = _read(norms["kr"], view.reads_rope)
        by_part["qr"] = q * read  # (3)
        by_part["kr"] = q * _largest(norms["qr"], view.reads_rope, view.kr.n_heads)
        by_part["dq"] = torch.maximum(by_part["dq"], (norms["qr"] * read).amax(-1, keepdim=True))  # (5)
    for down, gamma, size, unit in (("dq", "gamma_q", q, unit_q), ("dkv", "gamma_kv", kv, unit_kv)):
        if gamma in norms:
            by_part[gamma] = unit * by_part[down]  # (9)
            by_part[down] = by_part[down] * torch.where(norms[down] > 0, size / norms[down], 0)  # (10)
    return {part: by_part[part] for part in norms}


def scale(tau: float, initial: Tensor, now: Tensor) -> Tensor:
    """Return (6)."""
    return tau * torch.where((initial > 0) & (now > 0), initial / now, 1)


class QuacK(HeadRates):
    """Attach (6) to an optimizer, before its first step and after anything that replaces parameters (FSDP).

    A checkpoint must hold `state_dict()`: without it, a resumed run takes the norms at its resumption as initial ones.
    A QuacK that is attached when training has begun takes `initial_norms`, the state of a QuacK of a fresh model.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        tau: float = 1.0,
        norm: str = "frobenius",
        initial_norms: Mapping[str, Any] | None = None,
    ) -> None:
        require_known("norm of QuacK", norm, NORMS)
        self.norm = norm
        super().__init__(model, optimizer, tau)
        self._start()
        if initial_norms is not None:
            try:
                self._load_norms(initial_norms)
            except BaseException:
                self.remove()
                raise

    @torch.no_grad()
    def _start(self) -> None:
        self._norms = NORMS[self.norm](list(self.shares.values()))
        for index in range(len(self.shares)):
            self.measure_share(index)
        norms = self._norms.norms()
        self._layouts = _by_kind(self.heads, norms.device)
        self._before_norms = _before_norms(self.heads, norms.device)
        self._set_initial(norms)

    def measure_share(self, index: int) -> None:
        self._norms.measure_share(index)

    def scales(self) -> Tensor:
        norms = self._norms.norms()
        if self._before_norms is not None:  # see (10)
            norms[self._before_norms] = torch.minimum(norms, self._initial)[self._before_norms]
        return scale(self.tau, self._initial_gains, self._gains(norms))

    def state_dict(self) -> dict[str, Any]:
        initial = self._by_layer(self._initial.split(self._sizes()))
        return super().state_dict() | {"norm": self.norm, "initial": initial}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._refuse_other_tau(state)
        self._load_norms(state)
        super().load_state_dict(state)

    def _load_norms(self, stored: Mapping[str, Any]) -> None:
        if not isinstance(stored, Mapping) or not {"norm", "initial"} <= stored.keys():
            held = ", ".join(stored) or "nothing" if isinstance(stored, Mapping) else type(stored).__name__
            raise InputError(
                f"the state for QuacK must be a dict that holds norm and initial, got {held}; give the state_dict() of "
                "a QuacK (one with tau alone is of FixedRates)"
            )
        if stored["norm"] != self.norm:
            raise InputError(f"norm must be '{stored['norm']}' as in the state that is loaded, got '{self.norm}'")
        there = stored["initial"]
        _refuse_other_heads(there, self._by_layer(self._initial.split(self._sizes())))
        self._set_initial(torch.cat([there[layer][part] for layer, part in self.shares]).to(self._initial))

    def _set_initial(self, norms: Tensor) -> None:
        self._initial = norms
        self._initial_gains = self._gains(norms)

    def _sizes(self) -> list[int]:
        return [share.rows.n_heads for share in self.shares.values()]

    def _by_layer(self, values: Any) -> dict[str, dict[str, Tensor]]:
        by_layer: dict[str, dict[str, Tensor]] = {}
        for (layer, part), value in zip(self.shares, values, strict=True):
            by_layer.setdefault(layer, {})[part] = value.clone()
        return by_layer

    def _gains(self, norms: Tensor) -> Tensor:
        """Return the gains of all heads in the order of their norms, computing layers of one kind together."""
        ordered = torch.empty_like(norms)
        for view, indices in self._layouts:
            for part, gain in gains(view, {part: norms[index] for part, index in indices.items()}).items():
                ordered[indices[part]] = gain
        return ordered


def _latent_size(norms: Mapping[str, Tensor], down: str, gamma: str, view: LatentHeads) -> tuple[Tensor, float]:
    """Return q or kv, and the factor sqrt(C/D) of (8)."""
    rows = view.parts().get(gamma)
    if rows is None:
        return norms.get(down, torch.ones_like(norms["dkv"])), 1.0
    unit = math.sqrt(rows.width / view.dkv.weight.shape[1 - view.dkv.axis])
    return unit * norms[gamma], unit


@cache
def _index(reads: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(reads, device=device)


def _read(norms: Tensor, reads: tuple[int, ...]) -> Tensor:
    """Return for every query head the norm of the key head that it reads."""
    return norms[..., _index(reads, norms.device)]


def _largest(norms: Tensor, reads: tuple[int, ...], n_keys: int) -> Tensor:
    """Return for every key head the largest norm of the query heads that read it."""
    index = _index(reads, norms.device).expand_as(norms)
    return norms.new_zeros(*norms.shape[:-1], n_keys).scatter_reduce(-1, index, norms, "amax")


def _by_kind(heads: list[QueryKeyHeads], device: torch.device) -> list[tuple[QueryKeyHeads, dict[str, Tensor]]]:
    """Return one view for every kind of layer, and the indices of its parts in the vector of norms: layers x heads."""
    kinds: dict[Any, tuple[QueryKeyHeads, dict[str, list[range]]]] = {}
    begin = 0
    for view in heads:
        parts = view.parts()
        shapes = tuple((part, rows.n_heads, rows.width, rows.weight.shape) for part, rows in parts.items())
        reads_rope = view.reads_rope if isinstance(view, LatentHeads) else ()
        _, places = kinds.setdefault((view.reads, reads_rope, shapes), (view, {part: [] for part in parts}))
        for part, rows in parts.items():
            places[part].append(range(begin, begin + rows.n_heads))
            begin += rows.n_heads
    return [
        (
            view,
            {part: torch.tensor([list(layer) for layer in layers], device=device) for part, layers in places.items()},
        )
        for view, places in kinds.values()
    ]


def _before_norms(heads: list[QueryKeyHeads], device: torch.device) -> Tensor | None:
    """Return which entries of the vector of norms are of weights before a norm, or None where there are none."""
    followed_by = {"dq": "gamma_q", "dkv": "gamma_kv"}
    is_before = [
        followed_by.get(part) in parts
        for parts in (view.parts() for view in heads)
        for part, rows in parts.items()
        for _ in range(rows.n_heads)
    ]
    return torch.tensor(is_before, device=device).nonzero().flatten() if any(is_before) else None


def _refuse_other_heads(stored: dict[str, dict[str, Tensor]], here: dict[str, dict[str, Tensor]]) -> None:
    places = dict.fromkeys((layer, part) for side in (stored, here) for layer in side for part in side[layer])
    counts = {place: [len(side.get(place[0], {}).get(place[1], ())) for side in (stored, here)] for place in places}
    differing = [
        f"{part} of '{layer}' has {there} heads there and {now} here"
        for (layer, part), (there, now) in counts.items()
        if there != now
    ]
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise InputError(
            f"the state must be of a model with the same heads, but differs: {'; '.join(differing[:3])}{more}; "
            "load the state that was saved with this model"
        )
