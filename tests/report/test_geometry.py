"""The sentences on isotropy and word frequency follow their tables."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.evaluation.words import NEIGHBOURS, word_bands
from fastflow.report.geometry import frequency_trend
from fastflow.report.geometry import isotropy as isotropy_section
from fastflow.report.parts import Best

from support.fixed import Fixed


def bands(norms: tuple[float, ...], distances: tuple[float, ...]) -> list:
    ranks = ("0-100", "100-500", "500+")
    return [
        {"ranks": r, "norm": n, "l2": dict.fromkeys(NEIGHBOURS, d)}
        for r, n, d in zip(ranks, norms, distances, strict=False)
    ]


@pytest.mark.parametrize(
    ("norms", "distances", "said", "agrees"),
    [
        ((1.0, 9.0, 2.0), (0.5, 0.1, 0.6), ("rises from 1.000 to 2.000", "rises from 0.500 to 0.600"), "as here"),
        ((2.0, 1.0), (0.6, 0.5), ("falls from 2.000 to 1.000", "falls from 0.600 to 0.500"), "the opposite of this"),
        ((2.0, 1.0), (0.5, 0.6), ("falls from 2.000 to 1.000", "rises from 0.500 to 0.600"), "shows that in part"),
        ((1.0, 1.0), (0.6, 0.6), ("stays at 1.000", "stays at 0.600"), "does not show that"),
        ((1.0, 1.0), (0.6, 0.5), ("stays at 1.000", "falls from 0.600 to 0.500"), "does not show that"),
    ],
)
def test_word_frequency_sentence_follows_the_table(norms, distances, said, agrees):
    text = frequency_trend(bands(norms, distances))
    assert f"the mean norm {said[0]} and the l2 distance to the 3 nearest {said[1]}." in text
    assert text.endswith(f"{agrees} encoder." if agrees.endswith("this") else f"{agrees}.")


def test_word_frequency_sentence_of_real_bands_and_of_one():
    table = np.random.default_rng(3).normal(size=(600, 8)) * np.linspace(0.2, 2, 600)[:, None]
    for order, wanted in ((np.arange(600, 0, -1), "rises"), (np.arange(1, 601), "falls")):
        found = word_bands(table, order)
        assert f"From ranks 0-100 to {found[-1]['ranks']} the mean norm {wanted}" in frequency_trend(found)
    assert "one band, which shows no trend" in frequency_trend(word_bands(table[:50], np.ones(50, int)))


@pytest.mark.slow
def test_isotropy_sentence_follows_the_table():
    rng = np.random.default_rng(0)
    even, cone = rng.normal(size=(300, 8)), rng.normal(size=(300, 8)) * np.arange(1, 9) + 20
    texts = ["t"] * 300
    better = isotropy_section([Fixed("model", even), Fixed("raw", cone)], texts, 0)
    worse = isotropy_section([Fixed("model", cone), Fixed("raw", even)], texts, 0)
    assert "more isotropic than raw by 3 of 3 measures (mean cosine, IsoScore, largest's share)." in better.text
    assert "more isotropic than raw by none of the measures." in worse.text
    assert [[i for i, cell in enumerate(row) if isinstance(cell, Best)] for row in better.tables[0].rows] == [[1]] * 3
    assert [[i for i, cell in enumerate(row) if isinstance(cell, Best)] for row in worse.tables[0].rows] == [[2]] * 3
    assert "isotropic than" not in isotropy_section([Fixed("model", cone)], texts, 0).text
