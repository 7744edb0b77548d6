"""Under DDP and FSDP2, two processes with QuacK compute what one process computes.

Two processes run all cases together, and this process runs their counterparts alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attractor.attention import PRESETS
from attractor.control.layouts import VIEWS, register_view
from attractor.control.quack import QuacK
from attractor.control.views import DotProduct, Rows
from attractor.models import TransformerConfig
from several_processes import join_group, together

N_STEPS = 4
CASES: dict[str, dict[str, Any]] = {
    "standard": {"attention": "standard", "qkv_bias": True},
    "mla": {"attention": "mla"},
    "mla with norms": {"attention": PRESETS["mla"].replace(latent_norm=True)},
    "cut heads": {"attention": "gqa", "n_heads": 5, "n_kv_heads": 1, "head_dim": 6},  # two processes share head 2
    "differential": {"attention": "differential"},
    "transposed": {},
}
NORMS = ("frobenius", "spectral")


class Transposed(nn.Module):
    """Attention whose heads are columns of one matrix; FSDP2 splits the rows, so each shard has a part of every
    head."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(0.3 * torch.randn((16, 48), generator=generator))
        self.bias = nn.Parameter(torch.zeros(48))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (4, 4)).transpose(1, 2) for part in (x @ self.weight + self.bias).split(16, 2))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class TransposedModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.embedding.weight.data = torch.randn((40, 16), generator=torch.Generator().manual_seed(1))
        self.blocks = nn.ModuleList([Transposed()])
        self.readout = nn.Linear(16, 40, bias=False)
        self.readout.weight.data = torch.randn((40, 16), generator=torch.Generator().manual_seed(2))

    def forward(self, tokens: Tensor) -> tuple[Tensor, float]:
        return self.readout(self.blocks[0](self.embedding(tokens))), 0.0


def view_of_transposed(name: str, module: nn.Module) -> DotProduct | None:
    if not isinstance(module, Transposed):
        return None
    query, key = (Rows(module.weight, tuple(range(at, at + 16, 4)), 4, module.bias, axis=1) for at in (0, 16))
    return DotProduct(name, module, query, key, (0, 1, 2, 3))


def build(case: str) -> nn.Module:
    if case == "transposed":
        return TransposedModel()
    config = {"vocab_size": 40, "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 24, "max_seq_len": 8} | CASES[case]
    return TransformerConfig(**config).build(seed=0)


def tokens(step: int) -> Tensor:
    return torch.randint(40, (4, 8), generator=torch.Generator().manual_seed(step))


def train(model: nn.Module, quack: QuacK, part: slice) -> None:
    """Train on this process's part of each batch; gradients are averaged over processes."""
    for step in range(N_STEPS):
        logits, aux_loss = model(tokens(step)[part])
        (nn.functional.cross_entropy(logits.flatten(0, 1), tokens(step)[part].flip(1).flatten()) + aux_loss).backward()
        quack.optimizers[0].step()
        quack.optimizers[0].zero_grad()


def outcome(case: str, norm: str, parallel: str) -> dict[str, Any]:
    if view_of_transposed not in VIEWS:
        register_view(view_of_transposed)
    model, part = build(case), slice(None)
    if parallel != "one":
        rank = torch.distributed.get_rank()
        part = slice(2 * rank, 2 * rank + 2)
    if parallel == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        fully_shard(model)
    run = nn.parallel.DistributedDataParallel(model) if parallel == "ddp" else model
    # The optimizer is plain SGD, since Adam divides a small gradient by its own size and so magnifies rounding.
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.1)
    quack = QuacK(model, optimizer, tau=0.7, norm=norm)
    train(run, quack, part)
    whole = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.named_parameters()}
    rates = {f"{layer} {part}": scales for layer, parts in quack.rates.items() for part, scales in parts.items()}
    return {
        "weights": {name: p.detach().clone() for name, p in whole.items()},
        "rates": rates,
        "state": quack.state_dict(),
    }


def train_all(folder: Path) -> None:
    """Run all cases as one of two processes."""
    rank = join_group()
    for case in CASES:
        for norm in NORMS:
            for parallel in ("ddp", "fsdp"):
                torch.save(outcome(case, norm, parallel), folder / f"{case} {norm} {parallel} {rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("outcomes")
    together(2, train_all, path)
    yield path
    VIEWS.remove(view_of_transposed)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("case", CASES)
def test_two_processes_compute_what_one_computes(folder: Path, case: str, norm: str, parallel: str) -> None:
    """Criterion: weights, rates and state agree up to the order of summation; both processes hold the same rates to the
    bit."""
    both = [torch.load(folder / f"{case} {norm} {parallel} {rank}.pt", weights_only=True) for rank in (0, 1)]
    torch.testing.assert_close(both[0]["rates"], both[1]["rates"], rtol=0, atol=0)
    wanted = outcome(case, norm, "one")
    assert max(float((scales / 0.7 - 1).abs().max()) for scales in wanted["rates"].values()) > 0.05
    for what in ("weights", "rates"):
        torch.testing.assert_close(both[0][what], wanted[what], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(both[0]["state"]["initial"], wanted["state"]["initial"], rtol=1e-5, atol=0)
