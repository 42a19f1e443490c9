"""The counts of the house that are reached stay so."""

import ast

import pytest
from house import counts, length, parameters

COUNTS = counts()


@pytest.mark.parametrize("name", [name for name, count in COUNTS.items() if count.held])
def test_what_is_reached_stays(name):
    assert COUNTS[name].value <= COUNTS[name].goal, "python tests/house.py names the worst"


def test_they_are_counted():
    assert COUNTS["product"].value > 30_000
    assert COUNTS["bench/results"].value > 1
    function, command = ast.parse(
        'def f(a, /, b, *, c):\n    """Words."""\n    def g():\n        return 1\n    return (\n        g())\n'
        "@click.command()\ndef run(a, b): ...\n"
    ).body
    assert (length(function), parameters(function)) == (2, 2)
    assert (length(command), parameters(command)) == (1, 0)
