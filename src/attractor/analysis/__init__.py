"""Measures of attention weights (tensors) and of dynamical systems (maps `state -> state`).

No measure knows a model or a run: models offer attention weights by taps and maps in `attractor.models.maps`.
"""

from attractor.analysis.effort import Effort
from attractor.analysis.eigenvalues import (
    Eigenvalues,
    eigenvalues,
    estimate_eigenvalues,
    leading_eigenvalues,
    spectral_radius,
)
from attractor.analysis.entropy import attention_entropy, normalised_entropy
from attractor.analysis.finite_time import FiniteTime, finite_time, finite_time_exponents
from attractor.analysis.jacobian import Jacobian, jacobian
from attractor.analysis.lanczos import NormEstimate
from attractor.analysis.lyapunov import LyapunovEstimate, error_between_orbits, lyapunov, lyapunov_spectrum
from attractor.analysis.memory import decay_length, distance_holding, effective_memory, mean_distance
from attractor.analysis.operator_norm import estimate_jacobian_norm, jacobian_norm
from attractor.analysis.rank import SpectralProfile, effective_rank, spectral_profile
from attractor.analysis.sink import sink_mass
from attractor.analysis.tangent import sphere_tangent

__all__ = [
    "Effort",
    "Eigenvalues",
    "FiniteTime",
    "Jacobian",
    "LyapunovEstimate",
    "NormEstimate",
    "SpectralProfile",
    "attention_entropy",
    "decay_length",
    "distance_holding",
    "effective_memory",
    "effective_rank",
    "eigenvalues",
    "error_between_orbits",
    "estimate_eigenvalues",
    "estimate_jacobian_norm",
    "finite_time",
    "finite_time_exponents",
    "jacobian",
    "jacobian_norm",
    "leading_eigenvalues",
    "lyapunov",
    "lyapunov_spectrum",
    "mean_distance",
    "normalised_entropy",
    "sink_mass",
    "spectral_profile",
    "spectral_radius",
    "sphere_tangent",
]


def __dir__() -> list[str]:
    return __all__
