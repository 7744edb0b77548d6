"""The claims on recurrent models hold for runs that agree with the Jacobians paper, and fail for runs that contradict
it."""

from typing import Any

import pytest

from attractor.claims.verdicts import Rule, Verdict
from attractor.papers import CLAIMS
from attractor.papers.jacobians import RECURRENT
from attractor.runs.study_record import StudyRecord
from invented_records import OWN, record

RULES = {claim.id: claim.rule for claim in CLAIMS if claim.id.startswith("J")}
Runs = list[dict[str, Any]]


def runs(ood: float = 0.5, exponent: float = 0.3, boards: float = 0.9, later: float = 0.0, **dynamics: Any) -> Runs:
    """Return four seeds of one row with a little noise; `later` is the gain of 64 iterations over 16."""
    found = []
    for noise in OWN[:4]:
        solved = {"16": ood, "64": ood + later}
        measured = {
            "exponents": {"largest": exponent + noise},
            "accuracy": {"ood": {"board_accuracy": solved}},
            **dynamics,
        }
        measures = {"board_accuracy": boards + noise, "ood_board_accuracy": ood + noise}
        found.append({"measures": measures, "probes": {"dynamics": measured}})
    return found


def untrained(found: Runs, **maps: Any) -> Runs:
    return [run | {"probes": run["probes"] | {"iteration_maps": maps}} for run in found]


def verdict(claim: str, rows: dict[str, Runs]) -> Verdict:
    found: StudyRecord = record(rows, control=None)
    rule = RULES[claim]
    assert isinstance(rule, Rule)
    return rule.judge(found)


def test_every_claim_has_a_rule() -> None:
    assert set(RULES) == {f"J{n}" for n in range(1, 11)}
    assert all(rule is not None for rule in RULES.values())


@pytest.mark.parametrize(
    ("unit", "none", "largest", "status"),
    [(0.0, 0.5, 3.0, "holds"), (0.3, 0.5, 3.0, "fails"), (0.0, 0.1, 3.0, "fails"), (0.0, 0.5, 40.0, "fails")],
)
def test_the_claim_on_the_norm_of_the_jacobian_holds_or_fails(
    unit: float, none: float, largest: float, status: str
) -> None:
    rows = {"ItrSA": untrained(runs(norm={"largest": largest}), tokens={"growth": {"unit": unit, "none": none}})}
    assert verdict("J1", rows).status == status


@pytest.mark.parametrize(
    ("holds", "ratio", "status"), [(1.0, 20.0, "holds"), (0.99, 20.0, "fails"), (1.0, 1.5, "fails")]
)
def test_the_claim_on_the_bound_holds_or_fails(holds: float, ratio: float, status: str) -> None:
    assert verdict("J2", {"ItrSA": runs(bound={"holds": holds, "ratio": ratio})}).status == status


@pytest.mark.parametrize(
    ("best", "exponent", "status"), [("ItrSA", 0.1, "holds"), ("AKOrN", -0.1, "holds"), ("AKOrN", -0.6, "fails")]
)
def test_the_best_model_is_near_criticality_whatever_the_others_are(best: str, exponent: float, status: str) -> None:
    rows = {row: runs(0.4, exponent=1.5) for row in RECURRENT} | {best: runs(0.6, exponent=exponent)}
    found = verdict("J3", rows)
    assert found.status == status
    assert f"{best} is best" in found.reason


def test_the_best_model_is_unknown_where_a_row_was_not_run() -> None:
    assert verdict("J3", {row: runs() for row in RECURRENT[1:]}).status == "not run"


@pytest.mark.parametrize(
    ("exponent", "behind", "status"),
    [(-0.3, 0.25, "holds"), (0.1, 0.25, "fails"), (-0.3, 0.0, "fails"), (-0.3, -0.2, "fails")],
)
def test_the_claims_on_energies_hold_or_fail(exponent: float, behind: float, status: str) -> None:
    constrained = {row: runs(0.5 - behind, exponent) for row in ("ItrSA one energy", "ItrSA energies")}
    assert verdict("J4", {"ItrSA": runs(0.5)} | constrained).status == status


@pytest.mark.parametrize(
    ("boards", "multi", "status"), [(0.1, 0.4, "holds"), (0.9, 0.4, "fails"), (0.1, 0.5, "fails"), (0.1, 0.6, "fails")]
)
def test_the_claims_on_energy_penalties_hold_or_fail(boards: float, multi: float, status: str) -> None:
    rows = {"ItrSA": runs(0.5), "ItrSA E-single": runs(0.0, boards=boards), "ItrSA E-multi": runs(multi)}
    assert verdict("J5", rows).status == status


@pytest.mark.parametrize(
    ("solved", "exponent", "status"),
    [(0.6, 0.1, "holds"), (0.6, -0.1, "holds"), (0.5, 0.1, "fails"), (0.6, -0.5, "fails"), (0.6, 0.5, "fails")],
)
def test_the_claim_on_the_spectral_penalty_holds_or_fails(solved: float, exponent: float, status: str) -> None:
    rows = {row: runs(0.5, 0.3) for row in ("ItrSA", "AKOrN")}
    rows |= {f"{row} spectral": runs(solved, exponent) for row in ("ItrSA", "AKOrN")}
    assert verdict("J6", rows).status == status


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


@pytest.mark.parametrize(
    ("many", "rise", "status"), [(0.5, 0.01, "holds"), (0.1, 0.01, "fails"), (0.3, 0.01, "fails"), (0.5, -0.1, "fails")]
)
def test_the_claim_on_heads_holds_or_fails(many: float, rise: float, status: str) -> None:
    rows = {"1": runs(exponent=0.3), "8": runs(exponent=many)}
    assert verdict("J8", {row: untrained(of, heads={"rise": {"gain-2": rise}}) for row, of in rows.items()}).status == (
        status
    )


@pytest.mark.parametrize(("correlation", "status"), [(0.99, "holds"), (0.2, "fails"), (None, "not run")])
def test_the_claim_on_the_pseudo_energy_holds_or_fails(correlation: float | None, status: str) -> None:
    assert verdict("J9", {"ItrSA": runs(pseudo_energy={"correlation": correlation})}).status == status


@pytest.mark.parametrize(
    ("before", "later", "without", "status"),
    [(1.0, 0.0, 0.3, "holds"), (0.5, 0.0, 0.3, "fails"), (1.0, 0.1, 0.3, "fails"), (1.0, 0.0, 0.5, "fails")],
)
def test_the_claims_on_rotation_and_injection_hold_or_fail(
    before: float, later: float, without: float, status: str
) -> None:
    turning = {"before": {"outside": before}, "one": {"later": {"outside": later}}}
    rows = {
        "ItrSA": untrained(runs(), turning=turning),
        "starts as its stimulus": runs(0.5),
        "no injection": runs(without),
    }
    assert verdict("J10", rows).status == status
