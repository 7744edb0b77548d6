"""Solve boards with a recurrent model, for any number of iterations, with one answer or many votes."""

from attractor.evaluate.boards.accuracy import Point, accuracy_over_time
from attractor.evaluate.boards.solve import Answers, Trajectory, solve
from attractor.evaluate.boards.voting import Votes, cast_votes

__all__ = ["Answers", "Point", "Trajectory", "Votes", "accuracy_over_time", "cast_votes", "solve"]


def __dir__() -> list[str]:
    return __all__
