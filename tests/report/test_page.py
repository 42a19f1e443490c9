"""The page of a report: sentences, marks and drawings follow the figures, whichever way these fall."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from fastflow.evaluation.evaluate import SEVEN, Pairs
from fastflow.model import TASKS, Prompts
from fastflow.report.make import make_page
from fastflow.report.models import EmbeddingCache, ReportColumn, find_baseline, name_path
from fastflow.report.plots import LETTERS, MOST_LETTERS, draw_dots, prefix_ids, shorten
from fastflow.report.sections import measure_isotropy, measure_lexical, measure_similarity
from fastflow.report.verdict import HIGHEST, LOWEST, NO_SCORES, Line, Section, format_figure, judge, judge_sections


class Fixed:
    """A subject whose vectors are given."""

    def __init__(self, name, x):
        self.name, self.x = name, x

    def __call__(self, texts):
        return self.x


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
    assert line.best() == {f"s{i}" for i in best}
    shown = make_page("t", ("", ""), [], [Section("s", "", "", {}, [line])], [])
    assert re.findall(r"<b>(.*?)</b>", shown) == [f"{values[i]:.2f}" for i in sorted(best)]


def test_the_page_escapes_every_text_and_no_figure_is_minus_zero():
    bad = "<script>&"
    line = Line(bad, {bad: 1.0}, intervals={bad: (0.5, 2.0)})
    section = Section("s", bad, bad, {}, [line], "<svg></svg>", bad)
    shown = make_page(bad, (bad, bad), [(bad, bad)], [section], [{"section": bad, "needs": bad}])
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;&amp;") == 14
    assert "1.00<small>0.5 to 2.0</small>" in shown
    shown = [format_figure(value, 3) for value in (-0.0004, 0.0, -0.0006, float("nan"))]
    assert shown == ["0.000", "0.000", "-0.001", "undefined"]


def test_names_that_fit_and_ids_that_do_not_clash():
    assert shorten("x" * MOST_LETTERS, MOST_LETTERS) == "x" * MOST_LETTERS
    name = shorten("abc" + "x" * 40 + "yz", 12)
    assert (len(name), name[:3], name[-2:], "…" in name) == (12, "abc", "yz", True)
    text = '<svg><path id="p"/><use xlink:href="#p"/><g clip-path="url(#c)"/><clipPath id="c"/></svg>'
    assert prefix_ids(text, "k-") == (
        '<svg><path id="k-p"/><use xlink:href="#k-p"/><g clip-path="url(#k-c)"/><clipPath id="k-c"/></svg>'
    )


@pytest.mark.slow
def test_a_tall_legend_takes_no_room_from_the_drawing():
    def height(names: list[str]) -> float:
        drawn = draw_dots(["x", "y"], {name: [1.0, 2.0] for name in names}, "label")
        return float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawn)[1])

    side_by_side, stacked = height(list("abcdef")), height([f"a rather long name of a subject {i}" for i in range(6)])
    assert stacked - side_by_side > 4 * LETTERS


RIGHT = np.stack([f(np.array([0.0, 0.0, 0.0, 1.2, 0.8, 0.4])) for f in (np.cos, np.sin)], axis=1)  # of a to f
WRONG = RIGHT[[0, 1, 2, 5, 4, 3]]  # its cosine falls with the score


def pairs(name: str) -> Pairs:
    return Pairs(name, ["s"] * 3, np.array([1.0, 2.0, 3.0]), ["a", "b", "c"], ["d", "e", "f"])


@pytest.mark.slow
@pytest.mark.parametrize(("own", "other", "count"), [(RIGHT, WRONG, 2), (WRONG, RIGHT, 0), (RIGHT, RIGHT, 0)])
def test_similarity_sentences_count_the_rows_of_the_table(own, other, count):
    section = measure_similarity([Fixed("model", own), Fixed("raw", other)], [pairs("x"), pairs("y")])
    assert "The mean is over every set given." in section.text
    assert section.text.endswith(f"The model is higher than raw on {count} of 2 sets.")
    assert [line.name for line in section.lines] == ["mean of 2", "x, 3 pairs", "y, 3 pairs"]
    assert section.lines[0].values["model"] == (100 if own is RIGHT else -100)


@pytest.mark.slow
def test_the_mean_is_over_the_papers_seven():
    section = measure_similarity([Fixed("model", RIGHT)], [pairs(name) for name in (*SEVEN, "other")])
    assert section.text.endswith("The mean is over the paper's seven test sets.")
    assert [line.name.partition(",")[0] for line in section.lines] == ["mean of 7", *SEVEN, "other"]


@pytest.mark.slow
def test_lexical_sentence_counts_the_sets_nearer_to_people():
    words = Pairs("x", ["s"] * 3, np.array([3.0, 2.0, 1.0]), ["a", "a b", "a b c"], ["a", "a d", "a e f"])
    angles = np.array([0.0, 0.0, 0.0, 0.4, 0.8])  # of a, a b, a b c, a d, a e f: cosine falls with the distance
    near = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    far = near[[4, 0, 0, 0, 4]] @ np.array([[1.0, 0.0], [0.0, -1.0]])
    for own, other, count in ((near, far, 1), (far, near, 0)):
        section = measure_lexical([Fixed("model", own), Fixed("raw", other)], [words])
        assert section.text.endswith(f"The model is nearer to people than raw on {count} of 1 sets.")
        assert section.lines[0].name == "x, edit distance (people: -100.0)"
        assert section.lines[0].best() == ({"model"} if count else {"raw"})


@pytest.mark.slow
def test_isotropy_sentence_follows_the_table():
    rng = np.random.default_rng(0)
    even, cone = rng.normal(size=(300, 8)), rng.normal(size=(300, 8)) * np.arange(1, 9) + 20
    for own, other, count in ((even, cone, 3), (cone, even, 0)):
        section = measure_isotropy([Fixed("model", own), Fixed("raw", other)], ["t"] * 300, 0)
        assert f"more isotropic than raw on {count} of 3 measures." in section.text
        assert [line.best() for line in section.lines] == [{"model" if count else "raw"}] * 3
    assert "isotropic than" not in measure_isotropy([Fixed("model", cone)], ["t"] * 300, 0).text


def test_the_subjects_and_their_names(tmp_path, monkeypatch):
    assert find_baseline(["model", "whiten", "raw"]) == "raw"
    assert find_baseline(["model", "whiten", "flow"]) == "whiten"
    assert find_baseline(["model"]) is None
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    names = {".": "b", "..": "a", tmp_path / "a": "a", "b/": "b", "default": "default"}
    assert {path: name_path(path) for path in names} == names


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
    assert judge("the measure", values) == f"By the measure, {VERDICTS[figures]}"
    assert judge("the measure", {"model": 50.0, "old": 54.3}) == (
        "By the measure, old is the best of 2: 54.30. The model is no better than old: the model has 50.00, 4.30 below "
        "old (54.30)."
    )


def test_no_verdict_without_scores_or_on_an_undefined_figure():
    assert judge_sections([Section("isotropy", "", "", {})]) == (NO_SCORES, "")
    undefined = judge("measure", {"model": float("nan"), "raw": 1.0})
    assert undefined == "This page has no verdict: the measure is undefined for the model."


def of_tasks(*values: float) -> list:
    return [{"set": f"s{i}", "measures": {"ap": {"value": v}, "other": {"value": 0}}} for i, v in enumerate(values)]


def of_sets(score: float) -> dict:
    rows = [{"set": name, "pairs": pairs} for name, pairs in (("a", 700), ("b", 20), ("c", 9))]
    return {"average": {"all": score, "sets": ["a", "b"]}, "rows": rows}


def test_verdict_is_on_similarity_else_tasks_else_qnli():
    qnli = Section("qnli", "", "", {"model": {"auc": 61.0}, "raw": {"auc": 60.0}})
    one = Section("tasks", "", "", {"model": of_tasks(50.0), "raw": of_tasks(40.0)})
    several = Section("tasks", "", "", {"model": of_tasks(50.0, 20.0), "raw": of_tasks(40.0, 35.0)})
    scored = Section("similarity", "", "", {"model": of_sets(1.0), "raw": of_sets(2.0)})
    for sections, begins in (
        ([qnli], "By AUC ×100 on QNLI, the model is the best of 2: 61.00, 1.00 above raw (60.00)."),
        ([one, qnli], "By ap on s0, the model is the best of 2: 50.00, 10.00 above raw (40.00)."),
        ([several, qnli], "By mean of the first measures of 2 tasks, raw is the best of 2: 37.50. Calibration did not "
                          "help: the model has 35.00, 2.50 below raw (37.50)."),
        ([scored, several, qnli], "By Spearman ×100 with human scores, averaged over 2 sets of 720 pairs, raw"),
    ):  # fmt: skip
        assert judge_sections(sections)[0].startswith(begins)


def test_prompts_of_a_search_are_pooled_apart():
    class Prompted:
        prompts = Prompts({task: f"{task}: " for task in TASKS})
        session = SimpleNamespace(model=SimpleNamespace(prompts=prompts))

        def pool(self, texts, prompt=""):
            calls.append([prompt + text for text in texts])
            return np.array([[float(len(prompt + text))] for text in texts]).reshape(-1, 1)

    calls: list = []
    subject = ReportColumn("model", "", EmbeddingCache(Prompted()), lambda x: 2 * x)
    assert subject.encode_query(["a"]).tolist() == [[16]]
    assert subject.encode_document(["a", "bc"]).tolist() == [[22], [24]]
    assert subject(["a"]).tolist() == subject.encode(["a"]).tolist() == [[2]]
    assert subject.encode_query(["a"]).tolist() == [[16]]
    assert calls == [[], ["query: a"], ["document: a", "document: bc"], ["a"]]
