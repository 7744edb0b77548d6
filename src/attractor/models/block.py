"""A pre-norm block: an attention branch and an MLP branch, each added to the residual stream.

    h <- h + Attention(norm(h))                                                                             (1)
    h <- h + MLP(norm(h))                                                                                   (2)

With four norms, the output of each branch is normalised, too.
"""

from collections.abc import Callable

from torch import Tensor, nn

from attractor.attention import Cache, Rotation, build
from attractor.attention.named import Mechanism
from attractor.attention.surroundings import FirstValues
from attractor.models.config import ModelConfig
from attractor.models.mlp import MLPS

Attend = Callable[[Tensor], tuple[Tensor, Tensor]]  # the branch of attention: what it adds, and its auxiliary loss


class Block(nn.Module):
    def __init__(self, config: ModelConfig, attention: Mechanism, layer_index: int) -> None:
        super().__init__()
        norm_after = config.build_norm if config.norms_per_block == 4 else nn.Identity
        self.attention_norm = config.build_norm()
        self.attention = build(attention, config.d_model, config.n_heads, layer_index, config.head_dim)
        self.attention_post_norm = norm_after()
        self.mlp_norm = config.build_norm()
        self.mlp = MLPS[config.mlp](config.d_model, config.d_ff)
        self.mlp_post_norm = norm_after()
        self.dropout = nn.Dropout(config.dropout)
        self.is_plain = type(self) is Block  # it computes (1) and (2) and nothing else

    def forward(
        self,
        x: Tensor,
        mask: bool | Tensor = True,
        rotation: Rotation | None = None,
        cache: Cache | None = None,
        *first_values: FirstValues,
    ) -> tuple[Tensor, Tensor]:
        return self.joined(x, lambda read: self.attend(read, mask, rotation, cache, *first_values))

    def joined(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """Add what the two branches compute."""
        attended, aux_loss = attend(x)
        x = x + attended  # (1)
        return x + self.transform(x), aux_loss  # (2)

    def attend(
        self, x: Tensor, mask: bool | Tensor, rotation: Rotation | None, cache: Cache | None, *first_values: FirstValues
    ) -> tuple[Tensor, Tensor]:
        attended, aux_loss = self.attention(self.attention_norm(x), mask, rotation, cache, *first_values)
        return self.added(self.attention_post_norm(attended)), aux_loss

    def transform(self, x: Tensor) -> Tensor:
        return self.added(self.mlp_post_norm(self.mlp(self.mlp_norm(x))))

    def added(self, branch: Tensor) -> Tensor:
        return self.dropout(branch)
