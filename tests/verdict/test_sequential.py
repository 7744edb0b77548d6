"""A sequential test with a look after every pair keeps its error rate, and has power against true differences."""

import itertools
import math

import numpy as np
import pytest

from attractor.verdict.intervals import mean_interval
from attractor.verdict.sequential import Sequential, nominal_levels
from attractor.verdict.t_tests import paired_t_test


def decisions(plan, draws):
    """Return the decision at which the plan stops for each row of differences."""
    found = []
    for row in draws:
        looks = (plan.look(row[:n]) for n in range(1, plan.n_max + 1))
        found.append(next(decision for decision in looks if decision.final))
    return found


def all_looks(n_max):
    return tuple(range(2, n_max + 1))


def share(found, *outcomes):
    return np.mean([decision.outcome in outcomes for decision in found])


def draw(n_max, effect=0.0, n_draws=1000, seed=0):
    return np.random.default_rng([seed, n_max]).normal(effect, 1.0, (n_draws, n_max))


def three_errors(rate, n_draws):
    return 3 * math.sqrt(rate * (1 - rate) / n_draws)


@pytest.mark.parametrize("n_max", [2, 3, 5, 8, 16])
def test_without_a_difference_the_error_rate_is_at_most_alpha(n_max):
    """Criterion: over all looks, the error rate is at most alpha and above 90% of it. So the levels are calibrated, and
    not merely conservative."""
    rejected = some_look_rejects(n_max, 0.1, n_draws=100_000)
    assert 0.09 < rejected < 0.1 + three_errors(0.1, 100_000)


def some_look_rejects(n_max, alpha, n_draws):
    """Return the share of samples whose |mean| exceeds the half width of the interval at any look. This is the rule of
    `Sequential`, computed for many rows at once."""
    draws = draw(n_max, n_draws=n_draws, seed=7)
    rejected = np.zeros(n_draws, dtype=bool)
    for n, nominal in enumerate(nominal_levels(alpha, all_looks(n_max)).difference, start=2):
        unit = mean_interval(np.arange(n), 1 - nominal).half_width / np.std(np.arange(n), ddof=1)
        rejected |= np.abs(draws[:, :n].mean(1)) > unit * draws[:, :n].std(1, ddof=1)
    return rejected.mean()


@pytest.mark.parametrize("n_max", [4, 8])
def test_the_plan_itself_errs_at_most_as_often_as_alpha(n_max):
    found = decisions(Sequential(0.1, 0.0, n_max), draw(n_max))
    assert share(found, "better", "worse") < 0.1 + three_errors(0.1, 1000)
    assert share(found, "no relevant difference") == 0


@pytest.mark.slow
@pytest.mark.parametrize("n_max", [4, 10])
@pytest.mark.parametrize("side", [1, -1])
def test_a_difference_of_the_margin_is_called_irrelevant_at_most_as_often_as_alpha(n_max, side):
    """Criterion: a true difference at the edge of the margin, the worst case, is called irrelevant at most as often as
    alpha. The margin is so wide that equivalence can be shown at all."""
    draws = 3.0 * side + draw(n_max)
    plan = Sequential(0.1, 3.0, n_max)
    errors = [any(plan.look(row[:n]).outcome == "no relevant difference" for n in range(2, n_max + 1)) for row in draws]
    assert np.mean(errors) < 0.1 + three_errors(0.1, 1000)


def test_no_difference_is_found_to_be_irrelevant_where_the_margin_is_wide():
    found = decisions(Sequential(0.05, 2.0, 8), draw(8, n_draws=300))
    assert share(found, "no relevant difference") > 0.9
    differences = [0.010, 0.011, 0.009, 0.010, 0.010]  # a difference is shown, too
    assert Sequential(0.05, 0.0, 5).look(differences).outcome == "worse"
    assert Sequential(0.05, 0.1, 5).look(differences).outcome == "no relevant difference"


def test_power_grows_with_the_effect_and_pairs_are_saved():
    by_effect = [decisions(Sequential(0.05, 0.0, 8), draw(8, effect, 300)) for effect in (0.0, 0.8, 1.5, 3.0)]
    power = [share(found, "worse") for found in by_effect]
    assert power == sorted(power)
    assert power[-1] > 0.99
    assert np.mean([decision.interval.n for decision in by_effect[-1]]) < 5
    assert share(by_effect[-1], "better") == 0


@pytest.mark.slow
def test_the_calibrated_levels_have_the_documented_power():
    """Criterion: for N = 8 and a true difference of 1.2 standard deviations, the power is 71%. With Bonferroni's levels
    it is 60%."""
    n_draws = 2000
    draws = draw(8, 1.2, n_draws)
    assert share(decisions(Sequential(0.05, 0.0, 8), draws), "worse") == pytest.approx(0.71, abs=0.03)
    bonferroni = 0.05 * np.arange(1, 8) / np.arange(1, 8).sum()
    found = [any(paired_t_test(row[:n]).p < bonferroni[n - 2] for n in range(2, 9)) for row in draws]
    assert np.mean(found) == pytest.approx(0.60, abs=0.03)


def test_the_intervals_of_all_looks_hold_jointly():
    draws = 5.0 + draw(6)
    plan = Sequential(0.1, 0.0, 6)
    together = [
        all(found.low <= 5.0 <= found.high for found in (plan.look(row[:n]).interval for n in range(2, 7)))
        for row in draws
    ]
    assert np.mean(together) > 0.9 - three_errors(0.1, 1000)
    assert plan.look(draws[0]).interval.level == 0.9


@pytest.mark.parametrize("looks", [(4, 8, 16), (6, 12), (12,)])
def test_planned_looks_err_at_most_at_alpha_and_decide_nothing_between(looks):
    """Criterion: fewer looks allow each a higher level, and pairs after a look change nothing until the next one."""
    plan = Sequential(0.1, 0.0, looks[-1], looks=looks)
    draws = draw(looks[-1])
    assert 0.07 < share(decisions(plan, draws), "better", "worse") < 0.1 + three_errors(0.1, 1000)
    alone, among_all = (nominal_levels(0.1, some).difference[-1] for some in (looks, all_looks(looks[-1])))
    assert alone > among_all
    for row in draws[:20]:
        for first, second in itertools.pairwise((*looks, looks[-1] + 1)):
            assert all(plan.look(row[:n]) == plan.look(row[:first]) for n in range(first, second))
    assert len(looks) > 1 or alone == pytest.approx(0.1, abs=0.003)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("n_max", [2, 5, 20])
def test_levels_rise_with_the_degrees_of_freedom_between_bonferronis_and_alpha(alpha, n_max):
    for levels in (
        nominal_levels(alpha, all_looks(n_max)).difference,
        nominal_levels(alpha, all_looks(n_max)).equivalence,
    ):
        assert len(levels) == n_max - 1
        assert levels == pytest.approx(levels[0] * np.arange(1, n_max))
        assert sum(levels) >= alpha * (1 - 1e-9)
        assert max(levels) <= alpha * (1 + 1e-9)
    assert sum(nominal_levels(1e-6, all_looks(5)).difference) == pytest.approx(1e-6)  # too small to be simulated


def test_a_single_look_is_the_t_test_and_tost():
    """Criterion: with N = 2 there is one look, so the outcomes are those of the uncorrected t test and of TOST."""
    outcomes = set()
    for row in draw(2, n_draws=300) + np.array([[12.0], [0.0]] * 150):
        outcome = Sequential(0.2, 4.0, 2).look(row).outcome
        test = paired_t_test(row, margin=4.0)
        equivalent, p = test.p_within < 0.2, test.p
        expected = "no relevant difference" if equivalent else "worse" if p < 0.2 else "undecided at the end"
        assert outcome == expected
        outcomes.add(outcome)
    assert len(outcomes) == 3


def test_units_and_order_do_not_matter_and_the_sign_decides_the_outcome():
    differences = np.array([0.9, 1.1, 1.0, 1.2, 0.8])
    plan = Sequential(0.05, 0.2, 5)
    assert plan.look(differences).outcome == "worse"
    assert plan.look(-differences).outcome == "better"
    assert Sequential(0.05, 0.2, 5, better="higher").look(differences).outcome == "better"
    assert plan.look(differences[::-1]).interval.low == pytest.approx(plan.look(differences).interval.low)
    assert plan.look(dict(enumerate(differences))) == plan.look(differences)
    scaled = Sequential(0.05, 20.0, 5).look(100 * differences)
    assert scaled.outcome == "worse"
    assert scaled.interval.low == pytest.approx(100 * plan.look(differences).interval.low)


def test_differences_without_spread_tell_no_more_than_their_signs():
    """Criterion: equal differences decide once so many signs alike are rarer than the level of their look."""
    plan = Sequential(0.05, 0.0, 8)
    outcomes = [plan.look([-0.1] * n).outcome for n in range(2, 9)]
    assert outcomes[:3] == ["go on"] * 3
    assert outcomes[-1] == "better"
    wide = Sequential(0.05, 0.2, 8)
    assert wide.look([-0.1] * 2).outcome == "go on"
    assert wide.look([-0.1] * 8).outcome == "no relevant difference"
    assert wide.look([0.0] * 2).outcome == "no relevant difference"  # equal runs


def test_one_pair_never_decides_and_the_last_pair_or_one_that_is_not_finite_always_ends():
    plan = Sequential(0.05, 0.001, 3)
    first = plan.look([100.0])
    assert (first.outcome, first.final, first.interval.low) == ("go on", False, None)
    assert plan.look([1.0, -1.0]).outcome == "go on"
    assert plan.look([1.0, -1.0, 0.5]).outcome == "undecided at the end"
    lost = Sequential(0.05, 0.1, 8).look([0.1, math.nan])
    assert (lost.outcome, lost.interval.excludes_zero) == ("undecided at the end", False)
    assert Sequential(0.05, 0.1, 8).look([math.inf]).outcome == "undecided at the end"
