"""A compiled loss is one graph for all steps, its compile time is reported separately, and CUDA graphs are optional.

The compiler would take longer than all these tests, so a backend that only traces stands in for it. It runs in a
process of its own, since the shape checks that conftest adds to signatures cannot be traced.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from attractor.errors import InputError
from attractor.models import TransformerConfig
from attractor.runs.run_folder import RunFolder
from attractor.tasks.text import Text
from attractor.train.compiled import CACHE, compiler, own_cache, refuse_cuda_graphs, vector_options
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train
from same_runs import Listening

MODEL = TransformerConfig(vocab_size=320, d_model=16, n_heads=2, n_layers=1, d_ff=32, max_seq_len=64, positions="rope")
WAYS: dict[str, dict[str, Any]] = {
    "accumulated": {"accumulation": 2},
    "recomputed": {"activation_checkpointing": True, "recompute": "cheap", "accumulation": 2},
}
COMPILING = 600.0  # seconds that the clock jumps forward while the stand-in compiles; six steps take far less


@pytest.mark.slow
def test_a_run_compiles_once_and_reports_the_time() -> None:
    """Criterion: one graph serves micro-batches, checkpoints and three evaluations with smaller last batches. Losses
    equal those of an eager run. Compile time is in `compile_seconds` and the console, and not in the seconds of
    training."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == list(WAYS)


def test_compiled_code_is_kept_where_nobody_else_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTRACTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(CACHE, "chosen")
    own_cache()
    assert os.environ[CACHE] == "chosen"
    monkeypatch.delenv(CACHE)
    compiler(TrainConfig(model=MODEL), Runtime(), padded=False)
    assert CACHE not in os.environ, "nothing is compiled"
    # A window may train by FlexAttention, which is compiled in any run.
    compiler(TrainConfig(model=MODEL.replace(window=8)), Runtime(), padded=False)
    place = Path(os.environ[CACHE])
    assert place.is_relative_to(tmp_path)
    assert place.stat().st_mode & 0o777 == 0o700
    place.chmod(0o770)
    monkeypatch.delenv(CACHE)
    with pytest.raises(InputError, match="must be yours alone"):
        own_cache()


def test_the_config_decides_the_options_of_torch_compile(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: nothing is compiled by default; shapes are fixed unless batches are padded; CUDA graphs are used on
    request."""
    asked: list[dict[str, Any]] = []

    def compile_as(loss: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        asked.append(options)
        return loss

    monkeypatch.setattr(torch, "compile", compile_as)
    compiled, graphs = config.replace(compile=True), Runtime(cuda_graphs=True)
    assert compiler(config, Runtime(), False)(print) is print
    for runtime, padded in ((Runtime(), False), (Runtime(), True), (graphs, False)):
        assert compiler(compiled, runtime, padded)(print) is print
    assert asked == [{"dynamic": False}, {}, {"dynamic": False, "mode": "reduce-overhead"}]


@pytest.mark.parametrize(
    ("capability", "precision", "options"),
    [
        ("AVX512", "bf16", {"options": {"cpp.simdlen": 256}}),
        ("AVX512_VNNI", "fp16", {"options": {"cpp.simdlen": 256}}),
        ("AVX512", "fp32", {}),
        ("AVX2", "bf16", {}),
    ],
)
def test_vectors_are_narrow_where_wide_ones_could_be_wrong(
    capability: str, precision: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert vector_options(precision) == options


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # the compiler's own
def test_a_compiled_sum_of_transposed_arrays_is_right_in_half_precision() -> None:
    """Without the options, 80% of the sum is wrong where GCC 12 does not know a processor that has AVX-512."""

    def total(halves: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        first, second = (half.transpose(2, 3).transpose(1, 2).flatten(2).float() for half in halves.chunk(2, dim=2))
        return (0.3 * first + 0.5 * second + rest.float()).to(rest.dtype)

    drawn = torch.Generator().manual_seed(0)
    halves = torch.randn(4, 2, 256, 128, generator=drawn).bfloat16()
    rest = torch.randn(4, 128, 256, generator=drawn).bfloat16()
    compiled = torch.compile(total, dynamic=False, **vector_options("bf16"))
    torch.testing.assert_close(compiled(halves, rest), total(halves, rest))


def test_cuda_graphs_are_refused_without_a_gpu_or_a_compiled_loss(config: TrainConfig, tmp_path: Path) -> None:
    compiled = config.replace(compile=True)
    reason = "they replay what a compiled loss launches on a GPU"
    with pytest.raises(InputError, match=f"cuda_graphs must be off on device cpu: {reason}, got True; leave it out"):
        train(compiled, tmp_path / "run", Runtime(device="cpu", cuda_graphs=True))
    with pytest.raises(InputError, match=f"cuda_graphs must be off without compile: {reason}, got True; give compile"):
        refuse_cuda_graphs(config, torch.device("cuda"))
    refuse_cuda_graphs(compiled, torch.device("cuda"))


def compiled_run(root: Path, name: str) -> None:
    from torch._dynamo.backends.debugging import aot_eager

    graphs = []
    real_clock = time.perf_counter
    time.perf_counter = lambda: real_clock() + COMPILING * len(graphs)

    def slowly(graph: torch.fx.GraphModule, inputs: list[torch.Tensor], **_: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return aot_eager(graph, inputs)

    (root / "text.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(400)))
    steps = {"n_steps": 6, "batch_size": 6, "seq_len": 16, "warmup_steps": 1, "eval_every": 2, "eval_batches": None}
    config = TrainConfig(MODEL, Text(str(root / "text.txt"))).replace(**steps, **WAYS[name])
    runtime, display = Runtime(device="cpu", threads=1, log_every=1, telemetry_every=None), Listening()
    plain = train(config, root / f"{name}-plain", runtime)
    torch.compiler.reset()
    asked_for = torch.compile
    torch.compile = partial(asked_for, backend=slowly)
    try:
        compiled = train(config.replace(compile=True), root / name, runtime, display)
    finally:
        torch.compile, time.perf_counter = asked_for, real_clock
    assert len(graphs) == 1, graphs
    records = [RunFolder.open(root / run).metrics() for run in (f"{name}-plain", name)]
    losses = [[record["loss"] for record in of_run if "loss" in record] for of_run in records]
    torch.testing.assert_close(losses[0], losses[1])
    assert compiled["compile_seconds"] > COMPILING
    assert 0 < compiled["wall_seconds"] < COMPILING
    assert "compile_seconds" not in plain
    (note,) = [note for note in display.notes if note.startswith("compiled in ")]
    assert float(note.split()[2]) >= COMPILING - 0.05


if __name__ == "__main__":
    import tempfile

    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            compiled_run(Path(folder), way)
        print(way)
