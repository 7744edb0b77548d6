"""Tasks: the data that a model is trained and validated on.

A new task is one file, with a config and the task that it builds (`task.py` defines both), and one entry in `KINDS`.
A task that a file of your own defines enters itself: `TASKS[Mine.kind] = Mine`.
"""

from attractor.tasks.needle import Needle
from attractor.tasks.recall import Recall
from attractor.tasks.sudoku.task import Sudoku
from attractor.tasks.task import Batch, Task, TaskConfig
from attractor.tasks.text import Text

KINDS: tuple[type[TaskConfig], ...] = (Text, Recall, Needle, Sudoku)
TASKS = {kind.kind: kind for kind in KINDS}

__all__ = ["TASKS", "Batch", "Task", "TaskConfig"]


def __dir__() -> list[str]:
    return [*__all__, *(kind.__name__ for kind in KINDS), "recall", "sudoku"]
