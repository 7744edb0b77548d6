"""A run that does not fit into memory is refused with a clear message, and `auto` finds the micro-batch that fits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from attractor.errors import InputError
from attractor.models import TransformerConfig
from attractor.tasks.text import Text
from attractor.train import fit
from attractor.train.calibrate import OutOfMemory
from attractor.train.config import Runtime, TrainConfig
from attractor.train.fit import FreeMemory, auto_batch, free_by_limit, free_bytes
from attractor.train.memory import ProcessLayout, planned_memory

MODEL = TransformerConfig(vocab_size=320, d_model=32, n_heads=4, n_layers=1, d_ff=64, max_seq_len=64)
CONFIG = TrainConfig(MODEL, Text(), n_steps=4, batch_size=12, seq_len=64, warmup_steps=0, eval_batches=1)
CPU = torch.device("cpu")


def memory_of(free: int | None, processes: ProcessLayout | None = None) -> FreeMemory:
    return FreeMemory(CPU, processes or ProcessLayout(), free, free)


def test_a_run_that_fits_to_the_byte_is_not_refused() -> None:
    needed = planned_memory(CONFIG).total
    assert memory_of(needed).refuse_oversized(CONFIG).total == needed
    assert memory_of(None).refuse_oversized(CONFIG).total == needed
    with pytest.raises(InputError, match="free on cpu; give accumulation=2, or a smaller batch_size"):
        memory_of(needed - 1).refuse_oversized(CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "free", "parts"),
    [
        ({"d_model": 4096}, 2**28, ["d_model must leave", "got 4096", "268 MB are free", "give a smaller d_model"]),
        ({"vocab_size": 2**22}, 2**28, ["vocab_size must leave", "give a smaller vocab_size"]),
        ({"max_seq_len": 2**22}, 2**28, ["max_seq_len must leave", "give a smaller max_seq_len"]),
        ({"n_layers": 2**20}, 2**28, ["n_layers must leave", "give a smaller n_layers"]),
        ({"d_ff": 2**22}, 2**28, ["d_ff must leave", "give a smaller d_ff"]),
        ({"batch_size": 2**20}, 2**28, ["batch_size must leave", "1.1 GB, and 268 MB are free on cpu"]),
        ({"batch_size": 2**10}, 2**26, ["batch_size must leave", "give accumulation="]),
        ({"batch_size": 1, "seq_len": 2**14, "positions": "rope"}, 2**22, ["seq_len must leave", "a smaller seq_len"]),
        (
            {"batch_size": 1, "seq_len": 2**12, "max_seq_len": 2**12, "n_layers": 8},
            2**25,
            ["seq_len must leave", "give activation_checkpointing"],
        ),
    ],
)
def test_the_field_that_takes_most_memory_is_named_with_a_remedy(
    changes: dict[str, Any], free: int, parts: list[str]
) -> None:
    """Criterion: one line names the field, its value, the needed and the free memory, and a next step."""
    with pytest.raises(InputError) as refused:
        memory_of(free).refuse_oversized(CONFIG.replace(**changes))
    text = str(refused.value)
    assert "\n" not in text
    for part in [*parts, "it needs at least", "are free on cpu; give "]:
        assert part in text


def test_the_suggested_remedy_makes_the_run_fit() -> None:
    config, free = CONFIG.replace(batch_size=64), 2**23
    smaller = memory_of(free).smaller_micro_batch(config)
    assert smaller is not None
    assert memory_of(free).holds(smaller)
    assert not memory_of(free).holds(config.replace(accumulation=smaller.accumulation // 2))
    with pytest.raises(InputError, match=f"give accumulation={smaller.accumulation}, or"):
        memory_of(free).refuse_oversized(config)


def test_plenty_of_memory_is_more_than_the_plan_needs() -> None:
    for config in (CONFIG, CONFIG.replace(attention="coupled-euler"), CONFIG.replace(softcap=9.0, batch_size=2)):
        needed = planned_memory(config).total
        assert memory_of(needed).refuse_any([config]), "the answer that takes no time is on the safe side"
        assert not memory_of(2**40).refuse_any([config] * 4, 4)


def test_runs_side_by_side_are_added_up() -> None:
    small, large = planned_memory(CONFIG), planned_memory(CONFIG.replace(batch_size=48))
    both = memory_of(small.total + large.total)
    both.refuse_side_by_side([small, large], 2)
    both.refuse_side_by_side([small, large], 4)
    memory_of(None).refuse_side_by_side([small, large], 2)
    with pytest.raises(InputError, match=r"workers must be few enough .* got 2: .* give --workers 1, or smaller runs"):
        memory_of(small.total + large.total - 1).refuse_side_by_side([small, large], 2)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {}, 8_000_000 * 1024),
        ("0::/job/step", {"job/memory.max": "1000000", "job/memory.stat": "anon 300000\nfile 600000"}, 700_000),
        ("0::/job", {"job/memory.max": "max", "job/memory.stat": "anon 1"}, 8_000_000 * 1024),
        ("0::/job", {"job/memory.max": "10", "job/memory.stat": "anon 300"}, 0),
        (
            "9:cpu:/job\n4:memory:/job",
            {"memory/job/memory.limit_in_bytes": "5000", "memory/job/memory.stat": "cache 9\ntotal_rss 2000"},
            3_000,
        ),
    ],
)
def test_a_limit_of_a_control_group_counts(group: str, files: dict[str, str], expected: int, tmp_path: Path) -> None:
    """The system takes pages of files back when it needs them, so they count as free."""
    write(tmp_path / "proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    write(tmp_path / "proc/self/cgroup", group + "\n")
    for name, text in files.items():
        write(tmp_path / "groups" / name, text)
    assert min(free_by_limit(tmp_path / "proc", tmp_path / "groups")) == expected


def test_unknown_free_memory_refuses_nothing(tmp_path: Path) -> None:
    assert list(free_by_limit(tmp_path, tmp_path)) == []
    assert free_bytes(torch.device("meta")) is None


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(fit, "free_bytes", lambda device: free)


@pytest.mark.parametrize("factor", [100.0, 0.9, 0.5, 0.2])
def test_auto_finds_the_largest_micro_batch_and_keeps_the_batch(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: `auto` takes the least accumulation that fits with the margin."""
    config = CONFIG.replace(accumulation=3)
    margin = fit.MARGINS["cpu"]
    needed = margin * planned_memory(CONFIG).total
    with_free(monkeypatch, int(fit.RESERVED + factor * needed))
    found = auto_batch(config, Runtime("cpu"), ProcessLayout())
    assert found.replace(accumulation=3) == config
    memory, divisors = memory_of(int(factor * needed)), (1, 2, 3, 4, 6, 12)
    fitting = [n for n in divisors if memory.holds(CONFIG.replace(accumulation=n), margin)]
    assert found.accumulation == min(fitting, default=12)


def test_auto_gives_each_process_whole_sequences_and_refuses_a_run_of_which_not_one_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_free(monkeypatch, 2**16 + fit.RESERVED)
    assert auto_batch(CONFIG, Runtime("cpu"), ProcessLayout(4)).accumulation == 3
    with pytest.raises(InputError, match="divisible by the number of processes, 5, got 12 / 1"):
        auto_batch(CONFIG, Runtime("cpu"), ProcessLayout(5))
    with_free(monkeypatch, 2**16)
    with pytest.raises(InputError, match="must leave the run within the memory that is free"):
        auto_batch(CONFIG, Runtime("cpu"), ProcessLayout())


def test_on_a_gpu_the_micro_batch_is_halved_after_each_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def measured(config: TrainConfig, runtime: Runtime) -> None:
        tried.append(config.accumulation)
        if config.accumulation < 6:
            raise OutOfMemory("out of memory")

    with_free(monkeypatch, 2**40)
    monkeypatch.setattr(fit, "resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(fit, "calibrate", measured)
    assert auto_batch(CONFIG, Runtime("cuda"), ProcessLayout()).accumulation == 12
    assert tried == [1, 2, 4, 12], "divisors of 12, each at least twice the one before"
