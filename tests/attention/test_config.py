"""Configs of mechanisms are data: they compare by value, change by field, survive storage, and refuse invalid
values."""

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from attractor.attention import PRESETS, Attention, AttentionConfig, build
from attractor.attention.couple.euler import Euler
from attractor.attention.couple.leapfrog import Leapfrog
from attractor.attention.couple.none import Uncoupled
from attractor.attention.project.decayed import DecayedHeads
from attractor.attention.project.heads import Heads
from attractor.attention.score.decayed import Decayed
from attractor.attention.score.differential import Differential
from attractor.attention.score.softmax import Softmax
from attractor.errors import InputError


def test_no_two_presets_are_the_same() -> None:
    assert len(set(PRESETS.values())) == len(PRESETS)


def test_replace_reaches_the_fields_of_stages() -> None:
    config = PRESETS["coupled-euler"].replace(n_steps=3, dt=0.5, softcap=30.0, n_kv_heads=2, qk_norm=True, dropout=0.1)
    assert config.couple == Euler(n_steps=3, dt=0.5, qk_norm=True)
    assert config.score == Softmax(softcap=30.0)
    assert config.project == Heads(n_kv_heads=2)
    assert config.dropout == 0.1
    assert PRESETS["coupled-euler"].couple == Euler()
    assert build("coupled-euler", 16, 4, dt=0.2).config == build(PRESETS["coupled-euler"].replace(dt=0.2), 16, 4).config


def test_replace_takes_whole_stages_and_their_fields_together() -> None:
    config = AttentionConfig().replace(couple=Leapfrog(), score=Differential(), n_steps=5)
    assert config == AttentionConfig(couple=Leapfrog(n_steps=5), score=Differential())


def test_stored_form_is_plain_data() -> None:
    stored = PRESETS["coupled-gqa"].to_dict()
    assert stored["project"] == {"kind": "Heads", "n_kv_heads": None, "heads_per_kv": 4, "qkv_bias": False}
    assert stored["couple"]["kind"] == "Euler"
    assert AttentionConfig.from_dict({}) == AttentionConfig()
    assert AttentionConfig.from_dict({"couple": {"kind": "Uncoupled"}}).couple == Uncoupled()


EULER = PRESETS["coupled-euler"]
FIELDS = "('attractor list gated' shows"


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: build("eular", 16, 4), "unknown attention 'eular'; did you mean 'coupled-euler'? ('attractor list' "),
        (lambda: build("zzzz", 16, 4), "unknown attention 'zzzz'; known: coupled-differential, coupled-euler, "),
        (lambda: EULER.replace(n_step=1), f"unknown attention field 'n_step'; did you mean 'n_steps'? {FIELDS}"),
        (lambda: build(EULER, 16, 4, drop=1), f"unknown attention field 'drop'; did you mean 'dropout'? {FIELDS}"),
        (lambda: build("standard", 16, 4, n_steps=3), "unknown attention field 'n_steps'"),
        (lambda: PRESETS["uniform"].replace(softcap=2.0), "unknown attention field 'softcap'"),
        (lambda: PRESETS["uniform"].replace(z_loss=0.1), "unknown attention field 'z_loss'"),
        (lambda: AttentionConfig.from_dict({"copule": {}}), "unknown attention field 'copule'; did you mean 'couple'?"),
        (lambda: stored_couple(kind="Eular"), "unknown couple stage 'Eular'; did you mean 'Euler'?"),
        (lambda: stored_couple(kind="Euler", n_step=2), "unknown Euler field 'n_step'; did you mean 'n_steps'?"),
        (lambda: stored_couple(kind="Softmax"), "unknown couple stage 'Softmax'"),
        (lambda: stored_couple(), "unknown couple stage 'None'"),
        (lambda: EULER.replace(dropout=1.0), "dropout must be at least 0 and below 1, got 1.0"),
        (lambda: EULER.replace(dropout=-0.1), "dropout must be at least 0 and below 1, got -0.1"),
        (lambda: EULER.replace(softcap=0.0), "softcap must be positive and finite, or None, got 0.0"),
        (lambda: EULER.replace(softcap=math.inf), "softcap must be positive and finite, or None, got inf"),
        (lambda: Differential(softcap=-1.0), "softcap must be positive and finite, or None, got -1.0; "),
        (lambda: EULER.replace(dt=0.0), "dt must be positive and finite, got 0.0"),
        (lambda: EULER.replace(dt=-0.1), "dt must be positive and finite, got -0.1"),
        (lambda: EULER.replace(dt=math.nan), "dt must be positive and finite, got nan"),
        (lambda: EULER.replace(n_steps=0), "n_steps must be an integer of at least 1, got 0"),
        (lambda: EULER.replace(force="gradiant"), "unknown force 'gradiant'; did you mean 'gradient'?"),
        (lambda: EULER.replace(z_loss=-0.1), "z_loss must be at least 0 and finite, got -0.1; 0 is no penalty"),
        (lambda: Differential(z_loss=math.nan), "z_loss must be at least 0 and finite, got nan; 0 is no penalty"),
        (lambda: Differential(form="vector"), "unknown form of differential attention 'vector'; did you mean 'v"),
        (lambda: build("differential", 16, 4, layer_index=-1), "layer_index must be an integer of at least 0, got -1"),
        (lambda: DecayedHeads(initial_memory=1.0), "initial_memory must be above 1 and finite, got 1.0"),
        (lambda: DecayedHeads(initial_memory=math.inf), "initial_memory must be above 1 and finite, got inf"),
        (lambda: stages(score=Decayed()), "project must be DecayedHeads for score Decayed, got Heads(); "),
        (lambda: stages(project=DecayedHeads()), "project must be any other than DecayedHeads for score Softmax, got "),
    ],
)
def test_names_and_values_that_no_mechanism_has_are_refused(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(message)):
        attempt()


def stored_couple(**stage: Any) -> AttentionConfig:
    return AttentionConfig.from_dict({"couple": stage})


def stages(**given: Any) -> Attention:
    return build(AttentionConfig(**given), 16, 4)


@pytest.mark.parametrize(
    ("config", "field", "value", "message"),
    [
        (PRESETS["standard"], "dropout", "0.1", "dropout must be a number, got '0.1'"),
        (Softmax(), "softcap", "5", "softcap must be a number, or None, got '5'"),
        (Differential(), "softcap", True, "softcap must be a number, or None, got True"),
        (DecayedHeads(), "n_kv_heads", "2", "n_kv_heads must be an integer, or None, got '2'"),
        (Heads(), "qkv_bias", 1, "qkv_bias must be True or False, got 1"),
        (Euler(), "n_steps", 2.0, "n_steps must be an integer, got 2.0"),
    ],
)
def test_values_of_another_type_are_refused(config: Any, field: str, value: object, message: str) -> None:
    """Criterion: each config checks its types first. Here they are changed afterwards, past the tests' own checks."""
    changed = copy.copy(config)
    object.__setattr__(changed, field, value)
    with pytest.raises(InputError, match="^" + re.escape(message) + "$"):
        changed.__post_init__()
