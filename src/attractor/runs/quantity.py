"""A quantity is one number of a run, together with the way in which two runs are compared.

A quantity names a place in the outcome of a run: a dotted path into its summary (or into `probes.`), or a figure that
is computed from several of them (COMPUTED). A list at that place has one entry for each layer; the quantity is then the
entry of one layer, or the mean over layers.

Losses of language models are compared per byte of text, because a loss per token depends on the tokenizer:

    loss per byte = loss per token / bytes per token                                                        (1)

Where the runs of a record do not say how many bytes a token has, their losses are compared per token, and the unit says
so. Perplexities are compared as the losses behind them. Costs and ranks live on a scale of ratios and are compared as
logarithms, which are shown as factors (unit "x") or per cent (unit "%").
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from attractor.runs.run_folder import DIVERGED
from attractor.verdict.intervals import Interval

MEAN = "mean"
# The endings of the paths of costs.
COSTS = ("parameters", "per_second", "bytes", "seconds", "per_token", "layer_equivalents")
# The beginnings of paths whose numbers mean little if a model has not learned to use its context.
IN_CONTEXT = (
    "metric.",
    "valid_loss",
    "loss",
    "probes.effective_rank",
    "probes.entropy",
    "probes.top_share",
    "probes.sink",
)
GUESS = 8 * math.log(2)  # nats per byte of a model that gives all bytes the same probability
Number = float | None  # None: not measured; NaN: the run diverged


class MeasuredRun(Protocol):
    """The parts of a finished run that a quantity reads (`runs/study_record.py`)."""

    @property
    def summary(self) -> Mapping[str, Any]: ...
    @property
    def probes(self) -> Mapping[str, Any]: ...
    @property
    def curve(self) -> tuple[tuple[int, float], ...]: ...


@dataclass(frozen=True)
class Quantity:
    """One number of a run, and the unit in which its differences are shown."""

    name: str
    path: str
    better: str | None = None  # "lower", "higher", or None where neither is
    relative_to: str | None = None  # the row whose mean is the unit: the quantity is shown as a ratio to it
    unit: str = ""  # unit of differences; with "x" and "%" differences are ratios
    layer: int | str | None = None  # index into a list by layer; MEAN or None: the mean over layers

    def value(self, run: MeasuredRun) -> Any:
        """Return the number, or the list by layer, at the quantity's path; None where the run has none."""
        if self.path in COMPUTED:
            return COMPUTED[self.path](run)
        value: Any = {**run.summary, "probes": run.probes}
        for name in self.path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def number(self, run: MeasuredRun) -> Number:
        """Return the quantity as one number. A diverged run stores null as its loss, which is read as NaN."""
        value = self.value(run)
        if isinstance(value, list | tuple):
            numbers = [math.nan if entry is None else float(entry) for entry in value]
            if not isinstance(self.layer, int):
                return sum(numbers) / len(numbers) if numbers else None
            return numbers[self.layer] if -len(numbers) <= self.layer < len(numbers) else None
        if value is None:
            of_result = ("metric.", "valid_loss", *(("measures.", "probes.") if DIVERGED in run.summary else ()))
            return math.nan if self.path.startswith(of_result) else None
        return float(value)

    def compared(self, run: MeasuredRun) -> Number:
        """Return the number whose differences between runs are taken: a logarithm where differences are ratios."""
        if self.is_loss and self.path != "loss_per_byte":
            return _loss(run)
        number = self.number(run)
        if number is None or not self.as_ratio:
            return number
        return math.log(number) if number > 0 else math.nan

    @property
    def is_loss(self) -> bool:
        """Whether the quantity is compared as the validation loss (1)."""
        is_perplexity = self.path == "metric.value" and "perplexity" in self.name
        return is_perplexity or self.path in ("valid_loss", "loss_per_byte")

    @property
    def as_ratio(self) -> bool:
        return self.unit in ("x", "%")

    @property
    def title(self) -> str:
        """The name, with the layer where there are several and the name does not say it."""
        if self.layer is None or (isinstance(self.layer, int) and re.search(r"\blayer \d|last layer", self.name)):
            return self.name
        return f"{self.name}, {self.layer if self.layer == MEAN else f'layer {self.layer}'}"

    @property
    def is_cost(self) -> bool:
        """Whether the quantity is a cost of the run rather than a result."""
        return self.path.endswith(COSTS)

    @property
    def judges_quality(self) -> bool:
        """Whether validation data measure the quantity, so that only a sensitive setting tells mechanisms apart."""
        return self.path.startswith(("metric.", "valid_loss", "loss"))

    @property
    def needs_context(self) -> bool:
        """Whether the quantity tells mechanisms apart only where the control shows that attention matters."""
        return self.path.startswith(IN_CONTEXT)

    def shown(self, interval: Interval) -> Interval:
        """Return a difference in the quantity's unit: per cent, a factor, or unchanged."""
        if not self.as_ratio:
            return interval
        low, high = (None if end is None else self.in_unit(end) for end in (interval.low, interval.high))
        return Interval(self.in_unit(interval.mean), low, high, interval.n, interval.level)

    def in_unit(self, difference: float) -> float:
        """Return a difference of compared numbers in the quantity's unit."""
        if not self.as_ratio:
            return difference
        try:
            return 100 * math.expm1(difference) if self.unit == "%" else math.exp(difference)
        except OverflowError:
            return math.inf

    def as_compared(self, difference: float) -> float:
        """Return the difference of compared numbers that `in_unit` shows as this one."""
        if not self.as_ratio:
            return difference
        return math.log1p(difference / 100) if self.unit == "%" else math.log(difference)


def _loss(run: MeasuredRun) -> float:
    """Return (1), or the loss per token where the run does not say how many bytes a token has."""
    loss = run.summary.get("valid_loss")
    return math.nan if loss is None else float(loss) / run.summary.get("bytes_per_token", 1.0)


def _loss_per_byte(run: MeasuredRun) -> Number:
    return _loss(run) if "bytes_per_token" in run.summary else None


def _loss_at_the_end(run: MeasuredRun) -> Number:
    """Return the last validation loss per byte, and GUESS for a run that diverged or that ended above GUESS."""
    if "valid_loss" not in run.summary or (loss := _loss_per_byte(run)) is None:
        return None
    return min(loss, GUESS) if math.isfinite(loss) else GUESS


def _mean_loss_of_training(run: MeasuredRun) -> Number:
    """Return the mean validation loss of training: of two runs that end alike, the faster has the lower mean."""
    bytes_per_token = run.summary.get("bytes_per_token")
    if bytes_per_token is None:
        return None
    if not math.isfinite(_loss(run)):
        return math.nan
    if len(run.curve) < 2:
        return None
    area = sum((t - s) * (x + y) / 2 for (s, x), (t, y) in pairwise(run.curve))
    return float(area / (run.curve[-1][0] - run.curve[0][0]) / bytes_per_token)


def _loss_since_a_third(run: MeasuredRun) -> Number:
    """Return the loss per byte at the end minus that after a third of training: how a curve goes on."""
    bytes_per_token = run.summary.get("bytes_per_token")
    third = [loss for tokens, loss in run.curve if 3 * tokens <= run.curve[-1][0]]
    return (run.curve[-1][1] - third[-1]) / bytes_per_token if third and bytes_per_token else None


def _loss_elsewhere(run: MeasuredRun) -> Number:
    """Return the loss per byte on corpora that the run did not train on."""
    losses = run.probes.get("elsewhere", {})
    sizes = run.probes.get("elsewhere_bytes_per_token", {})
    bytes_per_token = run.summary.get("bytes_per_token")
    if not losses or bytes_per_token is None:
        return None
    per_byte = [
        math.nan if loss is None else loss / sizes.get(corpus, bytes_per_token) for corpus, loss in losses.items()
    ]
    return math.fsum(per_byte) / len(per_byte)


def _loss_gap_elsewhere(run: MeasuredRun) -> Number:
    """Return the loss per byte on corpora that the run did not train on, minus the loss on its training corpus.

    A model that is better everywhere does not thereby generalise better; only a smaller gap shows that. A model that is
    worse everywhere often has the smaller gap, because it knows less of its own corpus: the loss elsewhere tells the
    two apart.
    """
    elsewhere = _loss_elsewhere(run)
    return None if elsewhere is None else elsewhere - _loss(run)


def _instabilities(run: MeasuredRun) -> Number:
    spikes, skipped = run.summary.get("loss_spikes"), run.summary.get("skipped_steps")
    return None if spikes is None or skipped is None else float(len(spikes) + skipped)


def _magnitude(path: str) -> Callable[[MeasuredRun], Number]:
    def of(run: MeasuredRun) -> Number:
        number = Quantity(path, path).number(run)
        return None if number is None else abs(number)

    return of


def _shortest_slow_memory(run: MeasuredRun) -> Number:
    """Return the smallest effective memory of a slow layer, as a mean over its heads."""
    by_layer = run.summary.get("timescales", {}).get("slow_memory_by_head")
    return min(sum(heads) / len(heads) for heads in by_layer) if by_layer else None


def _tokens_per_parameter(run: MeasuredRun) -> Number:
    tokens, parameters = run.summary.get("tokens"), run.summary.get("n_parameters")
    return tokens / parameters if tokens and parameters else None


def _boards_over_time(run: MeasuredRun) -> Mapping[str, float]:
    """Return the shares of boards out of distribution that are solved, by the number of iterations."""
    solved = run.probes.get("dynamics", {}).get("accuracy", {}).get("ood", {}).get("board_accuracy", {})
    return solved if {"16", "64"} <= solved.keys() else {}


def _gained_by_time(run: MeasuredRun) -> Number:
    solved = _boards_over_time(run)
    return solved["64"] - solved["16"] if solved else None


def _solved_by_time(run: MeasuredRun) -> Number:
    solved = _boards_over_time(run)
    return max(solved["16"], solved["64"]) if solved else None


def _penalty_reach(run: MeasuredRun) -> Number:
    """Return the larger reach of a penalty, by its gradients at the first weights and at the trained ones."""
    measured = [run.probes.get(name, {}).get("reach") for name in ("penalty", "trained_penalty")]
    return max((reach for reach in measured if reach is not None), default=None)


COMPUTED: dict[str, Callable[[MeasuredRun], Number]] = {
    "loss_per_byte": _loss_per_byte,
    "end_loss": _loss_at_the_end,
    "loss_of_training": _mean_loss_of_training,
    "loss_since_a_third": _loss_since_a_third,
    "elsewhere_loss": _loss_elsewhere,
    "loss_gap_elsewhere": _loss_gap_elsewhere,
    "instabilities": _instabilities,
    "gate_opening": _magnitude("timescales.gate"),  # a gate may open with either sign
    "shortest_slow_memory": _shortest_slow_memory,
    "tokens_per_parameter": _tokens_per_parameter,
    "n_layers_of_maps": lambda run: float(len(run.probes.get("effective_rank") or ())) or None,
    "gained_by_time": _gained_by_time,
    "solved_by_time": _solved_by_time,
    "penalty_reach": _penalty_reach,
    "distance_from_criticality": _magnitude("probes.dynamics.exponents.largest"),
}


# Tables and claims share these quantities.
PERPLEXITY = Quantity("perplexity", "metric.value", "lower", unit="nats")
ACCURACY = Quantity("accuracy", "metric.value", "higher")
# This loss is per byte if the record knows the bytes per token, else per token.
LOSS_OF_VALIDATION = Quantity("validation loss", "valid_loss", "lower")
CONTEXT_GAIN = Quantity("context gain", "context_gain", "higher")
LOSS = Quantity("validation loss", "loss_per_byte", "lower", unit="nats/byte")
# The measure of stability: it needs no context, and a diverged run is a result.
END_LOSS = Quantity("loss at the end of training", "end_loss", "lower", unit="nats/byte")
MEAN_LOSS = Quantity("mean validation loss of training", "loss_of_training", "lower", unit="nats/byte")
LOSS_SINCE_A_THIRD = Quantity(
    "loss at the end minus that after a third of training", "loss_since_a_third", unit="nats/byte"
)
LOSS_ELSEWHERE = Quantity("loss on corpora it was not trained on", "elsewhere_loss", "lower", unit="nats/byte")
GAP_ELSEWHERE = Quantity(
    "loss on corpora it was not trained on minus its own", "loss_gap_elsewhere", "lower", unit="nats/byte"
)
SPEED = Quantity("throughput", "tokens_per_second", "higher", unit="x")
MEMORY = Quantity("peak memory", "peak_memory_bytes", "lower", unit="x")
TOKENS_PER_PARAMETER = Quantity("tokens a parameter", "tokens_per_parameter")
INSTABILITIES = Quantity("loss spikes and skipped steps", "instabilities", "lower")


def effective_rank(layer: int | None) -> Quantity:
    where = "last layer" if layer == -1 else f"layer {layer}"
    name = "mean effective rank" if layer is None else f"effective rank ({where})"
    return Quantity(name, "probes.effective_rank", "higher", unit="%", layer=layer)


def entropy(layer: int) -> Quantity:
    return Quantity(f"entropy of layer {layer}", "probes.entropy", unit="nats", layer=layer)
