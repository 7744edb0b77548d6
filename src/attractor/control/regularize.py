"""Compute penalties on the weights of attention layers, to be added to a loss. They use weights alone, never data.

    spectral         sum_W (sigma(W)^2 - 1)^2 + sum_b |b|^4                                                 (1)
    energy-single    |W_V W_O - sym(W_Q W_K')|^2,   sym(A) = (A + A') / 2, of a layer with one head          (2)
    energy-multi     sum_h |W_V,h - W_O,h'|^2,   as published with W_V and W_O orthogonal                   (3)

Matrix norms are Frobenius norms, and penalties are summed over layers. Vectors are rows: q = x W_Q + b_Q and
out = c W_O + b_O, so W is the transpose of what `nn.Linear` stores. (1) takes every linear map from x to queries, keys
and values (with MLA and a shared latent also those into the latent), and that of the output, but no couplings, gates or
decays. In (3) head h has its V columns of W_V and its V rows of W_O.

sigma is the largest singular value, computed from two right vectors V = [v1 v2] that are kept between calls:

    V <- orthonormal T(2 W'W / |W v2|^2 - 1) V,   T the Chebyshev polynomial of degree 8                    (4)
    V <- V R,   R the rotation for which W v1 and W v2 are orthogonal, W v1 the longer                       (5)
    sigma^2 = |W v1|^2,   d sigma^2 / dW = 2 W v1 v1'                                                       (6)

T keeps components below the second singular value within 1 and amplifies the others as fast as a polynomial can. So V
follows moving weights, and singular values that are close or change places. The first call starts from the exact
singular vectors. (6) is never above sigma^2. v1 counts as a constant in it, since |W v|^2 is stationary there.

Limits: (1) is 0 for orthogonal matrices and biases of 0. Where (2) is 0 and W_Q W_K' is symmetric, the layer, without a
mask and a rotation, descends the energy of a single head. (3) is 0 where every head writes in the directions that
it reads. Models that have an energy by construction are `ItrSAConfig(energy="single")` and `"multi"`.

Tomihari and Karakida, "Recurrent Self-Attention Dynamics: An Energy-Agnostic Perspective from Jacobians", 2025,
arXiv 2505.19458, sections 4 to 6.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from attractor.attention import Attention
from attractor.attention.project.decayed import WideLinear
from attractor.attention.project.heads import HeadProjection, OrthogonalLinear, cayley
from attractor.attention.project.values import ValueProjection
from attractor.attention.score.softmax import Softmax
from attractor.errors import InputError
from attractor.kernels.precision import without_autocast

DEGREE = 8
MIN_EDGE = 0.1  # of the largest square; with a lower edge T would overflow fp32
Refusal = tuple[str, str]  # why a regularizer has no meaning for a layer, and what to do instead


def spectral_excess(squared_norms: Float[Tensor, "n"], biases: Sequence[Tensor] = ()) -> Float[Tensor, ""]:
    """Return (1) for matrices, given by the squares of their largest singular values, and biases."""
    excess = (squared_norms - 1).square().sum()
    return excess + sum(bias.square().sum().square() for bias in biases)


def single_energy_gap(
    query: Float[Tensor, "K D"], key: Float[Tensor, "K D"], value: Float[Tensor, "V D"], out: Float[Tensor, "D V"]
) -> Float[Tensor, ""]:
    """Return (2) for matrices as `nn.Linear` stores them, so that out @ value is the transpose of W_V W_O."""
    logits = query.mT @ key
    return (out @ value - (logits + logits.mT) / 2).square().sum()


def multi_energy_gap(value: Float[Tensor, "HV D"], out: Float[Tensor, "D HV"]) -> Float[Tensor, ""]:
    """Return (3) for all heads at once, for matrices as `nn.Linear` stores them."""
    return (value - out.mT).square().sum()


def singular_vectors(matrices: Float[Tensor, "n M N"]) -> Float[Tensor, "n N 2"]:
    """Return the two leading right singular vectors, from which (4) starts."""
    return torch.linalg.eigh(matrices.mT @ matrices).eigenvectors[..., -2:].flip(-1)


def iterated(matrices: Float[Tensor, "n M N"], vectors: Float[Tensor, "n N 2"]) -> Float[Tensor, "n N 2"]:
    """Return V after (4) and (5)."""
    lengths = (matrices @ vectors).square().sum(1, keepdim=True)
    edge = torch.maximum(lengths[..., 1:], lengths[..., :1] * MIN_EDGE).clamp(min=torch.finfo(vectors.dtype).tiny)
    scaled = matrices * (2 * edge.rsqrt())  # so that its square is 4 W'W / edge
    before, moved = vectors, torch.baddbmm(vectors, scaled.mT, scaled @ vectors, beta=-1, alpha=0.5)
    for _ in range(DEGREE - 1):
        # The recurrence is linear in both. After a jump of the weights, T may be larger than fp32 holds.
        size = moved.abs().amax(1, keepdim=True).clamp(min=1)
        before, moved = before / size, moved / size
        before, moved = moved, torch.baddbmm(torch.add(before, moved, alpha=2), scaled.mT, scaled @ moved, beta=-1)
    first, second = _unit(moved[..., 0], vectors[..., 0]), moved[..., 1]
    for _ in range(2):  # where the vectors are almost parallel, one pass leaves a rounding error
        second = _unit(second - (second * first).sum(-1, keepdim=True) * first, vectors[..., 1])
    following = turned(matrices, torch.stack([first, second], dim=-1))
    is_finite = following.isfinite().flatten(1).all(1)  # not where weights are NaN for a step
    return torch.where(is_finite.view(-1, 1, 1), following, vectors)


def turned(matrices: Float[Tensor, "n M N"], vectors: Float[Tensor, "n N 2"]) -> Float[Tensor, "n N 2"]:
    """Return V after (5)."""
    first, second = (matrices @ vectors).unbind(-1)
    across = (first * second).sum(-1)
    angle = torch.atan2(2 * across, first.square().sum(-1) - second.square().sum(-1)) / 2
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([torch.stack([cos, -sin], dim=-1), torch.stack([sin, cos], dim=-1)], dim=-2)
    return vectors @ rotation


def squared_norms(matrices: Float[Tensor, "n M N"], vectors: Float[Tensor, "n N 2"]) -> Float[Tensor, "n"]:
    """Return sigma^2 by (6)."""
    return (matrices @ vectors[..., :1]).square().sum((-2, -1))


def _unit(x: Tensor, before: Tensor) -> Tensor:
    """Return x at length 1, or the previous vector where x is 0, from which a later matrix can go on."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(length > 0, x / length, before)


class Regularizer(ABC):
    """Calling a regularizer returns the penalty for the model's present weights, differentiable in them."""

    name: ClassVar[str]
    usual_weight: ClassVar[float]  # the published one for ItrSA, where the configuration gives none
    matrices: ClassVar[tuple[str, ...]] = ()  # names among `linear_maps`

    def __init__(self, model: nn.Module) -> None:
        attention = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
        if not attention:
            raise InputError(
                f"model must have attention layers of attractor for regularizer '{self.name}', got "
                f"{type(model).__name__} without any; import a Hugging Face folder by attractor.hf.import_model, or "
                "train without a regularizer"
            )
        for name, layer in attention.items():
            if (refusal := self.refusal(layer)) is not None:
                where, next_step = refusal
                raise InputError(
                    f"regularizer must be another one or None where {where}, as in '{name}', got '{self.name}'; "
                    f"{next_step}"
                )
            for part in (*layer.project.children(), cast(nn.Module, layer.output.out)):
                if hasattr(part, "base_layer") or is_parametrized(part):
                    raise InputError(
                        f"regularizer must be None where an adapter or a parametrization changes a matrix, as in "
                        f"'{name}', got '{self.name}', which reads matrices as they are stored; merge it, or train "
                        "without a regularizer"
                    )
        self.layers = {name: self.weights(layer) for name, layer in attention.items()}  # the arguments of `of`

    @abstractmethod
    def refusal(self, layer: Attention) -> Refusal | None: ...

    def weights(self, layer: Attention) -> dict[str, nn.Parameter]:
        """Return the parameters of a layer that the penalty takes."""
        maps = linear_maps(layer)
        return {name: cast(nn.Parameter, maps[name].weight) for name in self.matrices}

    @abstractmethod
    def of(self, layer: str, weights: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """Return the penalty of a layer for the given weights, which need not be its own."""

    def __call__(self) -> Float[Tensor, ""]:
        return torch.stack([self.of(layer, weights) for layer, weights in self.layers.items()]).sum()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold so that a resumed run equals an uninterrupted one."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state


class Spectral(Regularizer):
    """The penalty (1)."""

    name = "spectral"
    usual_weight = 1e-4

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.vectors: dict[str, dict[str, Tensor]] = {}  # v1 and v2 by layer and matrix, from the first call on

    def refusal(self, layer: Attention) -> Refusal | None:
        return _refuse_orthogonal_values(layer) or _refuse_changed_matrices(layer)

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
        """Yield the squares by shape: matrices of one shape are stacked, which makes fewer and larger products."""
        kept = self.vectors.setdefault(layer, {})
        for shape in dict.fromkeys(matrix.shape for matrix in matrices.values()):
            names = [name for name, matrix in matrices.items() if matrix.shape == shape]
            stacked = torch.stack([matrices[name] for name in names])
            with torch.no_grad():
                if names[0] not in kept:
                    kept.update(zip(names, singular_vectors(stacked), strict=True))
                vectors = iterated(stacked, torch.stack([kept[name].to(stacked) for name in names]))
                kept.update(zip(names, vectors, strict=True))
            yield squared_norms(stacked, vectors)

    def state_dict(self) -> dict[str, Any]:
        return {
            layer: {name: pair.clone() for name, pair in of_layer.items()} for layer, of_layer in self.vectors.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.vectors = {layer: dict(of_layer) for layer, of_layer in state.items()}


class SingleEnergy(Regularizer):
    """The penalty (2)."""

    name = "energy-single"
    usual_weight = 1e-6
    matrices = ("query", "key", "value", "out")

    def refusal(self, layer: Attention) -> Refusal | None:
        if layer.layout.n_heads > 1:
            return f"there are {layer.layout.n_heads} heads", "give n_heads=1, or take energy-multi"
        return _refuse_orthogonal_values(layer) or _refuse_without_energy(layer)

    def of(self, layer: str, weights: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        with without_autocast(weights["out"]):
            return single_energy_gap(**weights)


class MultiEnergy(Regularizer):
    """The penalty (3)."""

    name = "energy-multi"
    usual_weight = 1e-4
    matrices = ("value", "out")

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        modules = {name: cast(Attention, model.get_submodule(name)) for name in self.layers}
        self.is_orthogonal = {name: is_orthogonal(layer) for name, layer in modules.items()}

    def refusal(self, layer: Attention) -> Refusal | None:
        n_heads, n_values = layer.layout.n_heads, layer.layout.n_kv_heads
        if n_values < n_heads:
            where = f"{n_heads} heads share the values of {n_values}, so that W_V and W_O' differ in shape"
            return where, "give every head its own values, or take spectral"
        return _refuse_without_energy(layer)

    def of(self, layer: str, weights: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        value, out = weights["value"], weights["out"]
        with without_autocast(out):
            return multi_energy_gap(*map(cayley, (value, out)) if self.is_orthogonal[layer] else (value, out))


REGULARIZERS: dict[str, type[Regularizer]] = {kind.name: kind for kind in (Spectral, SingleEnergy, MultiEnergy)}


def linear_maps(layer: Attention) -> dict[str, nn.Linear]:
    """Return the linear maps from x to queries, keys and values, and the output's."""
    projections = {
        name: module
        for name, module in layer.project.named_children()
        if isinstance(module, nn.Linear) and not isinstance(module, WideLinear)
    }
    return projections | {"out": cast(nn.Linear, layer.output.out)}


def is_orthogonal(layer: Attention) -> bool:
    return isinstance(getattr(layer.project, "value", None), OrthogonalLinear)


def _refuse_orthogonal_values(layer: Attention) -> Refusal | None:
    if is_orthogonal(layer):
        return "values are made by an orthogonal matrix", "leave orthogonal_values out, or take energy-multi"
    return None


def _refuse_changed_matrices(layer: Attention) -> Refusal | None:
    """Refuse layers without query and key matrices, or whose matrices are changed before they act."""
    if isinstance(layer.project, ValueProjection):
        return "attention is without queries and keys", "train this model without a regularizer"
    if layer.config.project.sigma_reparam:
        return "matrices are divided by their norm before they act", "leave sigma_reparam out"
    return None


def _refuse_without_energy(layer: Attention) -> Refusal | None:
    """Refuse layers without an energy: it needs logits x W_Q W_K' x' under a softmax, and an output linear in x W_V."""
    config, spectral = layer.config, "take standard attention, or spectral"
    if (refusal := _refuse_changed_matrices(layer)) is not None:
        return refusal
    if not isinstance(layer.project, HeadProjection):
        return "queries, keys and values are made from a latent", spectral
    if layer.config.project.reads_more:
        return "projections mix in other positions or layers", spectral
    if config.couple.moves:
        return "queries and keys are coupled before they are scored", spectral
    if config.couple.qk_norm or layer.softcap is not None:
        return "logits are no bilinear form, under QK-norm or a soft-cap", "leave qk_norm and softcap out"
    if type(config.score) is not Softmax:
        return f"the score is {type(config.score).__name__.lower()} and not one softmax", spectral
    if set(dict(layer.output.named_children())) != {"out"}:
        return "the output is gated", spectral
    return None
