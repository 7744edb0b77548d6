"""Prefetched batches are the same in the same order, few at a time, and none remains when a run ends."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from attractor.errors import WritingError
from attractor.tasks.text import TextTask
from attractor.train import loop
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train
from attractor.train.prefetch import AHEAD, prefetched
from same_runs import assert_same_run, train_in_parts


def batch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_batches_come_in_order_and_are_prepared_a_few_at_a_time() -> None:
    made: list[int] = []

    def make(step: int) -> int:
        made.append(step)
        return step * step

    with prefetched(make, 3, 9) as batches:
        for step in range(3, 9):
            assert next(batches) == step * step
            assert max(made) <= step + AHEAD
    assert made == list(range(3, 9))
    assert not batch_threads()


def test_an_error_is_raised_unchanged_at_the_step_of_its_batch() -> None:
    """Criterion: the same exception object is raised at its own step, and no earlier batch is lost."""
    error = MemoryError("no room")

    def make(step: int) -> int:
        if step == 2:
            raise error
        return step

    with prefetched(make, 0, 9) as batches:
        assert [next(batches), next(batches)] == [0, 1]
        with pytest.raises(MemoryError) as caught:
            next(batches)
    assert caught.value is error
    assert not batch_threads()


def test_leaving_waits_for_the_batch_in_preparation_and_prepares_no_other() -> None:
    made: list[int] = []
    begun, may_end = threading.Event(), threading.Event()

    def make(step: int) -> int:
        begun.set()
        may_end.wait(10)
        made.append(step)
        return step

    def leave() -> None:
        with prefetched(make, 0, 9):
            begun.wait(10)
            threading.Timer(0.05, may_end.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert made == [0]
    assert not batch_threads()


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Prefetch batches in all further runs, as for an accelerator."""
    return lambda: monkeypatch.setattr(loop, "WITHOUT_PREFETCHING", ())


def test_a_run_is_the_same_with_and_without_prefetching(
    config: TrainConfig,
    runtime: Runtime,
    tmp_path: Path,
    ahead: Callable[[], None],
    interrupt_during: Callable[[Iterable[int]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Criterion: runs agree to the bit, also when interrupted and resumed, and another thread prepares the batches."""
    train(config, tmp_path / "own", runtime)
    ahead()
    makers = set()
    train_batch = TextTask.train_batch

    def watched(task: TextTask, step: int, batch_size: int):  # type: ignore[no-untyped-def]
        makers.add(threading.current_thread())
        return train_batch(task, step, batch_size)

    monkeypatch.setattr(TextTask, "train_batch", watched)
    train_in_parts(config, tmp_path / "ahead", runtime, interrupt_during, 6)
    assert_same_run(tmp_path / "own", tmp_path / "ahead")
    assert threading.main_thread() not in makers
    assert not batch_threads()


def test_an_error_in_the_data_ends_the_run_with_its_reason(
    config: TrainConfig, runtime: Runtime, tmp_path: Path, ahead: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead()
    error = OSError("the disk is gone")

    def broken(task: TextTask, step: int, batch_size: int) -> None:
        raise error

    monkeypatch.setattr(TextTask, "train_batch", broken)
    with pytest.raises(WritingError, match=r"the disk is gone; .* Resume: attractor train --resume") as caught:
        train(config, tmp_path, runtime)
    assert caught.value.__cause__ is error
    assert not batch_threads()
