"""The configuration of an attention mechanism: one choice at each of the four stages."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from attractor.attention.couple.none import Uncoupled
from attractor.attention.output.plain import Plain
from attractor.attention.project.heads import Heads
from attractor.attention.score.softmax import Softmax
from attractor.attention.stage import Coupling, Output, Projection, Scoring, Stage
from attractor.errors import InputError, require, unknown
from attractor.fields import PrintsChanges, require_types

STAGES: dict[str, type[Stage]] = {"project": Projection, "couple": Coupling, "score": Scoring, "output": Output}


@dataclass(frozen=True)
class AttentionConfig(PrintsChanges):
    """A mechanism: the configs of its four stages, and the dropout of its attention weights."""

    project: Projection = field(default_factory=Heads)
    couple: Coupling = field(default_factory=Uncoupled)
    score: Scoring = field(default_factory=Softmax)
    output: Output = field(default_factory=Plain)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name, family in STAGES.items():
            stage = getattr(self, name)
            require(isinstance(stage, family), name, f"a config of the {name} stage", stage)
        require_types(self)
        require(0 <= self.dropout < 1, "dropout", "at least 0 and below 1", self.dropout)
        couple = self.couple
        require(couple.qk_norm or not couple.qk_norm_across, "qk_norm_across", "False without qk_norm", True)
        require(couple.qk_norm_eps > 0, "qk_norm_eps", "positive", couple.qk_norm_eps)
        require(0 < couple.rope_fraction <= 1, "rope_fraction", "above 0 and at most 1", couple.rope_fraction)

    def replace(self, **changes: Any) -> Self:
        """Return this config with some fields changed; fields of stages are named directly: `replace(n_steps=3)`."""
        whole = {key: value for key, value in changes.items() if key == "dropout" or key in STAGES}
        config = replace(self, **whole)
        nested = {key: value for key, value in changes.items() if key not in whole}
        stages = {name: getattr(config, name) for name in STAGES}
        known = {f.name for stage in stages.values() for f in fields(stage)}
        for key, value in nested.items():
            if key == "window" and key not in known:
                rule = f"left out under score {type(config.score).__name__}"
                raise InputError(f"window must be {rule}, got {value!r}; only attention by a softmax has windows")
            if key not in known:
                raise unknown(
                    "attention field", key, known | {"dropout"}, see="'attractor list gated' shows those of one"
                )
        for name, stage in stages.items():
            stage_changes = {key: value for key, value in nested.items() if key in {f.name for f in fields(stage)}}
            stages[name] = replace(stage, **stage_changes)
        return replace(config, **stages)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name).to_dict() for name in STAGES} | {"dropout": self.dropout}

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(getattr(self, name) for name in STAGES)

    @property
    def own_code(self) -> tuple[type[Stage], ...]:
        """The classes of stages that attractor does not define."""
        kinds = map(type, self.stages)
        return tuple(kind for kind in kinds if kind.__module__.partition(".")[0] != "attractor")

    @property
    def label(self) -> str:
        return " ".join(kind.__name__ for kind in self.own_code) or "custom"

    @property
    def window(self) -> int | None:
        """The number of keys that a query sees, itself included; None for the whole past."""
        return getattr(self.score, "window", None)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        for key in stored:
            if key not in STAGES and key != "dropout":
                raise unknown("attention field", key, [*STAGES, "dropout"])
        stages = {name: family.from_dict(stored[name]) for name, family in STAGES.items() if name in stored}
        return cls(dropout=stored.get("dropout", 0.0), **stages)  # type: ignore[arg-type]


def unlike_standard(name: str, stage: Stage) -> str:
    """Return how a stage differs from that of standard attention: its class, and its fields not at their defaults."""
    standard, default = type(getattr(AttentionConfig(), name)), type(stage)()
    values = {f.name: getattr(stage, f.name) for f in fields(stage)}
    words = [] if type(stage) is standard else [type(stage).__name__]
    return " ".join(
        [*words, *(f"{field}={value}" for field, value in values.items() if value != getattr(default, field))]
    )
