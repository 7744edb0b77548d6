"""The type checker that the import hook in conftest adds to every signature of `attractor.attention`."""

from typing import Any, Self

import torch
from beartype import BeartypeConf, FrozenDict, beartype

# The hook decorates functions one by one; beartype refuses `Self` there, because it cannot see the class. While torch
# exports a model, lengths are symbols.
check = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any, int: int | torch.SymInt})))
