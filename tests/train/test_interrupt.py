"""The signals that ask a run to stop, and the effect of a repeated signal."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from attractor.errors import RunInterrupted
from attractor.train.interrupt import SIGNALS, StopRequest


@pytest.mark.parametrize("number", SIGNALS)
def test_a_repeated_signal_changes_nothing(number: signal.Signals) -> None:
    """Criterion: signals after the first raise nothing, and the first one is reported."""
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopRequest() as stop:
        for following in (number, number, *SIGNALS):
            signal.raise_signal(following)
        assert stop.signal_number == number
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_signals_stay_ignored_where_the_process_ends_with_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: the command line ignores repeated signals until it ends; elsewhere the handlers are restored, and
    after an error they always are."""
    before = [signal.getsignal(number) for number in SIGNALS]
    for ends, error in ((False, RunInterrupted("saved", signal.SIGTERM)), (True, ValueError("a fault"))):
        monkeypatch.setattr(StopRequest, "ends_process", ends)
        with suppress(RunInterrupted, ValueError), StopRequest():
            raise error
        assert [signal.getsignal(number) for number in SIGNALS] == before
    try:
        with suppress(RunInterrupted), StopRequest():
            raise RunInterrupted("saved", signal.SIGTERM)
        for number in SIGNALS:
            signal.raise_signal(number)
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


def test_a_process_that_was_started_to_survive_its_terminal_does() -> None:
    """Criterion: under nohup, SIGHUP is ignored, and the other signals are handled."""
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


LONG_STEP = """
import sys
import torch
from attractor.train import interrupt, loop
interrupt.GRACE_SECONDS = loop.GRACE_SECONDS = 1.0
take_step = loop.Run.take_step
def long_step(run):
    if run.step < STEPS_BEFORE:
        return take_step(run)
    print("in the long step", flush=True)
    q = torch.zeros(1, 1, 1_000_000, 16)
    torch.nn.functional.scaled_dot_product_attention(q, q, q)  # one operation of minutes, which hears of no signal
loop.Run.take_step = long_step
from attractor import cli
sys.argv = ["attractor", "train", "--d-model=16", "--n-heads=2", "--n-layers=1", "--d-ff=32", "--n-steps=9",
            "--seq-len=16", "--batch-size=4", "--eval-batches=1", "--save-every=1", "--device=cpu", "--threads=1",
            "--out=run"]
cli.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps_before", "number", "saved"),
    [(0, signal.SIGTERM, "there is no checkpoint yet"), (2, signal.SIGINT, "the newest checkpoint is 'step-00000002'")],
)
def test_a_step_that_does_not_end_is_ended_with_a_note_of_the_last_checkpoint(
    steps_before: int, number: signal.Signals, saved: str, tmp_path: Path
) -> None:
    """Criterion: although Python cannot act on the signal, the process ends with its exit code and one line."""
    script = LONG_STEP.replace("STEPS_BEFORE", str(steps_before))
    exit_code, said = signalled(script, tmp_path, "in the long step", number)
    assert exit_code == 128 + number
    (line,) = said.splitlines()
    assert line.startswith(
        f"interrupted after step {steps_before}: the next step, evaluation or save had not ended 1 s after the signal"
    )
    assert saved in line
    assert line.endswith("Resume: attractor train --resume run --device cpu")


STAGES = {
    "data": """
import sys
sys.argv = ["attractor", "data", "prepare", "text.txt", "--out=shards"]
from attractor.cli import data
def slow(*_):
    print("begun", flush=True)
    while True:
        sum(range(10_000))
slow.__annotations__ = data.data_prepare.__annotations__
data.data_prepare = slow
from attractor import cli
cli.main()
""",
    "planning": """
import sys
from attractor.train import fit
def slow(*_):
    print("begun", flush=True)
    while True:
        sum(range(10_000))
fit.FreeMemory.refuse_oversized = slow
from attractor import cli
sys.argv = ["attractor", "plan", "--device=cpu"]
cli.main()
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("stage", STAGES)
def test_other_stages_end_at_once(stage: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a few words\n" * 1000)
    exit_code, said = signalled(STAGES[stage], tmp_path, "begun", number)
    assert exit_code == (-number if number == signal.SIGTERM else 128 + number)
    assert "Traceback" not in said


def test_a_deadline_that_is_met_ends_no_process() -> None:
    """Criterion: the process continues after `saving` and after the `with` block, and the wake-up file descriptor is
    restored."""
    script = (
        "import signal, time\n"
        "from attractor.train import interrupt\n"
        "interrupt.GRACE_SECONDS = 1\n"
        "for meet in (True, False):\n"
        "    with interrupt.StopRequest(lambda: 'overdue') as stop:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "        if meet:\n"
        "            stop.saving()\n"
        "            time.sleep(1.2)\n"
        "    time.sleep(1.2)\n"
        "with interrupt.Deadline(lambda: 'overdue'), interrupt.StopRequest():\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    time.sleep(1.2)\n"
        "assert signal.set_wakeup_fd(-1) == -1\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=dict(os.environ))


def signalled(script: str, folder: Path, line: str, number: signal.Signals) -> tuple[int, str]:
    """Send a signal to a process, in which Ctrl-C works as at a terminal, once it prints the line; return its exit code
    and errors."""
    how = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen([sys.executable, "-c", how + script], cwd=folder, env=dict(os.environ), **pipes)
    try:
        assert any(said.strip() == line for said in run.stdout), run.communicate()
        run.send_signal(number)
        return run.wait(timeout=60), run.communicate()[1]
    finally:
        run.kill()
