"""A server of the model in the package, for all tests of a session that do not change its state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import Running, serving

import fastflow


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server without a key, of the model in the package."""
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def runtime() -> fastflow.Runtime:
    """The model that ``server`` serves."""
    return fastflow.Runtime(None, "cpu")
