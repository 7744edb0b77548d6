"""The benchmark's metrics, each of targets and predictions of a whole validation set.

With tp, tn, fp, fn the counts of true and false positives and negatives, class 1 being positive:

(1) accuracy  the share of equal pairs
(2) f1        2 tp / (2 tp + fp + fn)
(3) matthews  (tp tn - fp fn) / sqrt((tp + fp)(tp + fn)(tn + fp)(tn + fn))
(4) pearson   the covariance over the product of the standard deviations
(5) spearman  (4) of the ranks, equal numbers sharing the mean of theirs

A quotient with zero below is 0: who always gives the same answer has shown no relation to the targets.
"""

import math
from collections.abc import Callable

import numpy as np


def accuracy(targets: np.ndarray, predictions: np.ndarray) -> float:
    return float((targets == predictions).mean())  # (1)


def f1(targets: np.ndarray, predictions: np.ndarray) -> float:
    tp, _, fp, fn = _counts(targets, predictions)
    return _quotient(2 * tp, 2 * tp + fp + fn)  # (2)


def matthews(targets: np.ndarray, predictions: np.ndarray) -> float:
    tp, tn, fp, fn = _counts(targets, predictions)
    return _quotient(tp * tn - fp * fn, math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))  # (3)


def pearson(targets: np.ndarray, predictions: np.ndarray) -> float:
    wanted, found = (_centred(values) for values in (targets, predictions))
    return _quotient(float(wanted @ found), float(np.linalg.norm(wanted) * np.linalg.norm(found)))  # (4)


def spearman(targets: np.ndarray, predictions: np.ndarray) -> float:
    return pearson(_ranks(targets), _ranks(predictions))  # (5)


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    metric.__name__: metric for metric in (accuracy, f1, matthews, pearson, spearman)
}


def _counts(targets: np.ndarray, predictions: np.ndarray) -> tuple[int, int, int, int]:
    """Python's integers, since products of four counts pass 2^63."""
    wanted, found = targets == 1, predictions == 1
    cases = (wanted & found, ~wanted & ~found, ~wanted & found, wanted & ~found)
    tp, tn, fp, fn = (int(case.sum()) for case in cases)
    return tp, tn, fp, fn


def _centred(values: np.ndarray) -> np.ndarray:
    """Equal numbers become exact zeros, which a mean that is rounded would not give."""
    values = values.astype(np.float64)
    return values - values.mean() if np.ptp(values) else np.zeros_like(values)


def _ranks(values: np.ndarray) -> np.ndarray:
    if np.isnan(values).any():  # no number has a rank among these
        return np.full(len(values), np.nan)
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def _quotient(above: float, below: float) -> float:
    return above / below if below else 0.0
