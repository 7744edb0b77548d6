"""`attractor bench` runs from its options to tables and JSON on a tiny model."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import draw_record
import pytest
import torch
from rich.console import Console

from attractor.bench import run as running
from attractor.bench.peers import PEERS
from attractor.bench.run import telling
from attractor.bench.tables import tables
from attractor.cli.bench import MAIN, BenchArguments, bench, request_of
from attractor.cli.parsing import parse_command
from attractor.errors import RunInterrupted

SHAPE = ("--d-model=32", "--n-heads=4", "--n-layers=1", "--vocab-size=40", "--tokens=32", "--device=cpu")
Run = Callable[..., tuple[dict[str, Any], str]]


def parsed(*options: str) -> BenchArguments:
    found = parse_command(BenchArguments, "bench", options)
    assert isinstance(found, BenchArguments)
    return found


@pytest.fixture
def run(small_bench: None, tmp_path: Path) -> Run:
    """Return a function that runs the bench and returns the record and the printed text."""

    def carried_out(*options: str) -> tuple[dict[str, Any], str]:
        out = tmp_path / "bench.json"
        console = Console(width=160, record=True, file=StringIO())
        bench(parsed(*options, *SHAPE, f"--out={out}"), console)
        return json.loads(out.read_text()), console.export_text()

    return carried_out


@pytest.mark.slow
def test_all_parts_run_at_once(run: Run) -> None:
    """Criterion: with two lengths and decoding, the record has every timing, and each part a table."""
    names = ["standard", "coupled-euler:n_steps=3"]
    options = ("--no-peers", "--precision=bf16", "--lengths", "8", "16", "--rounds=2", "--decode=3")
    record, printed = run(names[1], *options)
    assert set(record) >= {"machine", "environment", "matrix_rates", "training", "decoding", "request"}
    cells = [(row["seq_len"], row["batch_size"], row["name"]) for row in record["training"]]
    assert cells == [(length, 32 // length, name) for length in (8, 16) for name in names]
    for row in record["training"]:
        assert row["left_out"] is None
        assert all(len(timing["seconds"]) == 2 for timing in row["passes"].values())
        assert row["compile_seconds"] is None
    spoken = {(row["batch_size"], row["name"]) for row in record["decoding"]}
    assert spoken == {(n, name) for n in (1, 8) for name in names} | {(1, "standard, without cache")}
    titles = ("2 x 16 tokens, bf16", "3 tokens decoded, 8 at a time")
    assert all(title in printed for title in titles)


def test_precisions_come_one_after_another(run: Run) -> None:
    options = ("standard", "--no-peers", "--precision", "fp32", "bf16", "--rounds=1", "--decode=0")
    record, _ = run(*options)
    assert [row["precision"] for row in record["training"]] == ["fp32", "bf16"]
    assert set(record["matrix_rates"]) == {"fp32", "bf16"}


def test_parts_can_be_left_out(run: Run) -> None:
    record, printed = run("standard", "--no-peers", "--rounds=0", "--decode=0")
    assert not {"training", "decoding"} & set(record)
    assert "TFLOP/s in fp32" in printed


def test_an_interrupted_bench_keeps_the_parts_that_were_done(
    monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "time_decoding", interrupted)
    with pytest.raises(RunInterrupted, match=r"^interrupted: '.*bench.json' has each part that was done; "):
        run("standard", "--rounds=1", "--lengths=8", "--no-peers")
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [row["name"] for row in record["training"]] == ["standard"]
    assert "decoding" not in record


def test_a_log_regularly_reports_the_work_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attractor.console.time.monotonic", iter((0.0, 29.0, 30.0, 59.0, 60.0)).__next__)
    out = StringIO()
    with telling(Console(file=out, width=20)) as tell:
        for doing in ("soon", "a line that is longer than the terminal", "soon again", "late"):
            tell(doing)
    assert out.getvalue().splitlines() == ["a line that is longer than the terminal", "late"]


@pytest.mark.skipif(not all(peer.installed for peer in PEERS.values()), reason="a peer is not installed")
def test_peers_have_rows_of_their_own(run: Run) -> None:
    record, _ = run("standard", "--rounds=1", "--lengths=32", "--decode=2", "--precision=bf16")
    assert [row["name"] for row in record["training"]] == ["standard", *PEERS]
    assert all(row["passes"] is not None for row in record["training"])
    assert {row["name"] for row in record["decoding"] if row["left_out"] is None} >= set(PEERS)


def test_a_stored_record_gives_the_same_tables_and_figure(run: Run, tmp_path: Path) -> None:
    record, printed = run("coupled-euler", "--no-peers", "--rounds=1", "--lengths=8", "--decode=2")
    console = Console(width=160, record=True, file=StringIO())
    for table in tables(record, record):
        console.print(table, markup=False, highlight=False)
    assert console.export_text() in printed
    draw_record.main(str(tmp_path / "bench.json"), str(tmp_path / "one.png"))
    draw_record.main(str(tmp_path / "bench.json"), str(tmp_path / "two.png"))
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.slow
def test_a_fast_slow_is_timed_as_transformers_are(small_bench: None, tmp_path: Path) -> None:
    """Criterion: with a size of its family, both names have times and FLOPs of a FastSlow, and no peer is timed."""
    out = tmp_path / "bench.json"
    options = ("standard:pool_factor=8", "--size=fast-slow", "--lengths=32", "--tokens=64", "--rounds=2", "--decode=3")
    bench(parsed(*options, "--vocab-size=40", "--device=cpu", f"--out={out}"), Console(file=StringIO()))
    record = json.loads(out.read_text())
    assert [row["name"] for row in record["training"]] == ["standard", "standard:pool_factor=8"]
    plain, pooled = record["training"]
    assert plain["n_parameters"] == pooled["n_parameters"] == 779_777 - (320 - 40) * 128
    assert plain["step_flops"] > pooled["step_flops"]
    assert {row["name"] for row in record["decoding"]} >= {"standard", "standard:pool_factor=8"}


def test_defaults_follow_size_and_device() -> None:
    cpu = torch.device("cpu")
    plain = request_of(parsed(), cpu)
    assert plain.names == MAIN
    assert (plain.precisions, plain.shape.d_model, plain.shape.n_tokens) == (("fp32",), 512, 1024)
    on_gpu = request_of(parsed(), torch.device("cuda"))
    assert (on_gpu.precisions, on_gpu.shape.vocab_size, on_gpu.shape.n_tokens) == (("bf16",), 50_257, 32 * 512)
    assert request_of(parsed("--size=medium"), cpu).shape.d_ff == 3072
    assert request_of(parsed("--d-model=256"), cpu).shape.d_ff == 1024
    assert request_of(parsed("--size=medium", "--n-heads=8", "--d-ff=7"), cpu).shape.d_ff == 7
    assert request_of(parsed("gated", "--baseline=gqa"), cpu).ours == ("gqa", "gated")
    assert len(request_of(parsed("all"), cpu).ours) > 15
