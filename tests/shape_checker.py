"""The type checker that the import hook in conftest puts behind every signature of `attractor.attention`."""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

# The hook decorates functions one by one; beartype refuses `Self` there, because it cannot see the class.
check = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any})))
