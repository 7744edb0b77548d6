"""Train one model under several seeds at once: their weights are stacked, and one pass gives the gradients of all.

    L_s = loss(row s, batch s);   G = d sum_s L_s / d W, whose row s is the gradient of model s             (1)
    n_s = |G_s|,   G_s <- G_s min(1, clip / n_s)                                                            (2)
    A step of model s's own optimizer where L_s + n_s is finite. Any other model keeps its weights, and its
    step does not count. After `max_bad_steps` consecutive non-finite steps, a model never changes again    (3)

Rows never mix, so each model learns as it would alone. A step never waits for the device: its loss and gradient norm
stay there as tensors until the training loop reads them.

For small models on a GPU, launching operations takes longer than computing them. There the pass is traced once and
replayed as a plain list of operations. Without autograd and vmap, a step costs the host about half. With `compile`,
torch's compiler takes this list.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from attractor.kernels.cross_entropy import NOT_SCORED, SMALL, linear_cross_entropy
from attractor.kernels.vmap_attention import attention_under_vmap
from attractor.models.language_model import LanguageModel
from attractor.tasks import Batch
from attractor.train.device_decisions import StepDecisions, step_where
from attractor.train.distributed import n_scored, with_scored_targets
from attractor.train.hardware import moved, on_device
from attractor.train.optimizer import set_rate

NUMBERS = ("loss", "grad_norm", "param_norm", "finite")  # what a step returns for each model
ALIGNED = 64  # the number of weights in a row is a multiple of this, so that kernels can load several at once


class Stack:
    """The weights of S models as rows. The parameters of the models become views of their rows.

    `traced` says whether the pass is replayed from a trace. With a `compiler` it always is, and the trace is compiled.
    """

    def __init__(
        self,
        models: Sequence[LanguageModel],
        optimizers: Sequence[torch.optim.AdamW],
        autocast: Callable[[], AbstractContextManager[None]],
        clip: float | None,
        max_bad_steps: int,
        bad_steps: Sequence[int],
        traced: bool,
        compiler: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        self.models, self.optimizers = models, optimizers
        self.autocast, self.clip = autocast, clip
        self.traced, self.compiler = traced or compiler is not None, compiler
        self.template = _Caller(models[0])
        names = {id(parameter): name for name, parameter in self.template.named_parameters()}
        order = _in_order(optimizers[0])
        assert len(order) == len(names), "the stack has no place for a parameter that is not trained"
        self.names = [names[id(parameter)] for parameter in order]
        self.shapes = [parameter.shape for parameter in order]
        sizes = [parameter.numel() for parameter in order]
        self.sizes = [*sizes, -sum(sizes) % ALIGNED]

        self.device = device = models[0].device
        self.weights = torch.zeros(len(models), sum(self.sizes), device=device)
        self._stack()
        self.decisions = StepDecisions(device, bad_steps, max_bad_steps)
        self._traces: dict[Any, Callable[..., tuple[Tensor, Tensor]]] = {}

    def _parts(self, rows: Tensor) -> list[Tensor]:
        """Return views of the parameters of all models, S x shape each."""
        parts = rows.split(self.sizes, dim=-1)[: len(self.shapes)]
        return [
            part.unflatten(-1, shape) if shape else part.squeeze(-1)
            for part, shape in zip(parts, self.shapes, strict=True)
        ]

    @torch.no_grad()
    def _stack(self) -> None:
        """Copy the weights into the rows, and let the models hold views of them."""
        parts = self._parts(self.weights)
        for row, optimizer in enumerate(self.optimizers):
            for parameter, part in zip(_in_order(optimizer), parts, strict=True):
                part[row] = parameter
                parameter.data = part[row]

    def take_step(self, batches: Sequence[Batch], accumulation: int, rate: float) -> Tensor:
        """Take one step of every model on its own batch, and return a row for each of NUMBERS."""
        losses, gradients = self.gradients(batches, accumulation)
        return self._move(rate, losses, gradients, moved(np.array([n_scored(x) > 0 for x in batches]), self.device))

    def gradients(self, batches: Sequence[Batch], accumulation: int) -> tuple[Tensor, Tensor]:
        """Return the losses and the gradients of (1)."""
        counts = [n_scored(batch) for batch in batches]
        losses, gradients = torch.zeros(()), torch.zeros(())
        for micro_batches in zip(*(batch.split(accumulation) for batch in batches), strict=True):
            # The shares make the step independent of the accumulation.
            shares = [n_scored(part) / max(n, 1) for part, n in zip(micro_batches, counts, strict=True)]
            data = on_device(side_by_side([with_scored_targets(part) for part in micro_batches]), self.device)
            loss, gradient = self._gradients(*data, moved(np.array(shares, dtype=np.float32), self.device))
            losses, gradients = losses + loss, gradients + gradient
        return losses, gradients

    def _gradients(self, inputs: Tensor, targets: Tensor, real: Tensor | None, shares: Tensor) -> tuple[Tensor, Tensor]:
        data = (inputs, targets, real, shares)
        if not self.traced:
            return self._computed(self.weights, *data)
        key = tuple(None if x is None else x.shape for x in data)
        if key not in self._traces:
            # make_fx takes a plain function, not a bound method.
            trace = make_fx(
                lambda weights, inputs, targets, real, shares: self._computed(weights, inputs, targets, real, shares)
            )
            operations = trace(self.weights, *data)
            # Padded batches have many lengths, and a graph for each of them would be compiled in vain.
            self._traces[key] = operations if self.compiler is None or real is not None else self.compiler(operations)
        with torch.no_grad():
            return self._traces[key](self.weights, *data)

    def _computed(
        self, weights: Tensor, inputs: Tensor, targets: Tensor, real: Tensor | None, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the losses and the gradients of (1) for one micro-batch."""
        weights = weights.detach().requires_grad_()
        with self.autocast(), attention_under_vmap():
            losses, aux_losses = self.losses_of(weights, inputs, targets, real)
        (gradients,) = torch.autograd.grad(((losses + aux_losses) * shares).sum(), weights)
        return losses.detach() * shares, gradients

    def losses_of(self, weights: Tensor, inputs: Tensor, targets: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        config = self.models[0].config
        if config.n_classes is not None or inputs[0].numel() * config.vocab_size <= SMALL:
            return self.for_all_models(LanguageModel.loss, weights, inputs, targets, real)
        # The loss that never holds all logits cannot be vmapped. It is large, so little is lost model by model.
        read, readouts, aux_losses = self.for_all_models(_before_readout, weights, inputs, real)
        of_models = zip(read, readouts, targets.flatten(1), strict=True)
        losses = [linear_cross_entropy(*of_model, config.logit_softcap) for of_model in of_models]
        return torch.stack(losses), aux_losses

    @torch.no_grad()
    def _move(self, rate: float, losses: Tensor, gradients: Tensor, scored: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(gradients, dim=1)  # (2)
        finite = (losses + norms).isfinite()
        applied = self.decisions.applied(finite) & scored
        factors = torch.ones_like(norms) if self.clip is None else (self.clip / (norms + 1e-6)).clamp(max=1.0)
        gradients *= factors[:, None]
        for row, optimizer in enumerate(self.optimizers):  # (3)
            for parameter, gradient in zip(_in_order(optimizer), self._parts(gradients[row]), strict=True):
                parameter.grad = gradient
            set_rate(optimizer, rate)
            step_where(optimizer, applied[row])
            optimizer.zero_grad(set_to_none=True)
        return torch.stack([losses.float(), norms, torch.linalg.vector_norm(self.weights, dim=1), finite.float()])

    def for_all_models(
        self, function: Callable[..., Any], weights: Tensor, *data: Tensor | None, shared: bool = False
    ) -> Any:
        """Compute function(model, *data) for every model, on data of its own or on `shared` data."""
        parameters = dict(zip(self.names, self._parts(weights), strict=True))
        in_dims = tuple(None if x is None or shared else 0 for x in data)

        def for_one_model(its_parameters: dict[str, Tensor], *its_data: Tensor | None) -> Any:
            return functional_call(self.template, its_parameters, (function, *its_data))

        return vmap(for_one_model, in_dims=(0, *in_dims))(parameters, *data)

    @torch.no_grad()
    def judge(self, inputs: Tensor, targets: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what `judge` of every model returns for the same batch."""
        with self.autocast(), attention_under_vmap():
            return self.for_all_models(LanguageModel.judge, self.weights, inputs, targets, real, shared=True)


class _Caller(nn.Module):
    """A module whose forward calls any function of the model, since `functional_call` takes nothing but modules."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *data: Tensor | None) -> Any:
        return function(self.model, *data)


def _before_readout(model: LanguageModel, inputs: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    hidden, aux_loss = model.hidden(inputs, real=real)
    return model.read(hidden, real).flatten(0, -2), model.readout, aux_loss


def _in_order(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def side_by_side(batches: Sequence[Batch]) -> Batch:
    """Stack one batch for each model, models first. Padded batches are padded to the longest sequence of all."""
    if batches[0].real is None:
        return Batch(np.stack([batch.inputs for batch in batches]), np.stack([batch.targets for batch in batches]))
    length = max(batch.inputs.shape[1] for batch in batches)

    def filled(x: np.ndarray, value: int) -> np.ndarray:
        return x if x.ndim == 1 else np.pad(x, ((0, 0), (0, length - x.shape[1])), constant_values=value)

    fields = zip(Batch._fields, (0, NOT_SCORED, False), strict=True)
    return Batch(*(np.stack([filled(getattr(batch, name), value) for batch in batches]) for name, value in fields))
