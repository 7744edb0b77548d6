"""Fresh processes for runs: each with memory and failures of its own, forked from one that has imported what all need.

torch loads its compiler at the first model that is built on paper and the first optimizer, though nothing be compiled:
seconds, and tens of megabytes, that every run would pay again and count as its own.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext

NEEDED = ["attractor.train.loop", "torch._dynamo"]


def fresh_processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(NEEDED)
    return context
