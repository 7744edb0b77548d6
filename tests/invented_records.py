"""Records of studies with invented outcomes, at a scale that may decide a claim."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attractor.runs.quantity import PERPLEXITY
from attractor.runs.study_record import Cell, Design, Outcome, StudyRecord

# The noise that runs of one seed share spreads losses by .01 and cancels in differences.
SHARED = (-0.012, 0.011, -0.006, 0.009, 0.002, -0.011, 0.012, -0.003, 0.006, -0.008)
# The noise of each run alone has mean zero over the first four, six, eight and ten seeds.
OWN = (0.002, -0.002, 0.001, -0.001, 0.003, -0.003, 0.001, -0.001, 0.002, -0.002)

Run = float | Mapping[str, Any] | None


def losses(mean: float, n: int = 8, noise: float = 1.0) -> list[float]:
    return [mean + SHARED[seed] + noise * OWN[seed] for seed in range(n)]


def of_text(row: str) -> dict[str, Any]:
    return {"label": row, "task": {"kind": "text", "corpus": "encyclopedic"}}


def record(
    cells: Mapping[str | tuple[str, str], Sequence[Run]],
    *,
    control: str | None = "uniform",
    twin_gap: float = 1.0,
    config_of: Callable[[str], dict[str, Any]] = of_text,
    **design: Any,
) -> StudyRecord:
    """Return a record with these runs by row, or by row and column.

    A run is a loss, a summary (with its `probes` and `curve`), or None if unfinished. Every column with a baseline gets
    a control that is worse by `twin_gap`. `design` replaces fields of the design.
    """
    placed = {(key, "") if isinstance(key, str) else key: runs for key, runs in cells.items()}
    if control is not None:
        for (row, column), runs in list(placed.items()):
            if row == "standard" and all(isinstance(run, float) for run in runs):
                placed.setdefault((control, column), [run + twin_gap for run in runs])  # type: ignore[operator]
    rows, columns = (tuple(dict.fromkeys(place[part] for place in placed)) for part in (0, 1))
    fields = {
        "name": "coupling-ablation",
        "title": "Synthetic",
        "question": "Does it help?",
        "source": "Table 1",
        "scale": "laptop",
        "rows_name": "attention",
        "columns_name": "",
        "seeds": tuple(range(max(map(len, placed.values())))),
        "baseline": "standard",
        "budget": "free",
        "quantities": (PERPLEXITY,),
        "claims": ("C1",),
    }
    made = Design(rows=rows, columns=columns, control=control, **fields | design)
    places = ((row, column) for row in rows for column in columns)
    return StudyRecord(made, tuple(cell(*x, placed.get(x, ()), made.seeds, config_of) for x in places))


def with_outcomes(stored: StudyRecord, change: Callable[[str, int, Outcome], Outcome]) -> StudyRecord:
    """Return the record with each outcome as a function of its row, its number in its cell and itself."""
    cells = [
        replace(cell, outcomes=tuple(change(cell.row, n, outcome) for n, outcome in enumerate(cell.outcomes)))
        for cell in stored.cells
    ]
    return replace(stored, cells=tuple(cells))


def with_summaries(stored: StudyRecord, summary_of: Callable[[str, int], Mapping[str, Any]]) -> StudyRecord:
    """Return the record with further entries in the summary of each run, by its row and its number in its cell."""
    return with_outcomes(stored, lambda row, n, run: replace(run, summary=run.summary | summary_of(row, n)))


def cell(row: str, column: str, runs: Sequence[Run], seeds: Sequence[int], config_of: Callable[[str], Any]) -> Cell:
    by_seed = dict(zip(seeds, runs, strict=False))
    outcomes = tuple(outcome(f"{row}-{column}", seed, run) for seed, run in by_seed.items() if run is not None)
    config = config_of(row) if outcomes else {}
    return Cell(row, column, config, outcomes, tuple(seed for seed, run in by_seed.items() if run is None))


def outcome(name: str, seed: int, run: float | Mapping[str, Any]) -> Outcome:
    summary = {"valid_loss": run} if isinstance(run, float) else dict(run)
    probes, curve = summary.pop("probes", {}), tuple(summary.pop("curve", ()))
    return Outcome(seed, f"{name}-{seed}", {"n_parameters": 900_000, "bytes_per_token": 1.0} | summary, probes, curve)
