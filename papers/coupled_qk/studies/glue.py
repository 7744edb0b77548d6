"""Does coupling in pretraining help or harm fine-tuning? (CoupledQK, table 7)

Every run starts from the run of its row and seed in the coupling ablation at the same scale. `smoke`, `laptop` and
`desk` use SST-2 alone, in a folder `glue` of ATTRACTOR_DATA, and learning rates for small models. `bench` and `paper`
use the Hub's GLUE and the paper's numbers of epochs.
"""

from math import ceil
from pathlib import Path
from typing import Any

from attractor.claims.claim import published
from attractor.study import ACCURACY, Axis, Scale, Study, load_study, mechanisms

from .. import claims as coupled_qk
from ..glue import FINE_TUNING

SMALL = FINE_TUNING.replace(lr=2e-3)  # 2e-5 would leave a model of 127 thousand parameters where it starts
N_TRAIN = {"sst2": 67_349, "mnli": 392_702, "qnli": 104_743}
EPOCHS = {"sst2": 5, "qnli": 5, "mnli": 3}  # CoupledQK, section 3.4
TASKS = {"SST-2": "sst2", "MNLI": "mnli", "QNLI": "qnli"}


def epochs_of_the_paper(task: str) -> dict[str, Any]:
    """Return the settings of a task: the paper's number of epochs, with a tenth of the steps as warm-up."""
    n_steps = ceil(EPOCHS[task] * N_TRAIN[task] / FINE_TUNING.batch_size)
    return {"glue_task": task, "n_steps": n_steps, "warmup_steps": n_steps // 10}


STUDY = Study(
    title="Fine-tuning on GLUE",
    question="Does a model pretrained with coupled attention fine-tune better or worse?",
    source="CoupledQK, table 7",
    rows=Axis("attention", mechanisms(*coupled_qk.GLUE["SST-2"])),
    columns=Axis("task", {label: epochs_of_the_paper(task) for label, task in TASKS.items()}),
    baseline="standard",
    control=False,
    quantities=(ACCURACY,),
    pretrained=load_study(Path(__file__).with_name("coupling-ablation.py")),
    scales={
        "smoke": Scale(
            SMALL.replace(glue_data="glue", seq_len=64, n_steps=200, warmup_steps=20, eval_every=50),
            seeds=(0, 1),
            columns=Axis("task", {"SST-2": {"glue_task": "sst2"}}),
        ),
        "laptop": Scale(
            SMALL.replace(glue_data="glue", n_steps=600, warmup_steps=60, eval_every=150),
            seeds=(0, 1, 2, 3, 4),
            columns=Axis("task", {"SST-2": {"glue_task": "sst2"}}),
        ),
        "desk": Scale(
            SMALL.replace(
                glue_data="glue",
                lr=1e-3,
                n_steps=1_200,
                warmup_steps=120,
                eval_every=300,
                precision="bf16",
                compile=True,
            ),
            seeds=(0, 1, 2, 3),
            columns=Axis("task", {"SST-2": {"glue_task": "sst2"}}),
        ),
        "bench": Scale(FINE_TUNING.replace(precision="bf16", glue_tokenizer="encyclopedic-gpt2"), seeds=(0, 1)),
        "paper": Scale(FINE_TUNING.replace(precision="bf16", glue_tokenizer="wikitext-103"), seeds=(0, 1, 2)),
    },
    published=sum((published(table, task, scale=0.01) for task, table in coupled_qk.GLUE.items()), ()),
    claims=("C10",),
)
