"""Coupled query-key dynamics: what all integrators share (step sizes, force, grouped queries, precision, zero start).

    dt_h = exp(tau_h),   one tau per query head, dt at the start 0.1                                        (1)
    GQA: each query drifts along its group's key; the key moves by the group's mean of dt_h f(q_h)          (2)
    zero start: q' = q + tanh(g_h) (q_n - q), k likewise, g = 0, so a pretrained model starts unchanged     (3)

With one query per key, (2) is the paper's rule exactly. In half precision the state is integrated and returned in fp32;
it is cast back after position is applied.
CoupledQK, section 2.1: Gahtan and Bronstein, Coupled Query-Key Dynamics for Attention, 2026, arXiv 2604.01683. (2) and
(3) are ours: the paper leaves GQA open, and dynamics with dt > 0 cannot start at the identity.
"""

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attractor.attention.couple.force import FORCES
from attractor.attention.couple.fused import couple, kernel_applies
from attractor.attention.couple.norm_and_position import NormalisingCoupling, NormAndPosition
from attractor.attention.stage import Coupling, HeadLayout
from attractor.errors import require, require_count, require_known
from attractor.kernels.coupling import Program, integrate, integrate_reference


@dataclass(frozen=True)
class Dynamics(Coupling):
    """The config of an integrator; a subclass defines its steps."""

    n_steps: int = 1
    dt: float = 0.1
    force: str = "mlp"
    shared_force: bool = False  # q drifts along f(k) instead of k, so one network moves both
    zero_start: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("n_steps", self.n_steps)
        require(0 < self.dt < math.inf, "dt", "positive and finite", self.dt)
        require_known("force", self.force, FORCES)

    @property
    @abstractmethod
    def program(self) -> Program:
        """The forces, drifts and kicks of all n steps (`kernels/coupling.py`)."""

    def build(self, layout: HeadLayout) -> nn.Module:
        return CoupledDynamics(self, layout)


class CoupledDynamics(NormalisingCoupling):
    def __init__(self, config: Dynamics, layout: HeadLayout) -> None:
        super().__init__()
        self.config = config
        self.n_kv_heads = layout.n_kv_heads
        self.force = FORCES[config.force](layout.free)
        self.tau = nn.Parameter(torch.empty(layout.n_queries))
        self.gate = nn.Parameter(torch.empty(layout.n_queries)) if config.zero_start else None
        self._gate_seen = False
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.tau, math.log(self.config.dt))
        if self.gate is not None:
            nn.init.zeros_(self.gate)

    def step_sizes(self, dtype: torch.dtype) -> Tensor:
        """Return (1), at least the smallest positive number, since kernels divide by the step size."""
        return self.tau.to(dtype).exp().clamp_min(torch.finfo(dtype).tiny)  # (1)

    def integrate(self, q: Tensor, k: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        """Run the program on q: B T J G K, k: B T J 1 K, dt: J G 1, for J key heads with G queries each.

        The force is computed in the precision of its weights, or of autocast; q and k have that of dt.
        """
        program = self.config.program
        inner, outer = self.force.matrices()
        if inner is not None and not self.config.shared_force:
            return integrate(program, q, k, dt, inner, outer)
        q, k = q.to(dt.dtype), k.to(dt.dtype)

        def force(x: Tensor) -> Tensor:
            return self.force(x.to(self.tau.dtype)).to(x.dtype)

        if self.config.shared_force:
            return integrate_reference(program, q, k, dt, force, velocity=force)
        return integrate_reference(program, q, k, dt, force)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        dt = self.step_sizes(wide)
        qn, kn = couple(self.config.program, q, k, dt, self.force) if self._fused(q, k) else self._plain(q, k, dt)
        if self.gate is not None:
            self._warn_of_frozen_gate(q)
            opening = self.gate.to(wide).tanh().view(-1, 1, 1)
            by_key = opening.view(self.n_kv_heads, -1, 1, 1).mean(1)
            qn, kn = q + opening * (qn - q), k + by_key * (kn - k)  # (3)
        return qn, kn

    def _warn_of_frozen_gate(self, q: Tensor) -> None:
        """Warn once where something is trained, but the gates are closed and frozen, as adapters (LoRA) leave them."""
        gate, trained = self.gate, self.training and q.requires_grad
        if gate is None or gate.requires_grad or not trained or self._gate_seen or torch.compiler.is_compiling():
            return
        self._gate_seen = True
        if not gate.any():
            warnings.warn(
                "the gates of a coupling are 0 and frozen, so the coupling stays without effect: with PEFT, set "
                "modules_to_save=['attractor'] after replace_attention and ['couple'] on a converted model, or else "
                "requires_grad_() of every '*.gate'",
                stacklevel=2,
            )

    def couple_and_normalise(self, q: Tensor, k: Tensor, norm_and_position: NormAndPosition) -> tuple[Tensor, Tensor]:
        if self.gate is None and norm_and_position.by_head(q.shape[-1]) and self._fused(q, k):
            return couple(self.config.program, q, k, self.step_sizes(torch.float32), self.force, norm_and_position)
        return norm_and_position(*self(q, k))

    def _fused(self, q: Tensor, k: Tensor) -> bool:
        unsupported = "one network moves both queries and keys" if self.config.shared_force else None
        if self.tau.is_meta:
            unsupported = "its step sizes are offloaded"
        return kernel_applies(self.config.program, q, k, self.force, unsupported)

    def _plain(self, q: Tensor, k: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        groups = (self.n_kv_heads, -1)
        # Positions come before heads, as the projections leave them in memory.
        q0 = q.transpose(1, 2).unflatten(2, groups)
        k0 = k.transpose(1, 2).unsqueeze(3)
        qn, kn = self.integrate(q0, k0, dt.view(*groups, 1))
        return qn.flatten(2, 3).transpose(1, 2), kn.squeeze(3).transpose(1, 2)
