"""Solve boards with a recurrent model; the result has an answer to each board and the trajectory that led to it."""

from dataclasses import dataclass

import numpy as np
import torch

from attractor.attention.evaluating import evaluating
from attractor.evaluate.boards.orbit import orbit, recurrent, require_answerable, starts
from attractor.evaluate.boards.voting import cast_votes, digit_logits
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel, counted
from attractor.tasks.sudoku import n_broken_units


@dataclass(frozen=True)
class Trajectory:
    """What is read from the state at each time; the first axis is t = 0 to T."""

    grids: np.ndarray  # T + 1 x n x size x size; givens stay, and 0 is a blank that the model leaves
    energies: np.ndarray  # T + 1 x n

    @property
    def n_changing(self) -> np.ndarray:
        """The number of cells that changed in each iteration from t = 1: T x n."""
        return np.asarray((self.grids[1:] != self.grids[:-1]).sum(axis=(2, 3)))

    @property
    def n_broken(self) -> np.ndarray:
        """The number of rows, columns and boxes that hold a digit twice: T + 1 x n."""
        size = self.grids.shape[-1]
        return n_broken_units(self.grids.reshape(-1, size, size)).reshape(self.grids.shape[:2])


@dataclass(frozen=True)
class Answers:
    """The answers to n boards, with the votes behind them and the trajectory that led to them."""

    grids: np.ndarray  # n x size x size
    energies: np.ndarray  # n x K: the energy of each vote, summed over iterations
    winners: np.ndarray  # n: the vote that gave each answer
    trajectory: Trajectory


def solve(
    model: LanguageModel,
    boards: np.ndarray,
    n_iterations: int | None = None,
    n_votes: int = 1,
    seed: int = 0,
    batch_size: int = 256,
) -> Answers:
    """Answer boards (n x size x size, 0 is blank); `n_iterations` defaults to the model's own number.

    Vote 0 starts from the model's usual state, and the starts of other votes are functions of the seed. With several
    votes, one more orbit of each winner gives its trajectory.
    """
    model = recurrent(model)
    boards = require_answerable(model, boards, n_votes, batch_size)
    n = model.n_iterations if n_iterations is None else counted(n_iterations)
    winners = np.zeros(len(boards), dtype=np.int64)
    energies = None
    if n_votes > 1:
        votes = cast_votes(model, boards, (n,), n_votes, seed, batch_size)
        winners, energies = votes.winners[0], votes.energies[0]
    parts = [
        _trajectory(model, boards[i : i + batch_size], winners[i : i + batch_size], n, seed)
        for i in range(0, len(boards), batch_size)
    ]
    trajectory = Trajectory(*(np.concatenate([getattr(part, name) for part in parts], axis=1) for name in _FIELDS))
    if energies is None:
        energies = trajectory.energies[:-1].sum(axis=0)[:, None]
    return Answers(trajectory.grids[-1], energies, winners, trajectory)


_FIELDS = ("grids", "energies")


@torch.no_grad()
def _trajectory(
    model: RecurrentModel, boards: np.ndarray, votes: np.ndarray, n_iterations: int, seed: int
) -> Trajectory:
    tokens = torch.from_numpy(boards.reshape(len(boards), -1)).to(model.device)
    grids, energies = [], []
    with evaluating(model):
        start = starts(model, tokens, torch.from_numpy(votes), seed)
        for state, energy in orbit(model, tokens, start, n_iterations):
            symbol = digit_logits(model, state).argmax(-1)
            grids.append(torch.where(tokens > 0, tokens, symbol).to(torch.uint8).cpu().numpy())
            energies.append(energy.double().cpu().numpy())
    shape = (n_iterations + 1, *boards.shape)
    return Trajectory(np.stack(grids).reshape(shape), np.stack(energies))
