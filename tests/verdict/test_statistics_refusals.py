"""Questions to statistics that have no answer are refused in one line, which says what to give instead."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attractor.errors import InputError
from attractor.verdict import (
    Sequential,
    detectable_with_power,
    effective_speedup,
    holm,
    mean_interval,
    paired_difference,
    paired_t_test,
    pairs_needed,
    spread_ratio,
    summary,
)
from attractor.verdict.judge import judge_observations
from attractor.verdict.observations import Observations, ObservedRun
from attractor.verdict.sequential_rows import SequentialRows

SAMPLE = [1.0, 2.0, 3.0, 5.0, 8.0]
CONFIDENCE = r"level must lie between 0 and 1: .*; it is a confidence here: 0\.95, not 95"
MARGIN = "margin must be a number above zero"
LADDER = {budget: [3.0 - 0.08 * math.log(budget)] * 4 for budget in (0.5, 1.0, 2.0)}
TABLE = Observations({row: dict.fromkeys((0, 1), ObservedRun(1.0)) for row in ("baseline", "row")}, "val_loss")
ONE_ROW = Observations({"only": TABLE.rows["row"]}, "val_loss")
RISING = "looks must be rising numbers of pairs from 2 up that end with 8"


def rows(n_max: int = 8, margin: float = 0.01, alpha: float = 0.05) -> SequentialRows:
    return SequentialRows.of_equal_shares("standard", ("gated",), range(n_max), margin, alpha)


CASES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    *((mean_interval, (SAMPLE,), {"level": level}, CONFIDENCE) for level in (95, 0.0)),
    *((spread_ratio, (SAMPLE, SAMPLE), {"level": level}, CONFIDENCE) for level in (95, 0.0, math.nan, 1.0)),
    (mean_interval, ([],), {}, "at least one value"),
    (summary, ({},), {}, "at least one value"),
    (summary, (np.ones((3, 4)),), {}, "values must be one for each run, in one dimension"),
    (paired_difference, ({0: 1.0}, {1: 1.0}), {}, "common seeds"),
    (paired_difference, (SAMPLE, SAMPLE), {}, r"of must be numbers by seed.*a pandas Series has to_dict\(\)"),
    (paired_difference, (pd.Series(SAMPLE), pd.Series(SAMPLE)), {}, "of must be numbers by seed"),
    *((paired_t_test, ([0.0, 0.1],), {"margin": margin}, MARGIN) for margin in (0.0, -1.0, math.nan, math.inf)),
    *((holm, ({"C0": 0.5, "C1": p},), {}, "'C1'") for p in (math.nan, -0.1, 1.1)),
    (detectable_with_power, (1.0, 5), {"level": 0.95}, r"0\.05, not 0\.95"),
    (detectable_with_power, (1.0, 5), {"power": 1.0}, "power must lie"),
    (detectable_with_power, (0.0, 5), {}, "sd must be above zero"),
    *((pairs_needed, (1.0, difference), {}, "difference must be") for difference in (0.0, math.nan)),
    (Sequential, (0.95, 0.1, 5), {}, r"0\.05, not 0\.95"),
    *((Sequential, (0.05, margin, 5), {}, "margin must be") for margin in (-0.1, math.nan)),
    (Sequential, (0.05, 0.1, 1), {}, "n_max must be an integer of at least 2, got 1; one pair gives no interval"),
    (Sequential, (0.05, 0.1, 2.5), {}, r"n_max must be an integer of at least 2, got 2\.5"),
    (Sequential, (0.05, 0.1, 8), {"better": "less"}, "better must be 'lower' or 'higher', got 'less'"),
    *((Sequential, (0.1, 0.0, 8), {"looks": looks}, RISING) for looks in ((1, 8), (4, 4, 8), (8, 4), (4, 6), (4, 9))),
    (Sequential(0.05, 0.1, 2).look, ([0.1, 0.2, 0.3],), {}, "plan for more pairs"),
    (Sequential(0.05, 0.1, 2).look, ([],), {}, "at least one value"),
    *((rows, (), wrong, "must") for wrong in ({"margin": math.nan}, {"margin": -1.0}, {"alpha": 1.9}, {"n_max": 1})),
    (judge_observations, (Observations({}, "val_loss"),), {}, "the table must have at least one run"),
    (judge_observations, (ONE_ROW,), {}, "a comparison needs a second row"),
    (judge_observations, (TABLE,), {"baseline": "bas"}, "unknown row for the baseline 'bas'; did you mean 'baseline'"),
    (judge_observations, (TABLE,), {"margin": 0.0}, MARGIN),
    (judge_observations, (TABLE,), {"tried": 0}, "tried must be at least 1"),
    (judge_observations, (TABLE,), {"looks": (4, 2)}, "looks must be rising numbers of pairs"),
    (judge_observations, (TABLE,), {"against": math.nan}, "against must be a finite number"),
    (judge_observations, (TABLE,), {"level": 5}, "level must be a confidence between 0.5 and 1"),
    (effective_speedup, ({}, [3.0]), {}, "ladder must be .* as for budgets 0.5, 1 and 2"),
    (effective_speedup, ({1.0: [3.0], 2.0: [2.9]}, [3.0]), {}, "ladder must be"),
    (effective_speedup, ({0.5: [3.1], 2.0: [2.9]}, [3.0]), {}, "ladder must be"),
    (effective_speedup, (LADDER, []), {}, "losses must be at least one"),
    *((effective_speedup, (LADDER, [3.0], ratios), {}, "throughput_ratios must be") for ratios in (0.0, [], math.nan)),
]


@pytest.mark.parametrize(("call", "arguments", "options", "message"), CASES)
def test_what_has_no_answer_is_refused_in_a_line(
    call: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)
