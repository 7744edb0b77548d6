"""Measure what QuacK adds to a step of fused AdamW: the time in its hooks, against the time between them.

Both are taken within the same step, so that a busy machine disturbs both alike. Other processes only ever add time, so
the lower quartile over many steps is disturbed least.

    python benchmarks/quack_cost.py --clock processor
"""

import argparse
import time
from collections.abc import Callable
from statistics import quantiles

import torch

from attractor.control import QuacK
from attractor.models import TransformerConfig

SIZES = {"small": (8, 512, 8), "medium": (12, 768, 12)}  # layers, width and heads
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}


def hook_and_step_seconds(
    size: str, attention: str, norm: str, clock: Callable[[], float], n_steps: int
) -> tuple[list[float], list[float]]:
    """Return the seconds in QuacK's hooks and in the bare optimizer's step, for every step."""
    n_layers, width, n_heads = SIZES[size]
    config = TransformerConfig(
        vocab_size=50257, d_model=width, n_heads=n_heads, n_layers=n_layers, d_ff=4 * width, attention=attention
    )
    model = config.build(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for parameter in model.parameters():
        parameter.grad = 1e-3 * torch.randn_like(parameter)
    moments: list[float] = []

    def note(*of_the_step: object) -> None:
        moments.append(clock())

    def surround() -> None:
        optimizer.register_step_pre_hook(note)
        optimizer.register_step_post_hook(note)

    surround()
    QuacK(model, optimizer, norm=norm)
    surround()
    for _ in range(n_steps + 3):
        optimizer.step()
    steps = [moments[first : first + 4] for first in range(12, len(moments), 4)]  # the first three steps warm up
    return [b - a + d - c for a, b, c, d in steps], [c - b for _, b, c, _ in steps]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--attention", default="standard", help="the preset of attention")
    parser.add_argument("--norm", choices=("frobenius", "spectral"), default="frobenius")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    hooks, bare = hook_and_step_seconds(
        options.size, options.attention, options.norm, CLOCKS[options.clock], options.steps
    )
    shares = [hook / step for hook, step in zip(hooks, bare, strict=True)]
    for name, values, factor, unit in (
        ("step", bare, 1e3, "ms"),
        ("hooks", hooks, 1e3, "ms"),
        ("share", shares, 100, "%"),
    ):
        low, middle, high = (factor * value for value in quantiles(values, n=4))
        print(f"{name:6} {middle:6.1f} {unit} (quartiles {low:.1f} to {high:.1f})")
