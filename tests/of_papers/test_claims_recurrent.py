"""The claims on recurrent models hold for runs that agree with the Jacobians paper, and fail for runs that contradict
it."""

from typing import Any

import pytest

from attractor.claims.verdicts import ClaimVerdict, Rule
from attractor.runs.study_record import StudyRecord
from five_papers import CLAIMS
from invented_records import OWN, record
from papers.jacobians.claims import GAINS, RECURRENT

RULES = {claim.id: claim.rule for claim in CLAIMS if claim.id.startswith("J")}
Runs = list[dict[str, Any]]


def runs(
    ood: float = 0.5,
    exponent: float = 0.3,
    boards: float = 0.9,
    later: float = 0.0,
    entropy: float | None = 0.7,
    reach: float | None = None,
    **dynamics: Any,
) -> Runs:
    """Return four seeds of one row with noise of its own; `later` is the gain of 64 iterations over 16.

    `entropy` is that of attention along trained orbits, and `reach` a penalty's; None: not measured.
    """
    found = []
    for own in OWN[:4]:
        noise = own * (1 + ood + exponent)
        solved = {"16": ood + noise, "64": ood + noise + later}
        measured = {
            "exponents": {"largest": exponent + noise},
            "accuracy": {"ood": {"board_accuracy": solved}},
            **({} if entropy is None else {"entropy": {"mean": entropy}}),
            **dynamics,
        }
        penalty = {} if reach is None else {"penalty": {"reach": reach}}
        measures = {"board_accuracy": boards + noise, "ood_board_accuracy": ood + noise}
        found.append({"measures": measures, "probes": {"dynamics": measured} | penalty})
    return found


def untrained(found: Runs, **maps: Any) -> Runs:
    return [run | {"probes": run["probes"] | {"iteration_maps": maps}} for run in found]


def verdict(claim: str, rows: dict[str, Runs]) -> ClaimVerdict:
    found: StudyRecord = record(rows, control=None)
    rule = RULES[claim]
    assert isinstance(rule, Rule)
    return rule.judge(found)


def test_every_claim_has_a_rule() -> None:
    assert set(RULES) == {f"J{n}" for n in range(1, 17)}
    assert all(rule is not None for rule in RULES.values())


def growing(unit: float, none: float, entropy: float = 0.6) -> dict[str, Any]:
    """Return the maps of every gain: the growth of |J| with the number of tokens, with a norm and without."""
    growths = {norm: {"growth": growth, "mean_entropy": entropy} for norm, growth in (("unit", unit), ("none", none))}
    return {f"gain-{gain}": growths for gain in GAINS}


@pytest.mark.parametrize(
    ("unit", "none", "largest", "status"),
    [(0.0, 0.5, 3.0, "holds"), (0.3, 0.5, 3.0, "fails"), (0.0, 0.1, 3.0, "fails"), (0.0, 0.5, 40.0, "stricter")],
)
def test_the_claim_on_the_norm_of_the_jacobian_holds_or_fails(
    unit: float, none: float, largest: float, status: str
) -> None:
    rows = {"ItrSA": untrained(runs(norm={"largest": largest}), tokens=growing(unit, none))}
    """Criterion: the norm along trained orbits is asked for by the stricter claim alone."""
    found = [verdict(claim, rows).status for claim in ("J1", "J11")]
    assert found == (["holds", "fails"] if status == "stricter" else [status, status])


def test_the_norm_of_the_jacobian_is_judged_at_the_published_gain_and_at_stricter_ones() -> None:
    """Criterion: growth at the largest gain alone refutes the stricter claim, and not the published one."""
    maps = growing(0.0, 0.5) | {"gain-4": growing(0.3, 0.5)["gain-4"]}
    assert verdict("J1", {"ItrSA": untrained(runs(), tokens=maps)}).status == "holds"
    found = verdict("J11", {"ItrSA": untrained(runs(norm={"largest": 3.0}), tokens=maps)})
    assert found.status == "fails"
    assert "at gain 4, with a norm" in found.reason
    assert "at gain 2, with a norm" not in found.reason


@pytest.mark.parametrize("unit", [0.0, 0.3])
def test_nothing_is_told_from_jacobians_of_uniform_attention(unit: float) -> None:
    """Criterion: where entropy / log T is 1, neither an absent nor a present growth decides."""
    maps = growing(unit, 0.5, entropy=1.0)
    found = verdict("J1", {"ItrSA": untrained(runs(norm={"largest": 3.0}), tokens=maps)})
    assert found.status == "unclear"
    assert "entropy / log T at gain 1, with a norm of ItrSA is 1, and above 0.95 attention is an" in found.reason
    assert "largest |J| along trained orbits" not in found.reason


def test_older_records_lack_the_entropy_and_the_verdict_says_so() -> None:
    """Criterion: measures of maps with uniform attention are not read, and a trained |J| without its entropy decides
    nothing."""
    old = {"growth": {"unit": 0.3, "none": 0.5}}
    found = verdict("J11", {"ItrSA": untrained(runs(entropy=None, norm={"largest": 3.0}), tokens=old)})
    assert found.status == "unclear"
    assert "these runs did not record entropy / log T along trained orbits of ItrSA; new runs do" in found.reason
    assert "at gain 2, with a norm of ItrSA not measured" in found.reason


@pytest.mark.parametrize(
    ("holds", "ratio", "status"), [(1.0, 20.0, "holds"), (0.99, 20.0, "fails"), (1.0, 1.5, "fails")]
)
def test_the_claim_on_the_bound_holds_or_fails(holds: float, ratio: float, status: str) -> None:
    """Criterion: the claim names the radius, which stands beside the verdict with the ratio at another radius."""
    bound = {"holds": holds, "ratio": ratio, "least_length": [1.5, 2.5]}
    assert verdict("J2", {"ItrSA": runs(bound=bound)}).status == status
    found = verdict("J2", {"ItrSA": runs(bound=bound | {"one_radius": {"radius": 1.25, "ratio": 3.0}})})
    assert found.status == status
    assert "beside it: mean R of ItrSA 2" in found.reason
    assert "one R for all states of ItrSA 3" in found.reason
    assert "with R the shortest row of each state" in next(claim for claim in CLAIMS if claim.id == "J2").statement


def of_models(good: float, bad: float, best: str = "ItrSA") -> dict[str, Runs]:
    """Return all rows: those of ItrSA solve boards, with exponents near `good`, and the others do not."""
    rows = {}
    for number, row in enumerate(RECURRENT):
        solved, exponent = (0.6, good) if row.startswith("ItrSA") else (0.05, bad)
        rows[row] = runs(solved + 0.1 * (row == best), exponent + 0.01 * (number % 3))
    return rows


@pytest.mark.parametrize(
    ("good", "bad", "status"),
    [(0.1, 0.5, "holds"), (-0.1, 0.5, "holds"), (0.1, 0.1, "fails"), (0.3, 0.5, "fails"), (0.15, 0.02, "fails")],
)
def test_good_models_are_nearer_to_criticality_than_bad_ones(good: float, bad: float, status: str) -> None:
    """Criterion: an exponent near 0 of the best model is not enough where bad models have it, too."""
    found = verdict("J3", of_models(good, bad))
    assert found.status == status
    if status == "holds":
        assert "ItrSA is best, with 0.7" in found.reason or "12 good and 5 bad rows" in found.reason


def test_the_best_model_says_nothing_where_nothing_is_solved() -> None:
    """Criterion: all exponents are near 0, and no model solves a tenth of the boards."""
    found = verdict("J3", {row: runs(0.03, exponent=0.1) for row in RECURRENT})
    assert found.status == "unclear"
    assert "cannot tell" in found.reason
    assert "so no row is good" in found.reason
    alike = verdict("J3", {row: runs(0.6, exponent=0.1) for row in RECURRENT})
    assert alike.status == "unclear"
    assert "17 good and 0 bad rows are too few to compare" in alike.reason


def test_the_best_model_is_unknown_where_a_row_of_the_study_was_not_run() -> None:
    """Criterion: a row that the scale does not have takes no part, and a row that it has and that was not run does."""
    of_scale = {row: found for row, found in of_models(0.1, 0.5).items() if not row.endswith("spectral")}
    found = verdict("J3", of_scale)
    assert found.status == "holds"
    assert "10 good and 4 bad rows" in found.reason or "ItrSA is best, with 0.7" in found.reason
    assert verdict("J3", of_scale | {"AKOrN": []}).status == "not run"
    assert verdict("J3", {"another": runs()}).status == "not run"


@pytest.mark.parametrize(
    ("exponent", "behind", "status"),
    [(-0.3, 0.25, "holds"), (0.1, 0.25, "fails"), (-0.3, 0.0, "fails"), (-0.3, -0.2, "fails")],
)
def test_the_claims_on_energies_hold_or_fail(exponent: float, behind: float, status: str) -> None:
    constrained = {row: runs(0.5 - behind, exponent) for row in ("ItrSA one energy", "ItrSA energies")}
    assert verdict("J4", {"ItrSA": runs(0.5)} | constrained).status == status


def test_energies_that_solve_nothing_decide_nothing() -> None:
    constrained = {row: runs(0.0, -0.3, boards=0.0) for row in ("ItrSA one energy", "ItrSA energies")}
    found = verdict("J4", {"ItrSA": runs(0.05)} | constrained)
    assert (found.status, "boards solved of ItrSA one energy is 0, and" in found.reason) == ("unclear", True)


@pytest.mark.parametrize(
    ("entropy", "reason"), [(0.99, "is 0.99, and above 0.95"), (None, "these runs did not record")]
)
def test_nothing_is_told_from_energies_of_uniform_attention(entropy: float | None, reason: str) -> None:
    constrained = {row: runs(0.1, 0.1, entropy=entropy) for row in ("ItrSA one energy", "ItrSA energies")}
    found = verdict("J4", {"ItrSA": runs(0.5)} | constrained)
    assert found.status == "unclear"
    assert reason in found.reason


@pytest.mark.parametrize(
    ("boards", "multi", "status"), [(0.1, 0.4, "holds"), (0.9, 0.4, "fails"), (0.1, 0.5, "fails"), (0.1, 0.6, "fails")]
)
def test_the_claims_on_energy_penalties_hold_or_fail(boards: float, multi: float, status: str) -> None:
    rows = {
        "ItrSA": runs(0.5),
        "ItrSA E-single": runs(0.0, boards=boards, reach=0.5),
        "ItrSA E-multi": runs(multi, reach=0.5),
    }
    assert verdict("J5", rows).status == status


@pytest.mark.parametrize(
    ("solved", "exponent", "status"),
    [(0.6, 0.1, "holds"), (0.6, -0.1, "holds"), (0.5, 0.1, "fails"), (0.6, -0.5, "fails"), (0.6, 0.5, "fails")],
)
def test_the_claim_on_the_spectral_penalty_holds_or_fails(solved: float, exponent: float, status: str) -> None:
    rows = {row: runs(0.5, 0.3) for row in ("ItrSA", "AKOrN")}
    rows |= {f"{row} spectral": runs(solved, exponent, reach=0.1) for row in ("ItrSA", "AKOrN")}
    assert verdict("J6", rows).status == status


@pytest.mark.parametrize("solved", [0.4, 0.5, 0.6])
@pytest.mark.parametrize(("reach", "reason"), [(1.9e-6, "is 1.9e-06, below 0.1"), (None, "these runs did not record")])
def test_nothing_is_told_from_a_penalty_that_could_not_have_acted(
    solved: float, reach: float | None, reason: str
) -> None:
    """Criterion: whatever its row does, and in one sentence for all four comparisons of a family."""
    rows = {row: runs(0.5, 0.3) for row in ("ItrSA", "AKOrN")}
    rows |= {f"{row} spectral": runs(solved, 0.1, reach=reach) for row in ("ItrSA", "AKOrN")}
    found = verdict("J6", rows)
    assert found.status == "unclear"
    assert reason in found.reason


@pytest.mark.parametrize(("at_large", "status"), [(0.6, "holds"), (0.5, "fails")])
def test_a_penalty_is_judged_at_the_best_weight_at_which_it_could_act(at_large: float, status: str) -> None:
    """Criterion: the published weight could not act, and the largest spoils the validation boards; the one between
    decides."""
    rows = {row: runs(0.5, 0.3) for row in ("ItrSA", "AKOrN")}
    for row in ("ItrSA", "AKOrN"):
        rows[f"{row} spectral"] = runs(0.9, 0.0, boards=0.99, reach=0.01)
        rows[f"{row} spectral 1e-4"] = runs(at_large, 0.1, boards=0.9, reach=0.2)
        rows[f"{row} spectral 1e-2"] = runs(0.9, 0.0, boards=0.3, reach=2.0)
    found = verdict("J6", rows)
    assert found.status == status
    assert "(as ItrSA spectral 1e-4)" in found.reason or "(as AKOrN spectral 1e-4)" in found.reason


@pytest.mark.parametrize(
    ("free", "sphere", "with_norm", "status"),
    [(0.1, -0.1, 0.05, "holds"), (0.0, -0.1, 0.05, "fails"), (0.1, 0.1, 0.05, "fails"), (0.1, -0.1, 0.0, "fails")],
)
def test_the_claim_on_longer_computation_holds_or_fails(
    free: float, sphere: float, with_norm: float, status: str
) -> None:
    rows = {
        "ItrSA": runs(later=free),
        "AKOrN one sphere": runs(later=sphere),
        "AKOrN one sphere, RMSNorm": runs(later=with_norm),
    }
    assert verdict("J7", rows).status == status


def test_a_model_that_solves_nothing_does_not_fail_by_more_iterations() -> None:
    """Criterion: it gains nothing, as the claim says of one sphere, and this confirms nothing."""
    rows = {"ItrSA": runs(later=0.1), "AKOrN one sphere, RMSNorm": runs(later=0.1)}
    found = verdict("J7", rows | {"AKOrN one sphere": runs(0.01, later=-0.005)})
    assert found.status == "unclear"
    assert "below 0.1 there is hardly a board to gain or to lose" in found.reason


@pytest.mark.parametrize("claim", ["J4", "J5", "J6", "J10"])
@pytest.mark.parametrize(("later", "tells"), [(0.05, False), (0.3, True)])
def test_a_reference_that_solves_nothing_has_nothing_to_lose(claim: str, later: float, tells: bool) -> None:
    """Criterion: rows that solve as few boards as the reference say nothing, unless it solves some by 64 iterations,
    which 16 had not."""
    turning = {"before": {"outside": 1.0}, "rows": {"later": {"outside": 0.0}}}
    rows = {
        row: untrained(runs(0.01, -0.1 if "spectral" in row else -0.3, 0.1, later, reach=0.5), turning=turning)
        for row in (*RECURRENT, "starts as its stimulus", "no injection")
    }
    found = verdict(claim, rows)
    assert found.status == ("fails" if tells else "unclear")
    assert ("below 0.1 there is hardly a board" in found.reason) is not tells


@pytest.mark.parametrize(
    ("many", "rise", "status"), [(0.5, 0.01, "holds"), (0.1, 0.01, "fails"), (0.3, 0.01, "fails"), (0.5, -0.1, "fails")]
)
def test_the_claim_on_heads_holds_or_fails(many: float, rise: float, status: str) -> None:
    rows = {"1": runs(exponent=0.3), "8": runs(exponent=many)}
    heads = {f"gain-{gain}": {"rise": rise, "mean_entropy": 0.7} for gain in GAINS}
    assert verdict("J8", {row: untrained(of, heads=heads) for row, of in rows.items()}).status == status


@pytest.mark.parametrize(("correlation", "status"), [(0.99, "holds"), (0.2, "fails"), (None, "not run")])
def test_the_claim_on_the_pseudo_energy_holds_or_fails(correlation: float | None, status: str) -> None:
    assert verdict("J9", {"ItrSA": runs(pseudo_energy={"correlation": correlation})}).status == status


@pytest.mark.parametrize(
    ("before", "later", "without", "status"),
    [
        (1.0, 0.0, 0.3, "holds"),
        (0.5, 0.0, 0.3, "fails"),
        (1.0, 0.1, 0.3, "partly"),
        (1.0, 0.2, 0.3, "fails"),
        (1.0, 0.0, 0.5, "fails"),
    ],
)
def test_the_claims_on_rotation_and_injection_hold_or_fail(
    before: float, later: float, without: float, status: str
) -> None:
    """Criterion: eigenvalues are judged under the norm for each token that models use, not under one norm for all."""
    turning = {"before": {"outside": before}, "rows": {"later": {"outside": later}}, "one": {"later": {"outside": 0.0}}}
    rows = {
        "ItrSA": untrained(runs(), turning=turning),
        "starts as its stimulus": runs(0.5),
        "no injection": runs(without),
    }
    assert verdict("J10", rows).status == status
