"""Where a token stands: a learned table added to the input, or a rotation of queries and keys (RoPE).

    (x_j, x_{j+w/2}) turned by position * theta^(-2j/w),   j < w/2                                          (1)

The score of two rotated vectors depends on the difference of their positions alone. Pairs are (j, j + w/2), as Llama
stores its weights; interleaved pairs (DeepSeek) are the same rotation after a permutation of weight rows.
RoFormer: Su et al., arXiv 2104.09864.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attractor.attention.stage import require


class Rope:
    """A rotation of vectors of one width: `rope.at(positions)` fixes the angles, once for all layers of a model."""

    def __init__(self, width: int, theta: float = 10000.0) -> None:
        require(width >= 2 and width % 2 == 0, "rope width", "even and at least 2", width)
        require(theta > 0, "rope_theta", "positive", theta)
        self.width, self.theta = width, theta

    def at(self, positions: Int[Tensor, "..."]) -> "Rotation":
        """positions: T, or B T where sequences of a batch are shifted against each other (left padding)."""
        exponents = torch.arange(0, self.width, 2, device=positions.device, dtype=torch.float64) / self.width
        angles = positions.unsqueeze(-1) * self.theta**-exponents
        return Rotation(angles.cos(), angles.sin())


class Rotation:
    """RoPE at given positions. Angles are formed in fp64, applied in fp32 or wider."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        # B T w/2 gets a head dimension, T w/2 broadcasts as it is.
        self.cos, self.sin = (cos.unsqueeze(1), sin.unsqueeze(1)) if cos.dim() == 3 else (cos, sin)
        self.width = 2 * cos.shape[-1]

    def __call__(self, x: Float[Tensor, "B H T W"]) -> Float[Tensor, "B H T W"]:
        """Rotate each run of `width` coordinates of x alike (there are two under phase activation)."""
        wide = torch.promote_types(x.dtype, torch.float32)
        cos, sin = self.cos.to(wide), self.sin.to(wide)
        rotated: list[Tensor] = []
        for run in x.split(self.width, dim=-1):
            first, second = run.to(wide).chunk(2, dim=-1)
            rotated.append(torch.addcmul(first * cos, second, sin, value=-1))  # (1)
            rotated.append(torch.addcmul(second * cos, first, sin))
        return torch.cat(rotated, dim=-1).to(x.dtype)


class LearnedPositions(nn.Module):
    """A table of `max_seq_len` vectors, added to the token embeddings."""

    def __init__(self, max_seq_len: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_seq_len, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, positions: Int[Tensor, "..."]) -> Tensor:
        return nn.functional.embedding(positions, self.weight)
