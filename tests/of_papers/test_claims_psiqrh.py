"""A claim on PsiQRH fails where runs contradict it in a way that one measure alone would miss."""

from typing import Any

import pytest

from attractor.claims.verdicts import Rule
from five_papers import CLAIMS
from invented_records import OWN, losses, record

RULES = {claim.id: claim.rule for claim in CLAIMS if claim.id.startswith("P")}


def runs(own: float, elsewhere: float, noise: float = 1.0) -> list[dict[str, Any]]:
    """Return eight runs with these losses on their own corpus and on two others."""
    return [
        {"valid_loss": loss, "probes": {"elsewhere": {"far": loss + gap + 0.3, "near": loss + gap - 0.3}}}
        for loss, gap in zip(losses(own, 8, noise), (elsewhere - own + noise * shift for shift in OWN[:8]), strict=True)
    ]


@pytest.mark.parametrize(
    ("own", "elsewhere", "status"),
    [(1.65, 1.80, "holds"), (1.95, 2.10, "fails"), (1.45, 1.65, "fails"), (1.65, 1.85, "fails")],
    ids=["better elsewhere alone", "worse, with a smaller gap", "better everywhere alike", "alike"],
)
def test_generalisation_is_a_lower_loss_elsewhere_and_a_smaller_gap(own: float, elsewhere: float, status: str) -> None:
    rule = RULES["P2"]
    assert isinstance(rule, Rule)
    rows = {
        "standard": runs(1.65, 1.85),
        "psiqrh": runs(own, elsewhere, noise=-0.2),
        "uniform": runs(2.30, 2.47, noise=0.5),
    }
    assert rule.judge(record(rows)).status == status
