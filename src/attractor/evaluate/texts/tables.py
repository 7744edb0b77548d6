"""Tables and records of scores."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from attractor.console import console_table
from attractor.evaluate.texts.paired_test import UNIT, in_words
from attractor.evaluate.texts.texts import TextScore
from attractor.verdict.outcome import Verdict


def table_of_texts(scores: Sequence[TextScore]) -> Table:
    table = _table("model", "bits/byte", "perplexity", "nats/token", "tokens", "bytes", "window", "stride")
    for score in scores:
        figures = (f"{score.bits_per_byte:.4f}", f"{score.perplexity:,.3f}", f"{score.nats_per_token:.4f}")
        counts = (score.n_tokens, score.n_bytes, score.window, score.stride)
        table.add_row(Text(score.model), *figures, *(f"{count:,}" for count in counts))
    return table


def table_of_tasks(results: Mapping[str, Any]) -> Table:
    table = _table("task", "metric", "value", "standard error", "shots", "n")
    for task, metrics in results["results"].items():
        for name, value in _metrics(metrics):
            error = metrics.get(f"{name.split(',')[0]}_stderr,{name.partition(',')[2]}")
            shown = (f"{x:.4f}" if isinstance(x, float) else "" for x in (value, error))
            n = results["n-samples"].get(task, {}).get("effective", "")
            table.add_row(Text(task), Text(_named(name)), *shown, str(results["n-shot"].get(task, "")), str(n))
    return table


def record_of_texts(scores: Sequence[TextScore], verdict: Verdict | None) -> dict[str, Any]:
    record: dict[str, Any] = {"rows": [_summary(score) for score in scores]}
    if verdict is not None:
        record["difference"] = {
            "of": scores[0].model,
            "against": scores[1].model,
            "unit": f"{UNIT}, mean over documents",
            "mean": verdict.difference,
            "level": 0.95,
            **{name: getattr(verdict, name) for name in ("low", "high", "n", "p", "outcome")},
            "verdict": in_words(verdict),
        }
    return record


def lines_of_documents(scores: Sequence[TextScore]) -> Iterator[str]:
    """Yield a JSON line for each model and document. JSON has no NaN and no infinity, so such a loss is null."""
    for score in scores:
        for document in score.documents:
            nats = document.nats if math.isfinite(document.nats) else None
            line = {"model": score.model, **vars(document), "nats": nats}
            yield json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"


def _summary(score: TextScore) -> dict[str, Any]:
    names = "model bits_per_byte perplexity nats_per_token nats n_tokens n_bytes window stride start"
    return {name: getattr(score, name) for name in names.split()} | {"n_documents": len(score.documents)}


def _metrics(results: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the metrics without standard errors. lm-eval names a metric with its filter, as in `acc,none`."""
    return [(name, value) for name, value in results.items() if "," in name and "_stderr," not in name]


def _named(metric: str) -> str:
    name, _, chosen = metric.partition(",")
    return name if chosen == "none" else f"{name} ({chosen})"


def _table(first: str, *others: str) -> Table:
    return console_table([first, *others], left=(first, "metric"))
