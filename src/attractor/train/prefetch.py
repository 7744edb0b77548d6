"""Batches made ahead of their steps, by one thread.

A batch is a function of its step, so that it does not matter who makes it, nor when. For accelerators: on a CPU the
thread would take from the step the core that the step computes on.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

T = TypeVar("T")

AHEAD = 2  # batches that wait for their step


class Prefetched(Generic[T]):
    """make(first), make(first + 1) and so on up to make(last - 1), in this order. What `make` raises is raised where
    its result is taken; leaving the `with` waits for the one being made, and makes no further one."""

    def __init__(self, make: Callable[[int], T], first: int, last: int) -> None:
        self.make, self.steps = make, iter(range(first, last))
        self.waiting: deque[Future[T]] = deque()
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")

    def __enter__(self) -> Self:
        for _ in range(AHEAD):
            self._ask()
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)

    def take(self) -> T:
        taken = self.waiting.popleft()
        self._ask()
        return taken.result()

    def _ask(self) -> None:
        step = next(self.steps, None)
        if step is not None:
            self.waiting.append(self.thread.submit(self.make, step))
