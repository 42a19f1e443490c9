"""The sentences on similarity and lexical bias follow their tables."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.evaluation.evaluate import SEVEN, Pairs
from fastflow.report.parts import Best
from fastflow.report.sections import lexical, similarity

from support.fixed import Fixed


def pairs(name: str) -> Pairs:
    return Pairs(name, ["s"] * 3, np.array([1.0, 2.0, 3.0]), ["a", "b", "c"], ["d", "e", "f"])


@pytest.mark.slow
def test_similarity_sentences_count_what_the_table_shows():
    angles = np.array([0.0, 0.0, 0.0, 1.2, 0.8, 0.4])  # of a to f: cosine rises with the score
    right = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    wrong = right[[0, 1, 2, 5, 4, 3]]
    some, seven = [pairs("x"), pairs("y")], [pairs(name) for name in (*SEVEN, "other")]
    for own, other, count in ((right, wrong, 2), (wrong, right, 0), (right, right, 0)):
        section = similarity([Fixed("model", own), Fixed("raw", other)], some)
        assert "The mean is over every set given." in section.text
        assert section.text.endswith(f"The model is higher than raw on {count} of 2 sets.")
        assert section.tables[0].rows[0][:2] == ["mean of 2", "100.00" if own is right else "-100.00"]
    section = similarity([Fixed("model", right)], seven)
    assert section.text.endswith("The mean is over the paper's seven test sets.")
    assert [row[0] for row in section.tables[0].rows] == ["mean of 7", *SEVEN, "other"]


@pytest.mark.slow
def test_lexical_sentence_counts_the_sets_nearer_to_people():
    words = Pairs("x", ["s"] * 3, np.array([3.0, 2.0, 1.0]), ["a", "a b", "a b c"], ["a", "a d", "a e f"])
    angles = np.array([0.0, 0.0, 0.0, 0.4, 0.8])  # of a, a b, a b c, a d, a e f: cosine falls with the distance
    near = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    far = near[[4, 0, 0, 0, 4]] @ np.array([[1.0, 0.0], [0.0, -1.0]])
    section = lexical([Fixed("model", near), Fixed("raw", far)], [words])
    assert section.tables[0].columns == ["set", "model", "people", "raw"]
    assert section.tables[0].rows[0][1:3] == ["-100.0", "-100.0"]
    assert isinstance(section.tables[0].rows[0][1], Best)
    assert section.text.endswith("The model is nearer to people than raw on 1 of 1 sets.")
    section = lexical([Fixed("model", far), Fixed("raw", near)], [words])
    assert section.text.endswith("The model is nearer to people than raw on 0 of 1 sets.")
