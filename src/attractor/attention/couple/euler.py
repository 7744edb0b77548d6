"""Forward Euler: queries drift along keys, keys are deflected by the force, both from the old state.

    q <- q + dt k,   k <- k + dt f(q)                                                                       (1)

Limits: dt -> 0 is the identity; one step is exactly (1); error of the first order in dt. It does not preserve volume.
CoupledQK, equation 4. The force may be linear (the paper's future work, preset `coupled-linear`).
"""

from dataclasses import dataclass

from attractor.attention.couple.dynamics import Dynamics
from attractor.kernels.coupling import DRIFT, FORCE, Program


@dataclass(frozen=True)
class Euler(Dynamics):
    @property
    def program(self) -> Program:
        return (FORCE, DRIFT, 1.0) * self.n_steps  # (1)
