"""The rule of a factorial: what a change does on average over another one, and whether the two add up.

Factorial    judges the sum over rows r of weight_r (x_sr - x_s(baseline)), seed by seed. Of rows A, B, both and a
             baseline without either, the weights 1/2 for A, 1/2 for both and -1/2 for B give the main effect of A;
             1 for both, -1 for A and -1 for B give the interaction
"""

from dataclasses import dataclass, replace

from attractor.claims.comparisons import Compared, compare
from attractor.runs.study_record import StudyRecord

from ..coupled_qk.rules import Contrast


@dataclass(frozen=True)
class Factorial(Contrast):
    """`pair` has the sum that is worth a change, and the margin; `weights` are those of rows against `pair.against`."""

    name: str = ""  # of the sum

    @property
    def _statement(self) -> str:
        rows = " ".join(f"{weight:+g} ({row})" for row, weight in self.weights)
        below = "below" if self.pair.effect < 0 else "above"
        return f"{self.name}, the sum {rows} of differences from {self.pair.against}, {below} 0"

    def _compared(self, record: StudyRecord) -> list[Compared]:
        return [compare(record, self.quantity, replace(self.pair, of=row)) for row, _ in self.weights]
