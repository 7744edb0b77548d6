"""The rule of a pilot: its possible answers, its error rates, and its dependence on losses alone."""

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest

from attractor.claims.pilot import Judgement, Pilot
from attractor.errors import InputError

SD = 0.012  # standard deviation of paired differences, close to the measured one
RIVALS = ("coupled-euler", "differential")


def outcomes(
    pilot: Pilot, effects: Mapping[str, float], rng: np.random.Generator, control: float = 0.4
) -> dict[str, dict[int, float]]:
    """Draw the losses of all runs as the sum of a part of the seed, which pairs share, and a part of each mechanism."""
    shared = rng.normal(2.1, 0.02, pilot.n_max)
    means = dict.fromkeys(pilot.rivals, 0.0) | {pilot.baseline: 0.0, pilot.control: control} | dict(effects)
    return {
        label: dict(enumerate((shared + means[label] + rng.normal(0, SD / math.sqrt(2), pilot.n_max)).tolist()))
        for label in sorted(means)
    }


def conducted(pilot: Pilot, everything: dict[str, dict[int, float]]) -> tuple[Judgement, dict[str, dict[int, float]]]:
    """Run the pilot one seed at a time; return its judgement and the losses that it requested."""
    losses: dict[str, dict[int, float]] = {}
    while (judgement := pilot.judge(losses)).wanted:
        first = judgement.wanted[0][1]
        for label, seed in judgement.wanted:
            if seed == first:
                losses.setdefault(label, {})[seed] = everything[label][seed]
    return judgement, losses


def n_runs(losses: dict[str, dict[int, float]]) -> int:
    return sum(map(len, losses.values()))


@pytest.mark.slow
@pytest.mark.parametrize("n_max", [3, 6])
def test_a_difference_is_seldom_claimed_where_there_is_none(n_max: int) -> None:
    """Criterion: of 250 pilots without any difference, at most alpha = 10% (plus three binomial deviations) claim
    one."""
    pilot, n = Pilot(RIVALS, n_max, alpha=0.1), 250
    wrong = 0
    for seed in range(n):
        judgement, _ = conducted(pilot, outcomes(pilot, {}, np.random.default_rng(seed)))
        wrong += any(finding.outcome in ("better", "worse") for finding in judgement.rivals)
    assert wrong / n <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / n)


@pytest.mark.slow
def test_a_difference_between_two_equally_good_rivals_is_seldom_claimed() -> None:
    """Criterion: the comparison of two equally good rivals errs at most at alpha = 10%, although it comes last."""
    pilot, n = Pilot(RIVALS, 5, alpha=0.1), 200
    wrong = 0
    for seed in range(n):
        losses = outcomes(pilot, dict.fromkeys(RIVALS, -0.2), np.random.default_rng(seed))
        judgement, _ = conducted(pilot, losses)
        assert judgement.better == RIVALS
        wrong += any(duel.outcome in ("better", "worse") for duel in judgement.duels)
    assert wrong / n <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / n)


@pytest.mark.slow
def test_a_relevant_difference_is_seldom_called_irrelevant() -> None:
    """Criterion: for a difference equal to the margin, "no relevant difference" occurs at most at rate alpha."""
    pilot, n = Pilot(("gated",), 6, margin=0.02, alpha=0.1), 250
    wrong = 0
    for seed in range(n):
        judgement, _ = conducted(pilot, outcomes(pilot, {"gated": -0.02}, np.random.default_rng(seed)))
        wrong += judgement.rivals[0].outcome == "no relevant difference"
    assert wrong / n <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / n)


def test_a_large_effect_ends_its_arm_early_and_a_larger_one_no_later() -> None:
    pilot = Pilot(("gated",), 8)
    pairs = []
    for effect in (0.03, 0.06, 0.2):
        judgements = [
            conducted(pilot, outcomes(pilot, {"gated": effect}, np.random.default_rng(seed)))[0] for seed in range(20)
        ]
        found = [judgement.rivals[0] for judgement in judgements]
        assert {finding.outcome for finding in found} <= {"worse", "undecided at the end"}
        pairs.append(sum(finding.n for finding in found) / 20)
    assert all(earlier >= later for earlier, later in pairwise(pairs))
    assert pairs[-1] <= 4


def test_a_closed_arm_takes_no_more_runs_while_the_others_continue() -> None:
    pilot = Pilot(RIVALS, 8)
    everything = outcomes(pilot, {"differential": 0.3}, np.random.default_rng(1))
    judgement, losses = conducted(pilot, everything)
    coupled, differential = judgement.rivals
    assert differential.outcome == "worse"
    assert differential.n == len(losses["differential"]) < len(losses["coupled-euler"]) == coupled.n
    assert len(losses["standard"]) == coupled.n
    assert len(losses["uniform"]) == 2


def test_rivals_that_are_both_better_are_compared_with_each_other() -> None:
    pilot = Pilot(RIVALS, 6)
    everything = outcomes(pilot, {"coupled-euler": -0.3, "differential": -0.1}, np.random.default_rng(0))
    judgement, _ = conducted(pilot, everything)
    (duel,) = judgement.duels
    assert (duel.of, duel.against, duel.outcome) == ("coupled-euler", "differential", "better")


@pytest.mark.parametrize("control", [-0.1, 0.001])
def test_a_control_that_is_not_clearly_worse_ends_the_pilot_early(control: float) -> None:
    """Criterion: at most four seeds run, with rivals that no number of seeds would decide."""
    pilot = Pilot(RIVALS, 8, margin=0.0001)
    for seed in range(10):
        everything = outcomes(pilot, {}, np.random.default_rng(seed), control)
        judgement, losses = conducted(pilot, everything)
        assert judgement.sensitive is False
        assert n_runs(losses) <= 4 * 4


def test_the_order_of_rivals_and_of_finished_runs_changes_nothing() -> None:
    rng = np.random.default_rng(4)
    one, other = Pilot(RIVALS, 6), Pilot(RIVALS[::-1], 6)
    everything = outcomes(one, {"differential": 0.1}, rng)
    assert one == other
    assert conducted(one, everything) == conducted(other, everything)
    losses: dict[str, dict[int, float]] = {}
    everything_in_any_order = [(label, seed) for label, found in everything.items() for seed in found]
    rng.shuffle(everything_in_any_order)
    for label, seed in everything_in_any_order:
        losses.setdefault(str(label), {})[int(seed)] = everything[str(label)][int(seed)]
    judgement = one.judge(losses)
    assert (judgement.rivals, judgement.gap) == (
        (first := conducted(one, everything)[0]).rivals,
        first.gap,
    ), "runs beyond a decision do not change it"


def test_a_pair_after_a_missing_one_does_not_count_yet() -> None:
    pilot = Pilot(("gated",), 4)
    everything = outcomes(pilot, {"gated": 0.5}, np.random.default_rng(0))
    early = {label: {seed: loss for seed, loss in found.items() if seed != 1} for label, found in everything.items()}
    assert pilot.judge(early).rivals[0].n == 1
    assert ("gated", 1) in pilot.judge(early).wanted


def test_a_rival_that_failed_or_diverged_ends_alone() -> None:
    pilot = Pilot(RIVALS, 4)
    everything = outcomes(pilot, {"coupled-euler": -0.2}, np.random.default_rng(0))
    everything["differential"][0] = math.nan
    judgement, losses = conducted(pilot, everything)
    assert [finding.outcome for finding in judgement.rivals] == ["better", "not finite"]
    assert len(losses["differential"]) == 1
    judgement = pilot.judge({}, frozenset({"differential"}))
    assert judgement.rivals[1].outcome == "failed"
    assert {label for label, _ in judgement.wanted} == {"standard", "uniform", "coupled-euler"}
    assert pilot.judge({}, frozenset({"standard"})).wanted == ()


def test_a_control_that_is_lost_ends_the_pilot() -> None:
    """Criterion: without a control nothing can be said of any rival, unless it has shown its worth before."""
    pilot = Pilot(RIVALS, 8)
    everything = outcomes(pilot, {}, np.random.default_rng(0))
    diverged = everything | {"uniform": dict.fromkeys(range(8), math.nan)}
    _, losses = conducted(pilot, diverged)
    assert max(map(len, losses.values())) <= 2
    assert pilot.judge({}, frozenset({"uniform"})).wanted == ()
    sensitive = {label: {seed: found[seed] for seed in (0, 1)} for label, found in everything.items()}
    assert pilot.judge(sensitive, frozenset({"uniform"})).wanted


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rivals": ()}, "rivals must be at least one name"),
        ({"rivals": ("gated", "gated")}, "rivals must be without repetition, got 'gated gated'"),
        ({"rivals": ("standard",)}, "rivals must be without the baseline, got 'standard'"),
        ({"rivals": ("uniform",)}, "rivals must be without the control, got 'uniform'"),
        ({"margin": 0.0}, "margin must be a number above zero, got 0"),
        ({"margin": math.nan}, "margin must be a number above zero, got nan"),
        ({"alpha": 0.95}, r"alpha must lie between 0 and 0\.5, got 0\.95"),
        ({"n_max": 1}, "a pilot must have at least 2 pairs of seeds, got 1"),
    ],
)
def test_a_plan_that_can_decide_nothing_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pilot(**({"rivals": RIVALS, "n_max": 8} | wrong))
