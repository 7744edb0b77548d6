"""Give K answers to each board and choose the one with the lowest energy, after given numbers of iterations.

    winner = argmin_k sum_(t=0..T-1) E_t(k)                                                                 (1)

These are the energies of the states that move, as AKOrN's authors sum them. All numbers of iterations are read from one
orbit. Memory holds `batch_size` states, whatever K is, and K answers to a subset of the boards. K = 1 is no vote.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

import numpy as np
import torch

from attractor.attention.evaluating import evaluating
from attractor.console import Advance, no_advance
from attractor.errors import require
from attractor.evaluate.boards.orbit import orbit, recurrent, require_answerable, starts
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel, counted


@dataclass(frozen=True)
class Votes:
    """Results by number of iterations (I of them, ascending) and board (n)."""

    predictions: np.ndarray  # I x n x cells: the answer of the winner
    winners: np.ndarray  # I x n
    energies: np.ndarray  # I x n x K: the energy of each vote, summed over iterations
    last_energies: np.ndarray  # I x n: the energy of the winner's last state
    seconds: np.ndarray  # I: seconds for all boards up to this number of iterations


class VoteBlock(NamedTuple):
    """The answers of some votes to some boards."""

    answers: np.ndarray  # I x boards x votes x cells
    energies: np.ndarray  # I x boards x votes, summed over iterations
    last_energies: np.ndarray  # I x boards x votes
    seconds: np.ndarray  # I


def cast_votes(
    model: LanguageModel,
    boards: np.ndarray,
    iterations: Sequence[int],
    n_votes: int = 1,
    seed: int = 0,
    batch_size: int = 256,
    advance: Advance = no_advance,
) -> Votes:
    model = recurrent(model)
    boards = require_answerable(model, boards, n_votes, batch_size)
    times = sorted({counted(n) for n in iterations})
    require(len(times) > 0, "iterations", "at least one number", iterations, "give the numbers of iterations to read")
    cells = boards.reshape(len(boards), -1)
    n_at_once = min(n_votes, batch_size)
    n_boards_at_once = max(1, batch_size // n_at_once)
    parts: list[Votes] = []
    with evaluating(model):
        for i in range(0, len(cells), n_boards_at_once):
            some, blocks = cells[i : i + n_boards_at_once], []
            for first in range(0, n_votes, n_at_once):
                votes = np.arange(first, min(first + n_at_once, n_votes))
                blocks.append(_answers(model, some, votes, times, seed))
                advance(len(some) * len(votes))
            parts.append(_elect(blocks))
    joined = {name: np.concatenate([getattr(part, name) for part in parts], axis=1) for name in BY_BOARD}
    return Votes(**joined, seconds=np.sum([part.seconds for part in parts], axis=0))


BY_BOARD = ("predictions", "winners", "energies", "last_energies")


def _elect(blocks: Sequence[VoteBlock]) -> Votes:
    """Choose the winners by (1), from all votes on some boards."""
    answers, energies, lasts = (np.concatenate([block[i] for block in blocks], axis=2) for i in range(3))
    n_boards = energies.shape[1]
    winners = lowest(energies)  # (1)
    chosen = (np.arange(len(winners))[:, None], np.arange(n_boards), winners)
    seconds = np.sum([block.seconds for block in blocks], axis=0)
    return Votes(answers[chosen], winners, energies, lasts[chosen], seconds)


def lowest(energies: np.ndarray) -> np.ndarray:
    """Return the vote (last axis) of the lowest energy, the first among equals; NaN wins where there is no other."""
    return np.where(np.isnan(energies), np.inf, energies).argmin(axis=-1)


@torch.no_grad()
def _answers(model: RecurrentModel, cells: np.ndarray, votes: np.ndarray, times: Sequence[int], seed: int) -> VoteBlock:
    shape = len(cells), len(votes)
    tokens = torch.from_numpy(np.repeat(cells, len(votes), axis=0)).to(model.device)
    start = starts(model, tokens, torch.from_numpy(np.tile(votes, len(cells))), seed)
    readings = []
    began = time.perf_counter()
    total = torch.zeros(len(tokens), dtype=torch.float64, device=model.device)
    for t, (state, energy) in enumerate(orbit(model, tokens, start, times[-1])):
        if t in times:
            answer = digit_logits(model, state).argmax(-1).to(torch.uint8).cpu().numpy().reshape(*shape, -1)
            sums, last = (x.double().cpu().numpy().reshape(shape) for x in (total, energy))
            readings.append((answer, sums, last, np.array(time.perf_counter() - began)))
        total = total + energy.double()  # (1)
    return VoteBlock(*map(np.stack, zip(*readings, strict=True)))


def digit_logits(model: RecurrentModel, state: torch.Tensor) -> torch.Tensor:
    """Return the logits of blank and digits, without further tokens of the vocabulary."""
    return model.read_out(state)[..., : isqrt(state.shape[1]) + 1]
