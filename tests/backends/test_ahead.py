"""One item is made while the one before is in use, in order, with errors in their turn."""

from __future__ import annotations

import threading

import pytest

from fastflow.backends.ahead import ahead


def test_items_come_in_order():
    assert list(ahead(iter(range(7)))) == list(range(7))
    assert list(ahead(iter([]))) == []


def test_the_next_item_is_made_meanwhile():
    made = [threading.Event() for _ in range(3)]

    def items():
        for event in made:
            event.set()
            yield event

    for number, _ in enumerate(ahead(items())):
        if number + 1 < len(made):
            assert made[number + 1].wait(timeout=20)


def test_an_error_comes_after_what_was_made_before_it():
    def items():
        yield 1
        raise ValueError("no more")

    got = []
    with pytest.raises(ValueError, match="no more"):
        got.extend(iter_of(ahead(items()), got))
    assert got == [1]


def iter_of(source, got):
    for item in source:
        got.append(item)
    return []


def test_stopping_half_way_makes_one_too_many_at_most():
    made = []

    def items():
        for number in range(100):
            made.append(number)
            yield number

    source = ahead(items())
    assert next(source) == 0
    source.close()
    assert made in ([0, 1], [0])
