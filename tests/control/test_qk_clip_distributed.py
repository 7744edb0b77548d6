"""Processes with different batches clip by the largest logit of all, as one process that sees all batches does.

Two processes run all cases together, and this process runs their counterparts alone.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from safetensors.torch import load_file, save_file
from subjects import of_family, small, tokens
from torch import Tensor, nn

from attractor.attention import PRESETS
from attractor.control.heads import query_key_heads
from attractor.control.logit_maxima import LogitMaxima
from attractor.control.qk_clip import QKClip
from several_processes import join_group, together

N_PROCESSES = 2
CASES: dict[str, dict[str, Any]] = {
    "standard": {"qkv_bias": True},
    "gqa": {"n_kv_heads": 2},
    "mla": {"attention": "mla"},
    "differential": {"attention": "differential"},
    "uneven": {"d_model": 20, "n_heads": 5, "attention": PRESETS["standard"].replace(qkv_bias=True)},
    "gpt2": {},
}
SHARING = ("ddp", "fsdp", "columns")  # whole models; shards of rows; shards of columns


def model_of(case: str) -> nn.Module:
    model = of_family("gpt2") if case == "gpt2" else small(**CASES[case])
    for number, parameter in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(number)
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def shared(model: nn.Module, sharing: str) -> nn.Module:
    if sharing == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    def columns(parameter: nn.Parameter) -> Shard:
        return Shard(parameter.ndim - 1)

    placed = {"shard_placement_fn": columns} if sharing == "columns" else {}
    for block in model.transformer.h if hasattr(model, "transformer") else model.blocks:
        fully_shard(block, **placed)
    return fully_shard(model, **placed)


def threshold_of(case: str) -> float:
    """Return the median of the maxima over all batches as a threshold."""
    model = model_of(case)
    recording = LogitMaxima(query_key_heads(model))
    for rank in range(N_PROCESSES):
        model(tokens(rank))
    largest = torch.cat([of.logits for of in recording.read().values()]).sort().values
    return float(largest[len(largest) // 2 - 1 : len(largest) // 2 + 1].mean())


def clipped(model: nn.Module, threshold: float, batches: list[Tensor]) -> dict[str, Tensor]:
    """Return the maxima and the weights after a step that only clips."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    clip = QKClip(model, optimizer, threshold)
    for batch in batches:
        out = model(batch)
        (out[0] if isinstance(out, tuple) else out.logits).square().mean().backward()
    optimizer.step()
    whole = {
        name.removeprefix("module."): (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().contiguous()
        for name, p in model.named_parameters()
    }
    for number, of in enumerate(clip.last.values()):
        whole |= {f"maxima of {number}": of.logits, f"exact of {number}": of.exact.float()}
    whole["n_clipped"] = torch.tensor(clip.n_clipped)
    clip.remove()
    return {name: values.clone() for name, values in whole.items()}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clips")
    together(N_PROCESSES, clip_all, root)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("case", CASES)
def test_processes_clip_by_the_largest_logit_of_all(clips: Path, case: str, sharing: str) -> None:
    """Criterion: both processes hold the weights and maxima of one process that saw both batches, and some but not all
    heads were clipped."""
    alone = clipped(model_of(case), threshold_of(case), [tokens(rank) for rank in range(N_PROCESSES)])
    assert 0 < alone["n_clipped"] < sum(len(of) for name, of in alone.items() if name.startswith("maxima"))
    for rank in range(N_PROCESSES):
        found = load_file(clips / f"{case}-{sharing}-{rank}.safetensors")
        assert found.keys() == alone.keys()
        for name, values in alone.items():
            torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_both_batches_matter(case: str) -> None:
    """Criterion: each batch has the larger maximum for some heads; otherwise the test above would prove little."""
    first, second = (clipped(model_of(case), 1e-3, [tokens(rank)]) for rank in range(N_PROCESSES))
    larger = torch.cat([first[name] > second[name] for name in first if name.startswith("maxima")])
    assert larger.any()
    assert not larger.all()


def clip_all(root: Path) -> None:
    """Run all cases as one of several processes."""
    rank = join_group()
    for case in CASES:
        threshold = threshold_of(case)
        for sharing in SHARING:
            found = clipped(shared(model_of(case), sharing), threshold, [tokens(rank)])
            save_file(found, root / f"{case}-{sharing}-{rank}.safetensors")
    torch.distributed.destroy_process_group()
