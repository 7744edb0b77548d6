"""Which signals ask a run to stop, and what a repeated one does."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from attractor.train.interrupt import SIGNALS, StopRequest

REPEATABLE = [number for number in SIGNALS if number != signal.SIGINT]


@pytest.fixture(autouse=True)
def _ctrl_c_as_at_a_terminal() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_signals_that_end_jobs_are_heard() -> None:
    assert set(SIGNALS) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}


@pytest.mark.parametrize("number", REPEATABLE)
def test_a_repeated_signal_changes_nothing(number: signal.Signals) -> None:
    """Criterion: whatever follows the first signal, other than Ctrl-C, is not raised; the first one is told of."""
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopRequest() as stop:
        for following in (number, number, *REPEATABLE):
            signal.raise_signal(following)
        assert stop.signal_number == number
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("first", SIGNALS)
def test_ctrl_c_after_a_first_signal_ends_at_once(first: signal.Signals) -> None:
    with StopRequest() as stop:
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.signal_number == first


def test_a_process_that_was_started_to_survive_its_terminal_does() -> None:
    """Criterion: under nohup, SIGHUP is not noted, and the other signals are."""
    script = (
        "import os, signal\n"
        "from attractor.train.interrupt import StopRequest\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with StopRequest() as stop:\n"
        "    signal.raise_signal(signal.SIGHUP)\n"
        "    assert stop.signal_number is None\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    assert stop.signal_number == signal.SIGTERM\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=dict(os.environ))
