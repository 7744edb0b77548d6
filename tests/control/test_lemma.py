"""QuacK's purpose is a bound: a step changes the logits by at most a constant, however large the weights have grown.

A step is dW = -eta G with |G| <= D and eta = tau / gain, where the gains are those of `quack.gains`. The worst case
over unit x and y is the spectral norm of the matrix between them, which the tests compute exactly. For weights of rank
one along shared directions every inequality is an equality, so no larger rate would keep the bounds.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attractor.control.local_rows import LocalRows
from attractor.control.norms import NORMS
from attractor.control.quack import gains, scale
from attractor.control.views import DotProduct, LatentHeads, QueryKeyHeads, Rows

D = 3.0  # the bound of |G| <= D
SLACK = 1e-5  # the relative error of fp32 norms
ORDERS = {"frobenius": "fro", "spectral": 2}
MODEL, HEAD, ROPE, LATENT = 7, 4, 2, 5  # widths of the model, a head, its rope part and the latent
MHA, GQA = (0, 1, 2, 3), (0, 0, 1, 1)

taus = st.floats(1e-3, 1e3)
sizes = st.lists(st.floats(-4, 4), min_size=20, max_size=20).map(lambda logs: [2.0**log for log in logs])
seeds = st.integers(0, 10_000)


def spectral_norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, ord=2))


@dataclass
class Drawn:
    """Draw weights of given norms and gradients of norm D, either of rank one along shared directions or random."""

    seed: int
    sizes: list[float]
    aligned: bool
    norm: str

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.left = iter(self.sizes)

    def matrix(self, height: int, width: int, size: float) -> Tensor:
        found = torch.zeros(height, width, dtype=torch.float64)
        found[0, 0] = 1
        if not self.aligned:
            found = torch.randn(height, width, generator=self.generator, dtype=torch.float64)
        return size * found / torch.linalg.matrix_norm(found, ord=ORDERS[self.norm])

    def rows(self, n_heads: int, height: int, width: int) -> Rows:
        heads = [self.matrix(height, width, next(self.left)) for _ in range(n_heads)]
        return Rows(nn.Parameter(torch.cat(heads)), tuple(range(0, n_heads * height, height)), height)

    def gradients(self, rows: Rows) -> list[Tensor]:
        return [self.matrix(*rows.of(head).shape, D) for head in range(rows.n_heads)]

    def rotation(self) -> Tensor:
        if self.aligned:
            return torch.eye(ROPE, dtype=torch.float64)
        return torch.linalg.qr(torch.randn(ROPE, ROPE, generator=self.generator, dtype=torch.float64)).Q


def rates(view: QueryKeyHeads, norm: str, tau: float) -> dict[str, list[float]]:
    """Compute the rates as QuacK does from the weights, with initial gains of 1."""
    parts = view.parts()
    measure = NORMS[norm]([LocalRows(rows) for rows in parts.values()])
    for index in range(len(parts)):
        measure.measure_share(index)
    found = measure.norms().split([rows.n_heads for rows in parts.values()])
    passed = gains(view, dict(zip(parts, found, strict=True)))
    return {part: scale(tau, torch.ones_like(gain), gain).tolist() for part, gain in passed.items()}


def heads_of(rows: Rows) -> list[Tensor]:
    return [rows.of(head).detach() for head in range(rows.n_heads)]


def dot_product(drawn: Drawn, reads: tuple[int, ...]) -> DotProduct:
    query, key = drawn.rows(4, HEAD, MODEL), drawn.rows(max(reads) + 1, HEAD, MODEL)
    return DotProduct("", nn.Identity(), query, key, reads)


def changes(view: DotProduct, drawn: Drawn, eta_q: list[float], eta_k: list[float]) -> list[tuple[float, float, float]]:
    """Return for each head the worst change of its logits through the queries, through the keys, and through both at
    once."""
    queries, keys = heads_of(view.query), heads_of(view.key)
    d_queries = [eta * g for eta, g in zip(eta_q, drawn.gradients(view.query), strict=True)]
    d_keys = [eta * g for eta, g in zip(eta_k, drawn.gradients(view.key), strict=True)]
    return [
        (
            spectral_norm(d_queries[h].T @ keys[g]),
            spectral_norm(queries[h].T @ d_keys[g]),
            spectral_norm(d_queries[h].T @ d_keys[g]),
        )
        for h, g in enumerate(view.reads)
    ]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("reads", [MHA, GQA])
@settings(max_examples=15, deadline=None)
@given(seed=seeds, sizes=sizes, aligned=st.booleans(), tau_q=taus, tau_k=taus)
def test_a_step_changes_logits_by_at_most_the_bound_of_the_lemma(
    norm: str, reads: tuple[int, ...], seed: int, sizes: list[float], aligned: bool, tau_q: float, tau_k: float
) -> None:
    """Criterion: to first order the change is at most tau_q D through the queries and tau_k D through the keys of every
    head, whatever the norms. To second order it is at most tau_q tau_k D^2 / c^2, with c the smallest norm."""
    drawn = Drawn(seed, sizes, aligned, norm)
    view = dot_product(drawn, reads)
    found = changes(view, drawn, rates(view, norm, tau_q)["query"], rates(view, norm, tau_k)["key"])
    slack = 1 + SLACK
    c = min(float(torch.linalg.matrix_norm(w, ord=ORDERS[norm])) for w in heads_of(view.query) + heads_of(view.key))
    for through_query, through_key, through_both in found:
        assert through_query + through_key <= (tau_q + tau_k) * D * slack
        assert through_query <= tau_q * D * slack
        assert through_key <= tau_k * D * slack
        assert through_both <= tau_q * tau_k * D**2 / c**2 * slack**2
    if aligned:  # every query, and the largest query per key, attains its bound
        for through_query, _, _ in found:
            assert through_query == pytest.approx(tau_q * D, rel=SLACK)
        for key in set(reads):
            largest = max(through for g, (_, through, _) in zip(reads, found, strict=True) if g == key)
            assert largest == pytest.approx(tau_k * D, rel=SLACK)


@settings(max_examples=25)
@given(seed=seeds, bound=st.floats(1, 1e12), norm=st.sampled_from(sorted(NORMS)), aligned=st.booleans())
def test_at_a_fixed_rate_the_change_grows_past_any_bound(seed: int, bound: float, norm: str, aligned: bool) -> None:
    """The change is proportional to the weights, so at any rate some weights exceed the bound."""
    fixed = [1e-3] * 4
    small = changes(dot_product(one := Drawn(seed, [1.0] * 20, aligned, norm), MHA), one, fixed, fixed)
    grown = 1.01 * bound / min(first + second for first, second, _ in small)
    large = changes(dot_product(one := Drawn(seed, [grown] * 20, aligned, norm), MHA), one, fixed, fixed)
    assert all(first + second > bound for first, second, _ in large)


LATENTS = {
    "paper": {},
    "grouped": {"reads": GQA},
    "halves": {"reads_rope": (0, 0, 1, 1)},
    "without a query latent": {"dq": False},
    "without a part for position": {"rope": False},
}


def latent(
    drawn: Drawn,
    reads: tuple[int, ...] = MHA,
    reads_rope: tuple[int, ...] = (0, 0, 0, 0),
    dq: bool = True,
    rope: bool = True,
) -> LatentHeads:
    q_width = LATENT if dq else MODEL
    view = LatentHeads(
        "",
        nn.Identity(),
        uq=drawn.rows(4, HEAD, q_width),
        uk=drawn.rows(max(reads) + 1, HEAD, LATENT),
        dkv=drawn.rows(1, LATENT, MODEL),
        reads=reads,
        reads_rope=reads_rope,
        dq=drawn.rows(1, LATENT, MODEL) if dq else None,
    )
    if rope:
        kr = drawn.rows(max(reads_rope) + 1, ROPE, MODEL)
        view = replace(view, qr=drawn.rows(4, ROPE, q_width), kr=kr)
    return view


def terms(view: LatentHeads, drawn: Drawn, eta: dict[str, list[float]]) -> list[dict[str, dict[str, float]]]:
    """Return for each head the four first-order terms of appendix B, (18a)-(18d), by the part that changes."""
    w = {part: heads_of(rows) for part, rows in view.parts().items()}
    dw = {
        part: [rate * g for rate, g in zip(eta[part], drawn.gradients(rows), strict=True)]
        for part, rows in view.parts().items()
    }
    (dkv,), (d_dkv,) = w["dkv"], dw["dkv"]
    dq = w["dq"][0] if view.dq is not None else torch.eye(MODEL, dtype=torch.float64)
    found = []
    for h, g in enumerate(view.reads):
        k, uq, uk = w["uk"][g] @ dkv, w["uq"][h], w["uk"][g]
        q = uq @ dq
        head = {
            "change of q, content": {"uq": spectral_norm((dw["uq"][h] @ dq).T @ k)},
            "change of k, content": {
                "uk": spectral_norm(q.T @ dw["uk"][g] @ dkv),
                "dkv": spectral_norm(q.T @ uk @ d_dkv),
            },
        }
        if view.dq is not None:
            head["change of q, content"]["dq"] = spectral_norm((uq @ dw["dq"][0]).T @ k)
        if view.kr is not None:
            p, rotation = view.reads_rope[h], drawn.rotation()
            kr, d_kr, qr = rotation @ w["kr"][p], rotation @ dw["kr"][p], w["qr"][h]
            head["change of q, position"] = {"qr": spectral_norm((dw["qr"][h] @ dq).T @ kr)}
            head["change of k, position"] = {"kr": spectral_norm((qr @ dq).T @ d_kr)}
            if view.dq is not None:
                head["change of q, position"]["dq"] = spectral_norm((qr @ dw["dq"][0]).T @ kr)
        found.append(head)
    return found


BOUNDS = {  # (20a)-(20d) in units of tau D
    "change of q, content": 2,
    "change of q, position": 2,
    "change of k, content": 2,
    "change of k, position": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", LATENTS)
@settings(max_examples=10, deadline=None)
@given(seed=seeds, sizes=sizes, tau=taus, aligned=st.booleans())
def test_the_four_terms_of_latent_attention_keep_their_bounds(
    kind: str, norm: str, seed: int, sizes: list[float], tau: float, aligned: bool
) -> None:
    """Criterion: each term is within its bound for every head. Where all directions agree, some head attains tau D
    through each part, so no part could have a larger rate."""
    drawn = Drawn(seed, sizes, aligned, norm)
    view = latent(drawn, **LATENTS[kind])  # type: ignore[arg-type]
    found = terms(view, drawn, rates(view, norm, tau))
    slack = 1 + SLACK
    for head in found:
        for term, through in head.items():
            assert sum(through.values()) <= BOUNDS[term] * tau * D * slack, term
            assert max(through.values()) <= tau * D * slack, term
    if aligned:
        for part in view.parts():
            most = max(through.get(part, 0) for head in found for through in head.values())
            assert most == pytest.approx(tau * D, rel=2 * SLACK), part
        for part in ("uq", "qr"):  # these parts have one rate per head, and each head attains the bound
            for head in found:
                assert all(
                    through[part] == pytest.approx(tau * D, rel=2 * SLACK)
                    for through in head.values()
                    if part in through
                )
