"""However a model is spread over processes, the controls compute what one process with the same layers computes.

Each process trains on a batch of its own or on the same one. Only processes that train the same layers clip each other.
Two processes and four run all cases together, and this process runs their counterparts alone.
"""

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from subjects import loss_of, of_family, small, tokens
from torch import Tensor, nn

from attractor.attention import PRESETS
from attractor.control import NORMS, QKClip, QuacK, query_key_heads
from attractor.control.process_groups import groups_of
from attractor.errors import InputError
from several_processes import join_group, together

N_STEPS, THRESHOLD = 3, 0.5


SPREAD: dict[str, dict[str, Any]] = {
    "standard": {"qkv_bias": True},
    "gqa": {"n_kv_heads": 2},
    "mla": {"attention": "mla"},
    "mla with norms": {"attention": PRESETS["mla"].replace(latent_norm=True)},
    "differential": {"attention": "differential"},
    "cut heads": {"d_model": 20, "n_heads": 5, "attention": PRESETS["standard"].replace(qkv_bias=True)},  # by FSDP2
    "gpt2": {},  # whose heads are columns
}
SHARING = ("ddp", "fsdp", "columns")  # whole models; shards of rows; shards of columns


def spread_model(case: str) -> nn.Module:
    model = of_family("gpt2") if case == "gpt2" else small(**SPREAD[case])
    for number, parameter in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(number)
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def spread(model: nn.Module, sharing: str, **placed: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    if sharing == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if sharing == "columns":
        placed |= {"shard_placement_fn": lambda parameter: Shard(parameter.ndim - 1)}
    for block in blocks_of(model):
        fully_shard(block, **placed)
    return fully_shard(model, **placed)


def stage(number: int, n_layers: int = 2) -> nn.Module:
    """Return the model of one pipeline stage or of one member of a sweep; the larger the number, the larger logits."""
    model = small(seed=number, n_layers=n_layers)
    for parameter in model.parameters():
        parameter.data.mul_(1 + number)
    return model


def train(
    model: nn.Module, batches: Callable[[int], list[Tensor]], process_group: Any = None, norm: str = "frobenius"
) -> dict[str, Tensor]:
    """Train on the mean loss of each step's batches with both controls; return the weights, and the rates and maxima of
    the last step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # Adam would magnify the rounding of small gradients
    quack = QuacK(model, optimizer, tau=0.7, norm=norm)
    clip = QKClip(model, optimizer, THRESHOLD, process_group)
    for step in range(N_STEPS):
        optimizer.zero_grad()
        for batch in batches(step):
            (loss_of(model, batch) / len(batches(step))).backward()
        optimizer.step()
    named = model.module.named_parameters() if hasattr(model, "module") else model.named_parameters()
    outcome = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in named}  # type: ignore[union-attr]
    for layer, maxima in clip.last.items():
        outcome |= {f"maxima of {layer}": maxima.logits, f"exact of {layer}": maxima.exact}
        outcome |= {f"rates of {part} of {layer}": rates for part, rates in quack.rates[layer].items()}
        outcome |= {f"{part} of {layer} at first": x for part, x in quack.state_dict()["initial"][layer].items()}
    outcome["n_clipped"] = torch.tensor(clip.n_clipped)
    clip.remove()
    quack.remove()
    return {name: values.detach().clone() for name, values in outcome.items()}


def columns(model: nn.Module, mesh: Any) -> nn.Module:
    """Split the heads of all layers over the mesh."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    ours = hasattr(model, "blocks")
    names = ("attention.project.{}", "attention.output.out") if ours else ("self_attn.{}_proj", "self_attn.o_proj")
    heads = ("query", "key", "value") if ours else ("q", "k", "v")
    plan: dict[str, Any] = {names[0].format(part): ColwiseParallel() for part in heads} | {names[1]: RowwiseParallel()}
    for block in blocks_of(model):
        parallelize_module(block, mesh, plan)
    return model


def blocks_of(model: nn.Module) -> Any:
    if hasattr(model, "transformer"):
        return model.transformer.h  # type: ignore[union-attr]
    return model.blocks if hasattr(model, "blocks") else model.model.layers  # type: ignore[union-attr]


def by_plan(family: str, folder: Path) -> nn.Module:
    """Return the model that transformers splits by the plan of its family."""
    import transformers

    of_family(family).save_pretrained(folder / family)  # the first process alone writes
    dist.barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return transformers.AutoModelForCausalLM.from_pretrained(folder / family, tp_plan="auto").train()


TENSOR_PARALLEL: dict[str, Callable[[], nn.Module]] = {
    "standard": lambda: small(qkv_bias=True),
    "gqa": lambda: small(n_kv_heads=2),
    "llama": lambda: of_family("llama-biased"),
    "qwen2 by plan": lambda: of_family("qwen2"),
    "deepseek-v2 by plan": lambda: of_family("deepseek-v2"),
}


ON_TWO = [(case, sharing, norm) for case in SPREAD for sharing in SHARING for norm in NORMS]


def both(step: int) -> list[Tensor]:
    return [tokens(2 * step), tokens(2 * step + 1)]


def same(step: int) -> list[Tensor]:
    return [tokens(step)]


def two_processes(rank: int, folder: Path) -> dict[str, Any]:
    """Return what this one of two processes computes in every case."""
    from torch.distributed.device_mesh import init_device_mesh

    outcomes: dict[str, Any] = {}
    outcomes["stages"] = train(stage(rank, n_layers=1 + rank), same, ())
    outcomes["sweep"] = train(stage(rank), same, [])
    outcomes["sweep by group"] = train(stage(rank), same, [dist.new_group([0]), dist.new_group([1])][rank])
    outcomes["one model"] = train(stage(0), same, dist.group.WORLD)
    for name, given in (("unnamed", None), ("other layers", dist.group.WORLD)):
        with pytest.raises(InputError) as refused:
            train(stage(rank, n_layers=1 + rank), same, given)
        outcomes[name] = str(refused.value)
    mesh = init_device_mesh("cpu", (2,))
    for name, build in TENSOR_PARALLEL.items():
        model = by_plan(name.split()[0], folder) if "plan" in name else columns(build(), mesh)
        outcomes[name] = train(model, same)
    for case, sharing, norm in ON_TWO:
        own = spread(spread_model(case), sharing)
        outcomes[f"{case}, {sharing}, {norm}"] = train(own, lambda step: [tokens(2 * step + rank)], norm=norm)
    return outcomes


def four_processes(rank: int, folder: Path) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    outcomes: dict[str, Any] = {}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh["data"], mesh["tensor"]

    def mine(step: int) -> list[Tensor]:
        return [tokens(2 * step + data.get_local_rank())]

    outcomes["fsdp x tensor"] = train(spread(columns(of_family("llama"), tensor), "fsdp", mesh=data), mine)
    split = columns(of_family("llama"), tensor)
    with pytest.raises(InputError) as refused:
        QKClip(split, torch.optim.SGD(split.parameters(), lr=0.1))
    outcomes["tensor alone"] = str(refused.value)
    outcomes["hsdp"] = train(spread(of_family("llama"), "fsdp", mesh=mesh), lambda step: [tokens(4 * step + rank)])
    ddp = nn.parallel.DistributedDataParallel
    outcomes["stages of replicas"] = train(
        ddp(stage(rank % 2, n_layers=1 + rank % 2), process_group=data.get_group()), mine
    )
    return outcomes


def train_all(folder: Path, size: int) -> None:
    """Run all cases as one of several processes."""
    rank = join_group()
    torch.save((two_processes if size == 2 else four_processes)(rank, folder), folder / f"{size} {rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("outcomes")
    for size in (2, 4):
        together(size, train_all, path, size)
    return path


ALONE: dict[str, Callable[[int], dict[str, Tensor]]] = {
    "stages": lambda rank: train(stage(rank, n_layers=1 + rank), same),
    "sweep": lambda rank: train(stage(rank), same),
    "sweep by group": lambda rank: train(stage(rank), same),
    "one model": lambda rank: train(stage(0), same),
    **{name: lambda rank, build=build: train(build(), same) for name, build in TENSOR_PARALLEL.items()},  # type: ignore[misc]
    **{
        f"{case}, {sharing}, {norm}": lambda rank, case=case, norm=norm: train(spread_model(case), both, norm=norm)  # type: ignore[misc]
        for case, sharing, norm in ON_TWO
    },
    "fsdp x tensor": lambda rank: train(of_family("llama"), both),
    "hsdp": lambda rank: train(of_family("llama"), lambda step: [tokens(4 * step + part) for part in range(4)]),
    "stages of replicas": lambda rank: train(stage(rank % 2, n_layers=1 + rank % 2), both),
}
ON_FOUR = ("fsdp x tensor", "hsdp", "stages of replicas")


@pytest.mark.slow
@pytest.mark.parametrize("case", ALONE)
def test_every_process_holds_what_one_process_with_its_layers_computes(folder: Path, case: str) -> None:
    """Criterion: weights, rates, initial norms and maxima agree with those of one process that sees all batches and
    heads, and some but not all heads were clipped."""
    size = 4 if case in ON_FOUR else 2
    for rank in range(size):
        outcome = torch.load(folder / f"{size} {rank}.pt", weights_only=True)[case]
        alone = ALONE[case](rank)
        assert outcome.keys() == alone.keys()
        for name, values in alone.items():
            torch.testing.assert_close(outcome[name], values, rtol=1e-4, atol=1e-5, msg=f"{name} of process {rank}")
        n_seen = N_STEPS * sum(len(values) for name, values in alone.items() if name.startswith("maxima"))
        assert 0 < alone["n_clipped"] < n_seen


@pytest.mark.slow
def test_groups_that_cannot_be_known_and_groups_of_other_layers_are_refused(folder: Path) -> None:
    """Criterion: every process refuses plain weights in a larger world, a group whose processes hold other layers, and
    tensor parallelism alone on a part of the processes."""
    for rank in range(2):
        refused = torch.load(folder / f"2 {rank}.pt", weights_only=True)
        assert (
            "process_group must be given, since the weights do not say which of the 2 processes" in refused["unnamed"]
        )
        assert "train the same layers, but their layers or heads differ" in refused["other layers"]
    for rank in range(4):
        refused = torch.load(folder / f"4 {rank}.pt", weights_only=True)
        assert "process_group must be given" in refused["tensor alone"]


def test_one_process_needs_no_group() -> None:
    """Criterion: without a process group, with one of a single process, and with a given one."""
    model = small()
    views = query_key_heads(model)
    assert groups_of(model, views) == [(), ()]
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            assert groups_of(model, views) == [(), ()]
            assert groups_of(model, views, dist.group.WORLD) == [(dist.group.WORLD,)] * 2
            assert groups_of(nn.parallel.DistributedDataParallel(model), views) == [(dist.group.WORLD,)] * 2
        finally:
            dist.destroy_process_group()
