"""A comparison as one small JSON object: what is committed under results/, and what other programs read."""

from pathlib import Path
from typing import Any

from attractor.evidence.statistics import Interval
from attractor.files import write_json
from attractor.report.comparison import Comparison, Row


def record(comparison: Comparison, command: str) -> dict[str, Any]:
    """Numbers, verdict, one configuration per label, and the machine, with nothing that leads back to a path."""
    runs = [row.runs[0] for row in comparison.rows if row.runs]
    return {
        "command": command,
        "baseline": comparison.baseline,
        "control": comparison.control,
        "metric": comparison.metric_name,
        "rows": [_row(row) for row in comparison.rows],
        "verdict": comparison.verdict(),
        "configurations": {run.config["label"]: run.config for run in runs},
        "environment": runs[0].environment,
    }


def write_record(comparison: Comparison, path: Path, command: str) -> None:
    write_json(path, record(comparison, command))


def _row(row: Row) -> dict[str, Any]:
    summaries = {run.config["seed"]: run.summary() or {} for run in row.runs}
    return {
        "label": row.label,
        "valid_loss_by_seed": {str(seed): summary["valid_loss"] for seed, summary in summaries.items()},
        "metric": _interval(row.metric),
        "valid_loss": _interval(row.valid_loss),
        "difference": _interval(row.difference),
        "context_gain": row.context_gain,
        "n_parameters": row.n_parameters,
        "tokens_per_second": row.tokens_per_second,
        "peak_memory_bytes": row.peak_memory_bytes,
        "skipped_steps": row.skipped_steps,
        "missing_seeds": list(row.missing_seeds),
    }


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {"mean": interval.mean, "low": interval.low, "high": interval.high, "n": interval.n, "level": interval.level}
