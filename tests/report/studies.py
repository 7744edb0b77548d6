"""Records of studies with invented outcomes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attractor.runs.quantity import Quantity
from attractor.runs.study_record import StudyRecord
from invented_records import record

ENTROPY = Quantity("entropy", "probes.entropy")
SPEED = Quantity("throughput", "tokens_per_second", "higher", relative_to="standard")
BASE = [1.66, 1.68, 1.70]
DESIGN = {
    "name": "synthetic",
    "title": "Attention and depth",
    "scale": "smoke",
    "budget": "tokens",
    "claims": (),
    "command": "attractor study run studies/synthetic.py",
}
Losses = Mapping[str, Sequence[float | None]]


def shifted(by: float, wobble: float = 0.001) -> list[float]:
    """Return three losses whose differences from BASE have the mean `by` and the standard deviation `wobble`."""
    return [loss + by + wobble * turn for loss, turn in zip(BASE, (-1, 0, 1), strict=True)]


def study(
    losses: Losses | None = None,
    *,
    columns: Mapping[str, Losses] | None = None,
    tokens: Mapping[str, int] | None = None,
    probes: Mapping[str, Mapping[str, Any]] | None = None,
    rates: Mapping[str, float] | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    **design: Any,
) -> StudyRecord:
    """Return a study with these losses by row, and by column where there are several; None is an unfinished run."""
    by_column = columns if columns is not None else {"": losses or {}}
    rows = dict.fromkeys(row for of_column in by_column.values() for row in of_column)

    def of_row(row: str, found: Sequence[float | None]) -> list[dict[str, Any] | None]:
        n_tokens, measured = (tokens or {}).get(row, 1_000_000), (probes or {}).get(row, {})
        padded = zip(seeds, [*found, *[None] * len(seeds)], strict=False)
        return [None if loss is None else run(row, seed, loss, n_tokens, measured) for seed, loss in padded]

    def config_of(row: str) -> dict[str, Any]:
        model = {"attention": row, "d_model": 64}
        return {"label": row, "seed": 0, "lr": (rates or {}).get(row, 2e-3), "model": model, "task": {"kind": "text"}}

    cells = {(row, name): of_row(row, by_column[name].get(row, ())) for row in rows for name in by_column}
    fields = DESIGN | {"columns_name": "corpus" if columns else "", "seeds": seeds} | design
    made = record(cells, config_of=config_of, **fields)
    return replace(made, environments={"torch": ["2.13"], "commit": ["abc", "def"]})


def run(row: str, seed: int, loss: float, tokens: int, probes: Mapping[str, Any]) -> dict[str, Any]:
    lost = math.isnan(loss)
    return {
        "metric": {"name": "perplexity", "value": None if lost else math.exp(loss), "better": "lower"},
        "valid_loss": None if lost else loss,
        "context_gain": 0.31,
        "n_parameters": 1_300_000 if row == "gated" else 1_234_567,
        "tokens_per_second": 45_123.0,
        "peak_memory_bytes": 123_456_789,
        "tokens": tokens,
        "probes": {name: bent(value, seed) for name, value in probes.items()},
        "curve": [(tokens * step // 20, loss + 1.5 / step**0.7 - 1.5 / 20**0.7) for step in range(1, 21)],
    }


def bent(value: Any, seed: int) -> Any:
    """Change a list of numbers slightly by the seed, call a function of the seed; return any other value unchanged."""
    if callable(value):
        return value(seed)
    if isinstance(value, list):
        return [number + 0.03 * seed * (layer % 3 - 1) for layer, number in enumerate(value)]
    return value
