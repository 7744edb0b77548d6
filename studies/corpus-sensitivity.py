"""CoupledQK, table 5: does the benefit of coupling depend on the corpus?

Encyclopedic, scientific and heterogeneous text stand where the paper has WikiText-103, PubMed and OpenWebText; its
figures are shown beside ours, and were measured on other text.
"""

from attractor.study import Axis, Published, Scale, Study, axis, language, laptop, mechanisms

TABLE = {
    "standard": ((24.22, 0.12), (16.84, 0.09), (40.64, 0.23)),
    "differential": ((23.92, 0.12), (16.68, 0.11), (40.19, 0.13)),
    "coupled-hamiltonian": ((22.62, 0.04), (16.08, 0.06), (44.85, 0.14)),
}
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
    published=tuple(
        Published(row, kind, mean, sd, 3)
        for row, figures in TABLE.items()
        for kind, (mean, sd) in zip(KINDS, figures, strict=True)
    ),
    claims=("C8",),
)
