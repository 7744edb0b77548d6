"""Integrators of the coupling equal the equations written out by hand and keep their claims on order and volume."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attractor.attention import PRESETS, Attention, Rope, build
from attractor.attention.couple.dynamics import CoupledDynamics, Dynamics
from attractor.attention.couple.euler import Euler
from attractor.attention.couple.force import FORCES
from attractor.attention.couple.leapfrog import Leapfrog
from attractor.attention.couple.mlp import MLPOnly
from attractor.attention.couple.phase import Phase, PhaseActivation
from attractor.attention.hooks import capture
from attractor.attention.stage import HeadLayout
from attractor.kernels.coupling import FORCE

K = 4  # every coupling in this file has this head width
INTEGRATORS = sorted(Dynamics.kinds().values(), key=lambda kind: kind.__name__)
every_integrator = pytest.mark.parametrize("integrator", INTEGRATORS)
written_out = pytest.mark.parametrize("integrator", [Euler, Leapfrog])
every_force = pytest.mark.parametrize("force", FORCES)


def layout(n_heads: int = 1, n_kv_heads: int | None = None) -> HeadLayout:
    return HeadLayout(n_heads, n_heads, n_kv_heads or n_heads, free=K, value=K)


def coupling_of(config: Dynamics, heads: HeadLayout | None = None) -> CoupledDynamics:
    """Build a coupling in fp64 with a noticeable force and a different step size for every head."""
    torch.manual_seed(0)
    coupling = config.build(heads or layout()).double()
    assert isinstance(coupling, CoupledDynamics)
    with torch.no_grad():
        for weight in coupling.force.parameters():
            nn.init.normal_(weight, std=1 / math.sqrt(K))
        coupling.tau += torch.linspace(0, 0.5, len(coupling.tau))
    return coupling


def state(n_heads: int = 1, n_kv_heads: int | None = None, length: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(2, heads, length, K) for heads in (n_heads, n_kv_heads or n_heads)]
    q, k = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return q, k


def force_by_hand(kind: str, coupling: CoupledDynamics, q: Tensor) -> Tensor:
    w = dict(coupling.force.named_parameters())
    if kind == "mlp":
        return F.silu(q @ w["inner.weight"].T) @ w["outer.weight"].T
    if kind == "linear":
        return q @ w["matrix.weight"].T
    return -F.silu(q @ w["matrix.weight"].T) @ w["matrix.weight"]


def jacobian(coupling: nn.Module) -> Tensor:
    """Return d (q', k') / d (q, k) for one position of one head, a 2K x 2K matrix."""
    z = torch.cat(state(length=1, seed=5), dim=-1)[0, 0, 0]

    def step(z: Tensor) -> Tensor:
        q, k = coupling(*z.view(2, 1, 1, 1, K).unbind())
        return torch.cat([q, k], dim=-1).flatten()

    return torch.autograd.functional.jacobian(step, z)


def symplectic_defect(jacobian: Tensor) -> float:
    omega = torch.zeros(2 * K, 2 * K, dtype=torch.float64)
    omega[:K, K:], omega[K:, :K] = torch.eye(K), -torch.eye(K)
    return float((jacobian.T @ omega @ jacobian - omega).abs().max())


@written_out
@every_force
@pytest.mark.parametrize("shared_force", [False, True], ids=["drift-k", "drift-f(k)"])
def test_one_step_is_the_equations(integrator: type[Dynamics], force: str, shared_force: bool) -> None:
    """Criterion: with one dt per head and f the force, an Euler step takes q' = q + dt k and k' = k + dt f(q), both
    from the old state; a leapfrog step kicks, drifts and kicks. A shared force drifts by f(k) in place of k."""
    config = integrator(n_steps=1, force=force, shared_force=shared_force)
    coupling, (q, k) = coupling_of(config, layout(2)), state(2)
    dt = coupling.tau.exp().view(2, 1, 1)

    def f(q: Tensor) -> Tensor:
        return force_by_hand(force, coupling, q)

    def drift(k: Tensor) -> Tensor:
        return f(k) if shared_force else k

    if integrator is Euler:
        expected = q + dt * drift(k), k + dt * f(q)
    else:
        half = k + dt / 2 * f(q)
        q_next = q + dt * drift(half)
        expected = q_next, half + dt / 2 * f(q_next)
    torch.testing.assert_close(coupling(q, k), expected)
    plain = coupling_of(integrator(force=force), layout(2))
    assert [p.shape for p in coupling.parameters()] == [p.shape for p in plain.parameters()]


def test_gradient_force_is_minus_the_gradient_of_its_potential() -> None:
    """Criterion: f = - d/dq sum_i F((W q)_i) with F' = silu; the test integrates F(u) numerically."""
    force = coupling_of(Leapfrog(force="gradient")).force
    q = state()[0].requires_grad_()
    u = q @ next(force.parameters()).T
    nodes = torch.linspace(0, 1, 2001, dtype=torch.float64)
    potential = torch.trapezoid(F.silu(u.unsqueeze(-1) * nodes) * u.unsqueeze(-1), nodes, dim=-1).sum()
    torch.testing.assert_close(force(q), -torch.autograd.grad(potential, q)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shared_force", [False, True], ids=["drift-k", "drift-f(k)"])
@pytest.mark.parametrize(("integrator", "order"), [(Euler, 1), (Leapfrog, 2)])
def test_order_of_convergence(integrator: type[Dynamics], order: int, shared_force: bool) -> None:
    """Criterion: over a fixed total time the error falls as dt to the claimed order; the fitted slope is within 0.2 of
    it."""

    def end(kind: type[Dynamics], n_steps: int) -> Tensor:
        coupling = coupling_of(kind(n_steps=n_steps, dt=1 / n_steps, shared_force=shared_force))
        with torch.no_grad():
            return torch.cat(coupling(*state()), dim=-1)

    exact = end(Leapfrog, 1000)
    errors = torch.stack([(end(integrator, n) - exact).norm() for n in [16, 32, 64]]).log2()
    slopes = errors[:-1] - errors[1:]
    assert (slopes - order).abs().max() < 0.2, slopes


@pytest.mark.parametrize("n_steps", [1, 3])
def test_leapfrog_forces_are_shared_between_steps(n_steps: int) -> None:
    """Criterion: n steps evaluate n + 1 forces and give the result of the paper's loop, which evaluates 2 n."""
    coupling, (q, k) = coupling_of(Leapfrog(n_steps=n_steps)), state()
    assert coupling.config.program.count(FORCE) == n_steps + 1
    found = coupling(q, k)
    dt = coupling.tau.exp().view(1, 1, 1)
    for _ in range(n_steps):
        k = k + dt / 2 * coupling.force(q)
        q = q + dt * k
        k = k + dt / 2 * coupling.force(q)
    torch.testing.assert_close(found, (q, k))


@every_force
def test_leapfrog_runs_backwards_to_its_start(force: str) -> None:
    """Criterion: from (q_n, -k_n) the same steps lead to (q_0, -k_0) within 1e-12; Euler steps miss it by more than
    1e-3."""
    q, k = state()
    for integrator, returns in ((Leapfrog, True), (Euler, False)):
        coupling = coupling_of(integrator(n_steps=4, force=force))
        q_end, k_end = coupling(q, k)
        q_start, k_start = coupling(q_end, -k_end)
        missed = max((q_start - q).abs().max(), (k_start + k).abs().max())
        assert missed < 1e-12 if returns else missed > 1e-3


@every_force
def test_leapfrog_preserves_volume(force: str) -> None:
    """Criterion: det J = 1 within 1e-12 for any force; the determinant of an Euler step differs from 1 by more than
    1e-3."""
    assert abs(torch.linalg.det(jacobian(coupling_of(Leapfrog(force=force)))) - 1) < 1e-12
    assert abs(torch.linalg.det(jacobian(coupling_of(Euler(n_steps=3, force=force)))) - 1) > 1e-3


def test_leapfrog_is_symplectic_only_under_a_gradient_force() -> None:
    """Criterion: max |J' Omega J - Omega| is below 1e-10 for a gradient force, and above 1e-3 for the paper's free MLP
    and for Euler steps."""
    assert symplectic_defect(jacobian(coupling_of(Leapfrog(force="gradient")))) < 1e-10
    assert symplectic_defect(jacobian(coupling_of(Leapfrog(force="mlp")))) > 1e-3
    assert symplectic_defect(jacobian(coupling_of(Euler(force="gradient", n_steps=3)))) > 1e-3
    assert symplectic_defect(jacobian(PRESETS["coupled-symplectic"].couple.build(layout()).double())) < 1e-10


@written_out
def test_a_group_of_queries_shares_a_key_that_moves_by_their_mean(integrator: type[Dynamics]) -> None:
    """Criterion: each query moves against its group's key; the key moves by the mean of dt_h f(q_h) over the group's
    queries."""
    coupling, (q, k) = coupling_of(integrator(n_steps=2), layout(4, n_kv_heads=2)), state(4, 2)
    found = coupling(q, k)
    dt, f = coupling.tau.exp(), coupling.force

    def kicks(queries: list[Tensor]) -> list[Tensor]:
        single = [dt[h] * f(queries[h]) for h in range(4)]
        return [(single[0] + single[1]) / 2, (single[2] + single[3]) / 2]

    queries, keys = list(q.unbind(1)), list(k.unbind(1))
    for _ in range(2):
        share = 1.0 if integrator is Euler else 0.5
        moved = [key + share * kick for key, kick in zip(keys, kicks(queries), strict=True)]
        along = keys if integrator is Euler else moved
        queries = [queries[h] + dt[h] * along[h // 2] for h in range(4)]
        keys = moved if integrator is Euler else [k + kick / 2 for k, kick in zip(moved, kicks(queries), strict=True)]
    torch.testing.assert_close(found, (torch.stack(queries, 1), torch.stack(keys, 1)))


@every_integrator
def test_zero_start_is_the_identity_and_can_open(integrator: type[Dynamics]) -> None:
    """Criterion: at g = 0, q and k keep every bit and every g receives a gradient; at g = 30 the result is plain
    coupling."""
    heads = layout(4, n_kv_heads=2)
    coupling, (q, k) = coupling_of(integrator(zero_start=True), heads), state(4, 2)
    q_next, k_next = coupling(q, k)
    assert torch.equal(q_next, q)
    assert torch.equal(k_next, k)
    assert coupling.gate is not None
    for moved in (q_next, k_next):
        (gradient,) = torch.autograd.grad((moved * torch.randn_like(moved)).sum(), coupling.gate, retain_graph=True)
        assert gradient.all()
    with torch.no_grad():
        coupling.gate.fill_(30.0)
    torch.testing.assert_close(coupling(q, k), coupling_of(integrator(), heads)(q, k))


@every_integrator
def test_small_steps_change_little(integrator: type[Dynamics]) -> None:
    """Criterion: the coupling tends to the identity as dt -> 0, and the distance from it falls in proportion to dt."""
    q, k = state()
    moved = []
    for dt in (1e-3, 1e-4):
        q_next, k_next = coupling_of(integrator(dt=dt))(q, k)
        moved.append(((q_next - q).norm() + (k_next - k).norm()).item())
    assert moved[1] < 1e-2
    assert moved[0] / moved[1] == pytest.approx(10, rel=0.01)


def test_mlp_only_leaves_keys_alone() -> None:
    torch.manual_seed(0)
    mlp, (q, k) = MLPOnly().build(layout()).double(), state()
    q_next, k_next = mlp(q, k)
    assert k_next is k
    inner, outer = mlp.force.inner.weight, mlp.force.outer.weight
    torch.testing.assert_close(q_next, q + F.silu(q @ inner.T) @ outer.T)


MORE = {"coupled-euler": 65_600, "coupled-hamiltonian": 65_600, "mlp-only": 65_536}
MORE |= dict.fromkeys(("coupled-linear", "coupled-symplectic"), 8 * (64 * 64 + 8)) | {"phase": 8 * 64 * 64}
MORE |= {"differential": 64, "differential-original": 8 * (4 * 32 + 64)}
MORE |= {"differential-v2": 8 * (512 * 512 + 512 * 8), "uniform": -8 * 2 * 512 * 512}


@pytest.mark.parametrize(("name", "extra"), MORE.items())
def test_parameters_of_a_mechanism(name: str, extra: int) -> None:
    """Criterion: L = 8 layers of H = 8 heads of width 64 have the paper's counts beyond standard attention, or ours
    where the paper gives none."""
    with torch.device("meta"):
        sizes = [sum(p.numel() for p in build(kind, 512, 8).parameters()) for kind in (name, "standard")]
    assert 8 * (sizes[0] - sizes[1]) == extra


@every_integrator
@pytest.mark.parametrize("where", ["autocast", "module"])
def test_state_is_integrated_wide_in_half_precision(where: str, integrator: type[Dynamics]) -> None:
    """Criterion: 500 steps of 5e-4 move q = 1 by a quarter, although each step is below the resolution of bf16 at 1."""
    coupling = coupling_of(integrator(n_steps=500, dt=5e-4, force="linear")).float()
    with torch.no_grad():
        coupling.tau.fill_(math.log(5e-4))
        next(coupling.force.parameters()).copy_(torch.eye(K))
    ones = torch.ones(1, 1, 1, K, dtype=torch.bfloat16)
    assert torch.equal(ones + 5e-4 * ones, ones)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=where == "autocast"):
        q, k = (coupling if where == "autocast" else coupling.bfloat16())(ones, ones)
    assert q.dtype == k.dtype == torch.float32, "the layer narrows them, after position"
    for moved in (q, k):  # the solution of q'' = q from (1, 1) is e^t
        torch.testing.assert_close(moved.float(), torch.full_like(moved.float(), math.exp(0.25)), rtol=0, atol=0.01)


def phase_of(scale: float = 1.0) -> PhaseActivation:
    torch.manual_seed(0)
    phase = Phase().build(layout()).double()
    assert isinstance(phase, PhaseActivation)
    with torch.no_grad():
        phase.phase.weight.normal_(std=scale)
    return phase


def test_phase_scores_are_the_real_part_of_the_complex_product() -> None:
    """Criterion: q' . k' = Re(Psi(q) . conj Psi(r)) with Psi(v) = v exp(i W v). The test alone computes in complex
    numbers; no operation of the layer has a complex result."""

    class NoComplex(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            assert not isinstance(result, Tensor) or not result.is_complex()
            return result

    phase, (q, r) = phase_of(), state()
    with NoComplex():
        q_two, r_two = phase(q, r)
    psi_q, psi_r = (v * torch.exp(1j * (v @ phase.phase.weight.T)) for v in (q, r))
    torch.testing.assert_close(q_two @ r_two.mT, (psi_q @ psi_r.mH).real)


def test_phase_never_scores_beyond_the_norms() -> None:
    """Criterion: |score| <= |q| |r|, the limit that the docstring states, and each vector keeps its norm."""
    phase, (q, r) = phase_of(), state(length=20)
    q_two, r_two = phase(q, r)
    torch.testing.assert_close(q_two.norm(dim=-1), q.norm(dim=-1))
    assert ((q_two @ r_two.mT).abs() <= (q.norm(dim=-1)[..., None] * r.norm(dim=-1)[..., None, :]) + 1e-12).all()


def test_phase_without_phase_is_plain_attention() -> None:
    """Criterion: with W = 0 the layer equals `standard` with the same weights within 1e-12, with and without rope."""
    standard, phase = (build(name, 16, 4).double() for name in ("standard", "phase"))
    phase.load_state_dict(standard.state_dict() | {"couple.phase.weight": torch.zeros(4, 4)})
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    for rope in (None, Rope(4)):
        torch.testing.assert_close(phase(x, rope=rope)[0], standard(x, rope=rope)[0], rtol=1e-12, atol=1e-12)


def test_phases_are_wide_under_autocast() -> None:
    """Criterion: at angles of about 100 radians the result equals that of fp32, up to the rounding of the result."""
    phase = phase_of(scale=50.0).float()
    q, k = (x.bfloat16() for x in state())
    expected = phase(q.float(), k.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = phase(q, k)
    for half, wide in zip(found, expected, strict=True):
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), wide, rtol=2**-6, atol=1e-2)


@pytest.mark.parametrize("name", [name for name, config in PRESETS.items() if config.couple.moves])
def test_relative_positions_survive_coupling_and_rope(name: str) -> None:
    """Criterion: logits at positions p and p + 17 agree within 1e-10, and rope changes them."""
    torch.manual_seed(0)
    layer: Attention = build(name, 16, 4).double()
    x, rope, positions = torch.randn(2, 5, 16, dtype=torch.float64), Rope(layer.rope_width), torch.arange(5)
    with capture("logits") as seen:
        for rotation in (rope.at(positions), rope.at(positions + 17), None):
            layer(x, rope=rotation)
    here, shifted, unrotated = seen["logits"]
    torch.testing.assert_close(shifted, here, rtol=1e-10, atol=1e-10)
    assert (here - unrotated).abs().max() > 1e-3


@every_integrator
@every_force
@pytest.mark.parametrize("tau", [-1000.0, -104.0, -100.0, -90.0])
def test_a_step_size_that_underflows_moves_nothing_and_has_gradients(
    integrator: type[Dynamics], force: str, tau: float
) -> None:
    """Criterion: in fp32, whose smallest positive number is exp(-103), the forward pass is the identity and every
    gradient is finite."""
    for shared in (False, True):
        coupling = integrator(force=force, shared_force=shared).build(layout(2))
        with torch.no_grad():
            coupling.tau.fill_(tau)
        q, k = (x.float().requires_grad_() for x in state(2))
        moved = coupling(q, k)
        torch.testing.assert_close(moved, (q, k))
        sum((x * x).sum() for x in moved).backward()
        assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, *coupling.parameters()))
