"""Build the optimizer of a run: AdamW, or Muon for hidden matrices and AdamW for the rest.

Weight decay acts on matrices alone (`parameters.py`). A parameter group may have its own learning rate, as a multiple
of the rate of the run (`rate_factor`); the schedule is the same for all groups.
"""

from typing import Any

import torch
from torch import nn

from attractor.train.config import TrainConfig
from attractor.train.distributed import placed_as
from attractor.train.parameters import parameter_groups


def optimizer_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """Return the parameter groups of a configuration. Parameters that learn at `gate_lr` are in groups of their own."""
    if config.optimizer == "muon":
        from attractor.train.muon import muon_groups

        groups = muon_groups(model, config.weight_decay, config.muon_per_head)
    else:
        groups = parameter_groups(model, config.weight_decay)
    if config.gate_lr is None:
        return groups
    gate_groups: list[dict[str, Any]] = []
    for group in groups:
        gates = [(name, p) for name, p in group["params"] if name in config.model.own_rate]
        if gates:
            group["params"] = [(name, p) for name, p in group["params"] if name not in config.model.own_rate]
            factor = config.gate_lr / config.lr
            gate_groups.append(group | {"name": f"gates at {config.gate_lr:g}", "params": gates, "rate_factor": factor})
    return [*groups, *gate_groups]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the run in every group, times the factor of the group."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate_factor", 1.0)


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    groups = optimizer_groups(model, config)
    if config.optimizer == "muon":
        from attractor.train.muon import MuonAdamW

        return MuonAdamW(model, groups, config.lr, config.betas, config.muon_per_head)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


def load_optimizer(optimizer: torch.optim.Optimizer, stored: dict[str, Any]) -> None:
    """Load the whole state of a checkpoint into an optimizer whose parameters may be sharded over several processes."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {name: placed_as(value, parameters[index]) for name, value in values.items()}
        for index, values in stored["state"].items()
    }
    optimizer.load_state_dict(stored | {"state": state})
