"""Measure how fast this machine multiplies matrices: the model FLOPs utilisation (MFU) is a share of this rate.

The rate is that of a large square product in the given precision (for fp32 on a GPU, torch's setting decides on TF32),
the best of a few tries, since a ceiling is wanted and not an average.
"""

import torch

from attractor.bench.stopwatch import Stopwatch

N_TRIES = 7
WIDTH = {"cpu": 2048, "cuda": 8192}  # of the square matrices
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def matrix_rate(precision: str, device: torch.device) -> float:
    """Return the FLOPs a second of the fastest product. All are queued at once, so that a GPU never waits."""
    n = WIDTH[device.type]
    a, b, product = (torch.rand(n, n, device=device).to(DTYPES[precision]) for _ in range(3))
    torch.mm(a, b, out=product)
    watch = Stopwatch(device)
    for _ in range(N_TRIES):
        watch.mark()
        torch.mm(a, b, out=product)
    watch.mark()
    return 2 * n**3 / min(watch.seconds())
