"""Store a bench as JSON: the machine, the settings and every measured second.

Tables and figures are made from this record alone.
"""

from typing import Any

import torch

from attractor.bench.alternate import Timing
from attractor.bench.decoding import DecodingTime
from attractor.bench.passes import PASSES
from attractor.bench.training import TimedCase, counted_flops
from attractor.bench.trial import BenchSetting
from attractor.runs.machine import environment
from attractor.train.hardware import PEAK_FLOPS
from attractor.train.parts import BACKWARD

Record = dict[str, Any]


def machine(device: torch.device) -> Record:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else environment()["processor"]
    return {"device": device.type, "name": name, "threads": torch.get_num_threads()}


def data_sheet_flops(name: str) -> float | None:
    """Return the bf16 peak of the data sheet, or None if the device is not known."""
    return next((peak for key, peak in PEAK_FLOPS.items() if key in name), None)


def of_case(case: TimedCase, setting: BenchSetting) -> Record:
    shape, trial = setting.shape, case.trial
    return {
        "name": case.name,
        "precision": setting.precision,
        "compiled": setting.compiled,
        "seq_len": shape.seq_len,
        "batch_size": shape.batch_size,
        "n_parameters": case.n_parameters,
        "step_flops": (1 + BACKWARD) * counted_flops(case.name, setting),
        "peak_memory_bytes": trial and trial.peak_memory,
        "first_seconds": trial and trial.first_seconds,
        "compile_seconds": trial.compile_seconds if trial and setting.compiled else None,
        "left_out": case.left_out,
        "passes": None if case.timings is None else {name: of_timing(case.timings[name]) for name in PASSES},
    }


def of_timing(timing: Timing) -> Record:
    return {
        "seconds": timing.seconds,
        "median": timing.median_seconds,
        "ratio": timing.ratio,
        "middle_half": timing.spread,
    }


def of_decoding(time: DecodingTime, precision: str) -> Record:
    return {
        "name": time.name,
        "precision": precision,
        "batch_size": time.batch_size,
        "n_tokens": time.n_tokens,
        "tokens_per_second": time.tokens_per_second if time.timing else None,
        "timing": time.timing and of_timing(time.timing),
        "left_out": time.left_out,
    }
