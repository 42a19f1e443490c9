"""The verdict of a report follows its figures, whichever way these fall."""

from __future__ import annotations

import pytest

from fastflow.report.parts import Section
from fastflow.report.verdict import NO_SCORES, of_sections, verdict


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": 63.45, "raw": 54.3, "whiten": 58.97}, "the model is the best of 3: 63.45, 9.15 above raw (54.30)."),
        (
            {"model": 63.45, "raw": 54.3, "whiten": 63.45},
            "the model and whiten are equal and the best of 3: 63.45, 9.15 above raw (54.30).",
        ),
        (
            {"model": 60.0, "raw": 54.3, "whiten": 61.0},
            "whiten is the best of 3: 61.00, 6.70 above raw (54.30). The model has 60.00, 5.70 above raw (54.30).",
        ),
        (
            {"model": 50.0, "raw": 54.3},
            "raw is the best of 2: 54.30. Calibration did not help: the model has 50.00, 4.30 below raw (54.30).",
        ),
        (
            {"model": 50.0, "raw": 54.3, "whiten": 61.0},
            "whiten is the best of 3: 61.00, 6.70 above raw (54.30). Calibration did not help: the model has 50.00, "
            "4.30 below raw (54.30).",
        ),
        ({"model": 54.301, "raw": 54.299}, "calibration did not help: the model and raw are equal at 54.30."),
        (
            {"model": 54.3, "raw": 54.3, "whiten": 61.0},
            "whiten is the best of 3: 61.00, 6.70 above raw (54.30). Calibration did not help: the model has 54.30, "
            "the same as raw.",
        ),
        (
            {"model": 50.0, "old": 54.3},
            "old is the best of 2: 54.30. The model is no better than old: the model has 50.00, 4.30 below old "
            "(54.30).",
        ),
        ({"model": 50.0}, "the model has 50.00; nothing was given to compare it with (--against)."),
    ],
)
def test_verdict_follows_the_figures(values, said):
    assert verdict("the measure", values) == f"By the measure, {said}"


def test_no_verdict_without_scores_or_on_an_undefined_figure():
    assert of_sections([Section("isotropy", "", "", {})]) == (NO_SCORES, "")
    assert verdict("measure", {"model": float("nan"), "raw": 1.0}) == (
        "This page has no verdict: the measure is undefined for the model."
    )


def test_verdict_is_on_similarity_before_qnli():
    qnli = Section("qnli", "", "", {"model": {"auc": 61.0}, "raw": {"auc": 60.0}})
    averages = {"model": {"all": 1.0, "sets": ["a", "b"]}, "raw": {"all": 2.0, "sets": ["a", "b"]}}
    similarity = Section(
        "similarity",
        "",
        "",
        {
            name: {
                "average": found,
                "rows": [{"set": "a", "pairs": 700}, {"set": "b", "pairs": 20}, {"set": "c", "pairs": 9}],
            }
            for name, found in averages.items()
        },
    )
    assert of_sections([qnli])[0] == "By AUC ×100 on QNLI, the model is the best of 2: 61.00, 1.00 above raw (60.00)."
    assert of_sections([similarity, qnli])[0].startswith(
        "By Spearman ×100 with human scores, averaged over 2 sets of 720 pairs, raw"
    )
