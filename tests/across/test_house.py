"""The counts of the house that are reached stay so."""

import ast

import pytest
from house import counts, length, parameters


@pytest.mark.slow
def test_what_is_reached_stays():
    found = counts()
    above = {name: count for name, count in found.items() if count.held and count.value > count.goal}
    assert above == {}, "python tests/house.py names the worst"
    assert found["product"].value > 30_000
    assert found["bench/results"].value > 1


def test_functions_are_measured():
    function, command = ast.parse(
        'def f(a, /, b, *, c):\n    """Words."""\n    def g():\n        return 1\n    return (\n        g())\n'
        "@click.command()\ndef run(a, b): ...\n"
    ).body
    assert (length(function), parameters(function)) == (2, 2)
    assert (length(command), parameters(command)) == (1, 0)
