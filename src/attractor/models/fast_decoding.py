"""Fast decoding of one more token by standard blocks, without calling their modules.

    n = norm(x);  q, k, v = W_q n, W_k n, W_v n;  x <- x + W_o softmax(scale q K') V;  x <- x + MLP(norm(x))

When a small model decodes, half of the time is Python's: calls of modules, stages that do nothing, and checks of taps.
The operations here are those of the modules, and the values agree bit for bit.

`plain_block_modules` checks that the blocks compute nothing else: pre-norm, separate heads, no coupling, softmax
without soft-cap, whole heads rotated, plain output, unscaled branches in turn, modules of the original classes, and no
hooks or captured taps.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from attractor.attention import Attention, Cache, Rotation
from attractor.attention.couple.none import IdentityCoupling
from attractor.attention.hooks import listening
from attractor.attention.output.plain import PlainOutput
from attractor.attention.project.heads import HeadProjection
from attractor.attention.score.softmax import SoftmaxScore
from attractor.models.block import Block
from attractor.models.mlp import GatedMLP

Parts = tuple[Any, ...]  # the modules of one block, in the order of OF_BLOCK
OF_BLOCK = (
    Block,
    *(nn.RMSNorm, Attention, nn.Identity, nn.RMSNorm, GatedMLP, nn.Identity, nn.Dropout),
    *(HeadProjection, IdentityCoupling, nn.Identity, nn.Identity, SoftmaxScore, PlainOutput),
    *[nn.Linear] * 7,
)


def plain_block_modules(blocks: Iterable[nn.Module]) -> list[Parts] | None:
    """Return the modules of each block for `decode_step`, or None if a block is not plain."""
    if every_module._global_forward_hooks or every_module._global_forward_pre_hooks or listening():
        return None
    modules = []
    for block in blocks:
        parts = _parts(block)
        if parts is None:
            return None
        modules.append(parts)
    return modules


def _parts(block: nn.Module) -> Parts | None:
    if not isinstance(block, Block) or not block.is_plain or block.training:
        return None
    parts: list[Any] = [block]
    # Modules are read from `_modules`, since attribute access on a module costs as much as a small operation.
    for start, names in (
        (0, ("attention_norm", "attention", "attention_post_norm", "mlp_norm", "mlp", "mlp_post_norm", "dropout")),
        (2, ("project", "couple", "query_norm", "key_norm", "score", "output")),
        (8, ("query", "key", "value")),
        (13, ("out",)),
        (5, ("gate", "up", "down")),
    ):
        if start and type(parts[start]) is not OF_BLOCK[start]:
            return None
        table = parts[start]._modules
        parts += [table[name] for name in names]
    if tuple(map(type, parts[1:])) != OF_BLOCK[1:] or parts[12].softcap is not None or parts[2].rotated_part != "whole":
        return None
    for part in parts:
        attributes = part.__dict__
        if attributes["_forward_hooks"] or attributes["_forward_pre_hooks"] or "forward" in attributes:
            return None
    return tuple(parts)


def decode_step(
    blocks: Sequence[Parts],
    x: Tensor,
    mask: bool | Tensor,
    rotations: Sequence[Rotation | None],
    caches: Sequence[Cache],
) -> Tensor:
    """Return the output of the blocks for x: B 1 D, the newest position of each sequence.

    mask: as a block takes it; anything but a tensor allows the whole past.
    """
    every_key = mask if isinstance(mask, Tensor) else None
    turns = {rotation: _Turn(rotation, x.dtype) for rotation in rotations if rotation is not None}
    batch = x.shape[0]
    for parts, rotation, cache in zip(blocks, rotations, caches, strict=True):
        _, norm, attention, _, mlp_norm, mlp, *_ = parts
        score, query, key, value, out, gate, up, down = parts[12], *parts[14:]
        layout = attention.layout
        n_queries, n_keys = layout.n_queries, layout.n_kv_heads
        n = _normed(norm, x)
        q = _product(query, n).view(batch, n_queries, 1, -1)
        k = _product(key, n).view(batch, n_keys, 1, -1)
        v = _product(value, n).view(batch, n_keys, 1, -1)
        if rotation is not None:
            both = turns[rotation](torch.cat((q, k), dim=1))
            q, k = both[:, :n_queries], both[:, n_queries:]
        k, v = cache.append(k, v)
        # A layer with a window holds the last keys alone.
        allowed = every_key if every_key is None else every_key[..., every_key.shape[-1] - k.shape[2] :]
        context = F.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, scale=score.scale, enable_gqa=n_queries != n_keys
        )
        x = x + _product(out, context.view(batch, 1, -1))
        n = _normed(mlp_norm, x)
        x = x + _product(down, mlp.activation(_product(gate, n)) * _product(up, n))
    return x


class _Turn:
    """A rotation of both halves of a vector at once: x cos + (x with its halves exchanged) (-sin, sin)."""

    def __init__(self, rotation: Rotation, dtype: torch.dtype) -> None:
        wide = torch.promote_types(dtype, torch.float32)
        cos, sin = rotation.cos.to(wide), rotation.sin.to(wide)
        self.cos, self.sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        self.half, self.wide = cos.shape[-1], wide

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.to(self.wide)
        turned = torch.addcmul(wide * self.cos, wide.roll(self.half, dims=-1), self.sin)
        return turned.to(x.dtype)  # under autocast x has another precision than the model


def _product(linear: nn.Linear, x: Tensor) -> Tensor:
    parameters = linear._parameters
    return F.linear(x, parameters["weight"], parameters["bias"])  # type: ignore[arg-type]


def _normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    return torch.rms_norm(x, norm.normalized_shape, norm._parameters["weight"], norm.eps)
