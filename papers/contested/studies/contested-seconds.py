"""Does a disputed mechanism help in equal time? Steps are counted by the speed of each row on this machine."""

from attractor.study import Axis, Study

from ..settings import rows, scale

ROWS = ("standard", "xsa", "gated-heads", "value-residual", "short-conv", "sinks", "differential-v2")

STUDY = Study(
    title="Disputed mechanisms in equal time",
    question="Does a disputed mechanism help in equal time?",
    source="no table: X1 to X7 compare rows after equally many tokens",
    rows=Axis("attention", rows(*ROWS)),
    baseline="standard",
    budget="wall",
    scales={
        "smoke": scale("smoke", 2, *ROWS),
        "laptop": scale("laptop", 8, *ROWS),
        "desk": scale("desk", 8, *ROWS),
        "bench": scale("bench", 5, *ROWS),
    },
)
