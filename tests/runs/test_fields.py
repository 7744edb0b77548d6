"""Configurations are printed as short code."""

import json
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch

from attractor.attention import PRESETS, AttentionConfig
from attractor.attention.stage import Coupling, Output, Projection, Scoring
from attractor.errors import InputError
from attractor.models import FAMILIES, SIZES, ImportedConfig, TransformerConfig
from attractor.tasks import KINDS
from attractor.tasks.recall import Recall
from attractor.tasks.text import Text
from attractor.train.config import RECIPES, Runtime, TrainConfig

STAGES = {name: kind for family in (Projection, Coupling, Scoring, Output) for name, kind in family.kinds().items()}
NAMES = {kind.__name__: kind for kind in (AttentionConfig, TrainConfig, Runtime, *FAMILIES.values(), *KINDS)}
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
    """Criterion: the code names no field that is at its default."""
    config = CONFIGS[name]
    again = from_repr(config)
    assert again == config
    assert type(again) is type(config)
    named = {f.name for f in fields(config) if f"{f.name}=" in repr(config).replace(nested_reprs(config), "")}
    assert not {name for name in named if getattr(config, name) == getattr(type(config), name, object())}


def nested_reprs(config: Any) -> str:
    """Return the longest repr of a nested config, which may have fields with the same names."""
    nested = [repr(getattr(config, f.name)) for f in fields(config) if is_dataclass(getattr(config, f.name))]
    return max(nested, key=len, default="nothing")


def test_a_printed_config_is_short() -> None:
    assert repr(TrainConfig()) == "TrainConfig()"
    assert repr(AttentionConfig()) == "AttentionConfig()"
    gated = TrainConfig(n_steps=200, model=TransformerConfig(attention="gated"))
    assert repr(gated) == "TrainConfig(model=TransformerConfig(attention='gated'), n_steps=200)"
    assert repr(Text("a corpus")) == "Text(corpus='a corpus')"
    assert repr(PRESETS["coupled-linear"]) == "AttentionConfig(couple=Euler(force='linear'))"


def test_numbers_of_numpy_are_stored_as_those_of_python() -> None:
    config = TransformerConfig(n_layers=np.int64(2), softcap=np.float32(5.0))
    assert json.loads(json.dumps(config.to_dict())) == TransformerConfig(n_layers=2, softcap=5.0).to_dict()
    assert "np." not in repr(config)


def test_equal_seeds_of_numpy_and_python_give_equal_weights_and_a_seed_that_is_no_count_is_refused() -> None:
    """1.0 would otherwise draw other weights than 1."""
    ours, theirs = (SIZES["tiny"].build(seed).state_dict() for seed in (3, np.int64(3)))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for seed in (1.0, "1", -1, True):
        with pytest.raises(InputError, match="seed must be an integer of at least 0"):
            SIZES["tiny"].build(seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "changes"), [("rope_fraction", {"rope_fraction": 0.4}), ("head width", {"d_model": 36})]
)
def test_a_rotation_of_an_odd_width_is_refused_by_the_config(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{field} must be"):
        ImportedConfig(**{"d_model": 32, "n_heads": 4, "d_ff": 64, "positions": "rope"} | changes)
