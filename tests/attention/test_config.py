"""Configs of mechanisms are data: they compare by value, change by field, survive storage, and refuse invalid
values."""

import copy
import math
import re
from typing import Any

import pytest

import attractor
from attractor.attention import PRESETS, AttentionConfig, build
from attractor.attention.couple.euler import Euler
from attractor.attention.couple.leapfrog import Leapfrog
from attractor.attention.couple.none import Uncoupled
from attractor.attention.project.decayed import DecayedHeads
from attractor.attention.project.heads import Heads
from attractor.attention.score.differential import Differential
from attractor.attention.score.softmax import Softmax
from attractor.errors import InputError

REQUIRED = {
    *("standard", "gqa", "mqa", "mla", "uniform", "gated", "phase", "psiqrh", "mlp-only"),
    *("differential", "differential-v2", "coupled-euler", "coupled-hamiltonian", "coupled-symplectic"),
    *("coupled-linear", "coupled-differential", "coupled-gqa", "coupled-mla", "coupled-gated"),
}


def test_required_presets_exist() -> None:
    assert set(PRESETS) >= REQUIRED
    assert attractor.attention.PRESETS is PRESETS


def test_no_two_presets_are_the_same() -> None:
    assert len(set(PRESETS.values())) == len(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_configs_compare_and_hash_by_value(name: str) -> None:
    config, again = PRESETS[name], PRESETS[name].replace()
    assert config == again
    assert hash(config) == hash(again)
    assert config != config.replace(dropout=0.5)


def test_replace_reaches_the_fields_of_stages() -> None:
    config = PRESETS["coupled-euler"].replace(n_steps=3, dt=0.5, softcap=30.0, n_kv_heads=2, qk_norm=True, dropout=0.1)
    assert config.couple == Euler(n_steps=3, dt=0.5, qk_norm=True)
    assert config.score == Softmax(softcap=30.0)
    assert config.project == Heads(n_kv_heads=2)
    assert config.dropout == 0.1
    assert PRESETS["coupled-euler"].couple == Euler()


def test_replace_takes_whole_stages_and_their_fields_together() -> None:
    config = AttentionConfig().replace(couple=Leapfrog(), score=Differential(), n_steps=5)
    assert config == AttentionConfig(couple=Leapfrog(n_steps=5), score=Differential())


def test_build_takes_a_name_or_a_config() -> None:
    assert build("coupled-euler", 16, 4, dt=0.2).config == build(PRESETS["coupled-euler"], 16, 4, dt=0.2).config
    assert build("coupled-euler", 16, 4, dt=0.2).config.couple == Euler(dt=0.2)


def test_stored_form_is_plain_data() -> None:
    stored = PRESETS["coupled-gqa"].to_dict()
    assert stored["project"] == {"kind": "Heads", "n_kv_heads": None, "heads_per_kv": 4, "qkv_bias": False}
    assert stored["couple"]["kind"] == "Euler"
    assert AttentionConfig.from_dict({}) == AttentionConfig()
    assert AttentionConfig.from_dict({"couple": {"kind": "Uncoupled"}}).couple == Uncoupled()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("eular", "unknown attention 'eular'; did you mean 'coupled-euler'? ('attractor list' shows all)"),
        ("standart", "unknown attention 'standart'; did you mean 'standard'? ('attractor list' shows all)"),
    ],
)
def test_unknown_preset_names_the_nearest(name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        build(name, 16, 4)


def test_a_name_without_a_near_match_gets_the_whole_table() -> None:
    with pytest.raises(InputError, match=r"^unknown attention 'zzzz'; known: coupled-differential, .*, uniform \("):
        build("zzzz", 16, 4)


@pytest.mark.parametrize(
    ("change", "nearest"),
    [("n_step", "n_steps"), ("drop", "dropout"), ("n_kv_head", "n_kv_heads"), ("soft_cap", "softcap")],
)
def test_unknown_field_names_the_nearest(change: str, nearest: str) -> None:
    """Criterion: `replace` and `build` both name the nearest field and say which command lists all fields."""
    message = re.escape(f"unknown attention field '{change}'; did you mean '{nearest}'? ('attractor list gated' shows")
    with pytest.raises(InputError, match="^" + message):
        PRESETS["coupled-euler"].replace(**{change: 1})
    with pytest.raises(InputError, match="^" + message):
        build("coupled-euler", 16, 4, **{change: 1})


def test_field_of_another_mechanism_is_refused() -> None:
    with pytest.raises(InputError, match=r"^unknown attention field 'n_steps'"):
        build("standard", 16, 4, n_steps=3)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"copule": {}}, "unknown attention field 'copule'; did you mean 'couple'?"),
        ({"couple": {"kind": "Eular"}}, "unknown couple stage 'Eular'; did you mean 'Euler'?"),
        ({"couple": {"kind": "Euler", "n_step": 2}}, "unknown Euler field 'n_step'; did you mean 'n_steps'?"),
        ({"couple": {"kind": "Softmax"}}, "unknown couple stage 'Softmax'"),
        ({"couple": {}}, "unknown couple stage 'None'"),
    ],
)
def test_a_stored_config_of_another_form_is_refused(stored: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(message)):
        AttentionConfig.from_dict(stored)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
        ({"softcap": 0.0}, "softcap must be positive and finite, or None, got 0.0"),
        ({"softcap": -1.0}, "softcap must be positive and finite, or None, got -1.0"),
        ({"softcap": math.inf}, "softcap must be positive and finite, or None, got inf"),
        ({"dt": 0.0}, "dt must be positive and finite, got 0.0"),
        ({"dt": -0.1}, "dt must be positive and finite, got -0.1"),
        ({"n_steps": 0}, "n_steps must be an integer of at least 1, got 0"),
        ({"force": "gradiant"}, "unknown force 'gradiant'; did you mean 'gradient'?"),
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(message)):
        PRESETS["coupled-euler"].replace(**changes)


def test_a_layer_before_the_first_is_refused() -> None:
    with pytest.raises(InputError, match=r"^layer_index must be an integer of at least 0, got -1; the first layer"):
        build("differential", 16, 4, layer_index=-1)


def test_differential_refuses_its_own_bad_values() -> None:
    with pytest.raises(InputError, match=r"^unknown form of differential attention 'vector'; did you mean 'vectors'"):
        Differential(form="vector")
    with pytest.raises(InputError, match=r"^softcap must be positive and finite, or None, got -1.0; "):
        Differential(softcap=-1.0)


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
