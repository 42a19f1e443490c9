"""A few rounds of the attacks on a server."""

import pytest
from across.test_attacks import attack


@pytest.mark.whole
@pytest.mark.parametrize(("name", "rounds"), [("load", 1), ("connections", 1), ("memory", 14)])
def test_every_request_has_its_answer(name, rounds):
    attack(name, rounds)
