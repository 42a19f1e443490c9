"""Counting texts unlike the fitted corpus: how many are too many, and which texts count."""

from __future__ import annotations

import numpy as np

from fastflow.files.windows import FEWEST_JUDGED as FEWEST
from fastflow.files.windows import Unlike
from fastflow.model.manifest import Likelihood


def judged(share: float, count: int) -> str | None:
    below = round(share * count)
    unlike = Unlike(Likelihood(0.0, 0.01))
    unlike.look(["text"] * count + ["", " "], np.array([-1.0] * below + [1.0] * (count - below) + [-1.0, -1.0]))
    return unlike.warning()


def test_a_warning_needs_enough_texts_and_five_times_the_share_of_the_corpus():
    assert judged(0.31, 1000) == (
        "31% of these texts are unlike the corpus the model was fitted on; consider --fit"
    )  # fmt: skip
    assert judged(0.05, FEWEST) is not None
    assert judged(0.045, FEWEST) is None
    assert judged(1.0, FEWEST - 1) is None
    assert judged(0.0, 0) is None


def test_looks_add_up_and_empty_texts_are_not_judged():
    unlike = Unlike(Likelihood(-5.0, 0.01))
    unlike.look(["a", "", " \n", "b"], np.array([-6.0, -9.0, -9.0, -5.0]))  # equal is as usual
    unlike.look(["c"], np.array([-5.5]))
    unlike.look([], np.zeros(0))
    assert (unlike.seen, unlike.below) == (3, 2)
    assert unlike.warning() is None
