"""A step under QuacK holds a copy of the query and key weights beyond the optimizer's own memory, and little else."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from attractor import control
from attractor.models import TransformerConfig

MODEL = TransformerConfig(vocab_size=16, d_model=256, n_heads=4, n_layers=3, d_ff=64, max_seq_len=8, positions="rope")


class NewTensors(TorchDispatchMode):
    """Record the bytes of new storages that are alive, and their peak. Operations in place create no storage."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.alive = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.known:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        name, n_bytes = storage._cdata, storage.nbytes()
        self.known.add(name)
        self.alive += n_bytes
        self.peak = max(self.peak, self.alive)

        def gone() -> None:
            self.known.discard(name)
            self.alive -= n_bytes

        weakref.finalize(storage, gone)


@pytest.mark.parametrize(("norm", "at_most"), [("frobenius", 1.01), ("spectral", 1.10)])
def test_a_step_holds_the_query_and_key_weights_once_more(norm: str, at_most: float) -> None:
    model = MODEL.build(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    parts = [rows for view in control.query_key_heads(model) for rows in view.parts().values()]
    once = sum(rows.weight.numel() * rows.weight.element_size() for rows in parts)
    optimizer.step()  # this step creates the optimizer's own state
    state = [value for moments in optimizer.state.values() for value in moments.values()]
    known = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None), *state]

    def peak() -> int:
        with NewTensors(known) as new:
            optimizer.step()
        return new.peak

    bare = peak()
    control.QuacK(model, optimizer, tau=1.0, norm=norm)
    optimizer.step()
    assert 0.99 * once < peak() - bare <= at_most * once
