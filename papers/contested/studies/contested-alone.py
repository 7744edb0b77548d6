"""Does each of four disputed mechanisms help standard attention, by itself?"""

from attractor.study import Axis, Study

from ..settings import rows, scale

ROWS = ("standard", "value-residual", "short-conv", "sinks", "differential-v2")

STUDY = Study(
    title="Disputed mechanisms, each alone",
    question="Does each of four disputed mechanisms help standard attention, by itself?",
    source="Zhou et al., arXiv 2410.17897; Allen-Zhu, arXiv 2512.17351; gpt-oss; Ye et al., 2026",
    rows=Axis("attention", rows(*ROWS)),
    baseline="standard",
    scales={
        "smoke": scale("smoke", 2, *ROWS),
        "laptop": scale("laptop", 8, *ROWS),
        "desk": scale("desk", 8, *ROWS),
        "bench": scale("bench", 5, *ROWS),
    },
    claims=("X4", "X5", "X6", "X7"),
)
