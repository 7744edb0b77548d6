"""Functions that several processes carry out together, which the project's launcher forks from a server with torch.

torchrun would start Python and import torch in each of them. Tests of what torchrun itself does start torchrun.
"""

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from attractor.train.distributed import World
from attractor.train.process import begin
from attractor.train.ranks import Ranks

PATIENCE = 400.0  # seconds


def together(size: int, act: Callable[..., Any], *arguments: Any, ends_with: int = 0) -> None:
    """Call `act(*arguments)` in `size` processes. Fail with their tracebacks if they end with another exit code.

    `act` must be at the top of its module, because the processes import it by name.
    """
    with TemporaryDirectory() as folder:
        ranks = Ranks(size, _act, Path(folder), act, arguments)
        ranks.start()
        deadline = time.monotonic() + PATIENCE
        while ranks.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        ranks.terminate()
        ranks.join()
        said = [path.read_text() for path in sorted(Path(folder).iterdir())]
    assert ranks.exitcode == ends_with, "\n".join([f"ended with {ranks.exitcode}", *said])


def join_group() -> int:
    """Form a process group with the other processes, and return the rank of this one."""
    world = World.from_environment()
    assert world.store is not None
    dist.init_process_group(
        "gloo", store=dist.FileStore(world.store, world.size), rank=world.rank, world_size=world.size
    )
    return world.rank


def _act(folder: Path, act: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    begin(at_end=lambda: os._exit(1))
    torch.set_num_threads(1)
    try:
        act(*arguments)
    except BaseException:
        (folder / f"rank {os.environ['RANK']}").write_text(traceback.format_exc())
        raise
