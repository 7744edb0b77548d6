"""QuacK's purpose is a bound: a step changes the logits by at most a constant, however large the weights have grown.

A step is dW = -eta G with |G| <= D and eta = tau / gain, where the gains are those of `quack.gains`. The worst case
over unit x and y is the spectral norm of the matrix between them, which the tests compute exactly. For weights of rank
one along shared directions every inequality is an equality, so no larger rate would keep the bounds. Under a norm on a
latent, a step of the matrix before it is judged at inputs x by its change times |W x| / (|W| |x|), as the lemma says.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling import unsettle
from subjects import of_family, small, tokens
from torch import Tensor, nn
from torch.func import functional_call

from attractor.attention import PRESETS, build
from attractor.attention.project.latent import LatentProjection
from attractor.control.heads import attention_view
from attractor.control.local_rows import LocalRows
from attractor.control.norms import NORMS
from attractor.control.probe import LogitProbe
from attractor.control.quack import QuacK, gains, scale
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

    def matrix(self, height: int, width: int, size: float, entry: tuple[int, int] = (0, 0)) -> Tensor:
        """Draw a matrix. If aligned, only `entry` is not zero."""
        matrix = torch.zeros(height, width, dtype=torch.float64)
        matrix[entry] = 1
        if not self.aligned:
            matrix = torch.randn(height, width, generator=self.generator, dtype=torch.float64)
        return size * matrix / torch.linalg.matrix_norm(matrix, ord=ORDERS[self.norm])

    def diagonal(self, width: int, size: float) -> Tensor:
        """Draw a diagonal matrix as a vector. If aligned, only its second entry is not zero."""
        vector = torch.eye(width, dtype=torch.float64)[1]
        if not self.aligned:
            vector = torch.randn(width, generator=self.generator, dtype=torch.float64)
        return size * vector / torch.linalg.matrix_norm(vector.diag(), ord=ORDERS[self.norm])

    def rows(self, n_heads: int, height: int, width: int, entry: tuple[int, int] = (0, 0)) -> Rows:
        heads = [self.matrix(height, width, next(self.left), entry) for _ in range(n_heads)]
        return Rows(nn.Parameter(torch.cat(heads)), tuple(range(0, n_heads * height, height)), height)

    def norm_gains(self) -> Rows:
        return Rows(nn.Parameter(self.diagonal(LATENT, next(self.left))), (0,), LATENT)

    def gradients(self, rows: Rows, entry: tuple[int, int] = (0, 0)) -> list[Tensor]:
        if rows.weight.dim() == 1:
            return [self.diagonal(rows.width, D)]
        return [self.matrix(*rows.of(head).shape, D, entry) for head in range(rows.n_heads)]

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
    heads = [rows.of(head).detach() for head in range(rows.n_heads)]
    return [head.diag() if head.dim() == 1 else head for head in heads]


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
    "norms": {"normed": ("q", "kv")},
    "norms, grouped": {"normed": ("q", "kv"), "reads": GQA},
    "norm of keys": {"normed": ("kv",)},
    "norm of keys without a query latent": {"normed": ("kv",), "dq": False},
}


def latent(
    drawn: Drawn,
    reads: tuple[int, ...] = MHA,
    reads_rope: tuple[int, ...] = (0, 0, 0, 0),
    dq: bool = True,
    rope: bool = True,
    normed: tuple[str, ...] = (),
) -> LatentHeads:
    """Draw a layer. If aligned, a step before a norm turns the latent from its first axis to its second, which is what
    the norm's gains and the matrices behind it read."""
    q_width = LATENT if dq else MODEL
    q_entry, kv_entry = ((0, int(latent in normed)) for latent in ("q", "kv"))
    view = LatentHeads(
        "",
        nn.Identity(),
        uq=drawn.rows(4, HEAD, q_width, q_entry),
        uk=drawn.rows(max(reads) + 1, HEAD, LATENT, kv_entry),
        dkv=drawn.rows(1, LATENT, MODEL),
        reads=reads,
        reads_rope=reads_rope,
        dq=drawn.rows(1, LATENT, MODEL) if dq else None,
        gamma_q=drawn.norm_gains() if "q" in normed else None,
        gamma_kv=drawn.norm_gains() if "kv" in normed else None,
    )
    if rope:
        kr = drawn.rows(max(reads_rope) + 1, ROPE, MODEL)
        view = replace(view, qr=drawn.rows(4, ROPE, q_width, q_entry), kr=kr)
    return view


def drawn_steps(view: LatentHeads, drawn: Drawn, eta: dict[str, list[float]]) -> dict[str, list[Tensor]]:
    normed = {"uq": view.gamma_q, "qr": view.gamma_q, "uk": view.gamma_kv}
    before = {"dq": view.gamma_q, "dkv": view.gamma_kv}
    steps = {}
    for part, rows in view.parts().items():
        entry = (int(before.get(part) is not None), int(normed.get(part) is not None))
        steps[part] = [rate * g for rate, g in zip(eta[part], drawn.gradients(rows, entry), strict=True)]
    return {part: [step.diag() if step.dim() == 1 else step for step in of_heads] for part, of_heads in steps.items()}


def latents(
    down: str, gamma: str, w: dict[str, list[Tensor]], dw: dict[str, list[Tensor]], order: str | int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the map from unit vectors to the latent, and its change by the part that changes."""
    if gamma not in w:
        if down not in w:
            return torch.eye(MODEL, dtype=torch.float64), {}
        return w[down][0], {down: dw[down][0]}
    unit = (LATENT / MODEL) ** 0.5  # the length of a normalised latent in units of the input's
    relative_step = dw[down][0] / torch.linalg.matrix_norm(w[down][0], ord=order)
    return unit * w[gamma][0], {gamma: unit * dw[gamma][0], down: unit * w[gamma][0] @ relative_step}


def terms(view: LatentHeads, drawn: Drawn, eta: dict[str, list[float]]) -> list[dict[str, dict[str, float]]]:
    """Return for each head the four first-order terms of appendix B, (18a)-(18d), by the part that changes."""
    w = {part: heads_of(rows) for part, rows in view.parts().items()}
    dw = drawn_steps(view, drawn, eta)
    c_q, d_q = latents("dq", "gamma_q", w, dw, ORDERS[drawn.norm])
    c_kv, d_kv = latents("dkv", "gamma_kv", w, dw, ORDERS[drawn.norm])
    by_head = []
    for h, g in enumerate(view.reads):
        k, uq, uk = w["uk"][g] @ c_kv, w["uq"][h], w["uk"][g]
        q = uq @ c_q
        head = {
            "change of q, content": {"uq": spectral_norm((dw["uq"][h] @ c_q).T @ k)}
            | {part: spectral_norm((uq @ change).T @ k) for part, change in d_q.items()},
            "change of k, content": {"uk": spectral_norm(q.T @ dw["uk"][g] @ c_kv)}
            | {part: spectral_norm(q.T @ uk @ change) for part, change in d_kv.items()},
        }
        if view.kr is not None:
            p, rotation = view.reads_rope[h], drawn.rotation()
            kr, d_kr, qr = rotation @ w["kr"][p], rotation @ dw["kr"][p], w["qr"][h]
            head["change of q, position"] = {"qr": spectral_norm((dw["qr"][h] @ c_q).T @ kr)} | {
                part: spectral_norm((qr @ change).T @ kr) for part, change in d_q.items()
            }
            head["change of k, position"] = {"kr": spectral_norm((qr @ c_q).T @ d_kr)}
        by_head.append(head)
    return by_head


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "norms" else pytest.mark.slow) for kind in LATENTS]
)
@settings(max_examples=10, deadline=None)
@given(seed=seeds, sizes=sizes, tau=taus, aligned=st.booleans())
def test_the_four_terms_of_latent_attention_keep_their_bounds(
    kind: str, norm: str, seed: int, sizes: list[float], tau: float, aligned: bool
) -> None:
    """Criterion: each part changes each term by at most tau D for every head, as in (20a)-(20d). Where all directions
    agree, some head attains tau D through each part, so no part could have a larger rate."""
    drawn = Drawn(seed, sizes, aligned, norm)
    view = latent(drawn, **LATENTS[kind])  # type: ignore[arg-type]
    found = terms(view, drawn, rates(view, norm, tau))
    slack = 1 + SLACK
    for head in found:
        for term, through in head.items():
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


def normed_layer(**factors: float) -> tuple[LatentProjection, LatentHeads]:
    """Return a layer with random weights, of which some parts are multiplied by factors."""
    widths = {"head_dim": HEAD, "q_latent": LATENT, "kv_latent": LATENT - 1}
    layer = build("mla", d_model=MODEL, n_heads=4, layer_index=0, latent_norm=True, **widths).double()
    unsettle(layer)
    view = attention_view("", layer)
    assert isinstance(view, LatentHeads)
    assert isinstance(layer.project, LatentProjection)
    for part, factor in factors.items():
        view.parts()[part].weight.data *= factor
    return layer.project, view


@torch.no_grad()
def exact_changes(project: LatentProjection, view: LatentHeads, eta: dict[str, list[float]], norm: str) -> list[float]:
    """Return by part the largest change of a logit by the part's step to first order, in units of the bound at tau = 1.

    Inputs have the length sqrt(D) that a block's norm gives them."""
    drawn = Drawn(7, [], aligned=False, norm=norm)
    x = nn.functional.rms_norm(torch.randn(1, 40, MODEL, generator=drawn.generator, dtype=torch.float64), (MODEL,))
    names = {parameter: name for name, parameter in project.named_parameters()}
    changes = []
    for part, rows in view.parts().items():
        steps = [rate * gradient for rate, gradient in zip(eta[part], drawn.gradients(rows), strict=True)]

        def logits(weight: Tensor, name: str = names[rows.weight]) -> Tensor:
            q, k, _ = functional_call(project, {name: weight}, (x,))
            return q @ k.mT  # B H T S

        weight, step = rows.weight.detach(), torch.cat(steps)
        small_step = step * float(1e-5 * weight.norm() / step.norm())
        change = (
            (logits(weight + small_step) - logits(weight - small_step)) * float(step.norm() / small_step.norm()) / 2
        )
        if part in ("dq", "dkv"):
            size = torch.linalg.matrix_norm(weight, ord=ORDERS[norm]) * MODEL**0.5
            rho = (x @ weight.T).norm(dim=-1) / size  # B T
            change = change * (rho.unsqueeze(2) if part == "dq" else rho.unsqueeze(1)).unsqueeze(1)
        n_terms = 2 if part in ("dq", "gamma_q") else 1  # they change the content part and the position part
        changes.append(float(change.abs().max()) / (n_terms * D * MODEL))
    return changes


GROWN = {"gamma_q": 1e4, "gamma_kv": 1e4}
SHRUNK = {"dq": 1e-4, "dkv": 1e-4}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("factors", [{}, GROWN, SHRUNK], ids=["random", "grown gains", "shrunk latents"])
def test_a_step_of_a_layer_with_latent_norms_keeps_the_bound(factors: dict[str, float], norm: str) -> None:
    """Criterion: no change of a logit exceeds the bound. With the gains of a layer without norms, which count the
    matrices before the norms and not the norms' gains, grown gains or shrunk matrices exceed it."""
    project, view = normed_layer(**factors)
    eta = rates(view, norm, tau=1.0)
    assert max(exact_changes(project, view, eta, norm)) <= 1
    if factors:
        eta |= rates(replace(view, gamma_q=None, gamma_kv=None), norm, tau=1.0)
        assert max(exact_changes(project, view, eta, norm)) > 1


@pytest.mark.parametrize("case", ["ours", "deepseek-v2", "deepseek-v3"])
def test_rates_under_latent_norms_follow_the_logits(case: str) -> None:
    """Criterion: W_dq and W_dkv times 10 leave logits, up to the norm's epsilon, and all rates as they were. Norm gains
    times 10 multiply logits by at most 10 for each latent, and the rate of every part falls by as much as the logits
    grow through the others."""
    normed = PRESETS["mla"].replace(latent_norm=True)

    def rates_and_logits(*scaled_parts: str) -> tuple[dict[str, Tensor], Tensor]:
        model = small(attention=normed) if case == "ours" else of_family(case)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        quack = QuacK(model, optimizer)
        view = quack.heads[0]
        with torch.no_grad():
            for part, rows in view.parts().items():
                if part in scaled_parts:
                    rows.of(0).mul_(10)
        probe = LogitProbe(model, lambda: model(tokens(0)))
        probe.look()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        return quack.rates[view.name], probe.last[view.name]

    before, logits = rates_and_logits()
    assert all((scales == 1).all() for scales in before.values())
    same, unmoved = rates_and_logits("dq", "dkv")
    torch.testing.assert_close(unmoved, logits, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(same, before, rtol=1e-6, atol=0)
    q, kv = 10.0 if "gamma_q" in before else 1.0, 10.0
    lower, grown = rates_and_logits("gamma_q", "gamma_kv")
    assert grown.abs().max() > q * logits.abs().max()
    assert grown.abs().max() <= q * kv * logits.abs().max() * (1 + 1e-5)
    growth = {"uq": q * kv, "uk": q * kv, "dkv": q * kv, "gamma_kv": q, "qr": q, "kr": q}
    wanted = {part: before[part] / by for part, by in growth.items()}
    torch.testing.assert_close({part: lower[part] for part in wanted}, wanted)
