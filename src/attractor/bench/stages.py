"""Time each computation that has a kernel and compare it with the roofline.

These are the couple stage of every mechanism that moves queries and keys, the score stage of every kind, every
implementation of differential attention, and the cross-entropy of the readout. Each runs as inside a layer: on the
tensors of the stage before, in their memory layout, under autocast.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from attractor.attention import PRESETS, Rope
from attractor.attention.layer import Attention
from attractor.attention.mask import Mask
from attractor.bench.least_work import coupling_flops, n_numbers, n_trained, readout_flops, scoring_flops, work_of
from attractor.bench.roofline import DTYPES, Work
from attractor.bench.shape import BenchShape, config_of
from attractor.bench.stopwatch import seconds_of
from attractor.bench.subprocess_timing import NotMeasured
from attractor.bench.trial import on_device
from attractor.kernels.cross_entropy import linear_cross_entropy
from attractor.kernels.precision import autocast
from attractor.taps import capture

N_ROUNDS = 7
BRIEF = 0.01  # seconds; a shorter computation is called several times in a row


@dataclass(frozen=True)
class StageCase:
    """A computation, the tensors that it is differentiated by, and its least work without and with gradients."""

    run: Callable[[], tuple[Tensor, ...]]
    inputs: tuple[Tensor, ...]
    forward: Work
    both: Work


@dataclass(frozen=True)
class StageTime:
    name: str
    backward: bool = False
    work: Work | None = None
    seconds: tuple[float, ...] = ()
    as_one: bool = False  # several calls as one CUDA graph
    left_out: str | None = None

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)


def stage_cases(shape: BenchShape, precision: str, device: torch.device) -> dict[str, Callable[[], StageCase]]:
    """Return builders of the cases by name. A computation that several presets share occurs once."""
    from attractor.kernels.differential import IMPLEMENTATIONS

    seen: set[Any] = set()
    cases: dict[str, Callable[[], StageCase]] = {}
    for name, config in PRESETS.items():
        scored = config.project, config.couple.parts, config.score
        for stage, build, kind in (("couple", _couple, (config.project, config.couple)), ("score", _score, scored)):
            if kind not in seen and (stage == "score" or config.couple.moves):
                seen.add(kind)
                cases[f"{stage}, {name}"] = partial(build, name, shape, precision, device)
    for form in ("differential", "differential-v2"):
        for way in IMPLEMENTATIONS:
            cases[f"{form} by {way}"] = partial(_difference, form, way, shape, precision, device)
    return cases | {"readout, linear cross-entropy": partial(_readout, shape, precision, device)}


def timed_stages(
    cases: Mapping[str, Callable[[], StageCase]], precision: str, device: torch.device
) -> Iterator[StageTime]:
    """Time each case without gradients and then with them."""
    for name, build in cases.items():
        case = None  # frees the case before this one is built
        try:
            case = on_device(build, device)
            for backward, work in ((False, case.forward), (True, case.both)):
                seconds, as_one = on_device(partial(_seconds, case, precision, backward, device), device)
                yield StageTime(name, backward, work, tuple(seconds), as_one)
        except NotMeasured as why:
            yield StageTime(name, left_out=str(why))


def _seconds(case: StageCase, precision: str, backward: bool, device: torch.device) -> tuple[list[float], bool]:
    """Return the seconds of one call in each round, and whether several calls ran as one CUDA graph."""
    with torch.no_grad(), autocast(device, precision):
        gradients = tuple(torch.ones_like(output) for output in case.run())

    def once() -> None:
        with torch.set_grad_enabled(backward), autocast(device, precision):
            outputs = case.run()
        if backward:
            torch.autograd.grad(outputs, case.inputs, gradients, materialize_grads=True)

    once()
    n = max(1, int(BRIEF / seconds_of(once, device)))

    def in_a_row() -> None:
        for _ in range(n):
            once()

    graph = captured(in_a_row, once, device) if device.type == "cuda" else None
    run = in_a_row if graph is None else graph.replay
    run()
    return [seconds_of(run, device) / n for _ in range(N_ROUNDS)], graph is not None


def captured(run: Callable[[], None], warm_up: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph | None:
    """Capture `run` as a CUDA graph, since a short kernel takes less time than its launch by Python.

    Return None if `run` waits for the device. That is checked before the capture, since torch 2.11 cannot capture
    again after a failed capture."""
    usual, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    aside.wait_stream(usual)
    graph, mode = torch.cuda.CUDAGraph(), torch.cuda.get_sync_debug_mode()
    try:
        torch.cuda.set_sync_debug_mode("error")
        with torch.cuda.stream(aside):  # a capture requires that one-time initialisation is done
            warm_up()
        torch.cuda.set_sync_debug_mode(mode)
        usual.wait_stream(aside)
        with torch.cuda.graph(graph):
            run()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        torch.cuda.set_stream(usual)  # a failed capture does not restore it
        torch.cuda.synchronize(device)
    return graph


def _layer(name: str, shape: BenchShape, device: torch.device) -> Attention:
    config = config_of(name, shape)
    torch.manual_seed(0)
    return Attention(config.attention_config, shape.d_model, shape.n_heads).to(device)


def _stage_inputs(layer: Attention, shape: BenchShape, precision: str, device: torch.device) -> dict[str, Tensor]:
    """Return the tensors that pass between the stages, each as a leaf that requires gradients."""
    x = torch.randn(shape.batch_size, shape.seq_len, shape.d_model, device=device)
    rope = Rope(layer.rope_width) if layer.rope_width else None
    names = ("q", "k", "q_coupled", "k_coupled")
    with torch.no_grad(), autocast(device, precision), capture(*names) as seen:
        layer(x, rope=rope)
        tensors = {name: seen[name][0] for name in names} | {"v": layer.project(x)[2], "x": x}
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def _couple(name: str, shape: BenchShape, precision: str, device: torch.device) -> StageCase:
    layer = _layer(name, shape, device)
    given, free = _stage_inputs(layer, shape, precision, device), layer.layout.free
    q, k = (given[name][..., :free].detach().requires_grad_() for name in ("q", "k"))

    def run() -> tuple[Tensor, ...]:
        moved = zip(layer.couple(q, k), (q, k), strict=True)
        return tuple(after.to(before.dtype) for after, before in moved if after is not before)

    with torch.no_grad(), autocast(device, precision):
        untouched = [before for after, before in zip(layer.couple(q, k), (q, k), strict=True) if after is before]
        outputs = n_numbers(run())
    flops = coupling_flops(layer.config.couple, q, k)
    inputs = n_numbers((q, k)) - n_numbers(untouched)
    return _stage(run, (q, k), layer.couple, (inputs, outputs, flops), precision)


def _score(name: str, shape: BenchShape, precision: str, device: torch.device) -> StageCase:
    layer = _layer(name, shape, device)
    given = _stage_inputs(layer, shape, precision, device)
    q, k, v, x = (given[name] for name in ("q_coupled", "k_coupled", "v", "x"))

    def run() -> tuple[Tensor, ...]:
        return (layer.score(q, k, v, Mask(causal=True), x),)

    with torch.no_grad(), autocast(device, precision):
        (context,) = run()
    inputs = n_numbers((q, k, v))
    counted = inputs, context.numel(), scoring_flops(layer.config.score, q, k, context)
    return _stage(run, (q, k, v, x), layer.score, counted, precision)


def _difference(form: str, way: str, shape: BenchShape, precision: str, device: torch.device) -> StageCase:
    """Time the difference of two attentions alone, without the norm after it."""
    from attractor.kernels.differential import IMPLEMENTATIONS, usable

    layer = _layer(form, shape, device)
    given = _stage_inputs(layer, shape, precision, device)
    q, k, v = (given[name] for name in ("q_coupled", "k_coupled", "v"))
    if form == "differential-v2":  # orders the maps as its score stage does
        q, k = torch.cat([q[:, 0::2], q[:, 1::2]], dim=1), torch.cat([k, k], dim=1)
        q, k = (x.detach().requires_grad_() for x in (q, k))
    if not usable(way, q, k, v):
        raise NotMeasured("not available on this device")
    by = torch.full((shape.n_heads, 1, 1), 0.5, device=device, requires_grad=True)

    def run() -> tuple[Tensor, ...]:
        return (IMPLEMENTATIONS[way](q, k, v, by, layer.scale),)

    with torch.no_grad(), autocast(device, precision):
        (context,) = run()
    counted = n_numbers((q, k, v)), context.numel(), scoring_flops(layer.config.score, q, k, context)
    return _stage(run, (q, k, v, by), nn.Identity(), counted, precision)


def _readout(shape: BenchShape, precision: str, device: torch.device) -> StageCase:
    n = shape.batch_size * shape.seq_len
    hidden = torch.randn(n, shape.d_model, device=device).to(DTYPES[precision]).requires_grad_()
    weight = (0.02 * torch.randn(shape.vocab_size, shape.d_model, device=device)).requires_grad_()
    targets = torch.arange(n, device=device) % shape.vocab_size

    def run() -> tuple[Tensor, ...]:
        return (linear_cross_entropy(hidden, weight, targets),)

    counted = hidden.numel() + weight.numel(), 1, readout_flops(hidden, weight)
    return _stage(run, (hidden, weight), nn.Identity(), counted, precision)


def _stage(
    run: Callable[[], tuple[Tensor, ...]],
    differentiated: tuple[Tensor, ...],
    module: nn.Module,
    counted: tuple[int, int, float],
    precision: str,
) -> StageCase:
    inputs, outputs, flops = counted
    size = DTYPES[precision].itemsize
    forward, both = (work_of(inputs, outputs, n_trained(module), flops, size, back) for back in (False, True))
    return StageCase(run, (*differentiated, *module.parameters()), forward, both)
