"""What a projection may read besides its own input: the past of the sequence, and the values of the first layer."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attractor.attention.cache import Cache
from attractor.attention.mask import Mask


class FirstValues:
    """Carries the values of the first layer to later ones through one forward pass of a model."""

    held: Tensor | None = None


@dataclass(frozen=True)
class Surroundings:
    mask: Mask
    cache: Cache | None = None
    first_values: FirstValues | None = None

    def earlier(self, x: Float[Tensor, "B T C"], n: int) -> Float[Tensor, "B S C"]:
        """Return x behind the `n` positions before it, which are zeros before the first, and remember the last `n`."""
        past = (
            self.cache.state[0]
            if self.cache is not None and self.cache.state
            else x.new_zeros(x.shape[0], n, x.shape[2])
        )
        both = torch.cat([past, x], dim=1)
        if self.cache is not None:
            self.cache.state[:1] = [both[:, both.shape[1] - n :]]
        return both

    def reaches(self, back: int, n_queries: int) -> Bool[Tensor, "B T 1"] | bool:
        """Return whether each query may attend to the position that is `back` positions before it."""
        window = self.mask.window if self.cache is None else self.cache.window
        if window is not None and back >= window:
            return False
        if self.mask.allowed is None:
            return True
        offset = self.mask.allowed.shape[-1] - n_queries - back
        diagonal = self.mask.allowed.diagonal(offset, -2, -1)
        reached = F.pad(diagonal, (n_queries - diagonal.shape[-1], 0))
        return reached.view(-1, n_queries, 1)


ALONE = Surroundings(Mask(causal=True))  # a causal sequence from its start, in a layer by itself
