"""Several parallel residual streams, mixed by doubly stochastic matrices (hyper-connections).

    h = sum_i r_i X_i,   X_i <- sum_j H_ij X_j + w_i branch(h)                                              (1)
    r = softmax,   H = sinkhorn,   w = 2 sigmoid   of learned weights                                       (2)

H does not increase the norm of the streams and keeps their mean. All streams start as copies and w as 1, so initially
the block equals one with a single stream, whatever r and H are. r initially prefers another stream in every branch;
otherwise the streams would remain copies.
FastSlow, M1 (Gao, Attention is just another name for coupling?, 2026, arXiv 2606.16730), after Xie et al., 2025 (mHC),
where the weights depend on the token as well.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.named import Mechanism
from attractor.equilibrium.manifold import sinkhorn
from attractor.kernels.precision import without_autocast
from attractor.models.block import Attend, Block
from attractor.models.config import ModelConfig


class Mixing(nn.Module):
    """The weights by which one branch reads from the streams, mixes them, and writes to them."""

    def __init__(self, n_streams: int, favourite: int) -> None:
        super().__init__()
        self.favourite = favourite % n_streams
        self.read_weights = nn.Parameter(torch.empty(n_streams))
        self.write_weights = nn.Parameter(torch.empty(n_streams))
        self.mix_weights = nn.Parameter(torch.empty(n_streams, n_streams))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.read_weights)
        with torch.no_grad():
            self.read_weights[self.favourite] = 1.0
        nn.init.zeros_(self.write_weights)
        nn.init.eye_(self.mix_weights)

    def forward(
        self, x: Float[Tensor, "B T N D"]
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T N D"], Float[Tensor, "N 1"]]:
        """Return what the branch reads, the mixed streams, and the weights by which the branch is added to them."""
        with without_autocast(x):  # rounded to half precision, H would not be doubly stochastic
            read = torch.einsum("n,btnd->btd", self.read_weights.softmax(-1).to(x.dtype), x)
            mixed = torch.einsum("nm,btmd->btnd", sinkhorn(self.mix_weights).to(x.dtype), x)
        return read, mixed, 2 * self.write_weights.sigmoid().to(x.dtype).unsqueeze(-1)


class StreamedBlock(Block):
    """A block with N residual streams: B T N D in and out."""

    def __init__(self, config: ModelConfig, attention: Mechanism, layer_index: int, n_streams: int) -> None:
        super().__init__(config, attention, layer_index)
        self.attention_mixing, self.mlp_mixing = (Mixing(n_streams, 2 * layer_index + branch) for branch in (0, 1))

    def joined(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        read, mixed, weights = self.attention_mixing(x)
        attended, aux_loss = attend(read)
        read, mixed, weights = self.mlp_mixing(mixed + weights * attended.unsqueeze(2))  # (1)
        return mixed + weights * self.transform(read).unsqueeze(2), aux_loss  # (1)
