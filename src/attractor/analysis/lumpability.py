"""How far attention is from being lumpable by blocks of positions, in the sense of Kemeny and Snell.

A chain with transition matrix W is lumpable by blocks of P positions when every row of a block sends the same mass to
each block; only then is "which block" a chain of its own, whatever happens inside. For block means it says that what is
constant on blocks stays so: W U = U W', where U repeats a block's value at each of its positions.

    R_iJ = sum of w_ij over j in J                                                                          (1)
    defect^2 = mean over rows i of  sum_J (R_iJ - mean of R_.J over i's block)^2,  over  1 - 1 / m          (2)
    m = min(P, number of blocks)

(2) is 0 exactly where W is lumpable. It is at most 1: within a block it is half the mean squared distance of two rows,
drawn with repetition, and two distributions are at most sqrt(2) apart; so at most 1 - 1 / P for P rows, and at most
1 - 1 / n for a variance on the simplex of n blocks. It is 1 where the rows of each block go to blocks of their own. Its
scale is that of mass, so a map that is nearly uniform has a small defect however it looks up close.

Causal maps are taken as they are. They can be lumpable, but the rows of a block see 1, 2, ..., P positions of it, and
one that spreads its attention gives the own block more from row to row and the past less. So it is also read apart:

    diagonal share = the share of J = I in the sum (2)                                                      (3)
    of departures:  (2) of R_iJ / o_i over J != I, with weights o_i = 1 - R_iI in both means                (4)

(4) asks whether those that leave their block go to the same blocks, in whatever number; the bounds of (2) hold for it,
and it is 0 for uniform causal attention. The last block may be shorter. Rows must sum to one.
Kemeny and Snell, Finite Markov Chains, 1960, theorem 6.3.2; the question: FastSlow, section 8.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attractor.errors import InputError


class Lumpability(NamedTuple):
    defect: Tensor
    diagonal_share: Tensor
    of_departures: Tensor


def lumpability_profile(weights: Float[Tensor, "*batch T T"], block: int) -> Lumpability:
    """The defect of each map, and its parts; all three lie in [0, 1]."""
    if block < 1:
        raise InputError(f"block must be at least 1, got {block!r}; it is the number of positions pooled into one")
    member = membership(weights, block)
    mass = weights.to(member.dtype) @ member  # (1)
    own = member.bool()
    bound = 1 - 1 / max(min(block, member.shape[1]), 2)  # with m = 1 every map is lumpable, and the sum is 0

    deviations = (mass - member @ block_means(mass, member, torch.ones_like(mass[..., :1]))).square()
    total = deviations.sum((-2, -1))
    diagonal = deviations.masked_fill(~own, 0.0).sum((-2, -1))

    left = mass.masked_fill(own, 0.0)
    departing = left.sum(-1, keepdim=True)
    chosen = left / _positive(departing)
    strays = departing * (chosen - member @ block_means(chosen, member, departing)).square()
    return Lumpability(
        (total / weights.shape[-1] / bound).sqrt(),  # (2)
        diagonal / _positive(total),  # (3)
        (strays.sum((-2, -1)) / _positive(departing.sum((-2, -1))) / bound).sqrt(),  # (4)
    )


def lumpability_defect(weights: Float[Tensor, "*batch T T"], block: int) -> Float[Tensor, "*batch"]:
    return lumpability_profile(weights, block).defect


def membership(weights: Float[Tensor, "*batch T T"], block: int) -> Float[Tensor, "T n"]:
    """U: which block each position lies in, in fp32 or wider."""
    of = torch.arange(weights.shape[-1], device=weights.device) // block
    return F.one_hot(of).to(torch.promote_types(weights.dtype, torch.float32))


def block_means(
    x: Float[Tensor, "*batch T n"], member: Float[Tensor, "T n"], importance: Float[Tensor, "*batch T 1"]
) -> Float[Tensor, "*batch n n"]:
    """The weighted mean row of every block; zero for a block without weight."""
    return (member.mT @ (importance * x)) / _positive(member.mT @ importance)


def _positive(x: Tensor) -> Tensor:
    """A divisor for what is 0 where `x` is."""
    return torch.where(x > 0, x, 1.0)
