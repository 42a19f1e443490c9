"""The study of encoders and languages: lists of words, candidates with and without one, and the page."""

import json

import pytest

from fastflow.bench.research import languages
from fastflow.bench.research.default import OWN
from fastflow.bench.research.default_fits import Lab
from fastflow.bench.research.languages import FITLESS, FITTED, LOWER, NO_LIST, PLANS, candidate, cells, write_lists
from fastflow.bench.research.languages_page import markdown
from fastflow.evaluation.evaluate import HEADER
from fastflow.train.data.background import english, read_words

STATE = {"layers": 6, "width": 192, "vocabulary": 16000, "lowercase": False, "step": 9, "tokens": 8000, "loss": 6.5}


@pytest.fixture
def data(tmp_path, sentences):
    """A folder of German novels and one German set."""
    folder = tmp_path / "data"
    for name in ("tasks/corpora", "tasks/sts-multi", "sts"):
        (folder / name).mkdir(parents=True)
    rows = [f"a\t{i % 5}\t{sentences[i]}\t{sentences[i + 1]}" for i in range(40)]
    (folder / "tasks" / "sts-multi" / "STSb-test-de.tsv").write_text("\n".join([HEADER, *rows]))
    novels = folder / languages.GERMAN_TEXTS
    novels.with_suffix("").write_text("Der Hund, der Hund.\nÜber 3 Hunde")
    return folder


def test_lists_of_words(data, tmp_path, monkeypatch):
    monkeypatch.setattr(languages, "GERMAN_TEXTS", languages.GERMAN_TEXTS.removesuffix(".zst"))
    lists = write_lists(data, tmp_path / "lists")
    found = {name: read_words(path).shares for name, path in lists.items()}
    assert set(found["German"]) == {"Der", "der", "Hund", ",", ".", "Über", "3", "Hunde"}
    assert found["German"]["Hund"] == pytest.approx(2e6 / 9)
    assert found[LOWER] == pytest.approx({"der": 2e6 / 6, "hund": 2e6 / 6, "über": 1e6 / 6, "hunde": 1e6 / 6})
    assert set(found["English"]) == set(english().shares)


def test_no_list_is_the_corpus_alone():
    assert (candidate("default", NO_LIST).prior, candidate("default", NO_LIST).background) == (0, "none")
    assert candidate("default", "German") == FITTED["default"]
    assert candidate("raw, first-last", NO_LIST) == FITLESS["raw, first-last"]


@pytest.mark.parametrize("name", PLANS)
def test_no_cell_is_made_twice(name):
    everything = list(cells(PLANS[name]))
    assert len(set(everything)) == len(everything)
    assert {words for _, words, _, _ in everything} <= {NO_LIST, "English", "German", LOWER}


@pytest.mark.slow
def test_figures_are_those_of_the_study_of_the_default(data, bert):
    lab = Lab(str(bert), data)
    for chosen in ("words, no weights", "weights"):
        expected = lab.figure(OWN, candidate(chosen, NO_LIST), 0, "STSb-test-de")
        assert languages.figure(lab, OWN, NO_LIST, chosen, "STSb-test-de") == expected
    assert languages.figure(lab, "", NO_LIST, "words, no weights", "STSb-test-de, wmean") > -100


def test_the_page_has_every_fit_and_gain():
    found = []
    for name, plan in PLANS.items():
        rows = []
        for corpus, words, chosen, task in cells(plan):
            figure = {"raw, first-last": 50.0, "default": 60.0, "soft whitening": 61.0}.get(chosen, 55.0)
            figure -= 20.0 * (words == "English" and name == "german" and "logistic" in task)
            rows.append({"corpus": corpus, "words": words, "candidate": chosen, "set": task, "value": figure})
        warned = {"English": [f"{corpus}: of another language" for corpus in plan.corpora]} if name == "german" else {}
        found.append({"encoder": name, "training": None if name == "package" else STATE, "columns": plan.columns,
                      "warnings": warned, "rows": rows})  # fmt: skip
    page = markdown(json.loads(json.dumps({"command": "python -m study", "encoders": found})))
    assert "6 layers of 192, 16,000 pieces, cased; trained for 9 steps on 8,000 tokens, masked-LM loss 6.50" in page
    assert "| default, words: German, lower case | 60.0 | 60.0 | 60.0 |" in page
    assert "| german, German novels, words: German | +10.0 | +10.0 (STSb-test) | -1.0 | -1.0 (STSb-test) | no |" in page
    hurt = "| german, German novels, words: English | +3.3 | -10.0 (10kGNAD, logistic) |"
    assert hurt in page
    assert page.split(hurt)[1].split("\n")[0].endswith("| yes |")
    assert "| package, news, words: English |  |  | -1.0 |" in page
    assert "- words: English; German novels: of another language" in page
