"""A few steps of Hugging Face's Trainer on the CPU."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor


def few_steps(out: Path, n_steps: int, **changes: Any) -> transformers.TrainingArguments:
    arguments = {
        "output_dir": str(out),
        "max_steps": n_steps,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "report_to": [],
        "save_steps": 3,
        "logging_steps": 1,
        "disable_tqdm": True,
        "lr_scheduler_type": "constant",
    }
    return transformers.TrainingArguments(**arguments | changes)


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
