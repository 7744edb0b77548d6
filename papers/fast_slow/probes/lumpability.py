"""How far attention is from being lumpable by blocks of positions, in the sense of Kemeny and Snell.

A Markov chain with transition matrix W is lumpable by blocks of P positions if all rows of a block send the same mass
to each block. Only then is the sequence of blocks a Markov chain. Equivalently, W maps vectors that are constant on
blocks to such vectors: W U = U W', where U repeats a block's value at each of its positions.

    R_iJ = sum of w_ij over j in J                                                                          (1)
    defect^2 = mean over rows i of  sum_J (R_iJ - mean of R_.J over i's block)^2,  over  1 - 1 / m          (2)
    m = min(P, number of blocks)

The defect (2) is 0 exactly where W is lumpable, and 1 where the rows of each block go to different blocks. It is at
most 1: the variance within a block is half the mean squared distance of two rows drawn with repetition, and two
distributions are at most sqrt(2) apart. So the variance is at most 1 - 1 / P for P rows, and at most 1 - 1 / n on the
simplex of n blocks. The defect is measured in mass, so a nearly uniform map has a small one whatever its details.

Causal maps may be lumpable too. But the rows of a block see 1, 2, ..., P of its positions, so a row that spreads its
attention gives its own block more mass than the row before. The defect is therefore also split:

    diagonal share = the share of J = I in the sum (2)                                                      (3)
    of departures:  (2) of R_iJ / o_i over J != I, with weights o_i = 1 - R_iI in both means                (4)

(4) asks whether the mass that leaves a block goes to the same blocks from each of its rows, however much leaves. It has
the bounds of (2), and is 0 for uniform causal attention. The last block may be shorter. Rows must sum to one.
Kemeny and Snell, Finite Markov Chains, 1960, theorem 6.3.2. The question is from FastSlow, section 8: Gao, Attention is
just another name for coupling?, 2026, arXiv 2606.16730.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attractor.errors import require


class Lumpability(NamedTuple):
    """(2), (3) and (4)."""

    defect: Tensor
    diagonal_share: Tensor
    of_departures: Tensor


def lumpability_profile(weights: Float[Tensor, "*batch T T"], block: int) -> Lumpability:
    """Return the defect of each map and its two parts; all three lie in [0, 1]."""
    fits = isinstance(block, int) and block >= 1
    require(fits, "block", "an integer of at least 1", block, "it is the number of positions pooled into one")
    shape = tuple(weights.shape)
    require(
        weights.ndim >= 2 and shape[-1] == shape[-2], "weights", "square maps", shape, "give as many keys as queries"
    )
    member = membership(weights, block)
    mass = weights.to(member.dtype) @ member  # (1)
    in_own_block = member.bool()
    bound = 1 - 1 / max(min(block, member.shape[1]), 2)  # with m = 1 every map is lumpable, and the sum is 0

    deviations = (mass - member @ block_means(mass, member, torch.ones_like(mass[..., :1]))).square()
    total = deviations.sum((-2, -1))
    diagonal = deviations.masked_fill(~in_own_block, 0.0).sum((-2, -1))

    elsewhere = mass.masked_fill(in_own_block, 0.0)
    departing = elsewhere.sum(-1, keepdim=True)  # o_i
    destinations = elsewhere / _positive(departing)
    scatter = departing * (destinations - member @ block_means(destinations, member, departing)).square()
    return Lumpability(
        (total / weights.shape[-1] / bound).sqrt(),  # (2)
        diagonal / _positive(total),  # (3)
        (scatter.sum((-2, -1)) / _positive(departing.sum((-2, -1))) / bound).sqrt(),  # (4)
    )


def membership(weights: Float[Tensor, "*batch T T"], block: int) -> Float[Tensor, "T n"]:
    """Return U, one-hot rows that name the block of each position, in fp32 or wider."""
    block_of = torch.arange(weights.shape[-1], device=weights.device) // block
    return F.one_hot(block_of).to(torch.promote_types(weights.dtype, torch.float32))


def block_means(
    x: Float[Tensor, "*batch T n"], member: Float[Tensor, "T n"], importance: Float[Tensor, "*batch T 1"]
) -> Float[Tensor, "*batch n n"]:
    """Return the weighted mean row of every block, which is zero for a block without weight."""
    return (member.mT @ (importance * x)) / _positive(member.mT @ importance)


def _positive(x: Tensor) -> Tensor:
    """Return x, or 1 where x is 0: a divisor of numerators that are 0 there too."""
    return torch.where(x > 0, x, 1.0)
