"""A GPU that supports a fused kernel uses it; each reason against it is logged once; on a CPU nothing is logged."""

import logging
from dataclasses import dataclass
from importlib import reload
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from attractor.kernels import fallback


@dataclass(frozen=True)
class OnDevice:
    """A stand-in for a tensor on a device, so that no GPU need be present."""

    kind: str
    dtype: torch.dtype = torch.float32

    @property
    def device(self) -> torch.device:
        return torch.device(self.kind)


def on(kind: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return cast(Tensor, OnDevice(kind, dtype))


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """Start each test from a module that has met no device and logged no reason."""
    reload(fallback)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gpu_that_supports_the_kernel_uses_it(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    assert fallback.use_kernel("coupling", on("cuda", dtype))
    assert said(caplog) == []


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_other_devices_use_the_plain_computation_and_nothing_is_logged(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not fallback.use_kernel("coupling", on(kind), unsupported="width 1000")
    assert said(caplog) == []


@pytest.mark.usefixtures("hopper")
def test_each_reason_of_each_kernel_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        for kernel, against in (("coupling", "width 1000"), ("coupling", "fp64"), ("cross entropy", "fp64")):
            assert not fallback.use_kernel(kernel, on("cuda"), against)
    assert said(caplog) == [
        "the fused kernel for coupling is not used (width 1000); the plain computation runs instead",
        "the fused kernel for coupling is not used (fp64); the plain computation runs instead",
        "the fused kernel for cross entropy is not used (fp64); the plain computation runs instead",
    ]


def test_a_gpu_without_bf16_is_named_and_still_takes_other_formats(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hopper: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert fallback.use_kernel("coupling", on("cuda", torch.float16))
    assert not fallback.use_kernel("coupling", on("cuda", torch.bfloat16))
    (line,) = said(caplog)
    assert "this GPU (compute capability 7.5) has no bf16" in line


@pytest.mark.usefixtures("hopper")
def test_transforms_of_functions_get_plain_operations(caplog: pytest.LogCaptureFixture) -> None:
    def on_gpu(x: Tensor) -> Tensor:
        assert not fallback.use_kernel("coupling", on("cuda"))
        return x

    torch.func.vmap(on_gpu)(torch.ones(2))
    torch.func.grad(lambda x: on_gpu(x).sum())(torch.ones(2))
    (line,) = said(caplog)
    assert "vmap and similar transforms need plain operations" in line


@pytest.mark.usefixtures("hopper")
def test_the_check_can_be_traced_by_the_compiler(caplog: pytest.LogCaptureFixture) -> None:
    """Criterion: there is one graph, and one line of log where the kernel cannot be used."""

    def activation(x: Tensor) -> Tensor:
        fallback.use_kernel("coupling", torch.empty(1, device="cuda", dtype=torch.float32), "width 1000")
        return x + 1

    with FakeTensorMode():
        compiled = torch.compile(activation, fullgraph=True, backend="aot_eager")
        assert compiled(torch.ones(2)).shape == (2,)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "attractor"]
    assert line == "the fused kernel for coupling is not used (width 1000); the plain computation runs instead"


def test_a_machine_without_triton_logs_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hopper: Any
) -> None:
    monkeypatch.setattr(fallback, "find_spec", lambda name: None)
    assert not fallback.use_kernel("coupling", on("cuda"))
    (line,) = said(caplog)
    assert "triton is not installed" in line


def test_offsets_beyond_32_bits_are_noticed_within_a_sequence() -> None:
    long = torch.empty(2, 65, 2**17, 256, device="meta")
    assert fallback.exceeds_32_bits(long[:1, :1], long)
    assert not fallback.exceeds_32_bits(long[:, :64])
