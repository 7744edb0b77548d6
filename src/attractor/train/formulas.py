"""Version the computations of runs, so that two runs with the same key have computed the same thing.

The configuration of a run says which computation was asked for, not how the code carried it out. Whoever changes a
formula or a kernel so that its results change (beyond rounding) raises its version here, or adds it at version 2. The
version is part of the identity of every run that uses the computation: older runs of the same configuration stay where
they are, under another key, and are never taken for new ones. `tests/test_golden.py` notices a change that nobody
declared.

A mechanism that is defined outside attractor, as in the file of a study, has the checksum of its file as its version.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attractor.files.code import checksum_of_code, source_of
from attractor.runs.run_folder import CODE, RunFolder

Config = Any  # a TrainConfig, which asks this module for the versions of what it computes


@dataclass(frozen=True)
class Formula:
    """`used` says whether a run of this configuration computes it."""

    version: int
    used: Callable[[Config], bool]


FORMULAS: dict[str, Formula] = {
    # 2: the initial logits of states of length 1 are as wide as those of other attention.
    "start of energies": Formula(
        2, lambda config: getattr(config.model, "energy", None) is not None and config.model.norm == "unit"
    ),
    # 2: the weights that mix residual streams learn at gate_lr, too.
    "mixing of streams": Formula(
        2, lambda config: config.gate_lr is not None and getattr(config.model, "streams", 1) > 1
    ),
    # 2: the matrices that mix residual streams are not rounded, so that they are doubly stochastic.
    "streams in half precision": Formula(
        2, lambda config: config.precision != "fp32" and getattr(config.model, "streams", 1) > 1
    ),
    # 2: gates of coupling learn at gate_lr in fast-slow models, too.
    "gates of coupling": Formula(
        2, lambda config: config.gate_lr is not None and bool(getattr(config.model, "coupling_gates", ()))
    ),
    # 2: the weights of penalties that a configuration leaves open are the published ones.
    "weight of penalties": Formula(2, lambda config: config.regularizer_weight is None and _has_new_weight(config)),
    # 2: the logits of all evaluations of a solve count, not only those of the last, which alone has a gradient.
    "clip of solves": Formula(
        2,
        lambda config: (
            config.qk_clip is not None and getattr(config.model, "equilibrium", None) in ("deq", "forced-deq")
        ),
    ),
    # 2: the output of attention with orthogonal values is an orthogonal matrix, too.
    "orthogonal output": Formula(2, lambda config: bool(getattr(config.model, "orthogonal_values", False))),
    # 2: rows of padding do not count in the penalty on logits.
    "penalty on logits": Formula(2, lambda config: config.model.penalises_logits),
}


def _has_new_weight(config: Config) -> bool:
    is_new = ("spectral", "energy-single", *(["energy-multi"] if config.model.family == "akorn" else []))
    return config.regularizer in is_new


def formulas_of(config: Config) -> dict[str, Any]:
    """Return the versions of what the run computes, where they are not the first."""
    known = {name: formula.version for name, formula in FORMULAS.items() if formula.used(config)}
    return known | {code.__name__: checksum_of_code(code) for code in config.model.own_code}


def save_code(folder: RunFolder, config: Config) -> None:
    """Store the source of the run's own mechanism, to be read and compared. It is never executed from there."""
    sources = dict.fromkeys(filter(None, map(source_of, config.model.own_code)))
    if sources and not (folder.path / CODE).exists():
        folder.write(CODE, "\n".join(sources).encode())
