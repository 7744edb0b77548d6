"""Leapfrog (Stoermer-Verlet), the paper's "Hamiltonian" coupling.

    k <- k + dt/2 f(q),   q <- q + dt k,   k <- k + dt/2 f(q)                                               (1)

f(q) at the end of one step is f(q) at the start of the next, so n steps need n + 1 forces. Limits: error of the second
order in dt; invertible; det J = 1 for any force with one query per key (three shears). It is symplectic only where f is
a gradient (force="gradient", preset `coupled-symplectic`); the paper's free MLP is not one.
CoupledQK, equation 3 and appendix A.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from attractor.attention.couple.dynamics import CoupledDynamics, Dynamics, group_mean
from attractor.attention.stage import HeadLayout


@dataclass(frozen=True)
class Leapfrog(Dynamics):
    n_steps: int = 3

    def build(self, layout: HeadLayout) -> nn.Module:
        return LeapfrogCoupling(self, layout)


class LeapfrogCoupling(CoupledDynamics):
    def integrate(self, q: Tensor, k: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        half_kick = group_mean(dt / 2 * self.kick(q))
        for _ in range(self.config.n_steps):
            k = k + half_kick  # (1)
            q = q + dt * self.drift(k)
            half_kick = group_mean(dt / 2 * self.kick(q))
            k = k + half_kick
        return q, k
