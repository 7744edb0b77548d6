"""A few steps of Hugging Face's Trainer on the CPU."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor


def few_steps(out: Path, n_steps: int, **changes: Any) -> dict[str, Any]:
    """Return the arguments of a short training."""
    settings = {"learning_rate": 1e-2, "use_cpu": True, "report_to": [], "disable_tqdm": True}
    return settings | {"output_dir": str(out), "max_steps": n_steps} | changes


def examples(n: int) -> list[dict[str, Tensor]]:
    """Return n rows that count up from a random token. A different number of first tokens is scored in each row."""
    generator = torch.Generator().manual_seed(1)
    drawn = (torch.randint(0, 37, (n, 1), generator=generator) + torch.arange(12)) % 37
    scored = torch.arange(12) < torch.randint(4, 13, (n, 1), generator=generator)
    labels = torch.where(scored, drawn, -100)
    return [{"input_ids": row, "labels": label} for row, label in zip(drawn, labels, strict=True)]


def trainer(model: Any, out: Path, steps: int, *callbacks: Any, **changes: Any) -> Any:
    usual = {"per_device_train_batch_size": 4, "save_steps": 3, "logging_steps": 1, "lr_scheduler_type": "constant"}
    arguments = transformers.TrainingArguments(**few_steps(out, steps, **usual | changes))
    rows = examples(24)
    return transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=[*callbacks])


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
