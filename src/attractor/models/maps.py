"""Iterations and layers of models as maps `state -> state`, for the measures of `attractor.analysis`.

    recurrent       x -> moved(x, y),   y = response(x, c)              the same map at all times           (1)
    before norm     x -> u,   where (1) is  gain u / |u|,  sphere by sphere                                 (2)
    block           h -> Block_l(h)                                     one layer, applied repeatedly       (3)
    layers          h -> Block_L( ... Block_1(h))                       another map at each depth           (4)

Everything but the state is fixed when a map is made: stimulus, mask, rotation, weights computed from parameters,
and the values of the first layer where a mechanism mixes them into later ones.
States are those of the model's own pass over the tokens: B T D, or B T N D with N streams. Sequences of a batch do not
influence one another, so measure with `batched=True`. A map must be the same each time it is called, so a model in
training mode is refused.

The Jacobian of (4) is the product J_L ... J_1 over depth. FastSlow's maps are those of its fast path: the blocks of
Pre, and in each round the injection, which contains the slow path, and the blocks of Post. A method that approaches
Post's equilibrium is one map.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from attractor.attention import Rotation
from attractor.attention.surroundings import FirstValues
from attractor.errors import InputError
from attractor.models.akorn import AKOrN, kuramoto_velocity
from attractor.models.block import Block
from attractor.models.fast_slow import FastSlow
from attractor.models.itrsa import ItrSA
from attractor.models.language_model import LanguageModel, TokenPlacement
from attractor.models.recurrent import IterationInputs, RecurrentModel
from attractor.models.recursive import Recursive
from attractor.models.transformer import Transformer

Step = Callable[[Tensor], Tensor]


class StateMap(NamedTuple):
    """A map and the state from which to measure it."""

    step: Step
    start: Tensor


class Sphere(NamedTuple):
    """The spheres of normalised states: each group of `n_channels` is a point of the unit sphere, times the gain."""

    n_channels: int
    gain: Tensor  # D


@dataclass(frozen=True)
class Iteration:
    """The iteration of a recurrent model for given tokens."""

    model: RecurrentModel
    stimulus: Tensor
    inputs: IterationInputs
    start: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, model: RecurrentModel, tokens: Tensor, real: Tensor | None = None) -> Self:
        require_evaluation(model)
        placement = model.placement(tokens, None, real)
        return cls(
            model, model.stimulus(tokens, real), model.iteration_inputs(placement), model.start(tokens, real=real)
        )

    def step(self, x: Tensor) -> Tensor:
        """Return the next state, by (1)."""
        return self.model.iteration(x, self.stimulus, self.inputs)[0]

    def response(self, x: Tensor) -> Tensor:
        """Return y of (1)."""
        return self.model.response(x, self.stimulus, self.inputs)[0]

    def before_norm(self, x: Tensor) -> Tensor:
        """Return (2), or the whole step if states are not normalised."""
        model = self.model
        if isinstance(model, Recursive):
            return model.before_norm(x, self.stimulus, self.inputs)[0]
        y = self.response(x)
        if isinstance(model, ItrSA):
            return torch.add(x, y, alpha=model.config.eta)
        if isinstance(model, AKOrN):
            oscillators, (omega,) = model.oscillators, self.inputs.weights
            x, y = oscillators.grouped(x), oscillators.grouped(y)
            velocity = kuramoto_velocity(x, y, omega, on_sphere=oscillators.scale is None)
            return (x + oscillators.gamma * velocity).flatten(-2)
        return model.moved(x, y, self.inputs)

    @property
    def sphere(self) -> Sphere | None:
        """The spheres of the states; None if states are not normalised."""
        model = self.model
        if isinstance(model, ItrSA) and model.config.norm != "none":
            gain = cast(Tensor, model.state_norm.weight).detach()
            return Sphere(len(gain), gain if model.config.norm == "unit" else gain * len(gain) ** 0.5)
        if isinstance(model, AKOrN):
            scale = model.oscillators.scale
            gain = torch.ones_like(self.start[0, 0]) if scale is None else scale.detach()
            return Sphere(model.config.oscillator_width, gain)
        if isinstance(model, Recursive):  # a latent of a position is a point of a sphere of radius sqrt(D)
            width = model.config.d_model
            return Sphere(width, torch.full_like(self.start[0, 0], width**0.5))
        return None

    @torch.no_grad()
    def orbit(self, n_iterations: int) -> Tensor:
        """Return x_0 to x_T along a new first dimension."""
        states = [self.start]
        for _ in range(n_iterations):
            states.append(self.step(states[-1]))
        return torch.stack(states)


def recurrent_map(model: RecurrentModel, tokens: Tensor, real: Tensor | None = None) -> StateMap:
    """Return (1) with the model's own initial state."""
    iteration = Iteration.of(model, tokens, real)
    return StateMap(iteration.step, iteration.start)


@dataclass(frozen=True)
class LayerMaps:
    """A sequence of maps, and the states before, between and after them."""

    steps: tuple[Step, ...]
    states: tuple[Tensor, ...]

    @classmethod
    @torch.no_grad()
    def along(cls, steps: Sequence[Step], start: Tensor) -> Self:
        states = [start]
        for step in steps:
            states.append(step(states[-1]))
        return cls(tuple(steps), tuple(states))

    def block(self, layer: int) -> StateMap:
        """Return (3) for one layer, with the state that enters it."""
        if not 0 <= layer < len(self.steps):
            raise InputError(f"layer must be from 0 to {len(self.steps) - 1}, got {layer}; count from the first one")
        return StateMap(self.steps[layer], self.states[layer])

    def whole(self) -> StateMap:
        """Return (4) as one map, whose Jacobian is the product of all Jacobians."""
        return StateMap(partial(_one_after_another, self.steps), self.states[0])


def _one_after_another(steps: Sequence[Step], h: Tensor) -> Tensor:
    for step in steps:
        h = step(h)
    return h


def layer_maps(model: LanguageModel, tokens: Tensor, real: Tensor | None = None) -> LayerMaps:
    """Return the maps (4) of a Transformer or a FastSlow."""
    require_evaluation(model)
    placement = model.placement(tokens, None, real)
    with torch.no_grad():
        h = model.embedded(tokens, placement)
    if isinstance(model, Transformer):
        mask, turns = placement.mask, model.rotations(placement)
        carried = [FirstValues()] * model.mixes_first_values
        if carried:
            with torch.no_grad():
                model.layers[0](h, mask, turns[0], None, *carried)
        # The first layer writes its values, so that it has a place of its own for them.
        of_layer = [[FirstValues() for _ in carried], *[carried] * (len(turns) - 1)]
        layers = zip(model.layers, turns, of_layer, strict=True)
        return LayerMaps.along([partial(_through, block, mask, turn, first) for block, turn, first in layers], h)
    if isinstance(model, FastSlow):
        return LayerMaps.along(_fast_path(model, h, placement), model.spread(h))
    raise InputError(
        f"model must be a Transformer or a FastSlow to have maps by layers, got {type(model).__name__}; "
        "a recurrent model has one map: recurrent_map(model, tokens)"
    )


def _blocks(blocks: Sequence[Block], mask: bool | Tensor, rotation: Rotation | None) -> list[Step]:
    return [partial(_through, block, mask, rotation, []) for block in blocks]


def _through(
    block: Block, mask: bool | Tensor, rotation: Rotation | None, first_values: list[FirstValues], h: Tensor
) -> Tensor:
    return block(h, mask, rotation, None, *first_values)[0]


def _fast_path(model: FastSlow, h: Tensor, placement: TokenPlacement) -> list[Step]:
    post: list[Step] = _blocks(model.blocks_of(model.post), placement.mask, placement.rotation)
    if model.solver.method != "single":
        post = [lambda u: model.relaxed(u, None, placement, None)[0]]
    rounds = post
    if not model.config.frozen:
        slow_placement = model.slow_placement(h, placement, None)

        def injection(x: Tensor) -> Tensor:
            return model.spread(model.injected(model.joined(x), *slow_placement, None)[0])

        if model.solver.method == "forced":  # the injection enters every evaluation, so a round is one map
            rounds = [lambda x: model.relaxed(x, injection(x), placement, None)[0]]
        else:
            rounds = [lambda x: x + injection(x), *post]
    return _blocks(model.blocks_of(model.pre), placement.mask, placement.rotation) + rounds * model.config.n_rounds


def require_evaluation(model: nn.Module) -> None:
    if model.training:
        raise InputError(
            "model must be in evaluation mode, got training mode; call model.eval(), so that its maps are the same "
            "each time"
        )
