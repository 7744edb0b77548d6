"""What every integrator of (q, k) shares: step sizes, the force, groups of queries, precision, and a closed start.

    dt_h = exp(tau_h),   one tau per query head, dt at the start 0.1                                        (1)
    GQA: each query moves against its group's key; the key moves by the group's mean of dt_h f(q_h)         (2)
    zero start: q' = q + tanh(g_h) (q_n - q), k likewise, g = 0, so a pretrained model starts unchanged     (3)

With one query per key (2) is the paper's rule exactly. In half precision the state is integrated in fp32, and comes
out so: it is narrowed once it has its position.
CoupledQK, section 2.1; (2) and (3) are ours (the paper leaves GQA open, and dt > 0 cannot start at the identity).
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attractor.attention.couple.force import FORCES, MLPForce
from attractor.attention.stage import Coupling, HeadLayout, require
from attractor.errors import unknown
from attractor.kernels.coupling import Program, integrate, integrate_reference


@dataclass(frozen=True)
class Dynamics(Coupling):
    """Config of an integrator; a subclass says what its steps consist of."""

    n_steps: int = 1
    dt: float = 0.1
    force: str = "mlp"
    shared_force: bool = False  # q drifts along f(k) instead of k: one network moves both
    zero_start: bool = False

    def __post_init__(self) -> None:
        require(
            isinstance(self.n_steps, int) and self.n_steps >= 1, "n_steps", "an integer of at least 1", self.n_steps
        )
        require(self.dt > 0, "dt", "positive", self.dt)
        if self.force not in FORCES:
            raise unknown("force", self.force, FORCES)

    @property
    @abstractmethod
    def program(self) -> Program:
        """All n steps: forces, drifts and kicks (`kernels/coupling.py`)."""

    def build(self, layout: HeadLayout) -> nn.Module:
        return CoupledDynamics(self, layout)


class CoupledDynamics(nn.Module):
    def __init__(self, config: Dynamics, layout: HeadLayout) -> None:
        super().__init__()
        self.config = config
        self.n_kv_heads = layout.n_kv_heads
        self.force = FORCES[config.force](layout.free)
        self.tau = nn.Parameter(torch.empty(layout.n_queries))
        self.gate = nn.Parameter(torch.empty(layout.n_queries)) if config.zero_start else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.tau, math.log(self.config.dt))
        if self.gate is not None:
            nn.init.zeros_(self.gate)

    def integrate(self, q: Tensor, k: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        """q: B T J G K, k: B T J 1 K, dt: J G 1, for J key heads with G queries each. The force is taken in the
        precision of its weights, or of autocast; q and k keep their own."""
        program = self.config.program
        if isinstance(self.force, MLPForce) and not self.config.shared_force:
            return integrate(program, q, k, dt, self.force.inner.weight, self.force.outer.weight)
        q, k = q.to(dt.dtype), k.to(dt.dtype)

        def force(x: Tensor) -> Tensor:
            return self.force(x.to(self.tau.dtype)).to(x.dtype)

        if self.config.shared_force:
            return integrate_reference(program, q, k, dt, force, velocity=force)
        return integrate_reference(program, q, k, dt, force)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        groups = (self.n_kv_heads, -1)
        # Positions before heads, which is how the projections left them in memory.
        q0 = q.transpose(1, 2).unflatten(2, groups)
        k0 = k.transpose(1, 2).unsqueeze(3)
        dt = self.tau.to(wide).exp().view(*groups, 1)  # (1)
        qn, kn = self.integrate(q0, k0, dt)
        if self.gate is not None:
            opening = self.gate.to(wide).tanh().view(*groups, 1)
            qn, kn = q0 + opening * (qn - q0), k0 + opening.mean(1, keepdim=True) * (kn - k0)  # (3)
        return qn.flatten(2, 3).transpose(1, 2), kn.squeeze(3).transpose(1, 2)
