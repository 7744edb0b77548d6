"""The plan of a measurement: number and length of passages, layers, exponents, and memory."""

import math
from dataclasses import dataclass

from attractor.errors import require, require_seed

GB = 10**9


@dataclass(frozen=True)
class Plan:
    n_samples: int = 8
    length: int = 128
    layers: tuple[int, ...] = ()  # counted from 0; empty means all
    k: int = 4  # number of exponents
    jacobians: bool = True
    memory: float = 4.0  # in GB, without the model itself
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.n_samples >= 1, "n_samples", "at least 1", self.n_samples)
        require(self.length >= 2, "length", "at least 2", self.length, "one position can only attend to itself")
        require(self.k >= 0, "k", "at least 0", self.k, "0 leaves the exponents out")
        require(0 < self.memory < math.inf, "memory", "a positive number of GB", self.memory)
        require_seed(self.seed)
        require(len({*self.layers}) == len(self.layers), "layers", "named once each", self.layers)
        require(self.jacobians or self.k == 0, "k", "0 without Jacobians, of which exponents are made", self.k)

    @property
    def max_bytes(self) -> int:
        return int(self.memory * GB)

    def chosen(self, n_layers: int) -> list[int]:
        """Return the layers to measure in ascending order, of a model with `n_layers`."""
        for layer in self.layers:
            require(0 <= layer < n_layers, "layers", f"from 0 to {n_layers - 1}", layer, "count from the first one")
        return sorted(self.layers) or list(range(n_layers))
