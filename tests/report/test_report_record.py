"""The JSON record of a comparison says what the table says."""

import json
from collections.abc import Callable
from pathlib import Path

from attractor.evidence.run import RunFolder
from attractor.report.comparison import Comparison
from attractor.report.record import write_record


def test_record_holds_every_seed_and_the_verdict(fake_runs: Callable[..., list[RunFolder]], tmp_path: Path) -> None:
    comparison = Comparison.read(
        fake_runs({"standard": [1.0, 1.1], "gated": [0.9, 1.0], "uniform": [2.0, 2.1]}), "standard"
    )
    write_record(comparison, tmp_path / "comparison.json", "attractor compare")
    record = json.loads((tmp_path / "comparison.json").read_text())
    assert record["verdict"] == comparison.verdict()
    rows = {row["label"]: row for row in record["rows"]}
    assert list(rows) == ["standard", "gated", "uniform"]
    assert rows["gated"]["valid_loss_by_seed"] == {"0": 0.9, "1": 1.0}
    assert rows["gated"]["difference"]["n"] == 2
    assert str(tmp_path) not in json.dumps(record)
