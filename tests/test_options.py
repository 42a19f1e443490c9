"""Texts in their order, and the windows of a stream: their size, their prompt, what is refused before one is read."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.options import Options, cut_windows, iterate_in_order, pick_texts, prefetch


def test_windows_are_read_when_they_are_asked_for(model, sentences):
    runtime, drawn = Runtime(model, backend="cpu"), iter(sentences[:7])
    blocks = runtime.stream(drawn, window=3, prompt="so ")
    first, z = next(blocks)
    assert (first, next(drawn)) == (0, sentences[3])
    found = np.concatenate([z, *(block for _, block in blocks)])
    texts = sentences[:3] + sentences[4:7]
    assert np.array_equal(found, runtime.encode(["so " + text for text in texts]))
    assert runtime.session.seen.texts[:6] == texts, "without the prompt"


def test_an_item_that_is_no_text_is_named_by_its_place_in_the_whole_stream(model):
    blocks = Runtime(model, backend="cpu").stream(iter(["a", "b", "c", 7]), window=2)
    next(blocks)
    with pytest.raises(FastflowError, match="text 3 is int, not str"):
        next(blocks)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_tokens": -1}, "batch_tokens"),
        ({"window": 1.5}, "window"),
        ({"truncate_dim": 33}, "33"),
        ({"precision": "float64"}, "precision"),
        ({"prompt": 7}, "prompt must be a text, not 7"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options, told):
    Options(1, True, "int8", 32, "so ", 1, 1).check(32)
    with pytest.raises(UsageError, match=told):
        Options(**options).check(32)


def test_windows_of_long_texts_give_the_same_bits(model, sentences, monkeypatch):
    with Runtime(model, backend="cpu") as runtime:
        whole = runtime.encode(sentences[:40])
        monkeypatch.setattr("fastflow.options.CHARACTERS", 100)
        blocks = list(runtime.stream(iter(sentences[:40])))
    assert len(blocks) > 4
    assert [start for start, _ in blocks] == list(np.cumsum([0, *(len(block) for _, block in blocks[:-1])]))
    assert np.array_equal(np.concatenate([block for _, block in blocks]), whole)


def test_a_window_ends_at_its_size_or_with_its_characters():
    found = list(cut_windows(iter(["a", "b", "c", "d" * (1 << 24), "e"]), 2, len))
    assert [[text[0] for text in window] for window in found] == [["a", "b"], ["c", "d"], ["e"]]
    assert list(cut_windows(iter([]), 2, len)) == []


def test_texts_are_given_once_under_either_name():
    assert pick_texts(["a"], None) == pick_texts(None, ["a"]) == ["a"]
    assert pick_texts([], None) == []
    for given in ((None, None), (["a"], ["b"])):
        with pytest.raises(UsageError, match="takes the texts once"):
            pick_texts(*given)


def test_anything_with_an_order_is_taken_in_it():
    for texts in (["b", "a"], ("b", "a"), iter(["b", "a"]), np.array(["b", "a"])):
        assert list(iterate_in_order(texts)) == ["b", "a"]


@pytest.mark.parametrize("texts", ["a", b"a", {"a"}, {"a": 1}, np.zeros((2, 2)), 7, None])
def test_an_argument_without_an_order_is_refused(texts):
    with pytest.raises(UsageError, match=f"not as {type(texts).__name__}; pooled vectors go to transform"):
        iterate_in_order(texts)


def test_items_come_in_order_and_the_next_is_made_meanwhile():
    assert list(prefetch(iter(range(7)))) == list(range(7))
    assert list(prefetch(iter([]))) == []
    made = [threading.Event() for _ in range(3)]

    def items():
        for event in made:
            event.set()
            yield event

    for number, _ in enumerate(prefetch(items())):
        assert number + 1 == len(made) or made[number + 1].wait(timeout=20)


def test_an_error_comes_after_what_was_made_before_it():
    def items():
        yield 1
        raise ValueError("no more")

    source = prefetch(items())
    assert next(source) == 1
    with pytest.raises(ValueError, match="no more"):
        next(source)


def test_stopping_half_way_makes_one_too_many_at_most():
    made = []
    source = prefetch(made.append(number) or number for number in range(100))
    assert next(source) == 0
    source.close()
    assert made in ([0, 1], [0])
