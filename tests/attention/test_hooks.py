"""Taps pass tensors on unchanged, open captures record each tensor once, and closed ones record nothing."""

import re

import pytest
import torch

from attractor.attention.hooks import capture, listening, tap
from attractor.errors import InputError


def test_tap_returns_the_same_tensor() -> None:
    x = torch.randn(3, requires_grad=True)
    assert tap("q", x) is x
    with capture("q") as seen:
        assert tap("q", x) is x
    assert len(seen["q"]) == 1
    assert seen["q"][0] is x


def test_nested_captures_record_independently() -> None:
    x, y, z = torch.zeros(1), torch.ones(1), torch.ones(2)
    with capture("q") as outer:
        tap("q", x)
        with capture("q", "k") as inner:
            tap("q", y)
            tap("k", y)
            tap("weights", y)
        tap("q", z)
    assert [id(t) for t in outer["q"]] == [id(x), id(y), id(z)]
    assert [id(t) for t in inner["q"]] == [id(y)]
    assert list(outer) == ["q"]
    assert list(inner) == ["q", "k"]


def test_an_inner_capture_of_the_same_names_ends_without_the_outer() -> None:
    """Criterion: even while both hold equal dictionaries, the end of the inner capture does not close the outer one."""
    with capture("q") as outer:
        with capture("q") as inner:
            pass
        assert inner == outer
        tap("q", torch.zeros(1))
    assert len(outer["q"]) == 1
    assert inner["q"] == []


def test_listening_tells_whether_a_capture_is_open() -> None:
    assert not listening()
    with capture("q"):
        assert listening()
        assert listening("q")
        assert listening("k", "q")
        assert not listening("k")
        with capture("k"):
            assert listening("k")
        assert not listening("k")
    assert not listening()
    assert not listening("q")


def test_listening_ends_with_an_error() -> None:
    with pytest.raises(RuntimeError, match="broken"), capture("q") as seen:
        raise RuntimeError("broken")
    tap("q", torch.zeros(1))
    assert not listening()
    assert seen["q"] == []


def test_an_unknown_tap_is_refused_and_leaves_no_capture_open() -> None:
    message = re.escape("unknown tap 'weight'; did you mean 'weights'? (attractor.attention.hooks.TAPS describes all)")
    with pytest.raises(InputError, match=f"^{message}$"), capture("q", "weight"):
        pass
    assert not listening()
