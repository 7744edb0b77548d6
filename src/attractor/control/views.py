"""A view names the rows of parameters that are the query and key weights of an attention layer's heads.

    DotProduct    logits_h = scale (W_q,h x) . (W_k,g y),  g = reads[h]                                     (1)
                  multi-head, grouped and multi-query attention; each sub-head of differential attention is a head
    LatentHeads   q_h = [W_uq,h c_q ; W_qr,h c_q],  c_q = W_dq x                                            (2)
                  k_h = [W_uk,g c_kv ; W_kr y],     c_kv = W_dkv y                                          (3)
                  multi-head latent attention; W_dq, W_dkv and W_kr have no head of their own; with norms on the
                  latents, c_q = gamma_q RMSNorm(W_dq x) and c_kv = gamma_kv RMSNorm(W_dkv y)

Heads are in the order of the queries that the layer scores (the tap `q_coupled`). A view copies nothing: whoever
changes its rows changes the model. `heads.py` makes the views of attractor's layers, `layouts.py` those of Hugging Face
models.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from attractor.errors import require


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a weight that belong to n heads: `width` rows from each of `starts` on.

    Where a model stores the weight transposed, `axis` is 1 and the rows are columns. The bias has the same rows. A
    weight of one dimension, the gains of a norm, stands for a diagonal matrix and is one head."""

    weight: nn.Parameter
    starts: tuple[int, ...]
    width: int
    bias: nn.Parameter | None = None
    axis: int = 0

    @property
    def n_heads(self) -> int:
        return len(self.starts)

    @property
    def index(self) -> Tensor:
        """The indices of all n_heads * width rows, head by head."""
        device = self.weight.device
        starts = torch.tensor(self.starts, device=device)
        return (starts[:, None] + torch.arange(self.width, device=device)).flatten()

    def of(self, head: int) -> Tensor:
        """Return the weight of the head as a view into the parameter."""
        return self.weight.narrow(self.axis, self.starts[head], self.width)


@dataclass(frozen=True, eq=False)
class DotProduct:
    """The query and key weights of (1)."""

    name: str  # the name of the attention module in `model.named_modules()`
    module: nn.Module
    query: Rows
    key: Rows
    reads: tuple[int, ...]  # the key head of each query head
    obstacle: str = ""  # why the logits do not scale with the weights; empty where they do

    @property
    def n_heads(self) -> int:
        return self.query.n_heads

    def parts(self) -> dict[str, Rows]:
        return {"query": self.query, "key": self.key}


@dataclass(frozen=True, eq=False)
class LatentHeads:
    """The weights of (2) and (3). Those that a layer lacks are None: `dq` without a query latent, `qr` and `kr` without
    a rotary part, `gamma_q` and `gamma_kv` without a norm on the latent."""

    name: str
    module: nn.Module
    uq: Rows
    uk: Rows
    dkv: Rows
    reads: tuple[int, ...]  # the part of `uk` that each query head reads
    reads_rope: tuple[int, ...]  # the part of `kr` that it reads: one for all heads, or one for each half of a head
    dq: Rows | None = None
    qr: Rows | None = None
    kr: Rows | None = None
    gamma_q: Rows | None = None
    gamma_kv: Rows | None = None
    obstacle: str = ""

    @property
    def n_heads(self) -> int:
        return self.uq.n_heads

    def parts(self) -> dict[str, Rows]:
        named = {"uq": self.uq, "uk": self.uk, "qr": self.qr, "dq": self.dq, "dkv": self.dkv, "kr": self.kr}
        named |= {"gamma_q": self.gamma_q, "gamma_kv": self.gamma_kv}
        return {name: rows for name, rows in named.items() if rows is not None}


QueryKeyHeads = DotProduct | LatentHeads


def require_rows(view: QueryKeyHeads) -> None:
    """Refuse rows that the weight does not have, and key heads that do not exist."""
    for part, rows in view.parts().items():
        n, first, end = rows.weight.shape[rows.axis], min(rows.starts), max(rows.starts) + rows.width
        rule, next_step = f"below {n}, the number of rows of the weight", "count offset and width in rows"
        require(first >= 0 and end <= n, f"rows of {part} in '{view.name}'", rule, f"{first} to {end - 1}", next_step)
    if isinstance(view, DotProduct):
        rule = f"for each of the {view.n_heads} query heads one of the {view.key.n_heads} key heads"
        exist = all(0 <= head < view.key.n_heads for head in view.reads)
        require(len(view.reads) == view.n_heads and exist, f"reads of '{view.name}'", rule, view.reads)


View = Callable[[str, nn.Module], QueryKeyHeads | None]  # of a named module; None where it does not know the module


def head_rows(
    linear: nn.Linear, n_heads: int, width: int, offset: int = 0, step: int | None = None, halves: bool = False
) -> Rows:
    """Return the rows of heads that lie `step` rows apart, by default their width, from row `offset` on.

    With `halves` every head counts as two: the first halves of all heads come first, then the second halves."""
    starts = [offset + head * (step or width) for head in range(n_heads)]
    if halves:
        width //= 2
        starts = starts + [start + width for start in starts]
    bias = dict(linear.named_parameters(recurse=False)).get("bias")
    return Rows(cast(nn.Parameter, linear.weight), tuple(starts), width, bias)


def norm_rows(norm: nn.Module | None) -> Rows | None:
    """Return the gains of a norm, which are None where there is no norm."""
    weight = getattr(norm, "weight", None)
    return None if weight is None else Rows(weight, (0,), len(weight), getattr(norm, "bias", None))


def grouped(n_queries: int, n_keys: int) -> tuple[int, ...]:
    """Return the key head that each query head reads: h n_keys // n_queries for query head h."""
    return tuple(head * n_keys // n_queries for head in range(n_queries))
