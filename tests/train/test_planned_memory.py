"""The planned memory of a run equals exact counts and torch's use for real tensors, and never exceeds that of runs."""

import weakref
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from attractor.models import FastSlowConfig, ItrSAConfig, RecursiveConfig, TransformerConfig
from attractor.runs.run_folder import RunFolder
from attractor.tasks.sudoku import Sudoku
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.loop import Run
from attractor.train.memory import LiveStorages, ProcessLayout, planned_memory
from attractor.train.optimizer import build_optimizer
from attractor.train.parts import forward_flops
from attractor.train.plan import plan_run
from attractor.train.recompute import SAVED_OPS
from tiers import fast_alone

WIDTHS: dict[str, Any] = {"d_model": 32, "n_heads": 4, "d_ff": 64}
MODEL = TransformerConfig(**WIDTHS, vocab_size=320, n_layers=2, max_seq_len=64)
CONFIG = TrainConfig(MODEL, Text(), n_steps=4, batch_size=8, seq_len=64, warmup_steps=0)
RECURSIVE = RecursiveConfig(**WIDTHS, n_layers=1, n_inner=1, n_iterations=12, n_segments=2)  # six iterations in a step
CASES = {
    "standard": CONFIG,
    "coupled": CONFIG.replace(attention="coupled-euler"),
    "differential": CONFIG.replace(attention="differential"),
    "long sequence": CONFIG.replace(seq_len=512, max_seq_len=512, batch_size=2),
    "large vocabulary": CONFIG.replace(vocab_size=20_000, batch_size=2),
    "window": CONFIG.replace(seq_len=512, max_seq_len=512, batch_size=2, window=16),
    "softcap": CONFIG.replace(softcap=20.0),
    "bf16": CONFIG.replace(precision="bf16"),
    "activation checkpointing": CONFIG.replace(activation_checkpointing=True),
    "cheap": CONFIG.replace(activation_checkpointing=True, recompute="cheap"),
    "fast-slow": CONFIG.replace(model=FastSlowConfig(**WIDTHS, max_seq_len=64, pool_factor=4), batch_size=4),
    "recurrent": TrainConfig(ItrSAConfig(**WIDTHS, n_iterations=3), Sudoku(), batch_size=4, seq_len=81),
    "recursive": TrainConfig(RECURSIVE, Sudoku(), batch_size=4, seq_len=81),
    "recursive, full gradient": TrainConfig(RECURSIVE.replace(full_gradient=True), Sudoku(), batch_size=4, seq_len=81),
}


def counted_for_real(config: TrainConfig) -> tuple[int, int]:
    """Return the bytes after the forward pass and the peak bytes of a micro-batch of real tensors."""
    model = config.model.build(0)
    model.train()
    model.activation_checkpointing = config.activation_checkpointing
    model.saved_ops = SAVED_OPS[config.recompute]
    rows = config.batch_size // config.accumulation
    tokens = torch.zeros(rows, config.seq_len, dtype=torch.long)
    half = {"bf16": torch.bfloat16}.get(config.precision)
    with LiveStorages() as live:
        with torch.autocast("cpu", half, enabled=half is not None):
            loss, aux_loss = model.loss(tokens, tokens)
        after_forward = live.now
        (loss + aux_loss).backward()
    return after_forward, live.peak


@pytest.mark.parametrize("name", fast_alone(CASES, "standard", "fast-slow", "recursive"))
def test_activations_are_those_of_real_tensors(name: str) -> None:
    """Criterion: the count without data equals that on real tensors within 1%."""
    config = CASES[name]
    after_forward, at_most = counted_for_real(config)
    memory = planned_memory(config)
    assert memory.activations == pytest.approx(after_forward, rel=0.01)
    working = memory.total - memory.batch - memory.parameters - memory.optimizer
    assert working == pytest.approx(max(at_most, memory.gradients), rel=0.01)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_model_and_its_optimizer_are_counted_exactly(optimizer: str) -> None:
    config = CONFIG.replace(optimizer=optimizer, ema=0.9)
    model = config.model.build(0)
    moving = build_optimizer(model, config)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    moving.step()
    n_bytes = sum(p.numel() * 4 for p in model.parameters())
    moments = sum(x.numel() * 4 for state in moving.state.values() for x in state.values() if x.dim())
    scalars = 4 * sum(x.dim() == 0 for state in moving.state.values() for x in state.values())
    of_scalar_parameters = 8 * sum(p.dim() == 0 for p in model.parameters())
    memory = planned_memory(config)
    assert (memory.parameters, memory.gradients, memory.average) == (n_bytes, n_bytes, n_bytes)
    assert memory.optimizer == pytest.approx(moments + of_scalar_parameters, abs=scalars)


def test_layers_beyond_the_third_are_like_it() -> None:
    """Criterion: the count for eight layers equals torch's count of all eight."""
    deep = CONFIG.replace(n_layers=8)
    after_forward, at_most = counted_for_real(deep)
    memory = planned_memory(deep)
    assert memory.parameters == sum(p.numel() * 4 for p in deep.model.build(0).parameters())
    assert memory.activations == pytest.approx(after_forward, rel=0.01)
    working = memory.total - memory.batch - memory.parameters - memory.optimizer
    assert at_most * 0.9 <= working <= at_most * 1.001


def test_accumulation_needs_less_memory_and_holds_gradients_and_activations() -> None:
    whole, parts = planned_memory(CONFIG), planned_memory(CONFIG.replace(accumulation=4))
    assert parts.activations < whole.activations / 3
    assert parts.total >= parts.batch + parts.parameters + parts.optimizer + parts.gradients + parts.activations
    assert planned_memory(CONFIG.replace(activation_checkpointing=True)).total < whole.total


def test_every_layer_is_counted_where_some_have_a_window() -> None:
    """Criterion: a single global layer that is not among the first three is counted."""
    config = CONFIG.replace(n_layers=5, softcap=20.0, seq_len=256, max_seq_len=256, window=4)
    some, none = (planned_memory(config.replace(global_layers=layers)).activations for layers in ("4", "every:9"))
    assert some - none > 8 * 4 * 256 * 256 * 4  # the size of one map of logits for every head


@pytest.mark.slow
def test_a_model_whose_cost_depends_on_data_is_planned_by_its_embeddings() -> None:
    """The number of iterations of an equilibrium depends on the data, so the plan is only a lower bound."""
    model = FastSlowConfig(**WIDTHS, max_seq_len=64, equilibrium="deq")
    assert planned_memory(CONFIG.replace(model=model)).activations >= 8 * 64 * 32 * 4


def test_enormous_sizes_are_planned_in_python_integers() -> None:
    for changes in ({"d_model": 2**28, "n_heads": 2**20}, {"batch_size": 10**30}, {"vocab_size": 2**28}):
        assert planned_memory(CONFIG.replace(**changes)).total > 2**36, changes
    endless = CONFIG.replace(n_layers=10**8)
    assert planned_memory(endless).parameters > 10**8 * planned_memory(CONFIG).parameters / 10


def test_neither_planning_nor_counting_draws_a_random_number() -> None:
    """Otherwise the noise of a run would depend on whether its process has counted such a model before."""
    before = torch.get_rng_state()
    planned_memory(CONFIG.replace(d_ff=72, dropout=0.1))
    forward_flops(ItrSAConfig(d_model=24, n_heads=2, max_seq_len=9), 9)
    plan_run(CONFIG.replace(n_layers=3, attention="coupled-euler"), CONFIG.build_task())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_storage_counts_once_and_until_its_last_reference_ends() -> None:
    with LiveStorages() as live:
        x = torch.zeros(100)
        view = x.view(10, 10)
        assert live.now == 400
        seen = weakref.ref(x)
        del x
        assert live.now == 400, "the view holds it"
        del view
        assert (live.now, live.peak, seen()) == (0, 400, None)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_process_of_several_holds_its_share(parallel: str) -> None:
    """Criterion: under fsdp a process holds a quarter of each tensor, rounded up to whole rows, and one layer and the
    rest in full."""
    config = CONFIG.replace(batch_size=8)
    alone = planned_memory(config.replace(batch_size=2))
    each = planned_memory(config, ProcessLayout(4, parallel))
    assert each.activations == alone.activations, "two of eight sequences"
    if parallel == "ddp":
        assert (each.parameters, each.optimizer, each.gathered) == (alone.parameters, alone.optimizer, 0)
        return
    model = config.model.build(0)
    quarter = sum(-(-p.shape[0] // 4) * p[0].numel() * 4 for p in model.parameters())
    layer = sum(p.numel() * 4 for p in model.layers[0].parameters())
    rest = sum(p.numel() * 4 for p in model.parameters()) - 2 * layer
    assert (each.parameters, each.optimizer, each.gathered) == (quarter, 2 * quarter, layer + rest)


def peak_of_two_steps(config: TrainConfig, folder: Path) -> int:
    run = Run(config, RunFolder.create(folder, config.to_dict()), config.build_task(), Runtime("cpu", 1), Display())
    for _ in range(2):
        run.unread.append(run.take_step())
        run.read_steps()
    return run.memory.read()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["standard", "coupled", "large vocabulary", "activation checkpointing"])
def test_a_run_needs_at_least_what_is_planned(name: str, tmp_path: Path) -> None:
    """Criterion: the measured peak of a run's first steps is at least the plan, so that no run that fits is refused.

    The run has a process of its own: in this one it would use memory that earlier tests left, which is not counted.
    """
    config = replace(CASES[name], batch_size=32)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        assert process.submit(peak_of_two_steps, config, tmp_path).result() >= planned_memory(config).total
