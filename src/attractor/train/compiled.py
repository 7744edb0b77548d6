"""torch.compile of the loss as one graph of fixed shapes, and a clock for the seconds that compiling takes.

A batch that is padded to its longest sequence has another length at every step. There shapes stay free, because a graph
for each length would be compiled in vain. CUDA graphs replay recorded launches, for steps so small that launching takes
longer than computing. Validation is not compiled, since its last batch is smaller.

On one GPU a run is compiled by default if it would take minutes otherwise: an H200 compiled a stack of small models in
25 s, and an eager step of 59M parameters reaches 17% of its peak in bf16. What compiling gains there is *not measured*;
public scripts of that size reach 40% on an H100 with it.

On a CPU, torch's compiler (Inductor) writes C++. GCC 12 compiles one of its loops wrongly: the sum of two transposed
half-precision arrays and a third one, in vectors of 512 bits, for a processor that is newer than this GCC, so that GCC
tunes the code for none in particular. The gradients of PsiQRH in bf16 became NaN there. Vectors of 256 bits avoid that
loop, and a step takes 9% longer (LOG.md, 2026-11-26).
"""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch

from attractor.attention import Whole
from attractor.errors import require
from attractor.files import cache_folder, refuse_open_folder
from attractor.kernels.precision import HALF_PRECISIONS
from attractor.train.config import Runtime, TrainConfig
from attractor.train.hardware import PEAK_FLOPS
from attractor.train.parts import training_flops_per_token

Loss = Callable[..., Any]
EAGER_SHARE = 0.17  # of a GPU's peak, which an eager step reaches
SAID = "the loss is compiled, as it is by default in long runs on one GPU; --no-compile leaves it out"
PAYS_FROM = 300.0  # seconds of an eager run, from which compiling takes a small part of what it saves
CACHE = "TORCHINDUCTOR_CACHE_DIR"  # environment variable of torch


def compiling_pays(config: TrainConfig, gpu: str | None) -> bool:
    """Return whether to compile a run on a GPU of this name, where a person does not say. None is no GPU.

    A layer that joined whole is not compiled unasked, since nothing is known of its code.
    """
    if gpu is None or any(isinstance(mechanism, Whole) for mechanism in config.model.mechanisms):
        return False
    peak = next((peak for name, peak in PEAK_FLOPS.items() if name in gpu), min(PEAK_FLOPS.values()))
    tokens = config.n_steps * config.tokens_per_step
    return training_flops_per_token(config.model, config.seq_len) * tokens / (EAGER_SHARE * peak) >= PAYS_FROM


def refuse_cuda_graphs(config: TrainConfig, device: torch.device) -> None:
    """Refuse CUDA graphs without a GPU or without compile."""
    why = "they replay what a compiled loss launches on a GPU"
    require(device.type == "cuda", "cuda_graphs", f"off on device {device}: {why}", True, "leave it out")
    require(config.compile, "cuda_graphs", f"off without compile: {why}", True, "give compile, too")


def compiler(config: TrainConfig, runtime: Runtime, padded: bool) -> Callable[[Loss], Loss]:
    """Return the function that compiles a loss, or returns it as it is without `compile`."""
    if config.compile or any(mechanism.window is not None for mechanism in config.model.mechanisms):
        own_cache()  # windows may train by FlexAttention, which is always compiled
    if not config.compile:
        return lambda loss: loss
    options: dict[str, Any] = {} if padded else {"dynamic": False}
    if runtime.cuda_graphs:
        options["mode"] = "reduce-overhead"  # excludes `options`, which matter on a CPU alone
    else:
        options |= vector_options(config.precision)
    return partial(torch.compile, **options)


def own_cache() -> None:
    """Let torch keep compiled code, which it executes, where nobody else can write: its own choice is a folder of /tmp
    with a name that anybody can foresee."""
    folder = cache_folder() / "compiled"
    if CACHE not in os.environ:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        refuse_open_folder(folder)
        os.environ[CACHE] = str(folder)


def vector_options(precision: str) -> dict[str, Any]:
    """Return the options of torch.compile that limit the width of vectors, where wider ones could be wrong."""
    at_risk = precision in HALF_PRECISIONS and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return {"options": {"cpp.simdlen": 256}} if at_risk else {}


class CompileClock:
    """Inside the `with`, `seconds` counts the time in which torch compiles or recompiles."""

    def __init__(self, runs: bool) -> None:
        self.runs, self.seconds = runs, 0.0
        self._started = 0.0

    def __enter__(self) -> Self:
        if self.runs:  # importing the compiler takes seconds
            from torch._dynamo.callback import callback_handler

            callback_handler.register_start_callback(self._start)
            callback_handler.register_end_callback(self._end)
        return self

    def __exit__(self, *_: object) -> None:
        if self.runs:
            from torch._dynamo.callback import callback_handler

            callback_handler.remove_start_callback(self._start)
            callback_handler.remove_end_callback(self._end)

    def _start(self, *_: Any) -> None:
        self._started = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self._started
