"""Any module that maps B T D to B T D as a mechanism: it joins whole, without stages.

    Whole(factory)      factory(d_model, n_heads), or names of the same meaning: WIDTHS, HEADS, LAYERS

The factory is a class or function that returns an `nn.Module`. Its module gets x alone and returns the output, or a
tuple whose first entry is the output. Of what attractor's own layers have, it lacks a cache, taps and masks:

    cache       a cache holds the layer's inputs, and each new position computes the layer over all of them  (1)
    masks       the past alone is visible; sequences of unequal lengths are refused                          (2)
    positions   no rotation is passed on, so a recipe with rotations gets learned positions, for all rows      (3)

That the past alone is visible is tested before a model is built (attention/causality.py).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attractor.attention.cache import Cache
from attractor.attention.causality import refuse_leaks
from attractor.attention.position import Rope, Rotation
from attractor.attention.stage import Stage
from attractor.errors import InputError, unknown
from attractor.files.code import found_again, found_in_code, name_in_code, portable

Factory = Callable[..., nn.Module]
WIDTHS = ("d_model", "hidden_size", "embed_dim", "n_embd", "dim")
HEADS = ("n_heads", "num_heads", "n_head", "heads")
LAYERS = ("layer_index", "layer_idx")
OUTPUTS = ("out", "out_proj", "o_proj", "c_proj", "proj", "to_out", "wo")  # names of the map into the stream
KIND = "Whole"
FUNCTION = "write a function that takes (d_model, n_heads) and returns the module"
_given: dict[str, Factory] = {}  # those of this process, by name
_suited: set[tuple[Any, ...]] = set()  # factories, options and sizes that were tested, here or where this was sent from


@dataclass(frozen=True)
class Whole:
    """A mechanism that is a module of its own. `options` are further arguments of its factory."""

    factory: Factory
    options: tuple[tuple[str, Any], ...] = ()

    stages: ClassVar[tuple[Stage, ...]] = ()
    window: ClassVar[int | None] = None
    dropout: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise InputError(
                f"factory must be a class or function that returns a module, got {type(self.factory).__name__}; give "
                "one that takes (d_model, n_heads)"
            )
        _given[self.name] = self.factory

    @property
    def name(self) -> str:
        """The factory as FILE.py:NAME or package.module:NAME."""
        return name_in_code(self.factory)

    @property
    def label(self) -> str:
        return ":".join([self.name.rpartition(":")[2], *(f"{key}={value}" for key, value in self.options)])

    @property
    def own_code(self) -> tuple[Any, ...]:
        """What of the mechanism attractor does not define."""
        return (self.factory,)

    @property
    def lacks(self) -> str:
        return (
            f"{self.label} joined whole: it lacks a cache (each new token of a generation computes the layer anew), "
            "taps (no logits and entropies are measured), padding masks, and rotations"
        )

    def replace(self, **changes: Any) -> "Whole":
        """Return the mechanism with other options of its factory."""
        known = _parameters(self.factory)
        for key in changes:
            if key not in known and not _takes_any(self.factory):
                see = f"{self.label} is a layer of its own, which has the arguments of its factory alone"
                raise unknown("attention field", key, [*known], see=see)
        return replace(self, options=tuple((dict(self.options) | changes).items()))

    def make(self, d_model: int, n_heads: int, layer_index: int = 0) -> nn.Module:
        """Return a module of the factory, which is given the sizes under the names of its own arguments."""
        given, known = dict(self.options), _parameters(self.factory)
        for names, value in ((WIDTHS, d_model), (HEADS, n_heads), (LAYERS, layer_index)):
            given |= {name: value for name in names if name in known and name not in given}
        if not _takes_any(self.factory) and not known.keys() & {*WIDTHS}:
            raise InputError(f"{self.name} must take a width, as d_model, and has no such argument; {FUNCTION}")
        missing = [name for name, parameter in known.items() if parameter.default is inspect._empty]
        missing = [name for name in missing if name not in given]
        if missing:
            raise InputError(
                f"{self.name} must take its sizes as d_model and n_heads, and '{missing[0]}' is neither; {FUNCTION}"
            )
        module = self.factory(**given)
        if not isinstance(module, nn.Module):
            raise InputError(f"{self.name} must return an nn.Module, got {type(module).__name__}; return the module")
        return module

    def build(self, d_model: int, n_heads: int, layer_index: int = 0) -> "WholeLayer":
        return WholeLayer(self, d_model, n_heads, layer_index)

    def require_suited(self, d_model: int, n_heads: int, causal: bool) -> None:
        """Refuse a module of other shapes or, in a causal model, one whose outputs depend on later positions."""
        asked = (self.factory, repr(self.options), d_model, n_heads, causal)
        if asked not in _suited:
            refuse_leaks(partial(self.make, d_model, n_heads), self.name, d_model, causal)
            _suited.add(asked)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let other processes make the mechanism: they load its code first, and do not test again what was tested."""
        suited = [asked[2:] for asked in _suited if asked[:2] == (self.factory, repr(self.options))]
        return _made_again, (portable(self.factory), self.options, suited)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": KIND, "name": self.name, "options": dict(self.options)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Whole":
        """Return the mechanism of a run. Its code must have been executed, since a stored name executes nothing."""
        name = stored["name"]
        return cls(_given[name] if name in _given else found_in_code(name), tuple(stored["options"].items()))


class WholeLayer(nn.Module):
    """A module of one's own in the place of an attention layer."""

    rope_width = 0
    window = None

    def __init__(self, config: Whole, d_model: int, n_heads: int, layer_index: int = 0) -> None:
        super().__init__()
        self.config, self.sizes = config, (d_model, n_heads, layer_index)
        self.module = config.make(*self.sizes)

    def draw_weights(self) -> None:
        """Make the module anew, since the factory alone knows its initial weights and buffers."""
        with torch.device("cpu"):
            self.module = self.config.make(*self.sizes)

    @property
    def outputs(self) -> list[nn.Linear]:
        """The linear map into the residual stream, where it has one of the usual names."""
        named = [child for name, child in self.module.named_children() if name in OUTPUTS]
        return [child for child in named[-1:] if isinstance(child, nn.Linear)]

    def forward(
        self,
        x: Tensor,
        causal_mask: bool | Tensor = True,
        rope: Rope | Rotation | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        if isinstance(causal_mask, Tensor):
            raise InputError(
                f"causal_mask must be True or False for {self.config.name}, which takes no masks (2), got a tensor; "
                "give sequences of one length, without padding"
            )
        seen = x if cache is None else cache.append(x.unsqueeze(1))[0].squeeze(1)  # (1)
        out = self.module(seen)
        out = out[0] if isinstance(out, tuple) else out
        return out[:, -x.shape[1] :], torch.zeros((), device=x.device)

    def new_cache(self) -> Cache:
        return Cache()


def _made_again(place: tuple[str, str, str], options: tuple[tuple[str, Any], ...], suited: list[Any]) -> Whole:
    factory = found_again(*place)
    _suited.update((factory, repr(options), *asked) for asked in suited)
    return Whole(factory, options)


def _parameters(factory: Factory) -> dict[str, inspect.Parameter]:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in inspect.signature(factory).parameters.items() if p.kind in by_name}


def _takes_any(factory: Factory) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in inspect.signature(factory).parameters.values())
