"""The session for a lent GPU runs from end to end at a size for a CPU."""

import json
from pathlib import Path

import pytest
from gpu_session import PARTS, main


@pytest.mark.slow
def test_the_session_measures_every_part(tmp_path: Path) -> None:
    """Criterion: no part is left out but for the missing GPU, and one that runs out of time costs no other."""
    main(tmp_path / "all.jsonl", toy=True)
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert list(dict.fromkeys(line["part"] for line in lines)) == list(PARTS)
    left_out = {(line["part"], line.get("window")) for line in lines if "left out" in line} - {("attention", None)}
    assert left_out == {("waits", None), ("attention", "FlexAttention")}
    assert all(line["largest error"] < 1e-4 for line in lines if line.get("window") == "blocks")
    assert all(0 < line["share"] < 1 for line in lines if line["part"] == "step")
    assert {line["loop"] for line in lines if line["part"] == "loops"} == {"short", "Hugging Face", "attractor train"}
    main(tmp_path / "late.jsonl", toy=True, limits={"loops": 0, "waits": 60})
    lines = [json.loads(line) for line in (tmp_path / "late.jsonl").read_text().splitlines()]
    assert [line["left out"] for line in lines] == ["it ended with -9", "no GPU"]
