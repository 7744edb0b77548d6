"""Does the slow path help in longer sequences of BPE tokens, with a projector? (FastSlow, sections 11 and 12)

Runs read 10M tokens in sequences of 1,024, and a quarter of that at laptop. The gate can open, and the learning rate is
ten times that of table 2, because the vocabulary has thousands of tokens. A frozen model uses fewer parameters: see the
table.
"""

from attractor.study import Axis, Scale, Study

from ..probes.coupling import COUPLING_PROBE
from ..settings import GATE, LOSS, OPEN_RATE, PROJECTOR, TRAINED, UNINFORMATIVE, WORTH, base

LONG = {"corpus": "encyclopedic-4096", "seq_len": 1024, "lr": 1e-3, "gate_lr": OPEN_RATE, "eval_batches": 32}

STUDY = Study(
    title="Longer sequences",
    question="Does the slow path extract a signal at 10M tokens, and does a projector extract more?",
    source="FastSlow, section 12",
    rows=Axis(
        "slow path",
        {"frozen": {"frozen": True, "gate_lr": None}, "linear": {}, "projector": PROJECTOR, **UNINFORMATIVE},
    ),
    baseline="frozen",
    quantities=(LOSS, GATE, WORTH, TRAINED),
    probes=(COUPLING_PROBE,),
    scales={
        "smoke": Scale(base("smoke", gate_lr=OPEN_RATE), (0, 1)),
        "laptop": Scale(base("laptop", **LONG, n_steps=610, eval_every=122), (0, 1, 2)),
        "bench": Scale(base("laptop", **LONG, n_steps=2_441, eval_every=244), (0, 1, 2)),
        "paper": Scale(base("laptop", **LONG, n_steps=2_441, eval_every=244), (0, 1, 2, 3)),
    },
)
