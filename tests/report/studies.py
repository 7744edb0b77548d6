"""Records of studies with invented outcomes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attractor.runs.quantity import PERPLEXITY, Quantity
from attractor.runs.study_record import Cell, Design, Outcome, Published, StudyRecord

ENTROPY = Quantity("entropy", "probes.entropy")
SPEED = Quantity("throughput", "tokens_per_second", "higher", relative_to="standard")
BASE = [1.66, 1.68, 1.70]
Losses = Mapping[str, Sequence[float | None]]


def shifted(by: float, wobble: float = 0.001) -> list[float]:
    """Return three losses whose differences from BASE have the mean `by` and the standard deviation `wobble`."""
    return [loss + by + wobble * turn for loss, turn in zip(BASE, (-1, 0, 1), strict=True)]


def study(
    losses: Losses | None = None,
    *,
    columns: Mapping[str, Losses] | None = None,
    control: str | None = "uniform",
    quantities: tuple[Quantity, ...] = (PERPLEXITY,),
    published: tuple[Published, ...] = (),
    budget: str = "tokens",
    tokens: Mapping[str, int] | None = None,
    probes: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    margin: float | None = None,
    looks: tuple[int, ...] = (),
    rates: Mapping[str, float] | None = None,
    **texts: str,
) -> StudyRecord:
    """Return a study with these losses by row, and by column where there are several; None is an unfinished run."""
    by_column = columns if columns is not None else {"": losses or {}}
    rows = tuple(dict.fromkeys(row for of_column in by_column.values() for row in of_column))
    design = Design(
        name="synthetic",
        title=texts.get("title", "Attention and depth"),
        question=texts.get("question", "Does it help?"),
        source="Table 1",
        scale="smoke",
        rows_name="attention",
        rows=rows,
        columns_name="corpus" if columns else "",
        columns=tuple(by_column),
        seeds=seeds,
        baseline="standard",
        control=control,
        budget=budget,
        quantities=quantities,
        published=published,
        command=texts.get("command", "attractor study run studies/synthetic.py"),
        margin=margin,
        looks=looks,
    )
    cells = [
        cell(
            row,
            column,
            of_column.get(row, [None] * len(seeds)),
            seeds,
            tokens or {},
            (probes or {}).get(row, {}),
            (rates or {}).get(row, 2e-3),
        )
        for row in rows
        for column, of_column in by_column.items()
    ]
    return StudyRecord(design, tuple(cells), {"torch": ["2.13"], "commit": ["abc", "def"]})


def cell(
    row: str,
    column: str,
    losses: Sequence[float | None],
    seeds: tuple[int, ...],
    tokens: Mapping[str, int],
    probes: Mapping[str, Any],
    rate: float,
) -> Cell:
    found = {seed: loss for seed, loss in zip(seeds, losses, strict=False) if loss is not None}
    n_tokens = tokens.get(row, 1_000_000)
    outcomes = tuple(
        Outcome(
            seed,
            f"{row}-{column}-{seed}",
            summary(row, loss, n_tokens),
            {name: bent(value, seed) for name, value in probes.items()},
            tuple((n_tokens * step // 20, loss + 1.5 / step**0.7 - 1.5 / 20**0.7) for step in range(1, 21)),
        )
        for seed, loss in found.items()
    )
    config = {"label": row, "seed": 0, "lr": rate, "model": {"attention": row, "d_model": 64}, "task": {"kind": "text"}}
    return Cell(row, column, config if found else {}, outcomes, tuple(seed for seed in seeds if seed not in found))


def bent(value: Any, seed: int) -> Any:
    """Change a list of numbers slightly by the seed, call a function of the seed; return any other value unchanged."""
    if callable(value):
        return value(seed)
    if isinstance(value, list):
        return [number + 0.03 * seed * (layer % 3 - 1) for layer, number in enumerate(value)]
    return value


def summary(row: str, loss: float, tokens: int) -> dict[str, Any]:
    lost = math.isnan(loss)
    return {
        "metric": {"name": "perplexity", "value": None if lost else math.exp(loss), "better": "lower"},
        "valid_loss": None if lost else loss,
        "context_gain": 0.31,
        "n_parameters": 1_300_000 if row == "gated" else 1_234_567,
        "tokens_per_second": 45_123.0,
        "peak_memory_bytes": 123_456_789,
        "tokens": tokens,
        "bytes_per_token": 1.0,
    }
