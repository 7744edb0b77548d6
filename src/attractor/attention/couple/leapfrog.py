"""Leapfrog (Stoermer-Verlet), the paper's "Hamiltonian" coupling.

    k <- k + dt/2 f(q),   q <- q + dt k,   k <- k + dt/2 f(q)                                               (1)

The half kick that ends one step and the one that starts the next share f(q) and are taken as one: n + 1 forces for n
steps. Limits: error of the second order in dt; invertible; det J = 1 for any force with one query per key (it is three
shears). Symplectic only where f is a gradient (force="gradient", preset `coupled-symplectic`): the paper's free MLP is
not one.
CoupledQK, equation 3 and appendix A.
"""

from dataclasses import dataclass

from attractor.attention.couple.dynamics import Dynamics
from attractor.kernels.coupling import DRIFT, FORCE, Program


@dataclass(frozen=True)
class Leapfrog(Dynamics):
    n_steps: int = 3

    @property
    def program(self) -> Program:
        return (FORCE, 0.5, *(DRIFT, FORCE, 1.0) * (self.n_steps - 1), DRIFT, FORCE, 0.5)  # (1)
