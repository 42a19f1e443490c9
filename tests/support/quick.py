"""``pytest --quick``: the first case of each test."""

from collections.abc import Sequence

import pytest


def first_cases(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The first item of each test function, in their order, and the other items."""
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(item.nodeid.partition("[")[0], item)
    kept = list(first.values())
    return kept, [item for item in items if item is not first[item.nodeid.partition("[")[0]]]
