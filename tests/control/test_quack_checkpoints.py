"""A checkpoint with QuacK that is saved under one way of training continues under another, bit for bit.

Two processes train, save each checkpoint after half of the steps, and write what became of the weights. Every process
gets the same gradients, drawn from the step's number, since gradients that are averaged over processes differ in their
last bits. No head is cut in two by FSDP2 here, so that norms are summed in one order. Torch's Muon sums in another
order over shards, in bf16, so that its own steps differ by 4e-4. Its FSDP2 checkpoints continue under FSDP2.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from attractor.control import QuacK
from attractor.models import TransformerConfig
from several_processes import join_group, together

WAYS = ("plain", "ddp", "fsdp")
MUON = "muon and adamw"
N_STEPS = 8
OPTIMIZERS = ("sgd", "adamw", MUON)
WHOLE = StateDictOptions(full_state_dict=True)


class Training:
    """A model, its optimizers and QuacK, as one way of training has them."""

    def __init__(self, way: str, optimizer: str) -> None:
        config = TransformerConfig(vocab_size=40, d_model=32, n_heads=4, n_layers=2, d_ff=24, max_seq_len=8)
        self.model: nn.Module = config.replace(qkv_bias=True).build(seed=0)
        if way == "fsdp":
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.model)
        parameters = list(self.model.parameters())
        if optimizer == "sgd":
            self.optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(parameters, lr=0.01, momentum=0.9)]
        elif optimizer == "adamw":
            self.optimizers = [torch.optim.AdamW(parameters, lr=0.01)]
        else:
            matrices = [parameter for parameter in parameters if parameter.ndim == 2]
            others = [parameter for parameter in parameters if parameter.ndim != 2]
            self.optimizers = [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(others, lr=0.01)]
        wrapped = nn.parallel.DistributedDataParallel(self.model) if way == "ddp" else self.model
        self.quack = QuacK(wrapped, self.optimizers, tau=0.7)

    def train(self, steps: range) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            for parameter in self.model.parameters():
                parameter.grad = placed_as(torch.randn(parameter.shape, generator=generator), parameter)
            for optimizer in self.optimizers:
                optimizer.step()

    def state(self) -> dict[str, Any]:
        state = {
            "model": get_model_state_dict(self.model, options=WHOLE),
            "optimizers": [get_optimizer_state_dict(self.model, [part], options=WHOLE) for part in self.optimizers],
            "quack": self.quack.state_dict(),
        }
        return deepcopy(state)  # as if it were stored and read

    def load(self, stored: dict[str, Any]) -> None:
        state = deepcopy(stored)
        set_model_state_dict(self.model, state["model"], options=WHOLE)
        for optimizer, part in zip(self.optimizers, state["optimizers"], strict=True):
            set_optimizer_state_dict(self.model, [optimizer], part, options=WHOLE)
        self.quack.load_state_dict(state["quack"])

    def weights(self) -> list[Tensor]:
        return list(get_model_state_dict(self.model, options=WHOLE).values())


def placed_as(whole: Tensor, parameter: Tensor) -> Tensor:
    if not hasattr(parameter, "placements"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def largest_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def uninterrupted(way: str, optimizer: str) -> list[Tensor]:
    training = Training(way, optimizer)
    training.train(range(N_STEPS))
    return training.weights()


def change_ways(folder: Path) -> None:
    """Run every change of ways as one of two processes."""
    rank = join_group()
    differences = {}
    for optimizer in OPTIMIZERS:
        wanted = {way: uninterrupted(way, optimizer) for way in ("plain", "fsdp")}
        for saved in WAYS:
            first = Training(saved, optimizer)
            first.train(range(N_STEPS // 2))
            state = first.state()
            for loaded in WAYS:
                if optimizer == MUON and (saved == "fsdp") != (loaded == "fsdp"):
                    continue
                second = Training(loaded, optimizer)
                second.load(state)
                second.train(range(N_STEPS // 2, N_STEPS))
                differences[f"{optimizer}, {saved} to {loaded}"] = largest_difference(
                    second.weights(), wanted["fsdp" if optimizer == MUON and loaded == "fsdp" else "plain"]
                )
    torch.save(differences, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_a_checkpoint_moves_between_plain_ddp_and_fsdp_without_a_changed_bit(tmp_path: Path) -> None:
    """Criterion: for each optimizer and change of ways, the weights equal those of an uninterrupted training, on both
    processes."""
    together(2, change_ways, tmp_path)
    for rank in (0, 1):
        differences = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert len(differences) == 9 + 9 + 5
        assert not any(differences.values()), differences
