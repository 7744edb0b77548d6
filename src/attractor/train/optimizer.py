"""The optimizer of a run: AdamW, or Muon for hidden matrices and AdamW for the rest.

Matrices decay, vectors and scalars (norms, step sizes, lambdas, gates) do not: `parameters.py` says which is which. A
group may have a rate of its own, as a multiple of the run's (`rate_factor`): the schedule is one for all.
"""

from typing import Any

import torch
from torch import nn

from attractor.parameters import parameter_groups
from attractor.train.config import TrainConfig
from attractor.train.distributed import placed_as


def optimizer_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """What the config's optimizer moves, and how: each group's name says by which rule."""
    if config.optimizer == "muon":
        from attractor.train.muon import heads_of, muon_groups

        how = ", query and key matrices head by head" if config.muon_per_head and heads_of(model) else ""
        names = {"muon": f"by Muon{how}", "adamw": "by AdamW"}
        groups = with_own_rates(muon_groups(model, config.weight_decay), config)
        return [group | {"name": f"{group['name']}, {names[group['rule']]}"} for group in groups]
    return with_own_rates(parameter_groups(model, config.weight_decay), config)


def with_own_rates(groups: list[dict[str, Any]], config: TrainConfig) -> list[dict[str, Any]]:
    """The groups, with the parameters that have a rate of their own (`gate_lr`) in groups of their own."""
    if config.gate_lr is None:
        return groups
    own: list[dict[str, Any]] = []
    for group in groups:
        gates = [(name, p) for name, p in group["params"] if name in config.model.own_rate]
        if gates:
            group["params"] = [(name, p) for name, p in group["params"] if name not in config.model.own_rate]
            factor = config.gate_lr / config.lr
            own.append(group | {"name": f"gates at {config.gate_lr:g}", "params": gates, "rate_factor": factor})
    return [*groups, *own]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The run's rate, for every group as it takes it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate_factor", 1.0)


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    if config.optimizer == "muon":
        from attractor.train.muon import MuonAdamW, muon_groups

        groups = with_own_rates(muon_groups(model, config.weight_decay), config)
        return MuonAdamW(
            model, config.lr, config.weight_decay, config.betas, per_head=config.muon_per_head, groups=groups
        )
    groups = with_own_rates(parameter_groups(model, config.weight_decay), config)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


def load_optimizer(optimizer: torch.optim.Optimizer, stored: dict[str, Any]) -> None:
    """What a checkpoint holds, whole, into an optimizer whose parameters may be spread over several processes."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {name: placed_as(value, parameters[index]) for name, value in values.items()}
        for index, values in stored["state"].items()
    }
    optimizer.load_state_dict(stored | {"state": state})
