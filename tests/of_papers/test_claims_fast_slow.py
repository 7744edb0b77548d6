"""FastSlow's claims hold for runs that agree with the paper, and fail for runs that contradict it."""

import random
from typing import Any

import pytest

from attractor.claims.verdicts import ClaimVerdict, Rule
from attractor.runs.study_record import StudyRecord
from five_papers import CLAIMS
from invented_records import OWN, SHARED, losses, record
from papers.fast_slow.claims import BUILT, CONSTRAINTS, FIDELITY, OPENED, PROJECTED, RECALLED, TWO_TIMESCALES

RULES = {claim.id: claim.rule for claim in CLAIMS if claim.id.startswith("F") and claim.rule is not None}
Runs = list[dict[str, Any]]


def runs(mean: float = 1.7, row: str = "", n: int = 4, noise: float = 1.0, **summary: Any) -> Runs:
    """Return losses with a part shared by runs of one seed and a little noise of each run's own."""
    draw = random.Random(row)
    own = [x * draw.uniform(0.9, 1.1) for x in draw.sample(OWN[:n], n)]
    return [{"valid_loss": mean + shared + noise * x} | summary for shared, x in zip(SHARED[:n], own, strict=True)]


def gated(gate: float, mean: float = 1.7, row: str = "", worth: float = 0.0) -> Runs:
    signs = (1, -1, 1, -1)  # a gate may open either way
    found = runs(mean, row)
    return [
        run | {"timescales": {"gate": sign * gate}, "probes": {"coupling": {"worth": worth}}}
        for run, sign in zip(found, signs, strict=True)
    ]


def studied(rows: dict[str, Runs], control: bool = True) -> StudyRecord:
    """Add the baseline and the control without attention, which show sensitivity."""
    return record(({"standard": losses(1.7, 4, 0.0)} if control else {}) | rows, control="uniform" if control else None)


def beyond_window(rows: dict[str, Runs], blind: float = 2.0) -> StudyRecord:
    """Add the two rows that show whether the slow path matters: one that uses it, and one whose slow path sees no
    text."""
    opened = {OPENED: gated(0.6, 1.7, "opened", worth=2.0), "dense": runs(1.7, "dense")}
    return record(opened | {"uninformative slow path": losses(1.7 + blind, 4, 0.5)} | rows, control=None)


def verdict(claim: str, found: StudyRecord) -> ClaimVerdict:
    rule = RULES[claim]
    assert isinstance(rule, Rule)
    return rule.judge(found)


def test_all_but_the_costs_are_judged() -> None:
    assert {f"F{n}" for n in range(1, 13)} <= set(RULES)


@pytest.mark.parametrize(
    ("claim", "name", "kept", "broken"),
    [("F1", "leak", 0.0, 2e-4), ("F2", "states", 1, 2), ("F3", "apart", 0.0, 1e-9)],
)
def test_a_structural_claim_holds_for_every_kind_or_fails(claim: str, name: str, kept: float, broken: float) -> None:
    def built(value: float, odd: float) -> StudyRecord:
        rows = {kind: [{"probes": {"structure": {name: value}}}] * 3 for kind in BUILT}
        rows[BUILT[-1]] = [*rows[BUILT[-1]][:2], {"probes": {"structure": {name: odd}}}]
        return studied(rows, control=False)

    assert verdict(claim, built(kept, kept)).status == "holds"
    found = verdict(claim, built(kept, broken))
    assert found.status == "fails"
    assert BUILT[-1] in found.reason
    assert f"{broken:.3g}" in found.reason


@pytest.mark.parametrize(
    ("lead", "gate", "status"),
    [
        (-RECALLED / 4, 0.005, "holds"),  # the difference is shown to be too small to matter
        (-2 * RECALLED, 0.005, "fails"),  # coupling helps
        (+2 * RECALLED, 0.005, "fails"),  # coupling harms
        (-RECALLED / 4, 0.02, "fails"),  # here the gate has opened
    ],
)
def test_coupling_is_neutral_and_the_gate_closed(lead: float, gate: float, status: str) -> None:
    rows = {"windowed": runs(1.7, "windowed"), "gate 1e-3": gated(gate, 1.7 + lead, "coupled")}
    assert verdict("F13", beyond_window(rows)).status == status


def test_neutrality_is_unclear_where_the_slow_paths_information_does_not_matter() -> None:
    """The control of this claim lacks only the slow path's information, so the importance of attention as a whole is no
    substitute."""
    rows = {"windowed": runs(1.7, "windowed"), "gate 1e-3": gated(0.005, 1.7, "coupled")}
    found = verdict("F13", beyond_window(rows, blind=0.01))
    assert found.status == "unclear"
    assert "not sensitive: the control without what the slow path knows" in found.reason
    without = record({"standard": losses(1.7, 4, 0.0)} | rows)
    assert "sensitivity unknown" in verdict("F13", without).reason


@pytest.mark.parametrize(
    ("lead", "gate", "status"), [(0.0, 0.005, "holds"), (0.0, 0.02, "fails"), (0.02, 0.005, "fails")]
)
def test_neutrality_is_judged_as_published(lead: float, gate: float, status: str) -> None:
    rows = {"frozen": runs(1.7, "frozen"), "gate 1e-4": gated(gate, 1.7 + lead, "coupled")}
    rows["uniform"] = runs(2.7, "uniform")
    stored = record({"standard": losses(1.7, 4, 0.0)} | rows)
    assert verdict("F5", stored).status == status


@pytest.mark.parametrize(
    ("behind", "noise", "status"), [(0.078, 1, "holds"), (-0.05, 1, "holds"), (0.2, 1, "fails"), (0.1, 40, "unclear")]
)
def test_the_frozen_model_is_close_to_a_dense_one(behind: float, noise: float, status: str) -> None:
    rows = {row: runs(1.7, row, noise=noise) for row in ("dense-minimind", "dense-gemma")}
    found = verdict("F6", studied(rows | {"frozen": runs(1.7 + behind, "frozen", noise=noise)}))
    assert found.status == status
    assert "beside it: validation loss of frozen - dense-gemma" in found.reason


def test_the_published_table_would_hold() -> None:
    rows = {row: runs(mean, row) for row, (mean,) in TWO_TIMESCALES.items()}
    assert verdict("F6", studied(rows)).status == "holds"


@pytest.mark.parametrize(
    ("slow", "fast", "worth", "status"),
    [
        (0.01, 0.6, 2.0, "holds"),  # the gate opens at a higher rate, and the model relies on it
        (0.01, 0.02, 2.0, "fails"),  # the gate stays closed at a higher rate, too
        (0.01, 0.6, 0.1, "fails"),  # noise has opened the gate
        (0.2, 0.6, 2.0, "fails"),  # the gate was not closed at the paper's rate
    ],
)
def test_the_closed_gate_is_an_artefact(slow: float, fast: float, worth: float, status: str) -> None:
    rows = {
        "windowed": runs(1.7, "windowed"),
        "gate 1e-4": gated(slow, 1.7, "slow"),
        OPENED: gated(fast, 1.6, "fast", worth),
    }
    found = verdict("F12", beyond_window(rows))
    assert found.status == status
    assert f"validation loss of {OPENED} - windowed" in found.reason


EQUATIONS = {
    "error": 3e-15,
    "residual": 1e-14,
    "growth": -1e-12,
    "conserved": 2e-16,
    "lost_share": 2.1,
    "projector": 0.025,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("error", 1e-6),
        ("residual", 1e-6),
        ("growth", 1e-9),
        ("conserved", 1e-6),
        ("lost_share", 0.001),
        ("projector", 0.05),
    ],
)
def test_the_equilibrium_is_the_stationary_distribution(name: str, value: float) -> None:
    def solved(**changed: float) -> StudyRecord:
        return studied({"coupled": [{"probes": {"equations": EQUATIONS | changed}}] * 3}, control=False)

    assert verdict("F7", solved()).status == "holds"
    assert verdict("F7", solved(**{name: value})).status == "fails"


@pytest.mark.parametrize(
    ("method", "lead", "status"),
    [
        ("DEQ 4", 0.0, "holds"),
        ("DEQ 4", 2 * RECALLED, "holds"),  # harm is no help
        ("4 passes", -2 * RECALLED, "fails"),
        ("projector", -2 * RECALLED, "holds"),  # a projector may help
    ],
)
def test_fidelity_alone_does_not_help(method: str, lead: float, status: str) -> None:
    def study(residual: float) -> StudyRecord:
        solved = {"timescales": {"residual": residual}}
        rows = {row: runs(1.7, row, **solved) for row in (OPENED, "projector", *FIDELITY)}
        return beyond_window(rows | {method: runs(1.7 + lead, method, **solved)})

    found = verdict("F8", study(residual=0.001))
    assert found.status == status
    assert f"validation loss of projector - {OPENED}" in found.reason
    if status == "holds":  # solvers that did not find the equilibrium prove nothing
        unsolved = verdict("F8", study(residual=0.25))
        assert (unsolved.status, "premise is not shown" in unsolved.reason) == ("unclear", True)


@pytest.mark.parametrize(
    ("row", "lead", "status"),
    [
        ("both", 0.0, "holds"),
        ("4 streams", -2 * RECALLED, "fails"),
        ("projector and unit slow state", 2 * RECALLED, "fails"),
    ],
)
def test_constraints_are_neutral(row: str, lead: float, status: str) -> None:
    def study(constrained: float) -> StudyRecord:
        probes = {"probes": {"coupling": {"constrained": constrained}}}
        names = (OPENED, "projector", *CONSTRAINTS, PROJECTED)
        return beyond_window({name: runs(1.7 + (lead if name == row else 0), name, **probes) for name in names})

    assert verdict("F9", study(constrained=0.2)).status == status
    if status == "holds":  # a constraint that changes nothing is neutral trivially
        assert verdict("F9", study(constrained=0.001)).status == "unclear"


@pytest.mark.parametrize(
    ("memories", "status"),
    [((2.0, 2.4), "holds"), ((250.0, 2.0), "holds"), ((2.0, 3.0), "partly"), ((2.0, 16.0), "fails")],
)
def test_a_learned_decay_collapses(memories: tuple[float, float], status: str) -> None:
    """Criterion: one layer with almost no memory is a collapse, however long the memory of another layer and the mean,
    and that of a row whose decay begins at 256 tokens."""
    names = ("decay without pooling", "decay without pooling from 16")
    rows = {
        name: [{"timescales": {"slow_memory_by_head": [[memory - 0.5, memory + 0.5], [300.0, 300.0]]}}] * 3
        for name, memory in zip(names, memories, strict=True)
    }
    assert verdict("F10", studied(rows, control=False)).status == status


@pytest.mark.parametrize(("lead", "status"), [(-2 * RECALLED, "holds"), (0.0, "fails"), (2 * RECALLED, "fails")])
def test_the_projector_extracts_a_signal(lead: float, status: str) -> None:
    """Criterion: the projector is compared with the linear path, which knows as much where a projector adds nothing."""
    rows = {"windowed": runs(1.7, "windowed"), "projector": runs(1.7 + lead, "projector")}
    found = verdict("F11", beyond_window(rows))
    assert found.status == status
    assert "beside it: validation loss of projector - windowed" in found.reason
    assert found.reason.startswith(f"projector below {OPENED}")
