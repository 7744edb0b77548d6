"""The machine of a run: devices, memory, the share of peak FLOPs, and the console."""

import os
from io import StringIO

import pytest
import torch
from rich.console import Console

from attractor.errors import InputError
from attractor.train.display import LiveConsole, in_numbers
from attractor.train.hardware import PeakMemory, model_flops_utilisation, resolve_device, slow_precision, time_of_a_gpu


@pytest.mark.parametrize("name", ["cud", "gpu", "", "cuda:99"])
def test_a_missing_device_is_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_device(name)
    assert str(caught.value) == f"device must be one that torch can use here, got '{name}'; try cpu, cuda or auto"


def test_auto_selects_a_device_that_works() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("has_instructions", [True, False])
def test_half_precision_without_instructions_is_named(has_instructions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for precision in ("bf16", "fp16"):
        monkeypatch.setattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported", lambda: has_instructions)
        said = slow_precision(precision, torch.device("cpu"))
        assert said is None if has_instructions else said is not None and precision in said
        assert slow_precision(precision, torch.device("meta")) is None
    assert slow_precision("fp32", torch.device("cpu")) is None


def test_mfu_is_reported_only_for_known_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_flops_utilisation(1e12, torch.device("cpu")) is None
    for name, peak in (("NVIDIA H200", 989e12), ("NVIDIA H100 PCIe", 756e12), ("A device of tomorrow", None)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        expected = None if peak is None else pytest.approx(98.9e12 / peak)
        assert model_flops_utilisation(98.9e12, torch.device("cuda")) == expected


def test_the_time_of_a_gpu_rests_on_its_peak_and_the_utilisation() -> None:
    flops_of_two_hours = 989e12 * 0.4 * 7_200
    assert time_of_a_gpu(flops_of_two_hours) == "2.0 h of an H100 at 40% of its peak"


def test_the_console_shows_n_a_for_unknown_values() -> None:
    record = {"loss": 2.5, "tokens_per_second": 45_100.0, "memory": 70_000_000, "mfu": None, "skipped_steps": 0}
    assert in_numbers(record) == "loss 2.500  45.1k tok/s  70 MB  MFU n/a"
    assert in_numbers(record | {"mfu": 0.4567, "skipped_steps": 3}).endswith("70 MB  MFU 45.7%  3 skipped")
    assert in_numbers({"loss": None}) == in_numbers({"loss": float("nan")}) == "loss not finite"


def test_peak_memory_never_falls() -> None:
    memory = PeakMemory(torch.device("cpu"))
    before = memory.read()
    held = torch.ones(30_000_000)
    during = memory.read()
    del held
    assert 0 <= before <= during <= memory.read()


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="this system forgets no peak")
def test_an_earlier_and_higher_peak_does_not_hide_a_later_one() -> None:
    """Criterion: a peak of 120 MB is measured in a process that held 400 MB before."""
    torch.ones(100_000_000).sum()
    memory = PeakMemory(torch.device("cpu"))
    held = torch.ones(30_000_000)
    assert 0.95 * held.nbytes < memory.read() < 1.3 * held.nbytes


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
