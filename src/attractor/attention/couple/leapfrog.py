"""Leapfrog (Stoermer-Verlet), the paper's "Hamiltonian" coupling.

    k <- k + dt/2 f(q),   q <- q + dt k,   k <- k + dt/2 f(q)                                               (1)

The half kick that ends one step and the one that starts the next share f(q) and are taken as one: n + 1 forces for n
steps. Limits: error of the second order in dt; invertible; det J = 1 for any force with one query per key (it is three
shears). Symplectic only where f is a gradient (force="gradient", preset `coupled-symplectic`): the paper's free MLP is
not one.
CoupledQK, equation 3 and appendix A.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from attractor.attention.couple.dynamics import CoupledDynamics, Dynamics
from attractor.attention.stage import HeadLayout


@dataclass(frozen=True)
class Leapfrog(Dynamics):
    n_steps: int = 3

    def build(self, layout: HeadLayout) -> nn.Module:
        return LeapfrogCoupling(self, layout)


class LeapfrogCoupling(CoupledDynamics):
    def integrate(self, q: Tensor, k: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        k = self.kick(k, q, dt / 2)  # (1)
        for step in range(1, self.config.n_steps + 1):
            q = self.drift(q, k, dt)
            k = self.kick(k, q, dt if step < self.config.n_steps else dt / 2)
        return q, k
