"""A law over a table of refusals. Rows hold arguments only, so that a table costs no import."""

from importlib import import_module
from itertools import product

import pytest


class At:
    """A test's fixtures as attributes, made when a row asks for them; a call imports a module of fastflow."""

    def __init__(self, request):
        self._get = request.getfixturevalue

    def __getattr__(self, name):
        return self._get(name)

    def __call__(self, module):
        return import_module(f"fastflow.{module}")


def refuse(error, call, *rows):
    """A case for each row: ``call(at, *arguments)`` raises ``error`` with the row's last item, a regular expression."""
    return [pytest.param(error, call, given, said, id=said[:60]) for *given, said in rows]


def every(*choices, said):
    """A row for each combination."""
    return [(*given, said) for given in product(*choices)]


def check_refusal(request, error, call, given, said):
    with pytest.raises(error, match=said) as caught:
        call(At(request), *given)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
