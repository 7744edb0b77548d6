"""Several parallel residual streams, mixed by doubly stochastic matrices (hyper-connections).

    h = sum_i r_i X_i,   X_i <- sum_j H_ij X_j + w_i branch(h)                                              (1)
    r = softmax,   H = sinkhorn,   w = 2 sigmoid   of what is learned                                       (2)
    what is learned: a weight, or under dynamic mixing the weight + W norm(X), for each token                (3)

H does not increase the norm of the streams and keeps their mean. All streams start as copies and w as 1, so initially
the block equals one with a single stream, whatever r and H are. r initially prefers another stream in every branch;
otherwise the streams would remain copies.
W starts at 0, so that dynamic mixing starts as static mixing. norm has no weight and spans all streams of a token.
FastSlow, M1 (Gao, Attention is just another name for coupling?, 2026, arXiv 2606.16730), after Xie et al., 2025 (mHC),
whose mixing is dynamic.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention import Cache, Rotation
from attractor.attention.named import Mechanism
from attractor.attention.surroundings import FirstValues
from attractor.equilibrium.manifold import sinkhorn
from attractor.kernels.precision import without_autocast
from attractor.models.block import Block
from attractor.models.config import ModelConfig


class Mixing(nn.Module):
    """The weights by which one branch reads from the streams, mixes them, and writes to them."""

    def __init__(self, n_streams: int, favourite: int, of_input: nn.Module | None = None) -> None:
        super().__init__()
        self.favourite = favourite % n_streams
        self.read_weights = nn.Parameter(torch.empty(n_streams))
        self.write_weights = nn.Parameter(torch.empty(n_streams))
        self.mix_weights = nn.Parameter(torch.empty(n_streams, n_streams))
        self.of_input = of_input  # B T N D -> B T N (N + 2), the W of (3)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.read_weights)
        with torch.no_grad():
            self.read_weights[self.favourite] = 1.0
        nn.init.zeros_(self.write_weights)
        nn.init.eye_(self.mix_weights)

    def forward(
        self, x: Float[Tensor, "B T N D"]
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T N D"], Float[Tensor, "*token N 1"]]:
        """Return what the branch reads, the mixed streams, and the weights by which the branch is added to them."""
        read, write, mix, token = self.read_weights, self.write_weights, self.mix_weights, ""
        if self.of_input is not None:
            n = len(read)
            of_input = self.of_input(x).split((n, n, n * n), dim=-1)
            read, write, mix = read + of_input[0], write + of_input[1], mix + of_input[2].unflatten(-1, (n, n))  # (3)
            token = "bt"
        with without_autocast(x):  # rounded to half precision, H would not be doubly stochastic
            streams = torch.einsum(f"{token}n,btnd->btd", read.softmax(-1).to(x.dtype), x)
            mixed = torch.einsum(f"{token}nm,btmd->btnd", sinkhorn(mix).to(x.dtype), x)
        return streams, mixed, 2 * write.sigmoid().to(x.dtype).unsqueeze(-1)


class OfInput(nn.Linear):
    """The map W norm(X) of (3)."""

    def __init__(self, n_streams: int, d_model: int) -> None:
        super().__init__(n_streams * d_model, n_streams * (n_streams + 2), bias=False)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T W"]:
        flat = x.flatten(2)
        return super().forward(F.rms_norm(flat, flat.shape[-1:]))


class StreamedBlock(Block):
    """A block with N residual streams: B T N D in and out."""

    def __init__(
        self, config: ModelConfig, attention: Mechanism, layer_index: int, n_streams: int, dynamic: bool = False
    ) -> None:
        super().__init__(config, attention, layer_index)

        def mixing(favourite: int) -> Mixing:
            return Mixing(n_streams, favourite, OfInput(n_streams, config.d_model) if dynamic else None)

        self.attention_mixing, self.mlp_mixing = mixing(2 * layer_index), mixing(2 * layer_index + 1)

    def forward(
        self,
        x: Tensor,
        mask: bool | Tensor = True,
        rotation: Rotation | None = None,
        cache: Cache | None = None,
        *first_values: FirstValues,
    ) -> tuple[Tensor, Tensor]:
        read, mixed, weights = self.attention_mixing(x)
        attended, aux_loss = self.attend(read, mask, rotation, cache, *first_values)
        read, mixed, weights = self.mlp_mixing(mixed + weights * attended.unsqueeze(2))  # (1)
        return mixed + weights * self.transform(read).unsqueeze(2), aux_loss  # (1)
