"""Measure what a window on the fast path of FastSlow saves in long sequences: the time and memory of a training step.

The baseline is the dense model of as many parameters: four layers of the same block. A dense model with the window
shows what the window alone saves, and a hybrid, whose last layer alone has no window, what local and global layers
save. (Gemma 3 has five local layers to a global one, which four layers cannot have; OLMo 3 has three.) The gate is
open. Models take turns on one thread; ratios are taken within a round.

    python papers/fast_slow/window_speed.py [LENGTH ...]
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from two_timescales import COUPLED, DENSE, flops, with_open_gate

from attractor.bench.alternate import alternate
from attractor.bench.cases import random_tokens
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.tasks.text import Text
from attractor.train.config import TrainConfig
from attractor.train.memory import planned_memory
from attractor.train.parts import without_data

WINDOW, WIDTH, LENGTHS = 256, 128, (4096, 16_384)
BASELINE = "dense"
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall clock": time.perf_counter, "processor time": time.process_time}


def configs(seq_len: int, window: int = WINDOW, width: int = WIDTH) -> dict[str, ModelConfig[LanguageModel]]:
    shape = {"max_seq_len": seq_len, "d_model": width, "d_ff": 4 * width}
    dense, coupled = DENSE.replace(**shape), COUPLED.replace(**shape)
    windowed = {"dense, window": dense.replace(window=window), "fast-slow, window": coupled.replace(window=window)}
    hybrid = dense.replace(window=window, global_layers=f"every:{dense.n_layers}")
    return {BASELINE: dense, "fast-slow": coupled, **windowed, "hybrid": hybrid}


def training_step(config: ModelConfig[LanguageModel], seq_len: int) -> Callable[[], None]:
    model, tokens = with_open_gate(config).train(), random_tokens(config.vocab_size, 1, seq_len)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        model.loss(tokens[:, :-1], tokens[:, 1:])[0].backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def main(lengths: Sequence[int], n_rounds: int = 3, clocks: Mapping[str, Clock] = CLOCKS) -> None:
    torch.set_num_threads(1)
    for seq_len in lengths:
        models = configs(seq_len)
        for clock_name, clock in clocks.items():
            steps = {name: training_step(config, seq_len) for name, config in models.items()}
            timings = alternate(steps, BASELINE, n_rounds, warm_up=1, clock=clock)
            for name, timing in timings.items():
                low, high = timing.spread
                print(
                    f"T={seq_len}, {clock_name}, {name}: {timing.median_seconds:.2f} s a step, {timing.ratio:.2f} "
                    f"({low:.2f} to {high:.2f}) times as fast as {BASELINE}",
                    flush=True,
                )
        for name, config in models.items():
            n_parameters = sum(parameter.numel() for parameter in without_data(config).parameters())
            run = TrainConfig(config, Text(), batch_size=1, seq_len=seq_len, warmup_steps=0)
            n_bytes, fewer = planned_memory(run).activations, flops(models[BASELINE], seq_len) / flops(config, seq_len)
            print(
                f"T={seq_len}, {name}: {n_parameters:,} parameters, {n_bytes / 1e6:.0f} MB of activations, "
                f"{fewer:.2f} times fewer FLOPs than {BASELINE}",
                flush=True,
            )


if __name__ == "__main__":
    main([int(length) for length in sys.argv[1:]] or LENGTHS)
