"""The probe `lemma` measures on data what QuacK's lemma bounds: how much one step changes a trained model's logits.

    L = scale (W_q x) . (W_k y),    dL = the part of the change of L that is linear in a step's change of the weights
    share = max over layers, heads and allowed pairs of  |dL| / (scale |x| |y| bound)                       (1)
    second = the same of what the whole step changes beyond dL, of second order and higher
    bound = tau sum over the parts p of a head of  gain_p(W_0) |D_p|                                        (2)

W_0 are the weights at the start of training, gain_p the product of the norms of the other parts (`control/quack.py`),
and D_p the step of the bare optimizer from W_0 at the rate of the run's end. The lemma assumes that steps do not grow,
|D| <= |D_0|. Then QuacK keeps the share at or below 1 however much the weights grow, and one common rate does not.
The share exceeds 1 where that assumption or the control fails. `at_start` is the share of the first step.

Each step is that of a fresh optimizer on a batch of the training set, from W_0 and from the run's last weights. Inputs
x, y are those of each layer on a validation batch, and stay the same while its weights change.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from attractor.control.heads import known_heads
from attractor.control.probe import logits_of
from attractor.control.quack import gains
from attractor.control.score_inputs import ScoreInputs, ScoreObserver
from attractor.control.views import LatentHeads, QueryKeyHeads, Rows
from attractor.models.language_model import LanguageModel
from attractor.study.study import Probe
from attractor.train.config import Runtime, TrainConfig
from attractor.train.hardware import on_device
from attractor.train.trainer import Trainer

N_SEQUENCES = 4
SHIFT = 2.0**-10  # central differences with this share of a step, in fp64, are exact to 1e-6 of dL

Weights = Mapping[str, Tensor]


def lemma_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    """Return (1) for these weights, `second` with it, and (1) for the weights at the start.

    The result is empty where there is no bound: where logits do not scale with the weights, or where norms on latents
    leave no bound for all inputs."""
    views = known_heads(model)
    if not views or any(view.obstacle or {"gamma_q", "gamma_kv"} & view.parts().keys() for view in views):
        return {"lemma": {}}
    at_start, here = (Step(config, weights) for weights in (None, model.state_dict()))
    bounds = at_start.bounds()
    share, second = here.shares(bounds)
    return {"lemma": {"share": share, "second": second, "at_start": at_start.shares(bounds)[0]}}


class Step:
    """One step of a fresh optimizer from these weights, by default from those at the start of training."""

    def __init__(self, config: TrainConfig, weights: Weights | None = None) -> None:
        trainer = Trainer(config, config.build_task(), Runtime(threads=torch.get_num_threads()))
        self.model = trainer.model.train()
        if weights is not None:  # by now QuacK has measured the norms at the start
            self.model.load_state_dict(weights)
        self.before = self._weights()
        trainer.state.step = config.n_steps - 1
        with torch.enable_grad():
            trainer.take_step()
        self.change = {name: after - self.before[name] for name, after in self._weights().items()}
        (batch,) = trainer.task.valid_batches(N_SEQUENCES, 1, trainer.task.valid_sets[0])
        self.tokens, _, _ = on_device(batch, self.model.device)

    def _weights(self) -> Weights:
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def bounds(self) -> dict[str, Tensor]:
        """Return (2) for every layer, head by head, of a step from the start, whose change has tau in it already."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        bounds = {}
        for view in known_heads(self.model):
            parts = view.parts().items()
            norms = {part: _norms(rows, self.before[names[rows.weight]]) for part, rows in parts}
            steps = {part: _norms(rows, self.change[names[rows.weight]]) for part, rows in parts}
            bounds[view.name] = _by_query_head(view, {p: gain * steps[p] for p, gain in gains(view, norms).items()})
        return bounds

    @torch.no_grad()
    def shares(self, bounds: Mapping[str, Tensor]) -> tuple[float, float]:
        """Return (1), and the same of the change beyond dL."""
        model = deepcopy(self.model).double().eval()
        model.load_state_dict(self.before, strict=False)
        views = known_heads(model)
        inputs: dict[str, tuple[Any, ...]] = {}
        hooks = [
            view.module.register_forward_pre_hook(lambda _, given, name=view.name: inputs.update({name: given}))
            for view in views
        ]
        model(self.tokens)
        for hook in hooks:
            hook.remove()
        of_views = [self._shares_of(view, inputs[view.name], bounds[view.name]) for view in views]
        first, beyond = torch.tensor(of_views).amax(0).tolist()
        return first, beyond

    def _shares_of(self, view: QueryKeyHeads, inputs: tuple[Any, ...], bound: Tensor) -> tuple[float, float]:
        change = {name.removeprefix(f"{view.name}."): moved.double() for name, moved in self.change.items()}
        before = {name: parameter.clone() for name, parameter in view.module.named_parameters()}

        def after(share: float) -> Tensor:
            for name, parameter in view.module.named_parameters():
                parameter.copy_(before[name] + share * change[name])
            scored = _scored(view, inputs)
            return logits_of(scored)[0] / scored.scale

        # H B T S, -inf where not allowed; the last pass puts the weights back
        forth, back, whole, start = map(after, (SHIFT, -SHIFT, 1.0, 0.0))
        slope = (forth - back) / (2 * SHIFT)
        lengths = inputs[0].norm(dim=-1)
        pairs = lengths[:, :, None] * lengths[:, None, :]
        changes = torch.stack((slope, whole - start - slope)).nan_to_num(0.0).abs()
        first, beyond = (changes / pairs / bound.double().view(-1, 1, 1, 1)).flatten(1).amax(1).tolist()
        return first, beyond


def _scored(view: QueryKeyHeads, inputs: tuple[Any, ...]) -> ScoreInputs:
    seen: list[ScoreInputs] = []
    observer = ScoreObserver(view.module, lambda _, scored: seen.append(scored))
    view.module(*inputs)
    observer.remove()
    return seen[0]


def _norms(rows: Rows, matrix: Tensor) -> Tensor:
    heads = [matrix.narrow(rows.axis, start, rows.width) for start in rows.starts]
    return torch.linalg.matrix_norm(torch.stack(heads).float())


def _by_query_head(view: QueryKeyHeads, terms: Mapping[str, Tensor]) -> Tensor:
    """Return the sum in (2) for every query head; `dq` moves the content and the rotary part of its logits."""
    if not isinstance(view, LatentHeads):
        return terms["query"] + terms["key"][list(view.reads)]
    total = terms["uq"] + terms["uk"][list(view.reads)] + terms["dkv"]
    if "qr" in terms:
        total = total + terms["qr"] + terms["kr"][list(view.reads_rope)]
    return total + terms["dq"] * (2 if "qr" in terms else 1) if "dq" in terms else total


LEMMA_PROBE = Probe("lemma", lemma_of_run, weights="last")
