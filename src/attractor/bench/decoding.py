"""Time cached greedy generation by mechanism and number of sequences; the cases take turns.

For one sequence the baseline is also timed without its cache, which shows what the cache is worth. Under bf16 the
weights are converted, as they would be for decoding: autocast would convert them again for every token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from attractor.bench.alternate import Timing
from attractor.bench.cases import decoding, model_and_loss, prompts
from attractor.bench.matrix_rate import DTYPES
from attractor.bench.peers import PEERS
from attractor.bench.stopwatch import seconds_of
from attractor.bench.subprocess_timing import free_memory
from attractor.bench.training import counted_parameters, groups
from attractor.bench.trial import BenchSetting, release, run_in_turns

BATCHES = (1, 8)
UNCACHED = "without cache"
N_ROUNDS = 3  # few, since one generation takes many steps
WEIGHT_BYTES = 4


@dataclass(frozen=True)
class DecodingTime:
    name: str
    batch_size: int
    n_tokens: int
    timing: Timing | None = None
    left_out: str | None = None

    @property
    def tokens_per_second(self) -> float:
        assert self.timing is not None
        return self.batch_size * self.n_tokens / self.timing.median_seconds


def time_decoding(
    names: Sequence[str], setting: BenchSetting, n_tokens: int, tell: Callable[[str], None] = lambda doing: None
) -> list[DecodingTime]:
    """Time the generation of `n_tokens` by every model; the first name is the baseline."""
    baseline, *others = names
    weights = {name: WEIGHT_BYTES * counted_parameters(name, setting) for name in names}
    room = free_memory(setting.device) // 2
    times: dict[tuple[str, int], DecodingTime] = {}
    for group in groups(baseline, others, weights, room):
        for batch_size in BATCHES:
            tell(f"{setting.precision}: {n_tokens} tokens each by {len(group)}, {batch_size} at a time")
            for time in _group(group, setting, n_tokens, batch_size):
                times.setdefault((time.name, batch_size), time)
        release(setting)
    return list(times.values())


def _group(group: Sequence[str], setting: BenchSetting, n_tokens: int, batch_size: int) -> list[DecodingTime]:
    baseline = group[0]
    cases = {name: partial(_generation, name, setting, n_tokens, batch_size) for name in group}
    if batch_size == 1 and baseline not in PEERS:
        uncached = partial(_generation, baseline, setting, n_tokens, batch_size, use_cache=False)
        cases[f"{baseline}, {UNCACHED}"] = uncached
    laps, failed = run_in_turns(cases, setting.device, N_ROUNDS)
    return [
        DecodingTime(name, batch_size, n_tokens, left_out=failed[name])
        if name in failed
        else DecodingTime(name, batch_size, n_tokens, Timing(tuple(laps[name]), tuple(laps[baseline])))
        for name in cases
    ]


def _generation(
    name: str, setting: BenchSetting, n_tokens: int, batch_size: int, use_cache: bool = True
) -> Callable[[], float]:
    """Return a function that generates and returns the seconds. It has generated once, which is not counted."""
    model, _ = model_and_loss(name, setting.shape, setting.device)
    model.to(DTYPES[setting.precision]).eval()
    if name in PEERS:
        prompt = prompts(setting.shape.vocab_size, batch_size, setting.device)
        generate: Callable[[], object] = partial(PEERS[name].generate, model, prompt, n_tokens)
    else:
        generate = decoding(model, n_tokens, use_cache, batch_size)  # type: ignore[arg-type]
    seconds = partial(torch.no_grad()(seconds_of), generate, setting.device)
    seconds()
    return seconds
