"""Judge a claim: the rules, the verdicts that rules draw from stored runs, and the further runs that a claim needs.

The claims of the five papers themselves are in `papers/`. Nothing here imports torch.
"""

from attractor.claims.verdicts import AllOf, ClaimVerdict, Rule
from attractor.verdict.sensitivity import control_gap

__all__ = ["AllOf", "ClaimVerdict", "Rule", "control_gap"]


def __dir__() -> list[str]:
    return __all__
