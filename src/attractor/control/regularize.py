"""Penalties on the weights of attention layers, to be added to a loss. They stand on weights alone, never on data.

    spectral         sum_W (sigma(W)^2 - 1)^2 + sum_b |b|^4                                                 (1)
    energy-single    |W_V W_O - sym(W_Q W_K')|^2,   sym(A) = (A + A') / 2, of a layer with one head          (2)
    energy-multi     sum_h |W_V,h - W_O,h'|^2                                                               (3)

Norms of matrices are Frobenius', and each is summed over the layers. Row vectors: q = x W_Q + b_Q, out = c W_O + b_O;
so W is the transpose of what `nn.Linear` stores. (1) takes every linear map on the way from x to queries, keys, values
(with MLA and a shared latent those into the latent, too), each as a matrix of its own, and the output's; no couplings,
gates and decays. In (3) head h has its V columns of W_V and its V rows of W_O.

sigma is the largest singular value, from two right vectors V = [v1 v2] that are kept from one call to the next:

    V <- orthonormal T(2 W'W / |W v2|^2 - 1) V,   T the Chebyshev polynomial of degree 8                    (4)
    V <- V R,   R the rotation for which W v1 and W v2 are orthogonal, W v1 the longer                       (5)
    sigma^2 = |W v1|^2,   d sigma^2 / dW = 2 W v1 v1'                                                       (6)

T keeps what lies below the second value within 1 and lets the rest grow as fast as a polynomial can, so that V follows
weights that move, and values that lie close or change places. At the first call V are the singular vectors themselves.
(6) is never above sigma^2; v1 is a constant in it, since |W v|^2 is stationary where v is a singular vector.

Limits: (1) is 0 for orthogonal matrices and biases of 0; (2) where the layer, without a mask and a rotation, descends
the energy of a single head if W_Q W_K' is symmetric; (3) where each head returns in the directions that it read. Models
that have an energy by construction are `ItrSAConfig(energy="single")` and `"multi"`.
Jacobians: arXiv 2505.19458, sections 4 to 6.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention import Attention
from attractor.attention.project.decayed import LogDecay
from attractor.attention.project.heads import HeadProjection
from attractor.attention.project.values import ValueProjection
from attractor.attention.score.softmax import Softmax
from attractor.errors import InputError
from attractor.kernels.precision import without_autocast

DEGREE = 8
FLATTEST = 0.1  # of the largest square; an edge that lies lower would let T outgrow the range of fp32
Refusal = tuple[str, str]  # where a regularizer has no meaning, and what to do instead


# --- of tensors -----------------------------------------------------------------------------------------------------


def spectral_excess(squared_norms: Float[Tensor, "n"], biases: Sequence[Tensor] = ()) -> Float[Tensor, ""]:
    """(1), of matrices by the squares of their largest singular values."""
    excess = (squared_norms - 1).square().sum()
    return excess + sum(bias.square().sum().square() for bias in biases)


def single_energy_gap(
    query: Float[Tensor, "K D"], key: Float[Tensor, "K D"], value: Float[Tensor, "V D"], out: Float[Tensor, "D V"]
) -> Float[Tensor, ""]:
    """(2), of matrices as `nn.Linear` stores them: out @ value is then the transpose of W_V W_O."""
    logits = query.mT @ key
    return (out @ value - (logits + logits.mT) / 2).square().sum()


def multi_energy_gap(value: Float[Tensor, "HV D"], out: Float[Tensor, "D HV"]) -> Float[Tensor, ""]:
    """(3), of matrices as `nn.Linear` stores them, of all heads at once."""
    return (value - out.mT).square().sum()


def singular_vectors(matrices: Float[Tensor, "n M N"]) -> Float[Tensor, "n N 2"]:
    """The two leading right ones, where (4) starts."""
    return torch.linalg.eigh(matrices.mT @ matrices).eigenvectors[..., -2:].flip(-1)


def iterated(matrices: Float[Tensor, "n M N"], vectors: Float[Tensor, "n N 2"]) -> Float[Tensor, "n N 2"]:
    """(4)."""
    lengths = (matrices @ vectors).square().sum(1, keepdim=True)
    edge = torch.maximum(lengths[..., 1:], lengths[..., :1] * FLATTEST).clamp(min=torch.finfo(vectors.dtype).tiny)
    scaled = matrices * (2 * edge.rsqrt())  # so that its square is 4 W'W / edge
    before, moved = vectors, torch.baddbmm(vectors, scaled.mT, scaled @ vectors, beta=-1, alpha=0.5)
    for _ in range(DEGREE - 1):
        before, moved = moved, torch.baddbmm(torch.add(before, moved, alpha=2), scaled.mT, scaled @ moved, beta=-1)
    first, second = _unit(moved[..., 0], vectors[..., 0]), moved[..., 1]
    for _ in range(2):  # one pass leaves what it rounds off, where the second is almost the first
        second = _unit(second - (second * first).sum(-1, keepdim=True) * first, vectors[..., 1])
    return turned(matrices, torch.stack([first, second], dim=-1))


def turned(matrices: Float[Tensor, "n M N"], vectors: Float[Tensor, "n N 2"]) -> Float[Tensor, "n N 2"]:
    """(5)."""
    first, second = (matrices @ vectors).unbind(-1)
    across = (first * second).sum(-1)
    angle = torch.atan2(2 * across, first.square().sum(-1) - second.square().sum(-1)) / 2
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([torch.stack([cos, -sin], dim=-1), torch.stack([sin, cos], dim=-1)], dim=-2)
    return vectors @ rotation


def squared_norms(matrices: Float[Tensor, "n M N"], vectors: Float[Tensor, "n N 2"]) -> Float[Tensor, "n"]:
    """(6)."""
    return (matrices @ vectors[..., :1]).square().sum((-2, -1))


def _unit(x: Tensor, before: Tensor) -> Tensor:
    """Of length 1; a matrix that sends its vector to 0 keeps it, so that it is there when the matrix has changed."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(length > 0, x / length, before)


# --- of models ------------------------------------------------------------------------------------------------------


class Regularizer(ABC):
    """Called, the penalty of the model as it stands, differentiable in its weights."""

    name: ClassVar[str]
    usual_weight: ClassVar[float]  # Jacobians' choice

    def __init__(self, model: nn.Module) -> None:
        attention = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
        if not attention:
            raise InputError(
                f"model must have attention layers for regularizer '{self.name}', got {type(model).__name__} without "
                "any; train it without"
            )
        for name, layer in attention.items():
            if (refusal := self.refusal(layer)) is not None:
                where, next_step = refusal
                raise InputError(
                    f"regularizer must be another one or None where {where}, as in '{name}', got '{self.name}'; "
                    f"{next_step}"
                )
        self.layers = {name: self.weights(layer) for name, layer in attention.items()}  # what `of` is given

    @abstractmethod
    def refusal(self, layer: Attention) -> Refusal | None: ...

    @abstractmethod
    def weights(self, layer: Attention) -> dict[str, nn.Parameter]: ...

    @abstractmethod
    def of(self, layer: str, weights: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """The penalty of one layer, for any weights in the place of its own."""

    def __call__(self) -> Float[Tensor, ""]:
        return torch.stack([self.of(layer, weights) for layer, weights in self.layers.items()]).sum()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold, so that a resumed run is the uninterrupted one."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state


class Spectral(Regularizer):
    """(1)."""

    name = "spectral"
    usual_weight = 1e-6

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.vectors: dict[str, dict[str, Tensor]] = {}  # v1 and v2 by layer and matrix, from the first call on

    def refusal(self, layer: Attention) -> Refusal | None:
        return _no_matrix_acts_as_it_is(layer)

    def weights(self, layer: Attention) -> dict[str, nn.Parameter]:
        return {
            f"{map_name}.{name}": parameter
            for map_name, linear in linear_maps(layer).items()
            for name, parameter in linear.named_parameters(recurse=False)
        }

    def of(self, layer: str, weights: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        first = next(iter(weights.values()))
        wide = torch.promote_types(first.dtype, torch.float32)
        with without_autocast(first):
            matrices = {name: weight.to(wide) for name, weight in weights.items() if weight.ndim == 2}
            biases = [weight.to(wide) for weight in weights.values() if weight.ndim == 1]
            return spectral_excess(torch.cat(list(self._squared_norms(layer, matrices))), biases)

    def _squared_norms(self, layer: str, matrices: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Matrices of one shape at a time, which is fewer and larger products."""
        kept = self.vectors.setdefault(layer, {})
        for shape in dict.fromkeys(matrix.shape for matrix in matrices.values()):
            names = [name for name, matrix in matrices.items() if matrix.shape == shape]
            stacked = torch.stack([matrices[name] for name in names])
            with torch.no_grad():
                if names[0] not in kept:
                    kept.update(zip(names, singular_vectors(stacked), strict=True))
                vectors = iterated(stacked, torch.stack([kept[name] for name in names]))
                kept.update(zip(names, vectors, strict=True))
            yield squared_norms(stacked, vectors)

    def state_dict(self) -> dict[str, Any]:
        return {
            layer: {name: pair.clone() for name, pair in of_layer.items()} for layer, of_layer in self.vectors.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.vectors = {layer: dict(of_layer) for layer, of_layer in state.items()}


class SingleEnergy(Regularizer):
    """(2)."""

    name = "energy-single"
    usual_weight = 1e-4

    def refusal(self, layer: Attention) -> Refusal | None:
        if layer.layout.n_heads > 1:
            return f"there are {layer.layout.n_heads} heads", "give n_heads=1, or take energy-multi"
        return _no_energy_is_near(layer)

    def weights(self, layer: Attention) -> dict[str, nn.Parameter]:
        maps = linear_maps(layer)
        return {name: cast(nn.Parameter, maps[name].weight) for name in ("query", "key", "value", "out")}

    def of(self, layer: str, weights: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        with without_autocast(weights["out"]):
            return single_energy_gap(**weights)


class MultiEnergy(Regularizer):
    """(3)."""

    name = "energy-multi"
    usual_weight = 1e-4

    def refusal(self, layer: Attention) -> Refusal | None:
        n_heads, n_values = layer.layout.n_heads, layer.layout.n_kv_heads
        if n_values < n_heads:
            where = f"{n_heads} heads share the values of {n_values}, so that W_V and W_O' are of other shapes"
            return where, "give every head values of its own, or take spectral"
        return _no_energy_is_near(layer)

    def weights(self, layer: Attention) -> dict[str, nn.Parameter]:
        maps = linear_maps(layer)
        return {name: cast(nn.Parameter, maps[name].weight) for name in ("value", "out")}

    def of(self, layer: str, weights: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        return multi_energy_gap(**weights)


REGULARIZERS: dict[str, type[Regularizer]] = {kind.name: kind for kind in (Spectral, SingleEnergy, MultiEnergy)}


def linear_maps(layer: Attention) -> dict[str, nn.Linear]:
    """Those on the way from x to queries, keys and values, and the output's."""
    projections = {
        name: module
        for name, module in layer.project.named_children()
        if isinstance(module, nn.Linear) and not isinstance(module, LogDecay)
    }
    return projections | {"out": cast(nn.Linear, layer.output.out)}


def _no_matrix_acts_as_it_is(layer: Attention) -> Refusal | None:
    if isinstance(layer.project, ValueProjection):
        return "attention looks at nothing, without queries and keys", "train the control without"
    if layer.config.project.sigma_reparam:
        return "matrices are divided by their norm before they act", "leave sigma_reparam out"
    return None


def _no_energy_is_near(layer: Attention) -> Refusal | None:
    """The energy is one of logits x W_Q W_K' x' under a softmax, and of an output that is linear in x W_V."""
    config, spectral = layer.config, "take standard attention, or spectral"
    if (refusal := _no_matrix_acts_as_it_is(layer)) is not None:
        return refusal
    if not isinstance(layer.project, HeadProjection):
        return "queries, keys and values are made from a latent", spectral
    if config.couple.moves:
        return "queries and keys are coupled before they are scored", spectral
    if config.couple.qk_norm or layer.softcap is not None:
        return "logits are no bilinear form, under QK-norm or a soft-cap", "leave qk_norm and softcap out"
    if not isinstance(config.score, Softmax):
        return f"the score is {type(config.score).__name__.lower()} and not one softmax", spectral
    if set(dict(layer.output.named_children())) != {"out"}:
        return "the output is gated", spectral
    return None
