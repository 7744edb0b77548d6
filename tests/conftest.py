"""What every test stands on: one thread per worker, and shapes in attention's signatures checked at run time."""

import jaxtyping
import torch

torch.set_num_threads(1)  # workers run side by side: more threads would only wait for one another

# The hook rewrites modules as they are imported, so it must stand before the first import of attractor.
jaxtyping.install_import_hook("attractor.attention", "shape_checker.check")
