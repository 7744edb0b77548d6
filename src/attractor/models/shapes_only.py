"""Build models whose weights have shapes but no numbers, quickly, and give them memory afterwards.

Two steps on the meta device would otherwise import much of torch. The first normal distribution that is drawn there
loads torch's compiler (two seconds), and `Module.to_empty` loads its symbolic shapes (one second).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


@contextmanager
def shapes_only() -> Iterator[None]:
    """Build modules on the meta device, without drawing their weights."""
    with torch.device("meta"), _Undrawn():
        yield


def allocate(model: nn.Module, device: str) -> None:
    """Give parameters and buffers memory on a device. Their numbers are whatever was there before."""
    model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device))


class _Undrawn(TorchFunctionMode):
    """Within the context, functions of `torch.nn.init` return their tensor as it is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":  # methods of tensors have no module
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
