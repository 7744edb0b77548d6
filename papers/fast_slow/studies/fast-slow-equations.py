"""Is the equilibrium of a generator its stationary distribution? (FastSlow, theorem 28, remarks 30 and 31)

Generators of 4, 12 and 32 states are drawn with the seeds of the runs of table 2's coupled model, whose weights play
no part in this (`study/equations.py`). The trained weights of these runs show what remark 30 expects of a block: the
column sums of its Jacobian, and how far it is from a contraction and its attention from lumpable
(`study/timescales.py`).
"""

from attractor.study import Axis, Quantity, Study

from ..probes.equations import EQUATIONS_PROBE
from ..probes.timescales import TIMESCALES_PROBE
from ..settings import scales


def figure(name: str, path: str) -> Quantity:
    return Quantity(name, f"probes.equations.{path}")


def of_post(name: str, path: str) -> Quantity:
    return Quantity(name, f"probes.timescales.{path}")


STUDY = Study(
    title="Equilibria of generators",
    question="Is the equilibrium of a generator its stationary distribution, and does a projector find it?",
    source="FastSlow, remark 31",
    rows=Axis("model", {"coupled": {}}),
    baseline="coupled",
    control=False,
    quantities=(
        figure("error", "error"),
        figure("|A p|", "residual"),
        figure("growth", "growth"),
        figure("sums off 1", "conserved"),
        figure("random map / strength", "lost_share"),
        figure("projector", "projector"),
        of_post("Post's smallest sum", "column_sums.lowest"),
        of_post("Post's largest sum", "column_sums.largest"),
        of_post("contraction of Post", "contraction"),
        of_post("lumpability defect", "lumpability.defect"),
    ),
    probes=(EQUATIONS_PROBE, TIMESCALES_PROBE),
    scales=scales(),
    claims=("F7",),
)
