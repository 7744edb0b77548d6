"""Configurations are printed as short code."""

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from attractor.attention import PRESETS, AttentionConfig
from attractor.attention.stage import Coupling, Output, Projection, Scoring
from attractor.models import FAMILIES, SIZES, TransformerConfig
from attractor.tasks import TASKS
from attractor.tasks.recall import Recall
from attractor.tasks.text import Text
from attractor.train.config import RECIPES, Runtime, TrainConfig

STAGES = {name: kind for family in (Projection, Coupling, Scoring, Output) for name, kind in family.kinds().items()}
NAMES = {kind.__name__: kind for kind in (AttentionConfig, TrainConfig, Runtime, *FAMILIES.values(), *TASKS.values())}
CONFIGS: dict[str, Any] = {
    **{f"preset-{name}": config for name, config in PRESETS.items()},
    **{f"size-{name}": config for name, config in SIZES.items()},
    **{f"recipe-{name}": config for name, config in RECIPES.items()},
    **{f"spelled-out-{name}": TransformerConfig(attention=config, n_layers=2) for name, config in PRESETS.items()},
    "task": TrainConfig(task=Recall(level="hard"), model=SIZES["tiny"], seq_len=256),
    "runtime": Runtime(device="cpu", threads=1),
}


def from_repr(config: Any) -> Any:
    return eval(repr(config), {**NAMES, **STAGES})


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_prints_as_code_that_makes_an_equal_config(name: str) -> None:
    config = CONFIGS[name]
    again = from_repr(config)
    assert again == config
    assert type(again) is type(config)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_printed_config_names_no_field_that_is_at_its_default(name: str) -> None:
    config = CONFIGS[name]
    named = {f.name for f in fields(config) if f"{f.name}=" in repr(config).replace(nested_reprs(config), "")}
    assert not {name for name in named if getattr(config, name) == getattr(type(config), name, object())}


def nested_reprs(config: Any) -> str:
    """Return the longest repr of a nested config, which may have fields with the same names."""
    nested = [repr(getattr(config, f.name)) for f in fields(config) if is_dataclass(getattr(config, f.name))]
    return max(nested, key=len, default="nothing")


def test_a_printed_config_is_short() -> None:
    assert repr(TrainConfig()) == "TrainConfig()"
    assert repr(AttentionConfig()) == "AttentionConfig()"
    gated = TrainConfig(n_steps=100, model=TransformerConfig(attention="gated"))
    assert repr(gated) == "TrainConfig(model=TransformerConfig(attention='gated'), n_steps=100)"
    assert repr(Text("a corpus")) == "Text(corpus='a corpus')"
    assert repr(PRESETS["coupled-linear"]) == "AttentionConfig(couple=Euler(force='linear'))"
