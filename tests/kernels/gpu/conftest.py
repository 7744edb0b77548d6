"""Kernels are interpreted here, which must be said before the modules that define them are imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
