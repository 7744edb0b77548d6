"""What every test stands on: one thread per worker, kernels that are interpreted, and shapes in attention's signatures
checked at run time."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on a CPU; triton reads it once, when it is first imported

import jaxtyping
import torch

torch.set_num_threads(1)  # workers run side by side: more threads would only wait for one another

# The hook rewrites modules as they are imported, so it must stand before the first import of attractor.
jaxtyping.install_import_hook("attractor.attention", "shape_checker.check")

# On a busy machine reading takes long, and a line that says so would stand in what a test expects to be empty.
from attractor.corpus import waiting  # noqa: E402

waiting.FIRST_SECONDS = 600.0
