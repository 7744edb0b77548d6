"""What do interventions on attention logits cost? (QuacK, section 4)

Whole training steps are timed in turns in one process. QK-clip clips no head in one row and every head in another. The
optimizer is AdamW, whose step is cheap, so the cost of the interventions around it weighs most.
"""

from attractor.study import Axis, Quantity, Scale, Study
from attractor.train.config import RECIPES

SMALL = RECIPES["small"].replace(corpus="stdlib-code", batch_size=8, accumulation=1, eval_batches=1, positions="rope")
LITTLE = SMALL.replace(vocab_size=320, batch_size=2, precision="fp32")

STUDY = Study(
    title="What control of the logits costs",
    question="Is QuacK cheaper than QK-norm and than QK-clip?",
    source="QuacK, section 4",
    rows=Axis(
        "intervention",
        {
            "none": {},
            "QK-norm": {"qk_norm": True},
            "QuacK": {"quack": 1.0},
            "QuacK, spectral": {"quack": 1.0, "quack_norm": "spectral"},
            "QK-clip, no head": {"qk_clip": 1e6},
            "QK-clip, every head": {"qk_clip": 1e-6},
        },
    ),
    baseline="none",
    control=False,
    kind="timing",
    quantities=(
        Quantity("step tok/s", "tokens_per_second", "higher", relative_to="none"),
        Quantity("peak memory (bytes)", "peak_memory_bytes", "lower", relative_to="none"),
    ),
    scales={
        "smoke": Scale(LITTLE.replace(d_model=128, n_layers=2, d_ff=512), seeds=(0,)),
        "laptop": Scale(LITTLE, seeds=(0,)),
        "bench": Scale(SMALL, seeds=(0,)),
        "paper": Scale(SMALL, seeds=(0,)),
    },
    claims=("L8", "L11"),
)
