"""The page of a report: sentences, marks and drawings follow the figures, whichever way these fall."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from fastflow.evaluation.analyses import NEIGHBOURS, word_bands
from fastflow.evaluation.evaluate import SEVEN, Pairs
from fastflow.model.kinds import TASKS, Prompts
from fastflow.report.geometry import frequency_trend
from fastflow.report.geometry import isotropy as isotropy_section
from fastflow.report.page import page
from fastflow.report.parts import HIGHEST, LOWEST, Best, Line, Section, comparison, figure
from fastflow.report.plots import LETTERS, MOST_LETTERS, apart, dots, short
from fastflow.report.sections import lexical, neighbours, similarity
from fastflow.report.subjects import Pool, Subject, baseline, shown_name
from fastflow.report.verdict import NO_SCORES, of_sections, verdict

from support.fixed import Fixed


@pytest.mark.parametrize(
    ("values", "toward", "best"),
    [
        ((1.0, 3.0, 2.0), HIGHEST, {1}),
        ((1.0, 3.0, 2.0), LOWEST, {0}),
        ((-0.2, 0.3, 0.2), 0.0, {0, 2}),  # a tie of both signs
        ((-60.0, -41.0, -38.0), -40.0, {1}),  # nearest to another figure
        ((0.4, 0.3, 0.2), 0.3, {1}),
        ((2.001, 1.0, 1.999), HIGHEST, {0, 2}),  # equal as printed
        ((float("nan"), 1.0, 2.0), HIGHEST, {2}),
        ((float("nan"),) * 3, HIGHEST, set()),
        ((1.0, 2.0, 3.0), float("nan"), set()),  # nothing to be near to
        ((1.0,), HIGHEST, set()),  # nothing to be better than
    ],
)
def test_best_values_are_bold_by_the_direction_of_their_row(values, toward, best):
    line = Line("row", {f"s{i}": value for i, value in enumerate(values)}, toward)
    table = comparison("", "", [line])
    assert {i for i, cell in enumerate(table.rows[0][1:]) if isinstance(cell, Best)} == best
    shown = page("t", ("", ""), [], [Section("s", "", "", {}, [table])], [])
    assert re.findall(r"<b>(.*?)</b>", shown) == [f"{values[i]:.2f}" for i in sorted(best)]


def test_neighbours_are_those_of_sentences_of_a_middling_length():
    texts = [" ".join([word] * count) for word, count in (("a", 4), ("b", 5), ("c", 14), ("d", 15))]
    subject = Subject("model", "", lambda texts: np.eye(len(texts)), lambda x: x)
    for given, asked in ((texts, texts[1:3]), (texts[::3], texts[::3])):  # of all if none is of that length
        assert [one["text"] for one in neighbours([subject], given, 9, 0).data] == asked


def test_a_further_column_is_not_taken_for_a_subject():
    lines = [Line("a", {"model": 1.0, "raw": 2.0}, note="9"), Line("b", {"model": 2.0, "raw": 1.0}, note="8")]
    last, beside = comparison("", "set", lines, "n"), comparison("", "set", lines, "n", beside=True)
    assert (last.columns, last.rows[0]) == (["set", "model", "raw", "n"], ["a", "1.00", "2.00", "9"])
    assert (beside.columns, beside.rows[1]) == (["set", "model", "n", "raw"], ["b", "2.00", "8", "1.00"])
    assert [isinstance(cell, Best) for cell in beside.rows[1]] == [False, True, False, False]
    shown = [figure(value, 3) for value in (-0.0004, 0.0, -0.0006, float("nan"))]
    assert shown == ["0.000", "0.000", "-0.001", "undefined"], "no figure is minus zero"


def test_names_that_fit_and_ids_that_do_not_clash():
    assert short("x" * MOST_LETTERS, MOST_LETTERS) == "x" * MOST_LETTERS
    name = short("abc" + "x" * 40 + "yz", 12)
    assert (len(name), name[:3], name[-2:], "…" in name) == (12, "abc", "yz", True)
    text = '<svg><path id="p"/><use xlink:href="#p"/><g clip-path="url(#c)"/><clipPath id="c"/></svg>'
    assert apart(text, "k-") == (
        '<svg><path id="k-p"/><use xlink:href="#k-p"/><g clip-path="url(#k-c)"/><clipPath id="k-c"/></svg>'
    )


@pytest.mark.slow
def test_a_tall_legend_takes_no_room_from_the_drawing():
    def height(names: list[str]) -> float:
        drawn = dots(["x", "y"], {name: [1.0, 2.0] for name in names}, "label")
        return float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawn)[1])

    side_by_side, stacked = height(list("abcdef")), height([f"a rather long name of a subject {i}" for i in range(6)])
    assert stacked - side_by_side > 4 * LETTERS


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


def test_the_subjects_and_their_names(tmp_path, monkeypatch):
    assert baseline(["model", "whiten", "raw"]) == "raw"
    assert baseline(["model", "whiten", "flow"]) == "whiten"
    assert baseline(["model"]) is None
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    names = {".": "b", "..": "a", tmp_path / "a": "a", "b/": "b", "default": "default"}
    assert {path: shown_name(path) for path in names} == names


VERDICTS = {  # the figures of the model, of raw pooling and of others -> the sentence
    (63.45, 54.3, 58.97): "the model is the best of 3: 63.45, 9.15 above raw (54.30). Next is whiten, 4.48 below: "
    "58.97.",
    (63.45, 54.3, 63.45): "the model and whiten are equal and the best of 3: 63.45, 9.15 above raw (54.30).",
    (60.0, 54.3, 61.0): "whiten is the best of 3: 61.00, 6.70 above raw (54.30). The model has 60.00, 5.70 above raw "
    "(54.30).",
    (50.0, 54.3): "raw is the best of 2: 54.30. Calibration did not help: the model has 50.00, 4.30 below raw (54.30).",
    (50.0, 54.3, 61.0): "whiten is the best of 3: 61.00, 6.70 above raw (54.30). Calibration did not help: the model "
    "has 50.00, 4.30 below raw (54.30).",
    (54.301, 54.299): "calibration did not help: the model and raw are equal at 54.30.",
    (54.3, 54.3, 61.0): "whiten is the best of 3: 61.00, 6.70 above raw (54.30). Calibration did not help: the model "
    "has 54.30, the same as raw.",
    (50.0,): "the model has 50.00; nothing was given to compare it with (--against).",
}


@pytest.mark.parametrize("figures", VERDICTS)
def test_verdict_follows_the_figures(figures):
    values = dict(zip(("model", "raw", "whiten"), figures, strict=False))
    assert verdict("the measure", values) == f"By the measure, {VERDICTS[figures]}"
    assert verdict("the measure", {"model": 50.0, "old": 54.3}) == (
        "By the measure, old is the best of 2: 54.30. The model is no better than old: the model has 50.00, 4.30 below "
        "old (54.30)."
    )


def test_no_verdict_without_scores_or_on_an_undefined_figure():
    assert of_sections([Section("isotropy", "", "", {})]) == (NO_SCORES, "")
    undefined = verdict("measure", {"model": float("nan"), "raw": 1.0})
    assert undefined == "This page has no verdict: the measure is undefined for the model."


def test_verdict_is_on_similarity_before_qnli():
    qnli = Section("qnli", "", "", {"model": {"auc": 61.0}, "raw": {"auc": 60.0}})
    rows = [{"set": name, "pairs": pairs} for name, pairs in (("a", 700), ("b", 20), ("c", 9))]
    figures = {name: {"average": {"all": score, "sets": ["a", "b"]}, "rows": rows}
               for name, score in (("model", 1.0), ("raw", 2.0))}  # fmt: skip
    assert of_sections([qnli])[0] == "By AUC ×100 on QNLI, the model is the best of 2: 61.00, 1.00 above raw (60.00)."
    first = of_sections([Section("similarity", "", "", figures), qnli])[0]
    assert first.startswith("By Spearman ×100 with human scores, averaged over 2 sets of 720 pairs, raw")


def test_verdict_is_on_tasks_before_qnli():
    def rows(*values: float) -> list:
        return [{"set": f"s{i}", "measures": {"ap": {"value": v}, "other": {"value": 0}}} for i, v in enumerate(values)]

    qnli = Section("qnli", "", "", {"model": {"auc": 61.0}, "raw": {"auc": 60.0}})
    one = Section("tasks", "", "", {"model": rows(50.0), "raw": rows(40.0)})
    several = Section("tasks", "", "", {"model": rows(50.0, 20.0), "raw": rows(40.0, 35.0)})
    assert of_sections([one, qnli])[0] == "By ap on s0, the model is the best of 2: 50.00, 10.00 above raw (40.00)."
    assert of_sections([several, qnli])[0] == (
        "By mean of the first measures of 2 tasks, raw is the best of 2: 37.50. Calibration did not help: the model "
        "has 35.00, 2.50 below raw (37.50)."
    )


def test_prompts_of_a_search_are_pooled_apart():
    class Prompted:
        prompts = Prompts({task: f"{task}: " for task in TASKS})
        _opened = SimpleNamespace(model=SimpleNamespace(prompts=prompts))

        def pool(self, texts, prompt=""):
            calls.append([prompt + text for text in texts])
            return np.array([[float(len(prompt + text))] for text in texts]).reshape(-1, 1)

    calls: list = []
    subject = Subject("model", "", Pool(Prompted()), lambda x: 2 * x)
    assert subject.encode_query(["a"]).tolist() == [[16]]
    assert subject.encode_document(["a", "bc"]).tolist() == [[22], [24]]
    assert subject(["a"]).tolist() == subject.encode(["a"]).tolist() == [[2]]
    assert subject.encode_query(["a"]).tolist() == [[16]]
    assert calls == [[], ["query: a"], ["document: a", "document: bc"], ["a"]]
