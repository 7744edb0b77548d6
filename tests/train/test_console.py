"""The console output of a run without a terminal."""

from io import StringIO

import pytest
from rich.console import Console

from attractor.train.console import LiveConsole


@pytest.mark.parametrize("terminal", [False, True])
def test_a_log_has_regular_lines_of_steps(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    """Criterion: lines also appear between the logged steps. A terminal has a progress bar and no such line."""
    monkeypatch.setattr("attractor.console.SECONDS_BETWEEN", 0.0)
    said = StringIO()
    live = LiveConsole(Console(file=said, force_terminal=terminal, width=120))
    live.begin({"label": "gated", "n_parameters": 1, "device": "cpu", "threads": 1, "data": "text"}, 0, 100)
    live.taken(1)
    live.step({"step": 10, "loss": 2.5})
    live.taken(11)
    live.step({"step": 20, "loss": None})
    live.taken(21)
    live.end()
    for line in ("step      1\n", "step     11  loss 2.500", "step     21  loss not finite"):
        assert (line in said.getvalue()) != terminal, line
