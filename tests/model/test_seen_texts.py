"""The note of ``Runtime.info()`` on texts that do not suit the encoder's vocabulary."""

from __future__ import annotations

import pytest

from fastflow import Runtime
from fastflow.model.fragmentation import LOOKED_AT, Seen

GERMAN = ["Zwei Hunde laufen über ein verschneites Feld.", "Die Erhöhung der Umsatzsteuer wurde beschlossen."]


@pytest.fixture(scope="module")
def runtime():
    with Runtime() as opened:
        yield opened


@pytest.mark.parametrize("use", ["encode", "one", "stream", "pool", "similarity"])
def test_foreign_texts_are_noted(use):
    with Runtime() as runtime:
        assert runtime.info()["notes"] == []
        if use == "encode":
            runtime.encode(GERMAN)
        elif use == "one":
            assert [runtime.encode(text).shape for text in GERMAN] == [(256,)] * 2
        elif use == "stream":
            list(runtime.stream(iter(GERMAN)))
        elif use == "pool":
            runtime.pool(GERMAN)
        else:
            runtime.similarity(GERMAN[:1], GERMAN)
        (note,) = runtime.info()["notes"]
    assert note.startswith("texts embedded so far: words fall into ")
    assert note.endswith("use an encoder that was made for this language and field")


def test_own_texts_and_vectors_are_not(runtime):
    runtime.encode(["Two dogs run across a field.", "The tax was raised on Tuesday by the government."])
    runtime.transform(runtime.pool(["A man plays a guitar."]))
    assert runtime.info()["notes"] == []


def test_no_more_text_is_kept_than_is_looked_at():
    seen = Seen()
    for _ in range(10):
        seen.add(["x" * (2 * LOOKED_AT), "y"])
    assert sum(map(len, seen.texts)) <= LOOKED_AT
