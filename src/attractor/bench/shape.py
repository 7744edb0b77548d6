"""The shape at which models are timed, and the names of our models at this shape.

A name is that of a mechanism, and may change fields of the attention or of the model: `coupled-euler:n_steps=3,dt=0.2`,
`standard:d_ff=768`. So a mechanism can be compared with a variant of it, or with a baseline of as many parameters.
At the shape of a FastSlow, every name is that of a FastSlow: `standard:pool_factor=8`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from attractor.attention.named import mechanism as mechanism_named
from attractor.attention.named import resolved, split_fields
from attractor.errors import InputError, require, require_known
from attractor.models import SIZES, FastSlowConfig, TransformerConfig

SIZED = ("d_model", "n_heads", "n_layers", "d_ff")  # fields that a named size has as well


@dataclass(frozen=True)
class BenchShape:
    vocab_size: int = 320
    d_model: int = 512
    n_heads: int = 8
    n_layers: int = 4
    d_ff: int = 2048
    seq_len: int = 512
    n_tokens: int = 1024  # per step; a longer sequence makes a step by itself
    size: str | None = None  # a FastSlow by name, whose stacks replace `n_layers`; None: a Transformer

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            require(field.name == "size" or value >= 1, field.name, "at least 1", value)

    @property
    def batch_size(self) -> int:
        return max(1, self.n_tokens // self.seq_len)


# The defaults: what two cores time in a few minutes, and the shape for a large GPU.
ON_CPU = BenchShape()
ON_CUDA = BenchShape(vocab_size=50_257, n_layers=8, n_tokens=32 * 512)


def shape_of_size(size: str, start: BenchShape) -> BenchShape:
    """Return the shape of the named model; tokens and vocabulary stay as in `start`."""
    require_known("size", size, SIZES, see="'attractor list' shows all")
    config = SIZES[size]
    if isinstance(config, FastSlowConfig):
        return replace(start, size=size, **{field: getattr(config, field) for field in SIZED if field != "n_layers"})
    if not isinstance(config, TransformerConfig):
        raise InputError(
            f"size must be that of a Transformer or a FastSlow, got '{size}'; 'attractor list' shows the families"
        )
    return replace(start, **{field: getattr(config, field) for field in SIZED})


def config_of(name: str, shape: BenchShape) -> TransformerConfig | FastSlowConfig:
    """Return the config of the model that a name stands for at this shape."""
    mechanism, changes = split_fields(name)
    try:
        return _config_of(mechanism, shape, changes)
    except TypeError as error:  # a field that takes a number was given a word
        raise InputError(
            f"fields of a preset must have values of their kind, got '{name}'; write a number, or True or False, where "
            "the field has one"
        ) from error


def _config_of(mechanism: str, shape: BenchShape, changes: Mapping[str, Any]) -> TransformerConfig | FastSlowConfig:
    base = TransformerConfig(n_layers=shape.n_layers) if shape.size is None else SIZES[shape.size]
    assert isinstance(base, TransformerConfig | FastSlowConfig)
    of_model = {f.name for f in fields(base)} - {"attention"}
    attention = {field: value for field, value in changes.items() if field not in of_model}
    window = changes.get("window", base.window)  # it may be longer than sequences, which RoPE leaves without a limit
    return base.replace(
        vocab_size=shape.vocab_size,
        max_seq_len=max(shape.seq_len, window) if isinstance(window, int) else shape.seq_len,
        **{field: getattr(shape, field) for field in SIZED if field != "n_layers"},
        positions="rope",
        attention=resolved(mechanism).replace(**attention) if attention else mechanism_named(mechanism),
    ).replace(**{field: value for field, value in changes.items() if field in of_model})
