"""Does the benefit of coupling depend on the corpus? (CoupledQK, table 5)

The paper uses WikiText-103, PubMed and OpenWebText. We use other encyclopedic, scientific and heterogeneous text, so
the published figures that are shown beside ours were measured on other text. Our scientific text is abstracts of
computer science. The scale `desk` has abstracts of medicine as well, which are nearer to PubMed.
"""

from dataclasses import replace

from attractor.claims.claim import published
from attractor.study import Axis, Scale, Study, axis, mechanisms

from ...language import desk, language, laptop
from .. import claims as coupled_qk

KINDS = ("encyclopedic", "scientific", "heterogeneous")

STUDY = Study(
    title="Corpora",
    question="Does coupling help on coherent text and harm on heterogeneous text?",
    source="CoupledQK, table 5",
    rows=Axis("attention", mechanisms("standard", "differential", "coupled-hamiltonian")),
    columns=axis("corpus", *KINDS),
    baseline="standard",
    scales={
        "smoke": Scale(language("smoke"), seeds=(0, 1), columns=axis("corpus", "stdlib-code", "stdlib-docs")),
        "laptop": laptop(5),
        "desk": replace(desk(8), columns=axis("corpus", *KINDS, "medical")),
        "bench": Scale(
            language("bench"),
            seeds=(0, 1),
            columns=Axis("corpus", {kind: {"corpus": f"{kind}-gpt2"} for kind in KINDS}),
        ),
        "paper": Scale(
            language("paper"),
            seeds=(0, 1, 2),
            columns=Axis(
                "corpus",
                {
                    kind: {"corpus": name}
                    for kind, name in zip(KINDS, ("wikitext-103", "pubmed", "openwebtext"), strict=True)
                },
            ),
        ),
    },
    published=sum((published(table, column) for column, table in coupled_qk.CORPORA.items()), ()),
    claims=("C8",),
)
