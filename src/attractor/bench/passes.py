"""The passes of one model over one batch, and the seconds of each.

    forward            without gradients, as in evaluation                                                  (1)
    forward+backward   with gradients                                                                       (2)
    step               (2) and the update by AdamW                                                          (3)

(2) and (3) are read from the same step. The batch is on the device before timing begins.
"""

import torch

from attractor.bench.cases import model_and_loss, tokens_of
from attractor.bench.shape import BenchShape
from attractor.bench.stopwatch import Stopwatch
from attractor.kernels.precision import autocast, quick_products
from attractor.train.compiled import own_cache, vector_options

PASSES = ("forward", "forward+backward", "step")
RECOMPILE_LIMIT = 64  # graphs that the compiler may keep of one function; every model needs two


class Passes:
    def __init__(self, name: str, shape: BenchShape, precision: str, compiled: bool, device: torch.device) -> None:
        self.model, self.loss = model_and_loss(name, shape, device)
        if compiled:
            torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
            own_cache()
            self.loss = torch.compile(self.loss, dynamic=False, **vector_options(precision))
        self.model.train()
        self.tokens = tokens_of(shape, device)
        self.precision, self.device = precision, device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    @property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def __call__(self) -> dict[str, float]:
        watch = Stopwatch(self.device)
        watch.mark()
        with torch.no_grad(), autocast(self.device, self.precision):
            self.loss(self.tokens)  # (1)
        watch.mark()
        with quick_products(self.device, self.precision):
            with autocast(self.device, self.precision):
                value = self.loss(self.tokens)
            value.backward()  # (2)
        watch.mark()
        self.optimizer.step()  # (3)
        self.optimizer.zero_grad(set_to_none=True)
        watch.mark()
        forward, both, update = watch.seconds()
        return dict(zip(PASSES, (forward, both, both + update), strict=True))
