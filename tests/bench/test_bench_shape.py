"""The names of timed cases, and the shapes at which they are built."""

import pytest

from attractor.attention.couple.euler import Euler
from attractor.bench.shape import ON_CPU, ON_CUDA, BenchShape, config_of, shape_of_size
from attractor.errors import InputError
from attractor.models import SIZES, FastSlowConfig


def test_a_name_changes_the_attention_or_the_model() -> None:
    """Criterion: the last value of a field counts."""
    plain = config_of("coupled-euler", ON_CPU)
    assert plain.attention == "coupled-euler"
    changed = config_of("coupled-euler:n_steps=5,n_steps=3,dt=0.2,d_ff=96,qk_norm=True", ON_CPU)
    couple = changed.attention_config.couple
    assert isinstance(couple, Euler)
    assert (couple.n_steps, couple.dt, couple.qk_norm, changed.d_ff) == (3, 0.2, True, 96)
    assert changed.replace(attention="coupled-euler", d_ff=ON_CPU.d_ff, qk_norm=False) == plain


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("coupled-eular", "did you mean 'coupled-euler'"),
        ("coupled-euler:n_step=3", "did you mean 'n_steps'"),
        ("standard:n_steps=3", "unknown attention field 'n_steps'"),
        ("coupled-euler:n_steps", "write n_steps=VALUE"),
        ("standard:mlp=swigloo", "did you mean 'swiglu'"),
    ],
)
def test_a_wrong_name_is_refused_in_one_line(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        config_of(name, ON_CPU)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("size", ["tiny", "small", "medium", "large"])
def test_a_named_size_is_that_model(size: str) -> None:
    """Criterion: only the vocabulary, length and positions differ, which a bench sets itself."""
    config = config_of("standard", shape_of_size(size, ON_CUDA))
    own = {"vocab_size": ON_CUDA.vocab_size, "max_seq_len": ON_CUDA.seq_len, "positions": "rope"}
    assert config == SIZES[size].replace(**own)


def test_names_at_the_shape_of_a_fast_slow_are_fast_slows() -> None:
    """Criterion: only the vocabulary, length and mechanism differ from the named size, and names change its fields. A
    window may be longer than the sequences."""
    for size in ("fast-slow", "fast-slow-small"):
        shape = shape_of_size(size, ON_CPU)
        own = {"vocab_size": ON_CPU.vocab_size, "max_seq_len": ON_CPU.seq_len, "attention": "gated"}
        assert config_of("gated", shape) == SIZES[size].replace(**own)
    changed = config_of("coupled-euler:pool_factor=8,n_steps=3,window=1000", shape_of_size("fast-slow", ON_CPU))
    assert isinstance(changed, FastSlowConfig)
    assert (changed.pool_factor, changed.attention_config.window, changed.max_seq_len) == (8, 1000, 1000)


def test_sequences_fill_a_step_and_there_is_at_least_one() -> None:
    assert BenchShape(seq_len=512, n_tokens=16_384).batch_size == 32
    assert BenchShape(seq_len=16_384, n_tokens=1024).batch_size == 1
    with pytest.raises(InputError, match="n_layers must be at least 1, got 0"):
        BenchShape(n_layers=0)
