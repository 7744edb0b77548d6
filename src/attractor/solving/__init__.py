"""Solving: boards and a recurrent model that computes for as long as it is given, once or in many votes."""

from attractor.solving.growth import local_exponents
from attractor.solving.solve import Answer, Trajectory, solve
from attractor.solving.test_time import Point, test_time_curve
from attractor.solving.voting import Votes, cast_votes

__all__ = [
    "Answer",
    "Point",
    "Trajectory",
    "Votes",
    "cast_votes",
    "local_exponents",
    "solve",
    "test_time_curve",
]
