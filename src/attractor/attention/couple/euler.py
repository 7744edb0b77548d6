"""Forward Euler: queries drift along keys, keys are deflected by the force, both from the old state.

    q <- q + dt k,   k <- k + dt f(q)                                                                       (1)

Limits: dt -> 0 is the identity; one step is exactly (1); error of the first order in dt. It does not preserve volume.
CoupledQK, equation 4. The force may be linear (the paper's future work, preset `coupled-linear`).
"""

from dataclasses import dataclass

from torch import Tensor, nn

from attractor.attention.couple.dynamics import CoupledDynamics, Dynamics
from attractor.attention.stage import HeadLayout


@dataclass(frozen=True)
class Euler(Dynamics):
    def build(self, layout: HeadLayout) -> nn.Module:
        return EulerCoupling(self, layout)


class EulerCoupling(CoupledDynamics):
    def integrate(self, q: Tensor, k: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(self.config.n_steps):
            q, k = self.drift(q, k, dt), self.kick(k, q, dt)  # (1)
        return q, k
