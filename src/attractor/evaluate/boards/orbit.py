"""Orbits of a recurrent model on boards: their starting states and energies.

    x_0 by vote k,   x_(t+1) = moved(x_t, y_t),   E_t = -sum x_t.y_t,   t = 0 .. T                          (1)

Vote 0 starts from the state that every evaluation starts from. Vote k starts its blanks from noise, which is a function
of (seed, k) and of the cell alone. So an answer does not depend on the other boards and votes of its batch, except for
rounding.
"""

from collections.abc import Iterator
from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attractor.errors import InputError, require
from attractor.models.energy import pseudo_energy
from attractor.models.language_model import LanguageModel
from attractor.models.maps import Iteration
from attractor.models.recurrent import RecurrentModel
from attractor.tasks.sudoku.board import as_boards


class Moment(NamedTuple):
    state: Float[Tensor, "B T D"]
    energy: Float[Tensor, " B"]


@torch.no_grad()
def orbit(
    model: RecurrentModel, tokens: Int[Tensor, "B T"], start: Float[Tensor, "B T D"], n_iterations: int
) -> Iterator[Moment]:
    """Yield the states and energies of (1). The last energy costs one more iteration."""
    iteration = Iteration.of(model, tokens)
    state = start
    for t in range(n_iterations + 1):
        response = iteration.response(state)
        yield Moment(state, pseudo_energy(_widened(state), _widened(response)))
        if t < n_iterations:
            state = model.moved(state, response, iteration.inputs)


@torch.no_grad()
def starts(
    model: RecurrentModel, tokens: Int[Tensor, "B T"], votes: Int[Tensor, " B"], seed: int
) -> Float[Tensor, "B T D"]:
    """Return x_0 of each row, for its vote."""
    require(seed >= 0, "seed", "at least 0", seed)
    default = model.start(tokens)
    blank = model.config.blank
    if blank is None:
        return default
    distinct, which = votes.unique(return_inverse=True)
    all_blank = torch.full_like(tokens[:1], blank)
    noises = torch.cat([model.start(all_blank, _generator(seed, vote)) for vote in distinct.tolist()])
    return torch.where((tokens == blank).unsqueeze(-1), noises[which], default)


def recurrent(model: LanguageModel) -> RecurrentModel:
    if not isinstance(model, RecurrentModel):
        raise InputError(
            f"model must be recurrent, to have iterations, got one of the family '{model.config.family}'; "
            "give an itrsa, itrsa-prenorm, akorn or recursive"
        )
    return model


def require_answerable(model: RecurrentModel, boards: np.ndarray, n_votes: int = 1, batch_size: int = 1) -> np.ndarray:
    """Return the boards as an array; raise InputError if this model cannot answer them with so many votes."""
    boards, config = as_boards(boards), model.config
    size = boards.shape[1]
    if not len(boards):
        raise InputError("boards must be at least one, got none; give n x size x size cells")
    if config.vocab_size <= size or config.causal or config.n_classes is not None:
        raise InputError(
            f"model must know {size + 1} tokens, see all cells and read out each, got vocab_size={config.vocab_size}, "
            f"causal={config.causal}, n_classes={config.n_classes}; train it on boards of {size} x {size}"
        )
    config.require_length(size * size)  # under positions of a grid, the size for which the model was built
    for name, value in (("n_votes", n_votes), ("batch_size", batch_size)):
        require(isinstance(value, Integral) and value >= 1, name, "an integer of at least 1", value)
    if n_votes > 1 and model.config.blank is None:
        raise InputError(f"n_votes must be 1 where no cell starts from noise, got {n_votes}; all votes would agree")
    return boards


def _widened(x: Tensor) -> Tensor:
    """Widen to fp32: the energies that distinguish votes are sums over a board, too inexact in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _generator(seed: int, vote: int) -> torch.Generator | None:
    if vote == 0:
        return None
    vote_seed = int(np.random.SeedSequence([seed, vote]).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(vote_seed)
