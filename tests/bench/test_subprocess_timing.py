"""A function runs in a subprocess, which returns its result or a clear error."""

import operator
import os
import resource
import time

import pytest
import torch

from attractor.bench.subprocess_timing import NotMeasured, free_memory, in_words, run_in_subprocess
from attractor.errors import InputError


def test_the_result_comes_from_a_process_with_bounded_memory() -> None:
    """With this bound an allocation fails in the subprocess before the system must kill a process."""
    assert run_in_subprocess(operator.add, 1, 2, patience=60) == 3
    soft, _ = run_in_subprocess(resource.getrlimit, resource.RLIMIT_DATA, patience=60)
    assert 0 < soft < 2 * free_memory(torch.device("cpu"))
    assert run_in_subprocess(os.getpid, patience=60) != os.getpid()


def test_an_error_in_the_subprocess_is_reported_here() -> None:
    for function, given, said in (
        (bytearray, (2**60,), "out of memory"),
        (operator.truediv, (1, 0), "ZeroDivisionError: division by zero"),
        (os._exit, (1,), "ended from outside"),
    ):
        with pytest.raises(NotMeasured, match=said):
            run_in_subprocess(function, *given, patience=60)


def test_a_call_that_takes_too_long_is_ended() -> None:
    started = time.monotonic()
    with pytest.raises(NotMeasured, match=r"takes more than 200 ms"):
        run_in_subprocess(time.sleep, 60, patience=0.2)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory (2.0 GB were free)"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out of memory (2.0 GB were free)"),
        (InputError("d_model must be even, got 3"), "d_model must be even, got 3"),
        (RuntimeError(), "RuntimeError: no reason is given"),
    ],
)
def test_errors_become_readable_reasons(error: Exception, said: str) -> None:
    assert in_words(error, 2_000_000_000) == said
