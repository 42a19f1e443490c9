"""The numbers of the house stay under their limits."""

import ast

import pytest
from house import counts, length, parameters


@pytest.mark.slow
def test_no_number_passes_its_limit():
    found = counts()
    assert {name: count for name, count in found.items() if count.value > count.most} == {}, "see tests/house.py"
    assert all(count.goal <= count.most for count in found.values())
    assert found["product"].value > 30_000
    assert found["docstrings and comments"].value > 20_000
    assert found["files entered by encode"].value > 5


def test_functions_are_measured():
    function, command = ast.parse(
        'def f(a, /, b, *, c):\n    """Words."""\n    def g():\n        return 1\n    return (\n        g())\n'
        "@click.command()\ndef run(a, b): ...\n"
    ).body
    assert (length(function), parameters(function)) == (2, 2)
    assert (length(command), parameters(command)) == (1, 0)
    assert (parameters(function, named=True), parameters(command, named=True)) == (3, 0)
