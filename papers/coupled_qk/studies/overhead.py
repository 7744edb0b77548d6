"""What does each mechanism cost in throughput and memory? (CoupledQK, table 10)

All mechanisms are timed in turns in one process. The paper used an RTX 2080 Ti with fp16. Integrators take three steps
there and here.
"""

from attractor.attention.presets import preset
from attractor.study import Axis, Published, Quantity, Scale, Study, mechanisms
from attractor.train.config import RECIPES

from .. import claims as coupled_qk

FORWARD = Quantity("forward tok/s", "forward_tokens_per_second", "higher", relative_to="standard")
STEP = Quantity("step tok/s", "tokens_per_second", "higher", relative_to="standard")
MEMORY = Quantity("peak memory (bytes)", "peak_memory_bytes", "lower", relative_to="standard")
SMALL = RECIPES["small"].replace(corpus="stdlib-code", vocab_size=50_257, batch_size=8, accumulation=1, eval_batches=1)
LITTLE = SMALL.replace(vocab_size=320, n_layers=4, batch_size=2, precision="fp32")

STUDY = Study(
    title="Overhead",
    question="What does each mechanism cost in throughput and memory?",
    source="CoupledQK, table 10",
    rows=Axis(
        "attention",
        mechanisms("standard", "coupled-hamiltonian")
        | {"coupled-euler": {"attention": preset("coupled-euler").replace(n_steps=3)}}
        | mechanisms("gqa", "differential", "gated"),
    ),
    baseline="standard",
    control=False,
    kind="timing",
    quantities=(FORWARD, STEP, MEMORY),
    scales={
        "smoke": Scale(LITTLE.replace(d_model=128, n_layers=2, d_ff=512), seeds=(0,)),
        "laptop": Scale(LITTLE, seeds=(0,)),
        "bench": Scale(SMALL, seeds=(0,)),
        "paper": Scale(SMALL, seeds=(0,)),
    },
    published=tuple(
        Published(row, "", figure * unit, quantity=quantity.name)
        for row, figures in coupled_qk.OVERHEAD.items()
        for quantity, figure, unit in zip((FORWARD, STEP, MEMORY), figures, (1, 1, 1e6), strict=True)
    ),
    claims=("C12", "C30"),
)
