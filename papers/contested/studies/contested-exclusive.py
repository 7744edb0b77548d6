"""Do exclusive attention and gates help, and does one make the other needless?

A factorial of both. Its rules look at 8 and 16 pairs of seeds (`../claims.py`), which was written before the first run.
The study has no looks of its own, since they would end a row as soon as it alone is decided.
"""

from attractor.study import Axis, Study

from ..settings import rows, scale

ROWS = ("standard", "xsa", "gated-heads", "xsa, gated-heads")

STUDY = Study(
    title="Exclusive attention and gates",
    question="Do exclusive attention and gates help, and does one make the other needless?",
    source="Zhai, arXiv 2603.09078; Qiu et al., arXiv 2505.06708; logs and issues of three repositories",
    rows=Axis("attention", rows(*ROWS)),
    baseline="standard",
    scales={
        "smoke": scale("smoke", 2, *ROWS),
        "laptop": scale("laptop", 16, *ROWS),
        "desk": scale("desk", 16, *ROWS),
        "bench": scale("bench", 5, *ROWS),
    },
    claims=("X1", "X2", "X3"),
)
