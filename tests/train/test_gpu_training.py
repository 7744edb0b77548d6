"""A GPU trains as a CPU does: the same losses and gradients, whatever the precision, compiled or replayed.

All need a GPU and compiled kernels: `TRITON_INTERPRET=0 pytest tests/train/test_gpu_training.py`.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from attractor.attention import PRESETS
from attractor.errors import RunInterrupted
from attractor.models import AKOrNConfig, FastSlowConfig, ItrSAConfig, RecursiveConfig, TransformerConfig
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.runs.run_folder import RunFolder
from attractor.study.launch import Job
from attractor.study.stacked import train_stacked
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train
from same_runs import newest_tensors

pytestmark = pytest.mark.gpu

SIZES: dict[str, Any] = {"vocab_size": 320, "d_model": 128, "n_heads": 4, "d_ff": 256, "max_seq_len": 128}
LAYERED = TransformerConfig(**SIZES, n_layers=2, positions="rope")
FAMILIES: dict[str, ModelConfig[LanguageModel]] = {
    "fast-slow": FastSlowConfig(**SIZES),
    "deq": FastSlowConfig(**SIZES, equilibrium="deq", slow_attention="decay"),
    "itrsa": ItrSAConfig(**SIZES, causal=True, n_iterations=4),
    "akorn": AKOrNConfig(**SIZES, causal=True, n_iterations=4),
    "recursive": RecursiveConfig(**SIZES, causal=True, n_inner=2, n_iterations=8, n_segments=2),
}
MODELS = {name: LAYERED.replace(attention=name) for name in PRESETS} | FAMILIES
COMPILED = ("standard", "mla", "differential", "coupled-hamiltonian", "psiqrh", "decay", *FAMILIES)
REPLAYED = ("standard", "coupled-hamiltonian", "differential", "psiqrh")
STACKED = ("standard", "coupled-hamiltonian", "differential")
WAYS: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "muon": {"optimizer": "muon"},
    "recomputed": {"activation_checkpointing": True},
}


def config_of(name: str, folder: Path, **changes: Any) -> TrainConfig:
    """Return twelve steps on a text that is neither constant nor random."""
    text = folder / "squares.txt"
    if not text.exists():
        text.write_text("".join(f"{i} squared is {i * i}\n" for i in range(4_000)))
    steps: dict[str, Any] = {"n_steps": 12, "warmup_steps": 2, "eval_every": 6, "eval_batches": 2}
    config = TrainConfig(MODELS[name], Text(str(text)))
    return config.replace(**steps, batch_size=8, seq_len=128, lr=1e-3, **changes)


def losses_of(config: TrainConfig, folder: Path, **runtime: Any) -> list[float]:
    train(config, folder, Runtime(device="cuda", log_every=1, telemetry_every=None, **runtime))
    return stored_losses(folder)


def stored_losses(folder: Path) -> list[float]:
    return [record["loss"] for record in RunFolder.open(folder).metrics() if "loss" in record]


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_a_cpu(name: str) -> None:
    """Criterion: in fp32 the loss agrees to 1e-5 and every gradient to 1e-3 of its norm, or of the largest norm's
    thousandth part. All parameters are moved off their special starting values."""
    model = MODELS[name].build(0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    tokens = torch.randint(0, 320, (4, 129), generator=torch.Generator().manual_seed(0))
    seen: list[Any] = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)  # recurrent models start from noise
        model.to(device).zero_grad()
        loss, aux_loss = model.loss(tokens[:, :-1].to(device), tokens[:, 1:].to(device))
        (loss + aux_loss).backward()
        seen += [loss.item(), {key: p.grad.cpu().clone() for key, p in model.named_parameters() if p.grad is not None}]
    loss, gradients, loss_there, gradients_there = seen
    assert loss_there == pytest.approx(loss, rel=1e-5)
    assert gradients.keys() == gradients_there.keys()
    least = 1e-3 * max(float(gradient.norm()) for gradient in gradients.values())
    for key, gradient in gradients.items():
        assert (gradients_there[key] - gradient).norm() <= 1e-3 * gradient.norm().clamp(min=least), key


@pytest.mark.parametrize("name", MODELS)
def test_half_precision_trains_as_fp32_does(name: str, tmp_path: Path) -> None:
    """Criterion: every loss of twelve steps lies within 1% of fp32's. In fp16 the scaler may skip early steps, so there
    the losses before the first step alone must agree."""
    wanted = losses_of(config_of(name, tmp_path), tmp_path / "fp32")
    brain = losses_of(config_of(name, tmp_path, precision="bf16"), tmp_path / "bf16")
    torch.testing.assert_close(brain, wanted, rtol=1e-2, atol=0.0)
    half = losses_of(config_of(name, tmp_path, precision="fp16"), tmp_path / "fp16")
    torch.testing.assert_close(half[:1], wanted[:1], rtol=1e-2, atol=0.0)
    assert half[-1] < half[0] - 0.5 * (wanted[0] - wanted[-1])


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(way: str, tmp_path: Path, interrupt_during: Any) -> None:
    """Criterion: weights agree to 1e-3 of their norm, since a GPU adds in another order each time; the scaler's state
    is equal."""
    config = config_of("coupled-euler", tmp_path, dropout=0.1, **WAYS[way])
    runtime = Runtime(device="cuda")
    train(config, tmp_path / "whole", runtime)
    interrupt_during([7])
    with pytest.raises(RunInterrupted):
        train(config, tmp_path / "parts", runtime)
    torch.manual_seed(5)
    train(config, tmp_path / "parts", runtime)
    whole, parts = newest_tensors(tmp_path / "whole"), newest_tensors(tmp_path / "parts")
    for key, weight in whole["weights"].items():
        assert (parts["weights"][key] - weight).float().norm() <= 1e-3 * weight.float().norm(), key
    assert whole["scaler"] == parts["scaler"]


@pytest.mark.parametrize("name", PRESETS)
def test_decoding_with_a_cache_gives_the_tokens_without_one(name: str) -> None:
    model = MODELS[name].build(0).eval()
    with torch.no_grad():  # sharper logits, so that greedy choices do not depend on rounding
        model.embedding.weight.mul_(20)
    model = model.to("cuda")
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [10]]
    cached = model.generate(prompts, max_new_tokens=12, temperature=0.0)
    assert torch.equal(cached, model.generate(prompts, max_new_tokens=12, temperature=0.0, use_cache=False))


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_run_has_the_losses_of_an_eager_one(name: str, tmp_path: Path) -> None:
    """The shape checks that conftest adds to signatures cannot be compiled, so each run has a process of its own."""
    command = [sys.executable, __file__, name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def compiled_losses(name: str, folder: Path) -> None:
    """Compare compiled losses of a model with eager ones in fp32 and bf16. For some models, also compare those of
    replayed steps and of stacked seeds.

    Criterion: fp32 agrees to 1e-4, bf16 to 1%.
    """
    wanted = losses_of(config_of(name, folder), folder / "eager")
    for precision, rtol in (("fp32", 1e-4), ("bf16", 1e-2)):
        config = config_of(name, folder, compile=True, precision=precision)
        torch.compiler.reset()
        compiled = losses_of(config, folder / precision)
        torch.testing.assert_close(compiled, wanted, rtol=rtol, atol=0.0, msg=partial("{}: {}".format, precision))
    if name in REPLAYED:
        torch.compiler.reset()
        config = config_of(name, folder, compile=True, precision="bf16")
        replayed = losses_of(config, folder / "graphs", cuda_graphs=True)
        torch.testing.assert_close(replayed, wanted, rtol=1e-2, atol=0.0, msg=partial("replayed: {}".format))
    if name in STACKED:
        for compiled_stack in (False, True):
            torch.compiler.reset()
            config = config_of(name, folder, compile=compiled_stack)
            jobs = [Job(config.replace(seed=seed), folder / f"stack-{compiled_stack}-{seed}") for seed in (0, 1)]
            train_stacked(jobs, Runtime(device="cuda", log_every=1, telemetry_every=None))
            message = partial("stacked, compile {}: {}".format, compiled_stack)
            torch.testing.assert_close(stored_losses(jobs[0].path), wanted, rtol=1e-4, atol=0.0, msg=message)


if __name__ == "__main__":
    compiled_losses(sys.argv[1], Path(sys.argv[2]))
