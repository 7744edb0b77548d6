"""The interfaces of the four stages: base classes of their configs, and what passes between stages.

The config of a stage is a frozen dataclass whose `build` makes the module. Configs compare by value, change by
`dataclasses.replace`, and are stored as dictionaries with their class name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from torch import nn

from attractor.errors import require_known, unknown
from attractor.fields import PrintsChanges, later, require_types, stored_fields
from attractor.files.code import DefinedByPath


@dataclass(frozen=True)
class Shape:
    """The sizes of a layer, from which its modules are built."""

    d_model: int
    n_heads: int
    head_dim: int
    layer_index: int = 0
    query_maps: int = 1  # query heads per head; the revised differential attention has two

    @property
    def n_queries(self) -> int:
        return self.n_heads * self.query_maps


@dataclass(frozen=True)
class HeadLayout:
    """The numbers of heads and their widths after projection.

    `free` is the width of the leading part of queries and keys, which coupling changes. `rotary` is the width of a
    trailing part that holds position alone (MLA); if it is 0, position is applied to the whole head. `extra` counts the
    coordinates behind the `value` of each value, which tell some scores of a decay and more.
    """

    n_heads: int
    n_queries: int
    n_kv_heads: int
    free: int
    value: int
    rotary: int = 0
    extra: int = 0


@dataclass(frozen=True)
class Stage(PrintsChanges, DefinedByPath, ABC):
    """The config of a choice at one stage."""

    stage: ClassVar[str]

    def __post_init__(self) -> None:
        require_types(self)

    @classmethod
    def kinds(cls) -> dict[str, type[Self]]:
        """Return every imported config of this stage by class name."""

        def below(kind: type[Self]) -> Iterator[type[Self]]:
            for child in kind.__subclasses__():
                yield child
                yield from below(child)

        return {kind.__name__: kind for kind in below(cls)}

    def to_dict(self) -> dict[str, Any]:
        return {"kind": type(self).__name__} | stored_fields(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        values = dict(stored)
        kind = values.pop("kind", None)
        if kind not in cls.kinds():
            see = (
                "one of your own is known once the file that defines it has been executed, by --code FILE on the "
                "command line and by attractor.attention.defined_by(FILE) in Python"
            )
            raise unknown(f"{cls.stage} stage", kind, cls.kinds(), see)
        chosen = cls.kinds()[kind]
        known = {f.name for f in fields(chosen)}
        for key in values:
            require_known(f"{kind} field", key, known)
        return chosen(**values)


@dataclass(frozen=True)
class Projection(Stage):
    """Stage 1, project. The module maps x (B T D) to q, k, v and has a `layout`.

    Under `reads_more`, it is called with a `Surroundings` beside x.
    """

    stage = "project"
    reads_more: ClassVar[bool] = False

    sigma_reparam: bool = later(False)  # applies to the matrices that make queries and keys

    @abstractmethod
    def build(self, shape: Shape) -> nn.Module: ...


@dataclass(frozen=True)
class Coupling(Stage):
    """Stage 2, couple. The module maps (q, k) to (q', k') within each position and head; it never mixes positions.

    The output has `parts` vectors of the head's width side by side (two under phase activation), rotated alike.
    """

    stage = "couple"
    parts: ClassVar[int] = 1
    moves: ClassVar[bool] = True  # False only for the identity, which later stages may skip or absorb

    qk_norm: bool = False  # RMSNorm of every scored head, after coupling and before position
    qk_norm_across: bool = later(False)  # RMSNorm over all heads together (OLMo 2)
    qk_norm_eps: float = later(1e-6)
    rope_fraction: float = later(1.0)  # the leading part of each head that RoPE rotates

    @abstractmethod
    def build(self, layout: HeadLayout) -> nn.Module: ...


@dataclass(frozen=True)
class Scoring(Stage):
    """Stage 3, score. The module maps (q', k', v) to a context for each head.

    Its `forward(q, k, v, mask, x)` receives q B H T K, k B J S K and v B J S V, where H is a multiple of J. It also
    receives a `Mask` and the layer's input x, and returns B H T V. If a head has two maps, q has 2 H heads; under
    `halves` k has 2 J. `mask.spelled_out(T, S, device)` is True where a query may attend, or None if it may attend to
    everything.
    """

    stage = "score"
    normalised: ClassVar[bool] = True  # whether the weights of a query sum to one
    extra: ClassVar[int] = 0  # coordinates behind each value that the score reads, and its projection must give
    rotates: ClassVar[bool] = True  # whether queries and keys take rotations
    keeps_state: ClassVar[bool] = False  # whether the score is given the cache, which then holds no keys and values

    @property
    def halves(self) -> bool:
        """Whether each head is scored as two sub-heads of half its width."""
        return False

    @property
    def query_maps(self) -> int:
        """The number of query heads that the projection must make for each head."""
        return 1

    @property
    def over_pairs(self) -> bool:
        """Whether the cost is that of all pairs of positions, of which fused causal kernels compute half."""
        return True

    @abstractmethod
    def build(self, shape: Shape, layout: HeadLayout, scale: float, dropout: float) -> nn.Module: ...


@dataclass(frozen=True)
class Output(Stage):
    """Stage 4, output. The module's `forward(context, x)` maps the contexts of all heads B H T V, and the layer's input
    x B T D, to B T D."""

    stage = "output"

    @abstractmethod
    def build(self, shape: Shape, layout: HeadLayout) -> nn.Module: ...
