"""Solving boards with a recurrent model: one answer to each, and what the state went through on its way there."""

from dataclasses import dataclass

import numpy as np
import torch

from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel, counted
from attractor.solving.orbit import at_rest, orbit, recurrent, require_answerable, starts
from attractor.solving.voting import cast_votes, digit_logits
from attractor.tasks.sudoku import n_broken_units


@dataclass(frozen=True)
class Trajectory:
    """What would be read at each time, t = 0 to T along the first axis."""

    grids: np.ndarray  # T + 1 x n x size x size, givens as they were given; 0 where the model leaves a blank
    confidences: np.ndarray  # likewise, the probability of what stands there: 1 at givens
    energies: np.ndarray  # T + 1 x n

    @property
    def n_changing(self) -> np.ndarray:
        """Cells that are not what they were an iteration before: T x n, from t = 1."""
        return np.asarray((self.grids[1:] != self.grids[:-1]).sum(axis=(2, 3)))

    @property
    def n_broken(self) -> np.ndarray:
        """Rows, columns and boxes that hold a digit twice: T + 1 x n."""
        size = self.grids.shape[-1]
        return n_broken_units(self.grids.reshape(-1, size, size)).reshape(self.grids.shape[:2])


@dataclass(frozen=True)
class Answer:
    grids: np.ndarray  # n x size x size
    energies: np.ndarray  # n x K, of every vote, summed over iterations
    winners: np.ndarray  # n, the votes that the answers are from
    trajectory: Trajectory


def solve(
    model: LanguageModel,
    boards: np.ndarray,
    n_iterations: int | None = None,
    n_votes: int = 1,
    seed: int = 0,
    batch_size: int = 256,
) -> Answer:
    """Answers to boards (n x size x size, 0 is blank) after as many iterations as the model is set to, or as are given.

    Vote 0 starts where the model always does; the others' starts are functions of the seed. With several, a last orbit
    of each winner shows its way.
    """
    model = recurrent(model)
    boards = require_answerable(model, boards, n_votes, batch_size)
    n = model.n_iterations if n_iterations is None else counted(n_iterations)
    winners = np.zeros(len(boards), dtype=np.int64)
    energies = None
    if n_votes > 1:
        votes = cast_votes(model, boards, (n,), n_votes, seed, batch_size)
        winners, energies = votes.winners[0], votes.energies[0]
    ways = [
        _way(model, boards[i : i + batch_size], winners[i : i + batch_size], n, seed)
        for i in range(0, len(boards), batch_size)
    ]
    way = Trajectory(*(np.concatenate([getattr(w, name) for w in ways], axis=1) for name in _FIELDS))
    if energies is None:
        energies = way.energies[1:].sum(axis=0)[:, None]
    return Answer(way.grids[-1], energies, winners, way)


_FIELDS = ("grids", "confidences", "energies")


@torch.no_grad()
def _way(model: RecurrentModel, boards: np.ndarray, votes: np.ndarray, n_iterations: int, seed: int) -> Trajectory:
    tokens = torch.from_numpy(boards.reshape(len(boards), -1)).to(model.device)
    grids, confidences, energies = [], [], []
    with at_rest(model):
        start = starts(model, tokens, torch.from_numpy(votes), seed)
        for state, energy in orbit(model, tokens, start, n_iterations):
            confidence, symbol = digit_logits(model, state).float().softmax(-1).max(-1)
            grids.append(torch.where(tokens > 0, tokens, symbol).to(torch.uint8).cpu().numpy())
            confidences.append(confidence.masked_fill(tokens > 0, 1.0).cpu().numpy())
            energies.append(energy.double().cpu().numpy())
    shape = (n_iterations + 1, *boards.shape)
    return Trajectory(np.stack(grids).reshape(shape), np.stack(confidences).reshape(shape), np.stack(energies))
