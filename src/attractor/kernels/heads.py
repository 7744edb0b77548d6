"""Arrange heads in groups that share a key head, and models under vmap as the first dimension."""

from torch import Tensor


def grouped(x: Tensor, shared: Tensor) -> Tensor:
    """Return B H T . as B J GT . for the J heads of `shared`: the G heads that share one follow each other."""
    batch, n_heads, length, width = x.shape
    return x.reshape(batch, shared.shape[1], n_heads // shared.shape[1] * length, width)


def models_first(x: Tensor, dim: int | None, n_models: int) -> Tensor:
    """Return x under vmap with the models as its first dimension; `dim` is None if all models share x."""
    return x.expand(n_models, *x.shape) if dim is None else x.movedim(dim, 0)
