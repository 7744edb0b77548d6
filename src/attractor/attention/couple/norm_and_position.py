"""QK-norm and position, which follow coupling before queries and keys are scored.

Coupling may return a wider precision. Queries and keys are cast back to that of the values here, after all steps that
are sensitive to rounding. A coupling whose kernel can do all of this in the same pass does so.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.norm import RMSNorm
from attractor.attention.position import CellMap, MatricesOfCells, Rotation


# torch.compile in torch 2.11 takes the hash of what it calls before the fields are set. `eq=False` hashes the identity.
@dataclass(frozen=True, eq=False)
class NormAndPosition:
    """QK-norm, rotation and a cast to the precision of the values, for queries and keys."""

    query_norm: nn.Module
    key_norm: nn.Module
    rotation: Rotation | None
    rotated_part: str  # of each head: whole, leading (rope_fraction) or trailing (MLA)
    dtype: torch.dtype

    def __call__(
        self, q: Float[Tensor, "B H T W"], k: Float[Tensor, "B J T W"]
    ) -> tuple[Float[Tensor, "B H T W"], Float[Tensor, "B J T W"]]:
        q, k = self.query_norm(q), self.key_norm(k)
        if self.rotation is not None:
            width = self.rotation.width
            q, k = self.rotated(q, self.rotation.queries, width), self.rotated(k, self.rotation.keys, width)
        return q.to(self.dtype), k.to(self.dtype)

    def rotated(self, x: Float[Tensor, "B H T W"], rotation: CellMap, width: int) -> Float[Tensor, "B H T W"]:
        if self.rotated_part == "whole":
            return rotation(x)
        if self.rotated_part == "leading":
            return torch.cat([rotation(x[..., :width]), x[..., width:]], dim=-1)
        return torch.cat([x[..., :-width], rotation(x[..., -width:])], dim=-1)

    def by_head(self, width: int) -> bool:
        """Whether every head of this width is normalised by itself and rotated as a whole, as kernels do it."""
        if isinstance(self.rotation, MatricesOfCells):
            return False
        norms = {type(self.query_norm), type(self.key_norm)}
        rotated_width = width if self.rotation is None else self.rotation.width
        return norms <= {RMSNorm, nn.Identity} and self.rotated_part == "whole" and rotated_width == width


class NormalisingCoupling(nn.Module):
    """A coupling that can also apply QK-norm and position, if heads are not split into sub-heads in between."""

    @abstractmethod
    def couple_and_normalise(
        self, q: Tensor, k: Tensor, norm_and_position: NormAndPosition
    ) -> tuple[Tensor, Tensor]: ...
