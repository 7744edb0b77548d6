"""The probe `votes` measures how many boards a recurrent model solves when the best of K answers to each counts.

The answer with the lowest energy is the best one (`attractor.evaluate.boards.cast_votes`). `probes.votes`:

    boards       share of boards solved, of the first 100 of every validation set: boards.SET.K for K = 1, 4, 16, 64
    cells        share of blanks that are right, likewise
    n_boards, n_iterations

K = 1 is the answer of the run's own validation, given more iterations than in training. A model in which no cell starts
from noise has one answer to a board, and is not measured. Vote k is the same whatever K is.
"""

from typing import Any

from attractor.evaluate.boards.accuracy import accuracy_over_time
from attractor.kernels.precision import autocast
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel
from attractor.study.study import Probe
from attractor.tasks.sudoku import SudokuTask
from attractor.train.config import TrainConfig

N_BOARDS = 100  # of each validation set
N_ITERATIONS = 64
VOTES = (1, 4, 16, 64)
MEASURES = {"boards": "board_accuracy", "cells": "cell_accuracy"}


def votes_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    task = config.build_task()
    if not isinstance(model, RecurrentModel) or not isinstance(task, SudokuTask) or model.config.blank is None:
        return {}
    measured: dict[str, Any] = {name: {} for name in MEASURES}
    for part, boards in task.sets.valid.items():
        asked, solutions = boards.boards[:N_BOARDS], boards.solutions[:N_BOARDS]
        with autocast(model.device, config.precision):  # in which the run was validated
            points = [accuracy_over_time(model, asked, solutions, (N_ITERATIONS,), n, config.seed)[0] for n in VOTES]
        for n_votes, point in zip(VOTES, points, strict=True):
            for name, measure in MEASURES.items():
                measured[name].setdefault(part, {})[str(n_votes)] = getattr(point, measure)
    n_boards = {part: min(N_BOARDS, len(boards)) for part, boards in task.sets.valid.items()}
    return {"votes": measured | {"n_boards": n_boards, "n_iterations": N_ITERATIONS}}


VOTES_PROBE = Probe("votes", votes_of_run)
