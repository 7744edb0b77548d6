"""What the plan of a study says of its chances is what its claims' rules do with drawn runs."""

import math
from dataclasses import replace

import pytest
from claimed import losses, record

from attractor.evidence.claim import BYTES_PER_TOKEN
from attractor.evidence.papers import CLAIMS
from attractor.evidence.planning import chances, largest_paired_spread, of_losses, pairs_of, seeds_to_decide
from attractor.evidence.quantity import INSTABILITIES
from attractor.evidence.readings import Pair
from attractor.evidence.rules import Differs, Equivalent, Stays
from attractor.evidence.verdicts import AllOf

RULES = {claim.id: rule for claim in CLAIMS if claim.rule is not None and (rule := of_losses(claim.rule)) is not None}
PUBLISHED = ("C1", "C2", "C4", "C5", "C6", "C8", "C11", "C16", "C18")  # claims of losses with a published effect
PAIRED_SD = 0.003  # nats/byte, of pairs of runs of a million parameters


@pytest.mark.parametrize("claim", PUBLISHED)
def test_a_plan_that_can_decide_shows_the_published_effect_and_refutes_it_rarely(claim: str) -> None:
    n = seeds_to_decide(RULES[claim], PAIRED_SD)
    assert n is not None
    found = chances(RULES[claim], n, PAIRED_SD)
    assert found.claimed["holds"] >= 0.8 * 500 - 3 * math.sqrt(
        500 * 0.8 * 0.2
    )  # that many of drawn studies, but for chance
    assert found.claimed["fails"] <= 0.025 * 500 + 3 * math.sqrt(500 * 0.025)
    assert found.otherwise["holds"] <= 0.05 * 500 + 3 * math.sqrt(500 * 0.05)


def test_the_published_lead_is_shown_by_eight_seeds() -> None:
    """With margins in nats per token held against losses per byte, the rule said *fails* in 109 of 150 such studies."""
    found = chances(RULES["C1"], 8, PAIRED_SD)
    assert found.decides
    assert found.claimed["holds"] >= 0.8 * 500
    assert found.claimed["fails"] <= 0.025 * 500
    effect = math.log(22.55 / 24.22) / BYTES_PER_TOKEN["encyclopedic"]
    assert min(pair.effect for pair in pairs_of(RULES["C1"])) < effect < -0.015


def test_two_seeds_of_a_noisy_setting_decide_nothing_and_the_plan_says_so() -> None:
    found = chances(RULES["C1"], 2, PAIRED_SD, 100)
    assert not found.decides
    assert seeds_to_decide(RULES["C1"], 1.0) is None


def test_more_seeds_and_less_noise_never_decide_less() -> None:
    powers = [chances(RULES["C5"], n, PAIRED_SD, 200).power for n in (2, 4, 8)]
    assert powers == sorted(powers)
    assert chances(RULES["C5"], 4, PAIRED_SD / 10, 200).power >= powers[1]


def test_what_is_not_about_losses_is_not_drawn() -> None:
    lead = Differs((Pair("a", "b", -0.1, 0.02),))
    assert of_losses(AllOf((lead, Stays(("a",), ("",), 0.0, INSTABILITIES)))) == AllOf((lead,))
    assert of_losses(Stays(("a",), ("",), 0.0, INSTABILITIES)) is None
    assert of_losses(replace(lead, quantity=INSTABILITIES)) is None
    equal = Equivalent((Pair("a", "b", 0.0, 0.02),), premises=(lead, Stays(("a",), ("",), 0.0, INSTABILITIES)))
    assert of_losses(equal) == replace(equal, premises=(lead,))


def test_the_largest_spread_of_any_pair_is_planned_with() -> None:
    rows = {"standard": losses(1.7, 8, 0.0), "calm": losses(1.7, 8, 1.0), "wild": losses(1.7, 8, 10.0)}
    rule = Differs((Pair("calm", "standard", -0.1, 0.02), Pair("wild", "standard", -0.1, 0.02)))
    alone = largest_paired_spread(Differs(rule.pairs[:1]), record(rows))
    assert alone is not None
    assert largest_paired_spread(rule, record(rows)) == pytest.approx(10 * alone)
    assert largest_paired_spread(rule, record({"standard": losses(1.7, 2), "calm": losses(1.7, 2)})) is None
