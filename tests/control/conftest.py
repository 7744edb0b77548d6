"""Views that a test registers are gone after it."""

from collections.abc import Iterator

import pytest

from attractor.control import layouts


@pytest.fixture(autouse=True)
def same_views_as_before() -> Iterator[None]:
    before = list(layouts.VIEWS)
    yield
    layouts.VIEWS[:] = before
