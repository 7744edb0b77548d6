"""What recurrent models share: T = n_iterations iterations with the same weights on a state for each position.

    c = embedded tokens,   x_0 = normalised(c), or normalised(Gaussian noise) where a cell is blank         (1)
    y = response(x_t, c),   x_(t+1) = moved(x_t, y)                                                         (2)
    logits = W norm(x_T)                                                                                    (3)

A family defines (2) and its normalisation. T may be larger after training, so that a model computes longer. The
stimulus c, the mask, the rotation and weights that are computed from parameters are the same in all iterations, and are
computed once.

In training the noise comes from torch's generator, whose state a checkpoint stores. In evaluation it is the same fixed
vector for each position, so an answer depends neither on the rest of the batch nor on earlier evaluations. With
activation checkpointing, memory holds the activations of one iteration and all states.
Jacobians, section 5: Tomihari and Karakida, Recurrent Self-Attention Dynamics, 2025, arXiv 2505.19458.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attractor.attention import Attention, Rotation
from attractor.attention.presets import preset
from attractor.errors import InputError, require, require_count
from attractor.models.block import Block
from attractor.models.config import ModelConfig
from attractor.models.energy import pseudo_energy
from attractor.models.language_model import LanguageModel, ModelCache, TokenPlacement

STANDING_SEED = 0  # seed of the noise in evaluation
TABLE_SIZE = 0.02  # initial standard deviation of embeddings and learned positions


def standing_noise(n_rows: int, width: int) -> Tensor:
    """Draw the same noise each time, for all models and devices."""
    return torch.randn(n_rows, width, generator=torch.Generator().manual_seed(STANDING_SEED), device="cpu")


def standing_rows(length: int, width: int) -> Tensor:
    """Draw noise for `length` positions or more, each of which has the same noise however many follow."""
    return standing_noise(16 * math.ceil(length / 16), width)  # torch would draw the last 16 of other counts anew


OfFamily = TypeVar("OfFamily", bound="RecurrentModel", covariant=True)


@dataclass(frozen=True)
class RecurrentConfig(ModelConfig[OfFamily]):
    """The config of a recurrent model; the defaults are for Sudoku."""

    vocab_size: int = 10
    max_seq_len: int = 81
    tied_embeddings: bool = False
    causal: bool = False
    n_iterations: int = 16
    blank: int | None = 0
    """token whose cells start from noise; none: no token"""

    def __post_init__(self) -> None:
        self.require_count("n_iterations")
        rule = f"a token below vocab_size={self.vocab_size}, or None"
        fits = self.blank is None or (isinstance(self.blank, int) and 0 <= self.blank < self.vocab_size)
        require(fits, "blank", rule, self.blank)
        super().__post_init__()

    @property
    def label(self) -> str:
        return self.family if self.attention == "standard" else f"{self.family} {super().label}"

    @property
    def own_rate(self) -> tuple[str, ...]:
        return self.gates_of_coupling(self.attention_config, self.attention_modules)

    @property
    def attention_modules(self) -> tuple[str, ...]:
        """The names of the modules that attend."""
        return ("attention",)

    @property
    def depth(self) -> str:
        return f"{self.n_iterations} x 1"

    @property
    def layer_equivalents(self) -> float:
        return float(self.n_iterations)

    def build(self, seed: int | None = None) -> OfFamily:
        model = super().build(seed)
        with torch.no_grad():
            model.scale_to_states()
        return model

    def require_unchanged(self, why: str, *fields: str) -> None:
        """Refuse fields of blocks, which a family without blocks would ignore."""
        for field in fields:
            default, value = getattr(ModelConfig, field), getattr(self, field)
            require(value == default, field, f"{default!r} for a model of family '{self.family}'", value, why)

    def require_plain_attention(self, under: str, why: str) -> None:
        """Refuse a mechanism where the model has no attention of its own."""
        plain = preset("standard").replace(dropout=self.dropout)
        mechanism = self.attention_config.replace(dropout=self.dropout)
        require(mechanism == plain, "attention", f"'standard', unchanged, under {under}", self.attention, why)

    def require_stimulus_at_the_start(self) -> None:
        """Refuse blank cells for a model whose iterations do not receive the stimulus."""
        rule = "None where the stimulus is not injected"
        require(self.blank is None, "blank", rule, self.blank, "noise would be all that such a cell ever holds")


class IterationInputs(NamedTuple):
    """The inputs that are the same in all iterations."""

    mask: bool | Tensor
    rotation: Rotation | None
    real: Tensor | None
    weights: tuple[Any, ...]  # the result of the family's `weights()`


class RecurrentModel(LanguageModel):
    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.n_iterations = config.n_iterations
        # It is drawn here, since a compiled or exported graph can hold noise, and cannot hold its generator.
        self.standing = None if config.blank is None else standing_rows(config.max_seq_len, self.state_width)

    @abstractmethod
    def response(self, state: Tensor, stimulus: Tensor, inputs: IterationInputs) -> tuple[Tensor, Tensor]:
        """Return y of (2) and the auxiliary loss."""

    @abstractmethod
    def moved(self, state: Tensor, response: Tensor, inputs: IterationInputs) -> Tensor:
        """Return the next state of (2)."""

    @abstractmethod
    def normalised(self, x: Tensor) -> Tensor:
        """Return x normalised like a state."""

    def injected(self, embedded: Tensor) -> Tensor:
        """Return the stimulus c from the embedded tokens."""
        return embedded

    def initial(self, stimulus: Tensor) -> Tensor:
        """Return what cells without noise start from, before it is normalised."""
        return stimulus

    def weights(self) -> tuple[Any, ...]:
        """Return the weights that are computed from parameters, once for all iterations."""
        return ()

    def finished(self, state: Tensor) -> Tensor:
        """Return what is read from the last state, before the last norm."""
        return state

    @property
    def state_width(self) -> int:
        return self.config.d_model

    @property
    def state_size(self) -> float:
        """The root mean square of an initial state's coordinates."""
        return 1.0

    def scale_to_states(self) -> None:
        """Scale the embeddings up to the size of states, unless they are tied to the readout.

        Embeddings start small for tied readouts. A stimulus that is much smaller than the state would have no influence
        for the first hundreds of steps.
        """
        tables = [table for table in (self.embedding, self.positions) if table is not None]
        if self.head is not None:
            for table in tables:
                table.weight.mul_(self.state_size / (TABLE_SIZE * len(tables) ** 0.5))

    def step(
        self, state: Float[Tensor, "B T D"], stimulus: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Return the next state, by (2): a differentiable map of states, deterministic in evaluation mode."""
        placement = self.placement(state[..., 0], None, real)
        return self.iteration(state, stimulus, self.iteration_inputs(placement))[0]

    def iteration(self, state: Tensor, stimulus: Tensor, inputs: IterationInputs) -> tuple[Tensor, Tensor]:
        response, aux_loss = self.response(state, stimulus, inputs)
        return self.moved(state, response, inputs), aux_loss

    def stimulus(self, tokens: Int[Tensor, "B T"], real: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B T D"]:
        return self.injected(self.embedded(tokens, self.placement(tokens, None, real)))

    def start(
        self,
        tokens: Int[Tensor, "B T"],
        generator: torch.Generator | None = None,
        real: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return x_0, whose noise comes from `generator` (of the CPU) if one is given."""
        return next(self.states(tokens, generator=generator, real=real))

    def states(
        self,
        tokens: Int[Tensor, "B T"],
        n_iterations: int | None = None,
        generator: torch.Generator | None = None,
        real: Bool[Tensor, "B T"] | None = None,
    ) -> Iterator[Float[Tensor, "B T D"]]:
        """Yield x_0 to x_T."""
        placement = self.placement(tokens, None, real)
        stimulus = self.injected(self.embedded(tokens, placement))
        state = self._start(stimulus, placement, generator)
        yield state
        inputs = self.iteration_inputs(placement)
        for _ in range(self.n_iterations if n_iterations is None else counted(n_iterations)):
            state, _ = self.iteration(state, stimulus, inputs)
            yield state

    def read_out(self, state: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None = None) -> Tensor:
        """Return the logits (3) of any state: B T C, or B C where a sequence has one label."""
        return F.linear(self.read(self.norm(self.finished(state)), real), self.readout)

    def energy(
        self, state: Float[Tensor, "B T D"], stimulus: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B"]:
        """Return -sum x.y for each sequence, which is low if the states agree with their responses."""
        response, _ = self.response(state, stimulus, self.iteration_inputs(self.placement(state[..., 0], None, real)))
        return pseudo_energy(state, response, real)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        cache: ModelCache | None = None,
        real: Bool[Tensor, "B T"] | None = None,
        n_iterations: int | None = None,
    ) -> tuple[Float[Tensor, "B T C"], Float[Tensor, ""]]:
        """Return logits and auxiliary loss; `n_iterations` replaces the model's number of iterations for this call."""
        usual = self.n_iterations
        self.n_iterations = usual if n_iterations is None else n_iterations
        try:
            return super().forward(tokens, cache, real)
        finally:
            self.n_iterations = usual

    def through(self, x: Tensor, placement: TokenPlacement, cache: ModelCache | None) -> tuple[Tensor, Tensor]:
        stimulus = self.injected(x)
        state, inputs = self._start(stimulus, placement), self.iteration_inputs(placement)
        losses = []
        for _ in range(self.n_iterations):
            state, aux_loss = self.run(self.iteration, state, stimulus, inputs)
            losses.append(aux_loss)
        return self.finished(state), torch.stack(losses).sum()

    def iteration_inputs(self, placement: TokenPlacement) -> IterationInputs:
        return IterationInputs(placement.mask, placement.rotation, placement.real, self.weights())

    def _start(self, stimulus: Tensor, placement: TokenPlacement, generator: torch.Generator | None = None) -> Tensor:
        """Return x_0 of (1)."""
        x = self.initial(stimulus)
        if self.config.blank is None:
            return self.normalised(x)
        if placement.tokens is None:
            raise InputError(
                f"tokens must be given to a model whose blanks (token {self.config.blank}) start from noise, got "
                "vectors; give tokens"
            )
        blank = (placement.tokens == self.config.blank).unsqueeze(-1)
        return self.normalised(torch.where(blank, self._noise(x, placement.positions, generator), x))

    def _noise(self, like: Tensor, positions: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw the noise on the CPU, so that a seed is the same on every device."""
        if generator is not None or self.training:
            return torch.randn(like.shape, generator=generator, device="cpu").to(like)
        assert self.standing is not None
        suffices = like.shape[1] <= len(self.standing)
        standing = self.standing if suffices else standing_rows(like.shape[1], self.state_width)
        return standing.to(like)[positions]

    @property
    def n_iterations(self) -> int:
        """The number of iterations, which may be changed at any time."""
        return self._n_iterations

    @n_iterations.setter
    def n_iterations(self, value: int) -> None:
        self._n_iterations = counted(value)

    @property
    def layers(self) -> list[Block]:
        """An empty list: all iterations use the same weights, so sharded weights are gathered once, not T times."""
        return []

    @property
    def rope_width(self) -> int:
        return next((module.rope_width for module in self.modules() if isinstance(module, Attention)), 0)

    def residual_outputs(self) -> list[Tensor]:
        """Return an empty list, since states are normalised."""
        return []

    def empty_cache(self) -> ModelCache:
        raise InputError(
            "use_cache must be False for a recurrent model, got True; it has no cache, since every iteration would "
            "need its own: generate(..., use_cache=False) computes all positions for each new token"
        )


def counted(n_iterations: int) -> int:
    require_count("n_iterations", n_iterations, next_step="an answer is read after at least one iteration")
    return int(n_iterations)
