"""What does PsiQRH cost against its matched baseline? (PsiQRH, trade-offs)

Both are timed in turns in one process, at the width of the protocol. The scored width is 512 per head, which fused
attention on a GPU does not support, so the figures of a GPU hold for this size only.
"""

from pathlib import Path

from attractor.study import Quantity, Scale, Study, load_study
from attractor.train.config import RECIPES

PROTOCOL = RECIPES["psiqrh"].replace(corpus="stdlib-code", batch_size=8, eval_batches=1)
LITTLE = PROTOCOL.replace(vocab_size=320, batch_size=2, precision="fp32")

STUDY = Study(
    title="The cost of phase and shared latent",
    question="Does phase activation double the cost of a head, and complex tensors the memory?",
    source="PsiQRH, trade-offs",
    rows=load_study(Path(__file__).with_name("psiqrh.py")).rows,
    baseline="standard",
    control=False,
    budget="parameters",
    sized_by="psiqrh",
    kind="timing",
    quantities=(
        Quantity("forward tok/s", "forward_tokens_per_second", "higher", relative_to="standard"),
        Quantity("step tok/s", "tokens_per_second", "higher", relative_to="standard"),
        Quantity("peak memory (bytes)", "peak_memory_bytes", "lower", relative_to="standard"),
    ),
    scales={
        "smoke": Scale(LITTLE.replace(n_layers=1), seeds=(0,)),
        "laptop": Scale(LITTLE, seeds=(0,)),
        "bench": Scale(PROTOCOL.replace(vocab_size=50_257), seeds=(0,)),
        "paper": Scale(PROTOCOL.replace(vocab_size=50_257), seeds=(0,)),
    },
    claims=("P3",),
)
