"""Measure how fast a nearby orbit diverges, iteration by iteration.

    v_0 random,   v_(t+1) = J_t v_t,   g_t = log |v_(t+1)| / |v_t|,   (1 / t) sum g                         (1)

g is the log growth of the distance of two orbits in the limit of a small distance, for one random direction. Its mean
over t iterations is at most the largest exponent of t steps, which takes the best of all directions
(`analysis.finite_time_exponents`); a single g may be larger.
"""

from itertools import pairwise

import numpy as np
import torch

from attractor.analysis import Jacobian
from attractor.attention.evaluating import evaluating
from attractor.errors import require
from attractor.evaluate.boards.orbit import orbit, recurrent, require_answerable, starts
from attractor.models.language_model import LanguageModel
from attractor.models.maps import Iteration
from attractor.models.recurrent import counted


def local_exponents(
    model: LanguageModel, board: np.ndarray, n_iterations: int | None = None, vote: int = 0, seed: int = 0
) -> np.ndarray:
    """Return g of (1) for one board (size x size), one number for each iteration."""
    require(vote >= 0, "vote", "at least 0", vote, "0 is the start that the model always has")
    model = recurrent(model)
    boards = require_answerable(model, np.asarray(board)[None])
    tokens = torch.from_numpy(boards.reshape(1, -1)).to(model.device)
    n = model.n_iterations if n_iterations is None else counted(n_iterations)
    with evaluating(model), torch.no_grad():
        start = starts(model, tokens, torch.tensor([vote]), seed)
        states = [moment.state for moment in orbit(model, tokens, start, n)]
        here = Jacobian(Iteration.of(model, tokens).step, start)
        v = here.random_columns(1, seed).reshape(start.shape)
        growth = []
        for x, image in pairwise(states):
            pushed = here.at(x, image).jvp(v / v.norm())
            growth.append(float(pushed.norm().log()))
            v = pushed
    return np.array(growth)
