"""Is coupling worth a longer run of standard attention? (CoupledQK, section 3.5)

The paper's factor of 2.4 contains a factor of two for gradient accumulation on an 11 GB card. By throughput alone the
matched budget is 1.22 times. Both budgets are run, so rows train for different numbers of steps by design.
"""

from dataclasses import replace

from attractor.claims.claim import published
from attractor.study import Axis, Quantity, Scale, Study, longer, mechanisms
from attractor.train.config import TrainConfig

from ...language import desk, language, laptop
from .. import claims as coupled_qk


def rows(base: TrainConfig) -> Axis:
    return Axis(
        "attention",
        mechanisms("standard")
        | {f"standard, {factor:g}x": {"attention": "standard"} | longer(base, factor) for factor in (1.22, 2.4)}
        | mechanisms("coupled-hamiltonian"),
    )


def scale(name: str, seeds: tuple[int, ...]) -> Scale:
    return Scale(language(name), seeds, rows=rows(language(name)))


STUDY = Study(
    title="Coupling against longer training",
    question="How much longer must standard attention train to be as good as coupled attention?",
    source="CoupledQK, section 3.5",
    rows=rows(language("smoke")),
    baseline="standard",
    budget="free",
    quantities=(
        Quantity("perplexity", "metric.value", "lower"),
        Quantity("seconds", "wall_seconds"),
    ),
    scales={
        "smoke": scale("smoke", (0, 1)),
        "laptop": replace(laptop(5), rows=rows(language("laptop"))),
        "desk": replace(desk(8), rows=rows(language("desk"))),
        "bench": scale("bench", (0, 1)),
        "paper": scale("paper", (0, 1, 2)),
    },
    published=published(
        {**{row: coupled_qk.SMALL[row] for row in ("standard", "coupled-hamiltonian")}, **coupled_qk.MATCHED_IN_TIME}
    ),
    claims=("C11",),
)
