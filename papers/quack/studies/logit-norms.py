"""Is the Frobenius or the spectral norm better for QuacK, over tau? (QuacK, figure 3)

The paper's model has about 100M parameters; smaller scales use smaller models.
"""

from attractor.study import PERPLEXITY, Axis, Scale, Study

from ..settings import RATES, base

MIDDLE = "middle rate"
TAUS = Axis("tau", {f"tau {tau:g}": {"quack": tau} for tau in (0.01, 0.1, 1.0, 10.0)})

STUDY = Study(
    title="Norms of QuacK",
    question="Does it matter in which norm the weights of a head are measured?",
    source="QuacK, figure 3",
    rows=Axis("norm", {"frobenius": {}, "spectral": {"quack_norm": "spectral"}}),
    columns=TAUS,
    baseline="frobenius",
    quantities=(PERPLEXITY,),
    scales={
        scale: Scale(
            base(scale).replace(quack=1.0, **RATES[scale].values[MIDDLE]),
            seeds,
            columns=TAUS.only(("tau 0.1", "tau 1")) if scale == "laptop" else None,
        )
        for scale, seeds in {"smoke": (0, 1), "laptop": tuple(range(8)), "bench": (0,)}.items()
    },
    claims=("L7",),
)
