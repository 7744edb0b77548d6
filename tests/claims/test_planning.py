"""The chances that a study's plan reports are those of its claims' rules on random runs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from attractor.claims.comparisons import Pair
from attractor.claims.planning import (
    can_decide,
    chances,
    comparisons_of,
    of_losses,
    seeds_to_decide,
    spreads_of,
    what_it_can_decide,
)
from attractor.claims.rules import Differs, Equivalent, Stays
from attractor.claims.verdicts import AllOf
from attractor.runs.quantity import INSTABILITIES, LOSS, MEAN_LOSS
from five_papers import CLAIMS
from invented_records import OWN, losses, record
from papers.coupled_qk.claims import SMALL
from papers.published import BYTES_PER_TOKEN

RULES = {claim.id: rule for claim in CLAIMS if claim.rule is not None and (rule := of_losses(claim.rule)) is not None}
RULES_AS_STATED = {claim.id: claim.rule for claim in CLAIMS if claim.rule is not None}
PUBLISHED = ("C1", "C2", "C4", "C5", "C6", "C11", "C16", "C18")  # claims about losses with a published effect
OWN_SD = 0.003 / 2**0.5  # of a row, for pairs that differ by .003 nats/byte


@pytest.mark.slow
@pytest.mark.parametrize("claim", PUBLISHED)
def test_a_plan_that_can_decide_shows_the_published_effect_and_refutes_it_rarely(claim: str) -> None:
    n = seeds_to_decide(RULES[claim], OWN_SD)
    assert n is not None
    found = chances(RULES[claim], n, OWN_SD)
    assert found.claimed["holds"] >= 0.8 * 500 - 3 * math.sqrt(
        500 * 0.8 * 0.2
    )  # this share of random studies, up to chance
    assert found.claimed["fails"] <= 0.025 * 500 + 3 * math.sqrt(500 * 0.025)
    assert found.otherwise["holds"] <= 0.05 * 500 + 3 * math.sqrt(500 * 0.05)


@pytest.mark.slow
def test_the_published_lead_is_shown_by_eight_seeds() -> None:
    """When margins in nats per token were compared with losses per byte, the rule said *fails* in 109 of 150 such
    studies."""
    found = chances(RULES["C1"], 8, OWN_SD)
    assert found.decides
    assert found.claimed["holds"] >= 0.8 * 500
    assert found.claimed["fails"] <= 0.025 * 500
    effect = math.log(22.55 / 24.22) / BYTES_PER_TOKEN["encyclopedic"]
    assert min(pair.effect for _, pair in comparisons_of(RULES["C1"])) < effect < -0.015


@pytest.mark.parametrize("sd", [OWN_SD / 4, OWN_SD, OWN_SD * 4])
@pytest.mark.parametrize("n_seeds", [2, 4])
def test_stopping_early_does_not_change_whether_a_setting_decides(
    sd: float, n_seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attractor.claims.planning.N_STUDIES", 60)
    assert can_decide(RULES["C5"], n_seeds, sd) == chances(RULES["C5"], n_seeds, sd, 60).decides


@pytest.mark.slow
def test_the_plan_says_that_two_seeds_of_a_noisy_setting_decide_nothing() -> None:
    found = chances(RULES["C1"], 2, OWN_SD, 100)
    assert not found.decides
    assert seeds_to_decide(RULES["C1"], 1.0) is None


def test_more_seeds_and_less_noise_never_decide_less() -> None:
    powers = [chances(RULES["C5"], n, OWN_SD, 60).power for n in (2, 4, 8)]
    assert powers == sorted(powers)
    assert chances(RULES["C5"], 4, OWN_SD / 10, 60).power >= powers[1]


def test_parts_of_a_rule_that_are_not_about_losses_are_left_out() -> None:
    lead = Differs((Pair("a", "b", -0.1, 0.02),))
    assert of_losses(AllOf((lead, Stays(("a",), ("",), 0.0, INSTABILITIES)))) == AllOf((lead,))
    assert of_losses(Stays(("a",), ("",), 0.0, INSTABILITIES)) is None
    assert of_losses(replace(lead, quantity=INSTABILITIES)) is None
    equal = Equivalent((Pair("a", "b", 0.0, 0.02),), premises=(lead, Stays(("a",), ("",), 0.0, INSTABILITIES)))
    assert of_losses(equal) == replace(equal, premises=(lead,))


def test_a_plan_outside_the_regime_says_that_no_number_of_seeds_decides() -> None:
    """Criterion: stored runs of the scale tell the tokens a parameter; a scale in the regime is planned."""
    rule = RULES_AS_STATED["C1"]
    for tokens, says in ((1e5, "CANNOT DECIDE with any number of seeds"), (1e8, "of simulated studies")):
        rows = {row: [{"valid_loss": x, "tokens": tokens} for x in losses(1.7, 8, k)] for k, row in enumerate(SMALL)}
        stored = record(rows)
        found = what_it_can_decide(rule, stored.design, [stored])
        assert says in found
        assert ("regime not reached" in found) == (tokens == 1e5)


def test_all_seeds_of_a_pair_of_rows_tell_about_its_noise() -> None:
    """Criterion: a third row with few seeds does not take the seeds of the others away."""
    rows = {"a": losses(1.7, 10, 1.0), "b": losses(1.6, 10, -1.0), "c": losses(1.5, 2)}
    rule = Differs((Pair("a", "b", -0.1, 0.02), Pair("a", "c", -0.1, 0.02)))
    assert set(spreads_of(rule, record(rows))) == {("a", ""), ("b", "")}


def test_the_noise_of_a_row_is_estimated_without_the_noise_that_seeds_share() -> None:
    """Criterion: three rows have noise of .001, .004 and .016, over 200 seeds that share noise of .05."""
    rng, n = np.random.default_rng(0), 200
    own, level = {"a": 0.001, "b": 0.004, "c": 0.016}, {"a": 1.0, "b": 2.0, "c": 3.0}
    shared = 0.05 * rng.standard_normal(n)
    rows = {row: list(map(float, level[row] + shared + sd * rng.standard_normal(n))) for row, sd in own.items()}
    rule = Differs((Pair("a", "b", -0.1, 0.02), Pair("b", "c", -0.1, 0.02)))
    spreads = spreads_of(rule, record(rows | {"standard": rows["a"]}))
    assert spreads["c", ""] == pytest.approx(own["c"], rel=0.25)
    assert (
        spreads["a", ""] < spreads["b", ""] < spreads["c", ""]
    )  # the residual of a row has a third of the others' noise
    assert spreads_of(rule, record({row: losses[:2] for row, losses in rows.items()})) == {}


def test_a_noisy_row_costs_power_where_it_is_compared() -> None:
    rule = Differs((Pair("a", "b", -0.01, 0.0025),))
    calm = {("a", ""): 0.002, ("b", ""): 0.002}
    assert chances(rule, 6, calm, 100).power > chances(rule, 6, calm | {("b", ""): 0.02}, 100).power


def test_a_row_that_is_compared_in_two_quantities_has_the_larger_noise() -> None:
    """Criterion: the mean loss of training, which is five times as noisy here, decides how noisy the row is."""

    def runs(sign: int) -> list[dict[str, object]]:
        noises = [sign * own for own in OWN[:6]]
        return [{"valid_loss": 1.7 + x, "curve": ((0, 2.0 + 5 * x), (1, 2.0 + 5 * x))} for x in noises]

    stored = record({"a": runs(1), "b": runs(-1)}, control=None)
    final, mean = (Differs((Pair("a", "b", -0.1, 0.02),), quantity) for quantity in (LOSS, MEAN_LOSS))
    of_final, of_mean, of_both = (spreads_of(rule, stored) for rule in (final, mean, AllOf((final, mean))))
    assert of_both == of_mean
    assert [of_mean[place] for place in of_final] == [pytest.approx(5 * sd) for sd in of_final.values()]
