"""A pre-norm block: an attention branch and an MLP branch, each added to the residual stream.

    h <- h + Attention(norm(h))                                                                             (1)
    h <- h + MLP(norm(h))                                                                                   (2)

With four norms, the output of each branch is normalised too; with `post_norm`, only the output is. `branch_scale`
multiplies what a branch adds (Granite). A parallel block computes both branches from the same stream:

    h <- h + Attention(norm(h)) + MLP(norm'(h))                                                             (3)

With one norm per block, norm' is norm (Cohere); with two, they differ (GPT-NeoX).
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from attractor.attention import Cache, Rotation, build
from attractor.attention.named import Mechanism
from attractor.attention.norm import LayerNorm
from attractor.attention.surroundings import FirstValues
from attractor.models.config import ModelConfig
from attractor.models.mlp import MLPS

Attend = Callable[[Tensor], tuple[Tensor, Tensor]]  # the branch of attention: what it adds, and its auxiliary loss
NORMS: dict[str, Callable[..., nn.Module]] = {
    "rmsnorm": nn.RMSNorm,
    "layernorm": LayerNorm,
    "layernorm-no-bias": partial(LayerNorm, bias=False),
}


class Block(nn.Module):
    def __init__(self, config: ModelConfig, attention: Mechanism, layer_index: int) -> None:
        super().__init__()

        def norm(present: bool) -> nn.Module:
            return NORMS[config.stream_norm](config.d_model, eps=config.norm_eps) if present else nn.Identity()

        before, after = not config.post_norm, config.post_norm or config.norms_per_block == 4
        self.attention_norm = norm(before)
        self.attention = build(attention, config.d_model, config.n_heads, layer_index, config.head_dim)
        self.attention_post_norm = norm(after)
        self.mlp_norm = norm(before and config.norms_per_block > 1)
        self.mlp = MLPS[config.mlp](config.d_model, config.d_ff, bias=config.mlp_bias)
        self.mlp_post_norm = norm(after)
        self.dropout = nn.Dropout(config.dropout)
        self.branch_scale = config.branch_scale

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
        return self.scaled(self.dropout(self.attention_post_norm(attended))), aux_loss

    def transform(self, x: Tensor) -> Tensor:
        return self.scaled(self.dropout(self.mlp_post_norm(self.mlp(self.mlp_norm(x)))))

    def scaled(self, branch: Tensor) -> Tensor:
        return branch if self.branch_scale == 1 else branch * self.branch_scale


class ParallelBlock(Block):
    def joined(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        attended, aux_loss = attend(x)
        is_shared = isinstance(self.mlp_norm, nn.Identity)
        return x + attended + self.transform(self.attention_norm(x) if is_shared else x), aux_loss  # (3)
