"""The tensors that autograd keeps for a backward pass, and the largest tensor that operations form."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def n_kept(run: Callable[[], Any], n_numbers: int) -> int:
    """Return how many tensors of so many numbers autograd keeps of a computation."""
    addresses = set()

    def note(x: Tensor) -> Tensor:
        if x.numel() == n_numbers:
            addresses.add(x.data_ptr())
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        run()
    return len(addresses)


class Largest(TorchDispatchMode):
    """Record the number of entries and of bytes of the largest tensor that any operation returns."""

    n_numbers = n_bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                self.n_numbers, self.n_bytes = max(self.n_numbers, leaf.numel()), max(self.n_bytes, leaf.nbytes)
        return found
