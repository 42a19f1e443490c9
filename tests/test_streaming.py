"""The windows of a stream: their size, their prompt, and what is refused before a text is read."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow import Runtime, streaming
from fastflow.errors import FastflowError, UsageError
from fastflow.model.tokens import Tokenizer
from fastflow.streaming import WINDOW, StreamOptions


@pytest.fixture(scope="module")
def tokenize(bert):
    return Tokenizer(bert, 64)


def test_windows_are_read_when_they_are_asked_for_and_seen_without_the_prompt(tokenize, sentences):
    drawn, seen = iter(sentences[:7]), []
    windows = StreamOptions(window=3, prompt="so ").windows(drawn, tokenize, seen.append)
    assert seen == []
    first = next(windows)
    assert seen == [sentences[:3]]
    assert next(drawn) == sentences[3]
    found = [first, *windows]
    assert seen == [sentences[:3], sentences[4:7]]
    for tokens, texts in zip(found, seen, strict=True):
        expected = tokenize(["so " + text for text in texts])
        assert np.array_equal(tokens.ids, expected.ids)
        assert np.array_equal(tokens.offsets, expected.offsets)


def test_no_texts_are_no_windows(tokenize):
    assert list(StreamOptions().windows(iter([]), tokenize, lambda texts: None)) == []


def test_what_is_no_text_is_named_by_its_place_in_the_whole_stream(tokenize):
    windows = StreamOptions(window=2).windows(iter(["a", "b", "c", 7]), tokenize, lambda texts: None)
    next(windows)
    with pytest.raises(FastflowError, match="text 3 is int, not str"):
        next(windows)


def test_a_window_has_its_usual_size_unless_told():
    assert (StreamOptions().size, StreamOptions(window=5).size) == (WINDOW, 5)


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
    StreamOptions(1, True, "int8", 32, "so ", 1, 1).check(32)
    with pytest.raises(UsageError, match=told):
        StreamOptions(**options).check(32)


def test_windows_of_long_texts_give_the_same_bits(model, sentences, monkeypatch):
    with Runtime(model, backend="cpu") as runtime:
        whole = runtime.encode(sentences[:40])
        monkeypatch.setattr(streaming, "CHARACTERS", 100)
        blocks = list(runtime.stream(iter(sentences[:40])))
    assert len(blocks) > 4
    assert [start for start, _ in blocks] == list(np.cumsum([0, *(len(block) for _, block in blocks[:-1])]))
    assert np.array_equal(np.concatenate([block for _, block in blocks]), whole)


def test_a_window_ends_at_its_size_or_with_its_characters():
    found = list(streaming.windowed(iter(["a", "b", "c", "d" * (1 << 24), "e"]), 2, len))
    assert [[text[0] for text in window] for window in found] == [["a", "b"], ["c", "d"], ["e"]]
    assert list(streaming.windowed(iter([]), 2, len)) == []
