"""The rule that only claims of QuacK need.

AtScales   judges by another rule at the scales that are ready for it, and cannot tell at others
"""

from dataclasses import dataclass

from attractor.claims.rules import Conditional
from attractor.runs.study_record import StudyRecord


@dataclass(frozen=True)
class AtScales(Conditional):
    """Judge by `rule` at these scales; `why` says what the others lack."""

    scales: tuple[str, ...]
    why: str

    @property
    def condition(self) -> str:
        return f"cannot tell but at the scale {', '.join(self.scales)}: {self.why}"

    def obstacle(self, record: StudyRecord) -> str | None:
        return None if record.design.scale in self.scales else f"cannot tell: {self.why}"
