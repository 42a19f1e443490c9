"""The study of the default: its fits are those of fastflow-train, finished cells are read again, the page follows."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fastflow.bench.research import default
from fastflow.bench.research.default import CHOOSING, CONFIRMING, DEFAULT, OWN, RAW, TRIED, cells, kept, seven
from fastflow.bench.research.default_fits import Candidate, Lab
from fastflow.bench.research.default_page import KINDS, markdown
from fastflow.evaluation.evaluate import HEADER, SEVEN
from fastflow.train.cli import main as train
from fastflow.train.data.embeddings import Embedder
from fastflow.train.options import DEFAULTS, POOLING


@pytest.fixture
def data(tmp_path, sentences):
    """A folder of one set of scored pairs and one corpus."""
    folder = tmp_path / "data"
    for name in ("sts", "corpora"):
        (folder / name).mkdir(parents=True)
    rows = [f"a\t{i % 5}\t{sentences[i]}\t{sentences[i + 1]}" for i in range(40)]
    (folder / "sts" / "STS12.tsv").write_text("\n".join([HEADER, *rows]))
    (folder / "corpora" / "leipzig-eng-news-2016-10k.txt").write_text("\n".join(sentences))
    return folder


def test_the_halves_have_every_set_once_and_every_kind():
    assert not set(CHOOSING) & set(CONFIRMING)
    assert {*CHOOSING, *CONFIRMING} == {name for sets in KINDS.values() for name in sets}
    for sets in KINDS.values():
        assert set(sets) & set(CHOOSING)
        assert set(sets) & set(CONFIRMING)


def test_no_cell_is_made_twice():
    everything = list(cells())
    assert len(set(everything)) == len(everything)
    assert {half for half, *_ in everything} == {"choosing", "confirming"}
    assert {name for _, _, name, _, _ in everything} == set(TRIED)


def test_the_default_is_that_of_fastflow_train():
    assert Candidate(POOLING, method="flow", colour=tuple(DEFAULTS.colour.values())) == DEFAULT
    assert RAW.fitless
    assert not Candidate(method="none").fitless


def test_a_finished_cell_is_read_again(tmp_path):
    made = []
    for _ in range(2):
        assert kept(tmp_path / "a" / "b.json", lambda: made.append(1) or 61.25) == 61.25
    assert made == [1]


def test_raw_pooling_has_one_file_for_all_corpora(tmp_path):
    raw, fitted = ({default._file(tmp_path, c, name, 0, "STS12") for c in (OWN, "news")} for name in ("raw", "default"))
    assert (len(raw), len(fitted)) == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), [("flow", "auto"), ("whiten,recolour", "whiten,recolour")])
def test_a_candidate_is_fitted_as_the_command_fits_it(tmp_path, data, bert, method, name):
    lab = Lab(str(bert), data)
    frozen, stages = lab.fitted("news", Candidate(method=method), 0)
    corpus = str(data / "corpora" / "leipzig-eng-news-2016-10k.txt")
    options = ["--encoder", str(bert), "-o", str(tmp_path / "m"), "--method", name, "--cache", str(tmp_path / "c")]
    assert CliRunner().invoke(train, [corpus, *options], catch_exceptions=False).exit_code == 0
    from fastflow import Runtime

    texts = lab.task("STS12").texts
    made = Runtime(tmp_path / "m", dtype="float32").encode(texts)
    expected = lab.vectors("news", Candidate(method=method), 0, "STS12")
    scale = np.abs(expected).max()
    assert np.abs(made - expected).max() <= 1e-4 * scale
    assert Embedder(frozen, "cpu")(texts).shape == expected.shape
    assert [stage.kind for stage in stages][-1] == "recolour"


def test_the_page_has_every_candidate_set_and_margin():
    rows = []
    for half, corpus, name, seed, task in cells():
        value = {"raw": 50.0, "weights": 60.0}.get(name, 65.0) - 7.0 * (task == "trec" and corpus == OWN) + seed
        rows.append({"half": half, "corpus": corpus, "candidate": name, "seed": seed, "set": task, "value": value})
    for row in rows:
        if (row["set"], row["candidate"], row["corpus"]) == ("trec", "weights", OWN):
            row["value"] = 64.0
    page = markdown({"command": "python -m study", "rows": rows})
    assert all(f"| {name} |" in page for name in (*TRIED, *CONFIRMING))
    assert "66.0 (65.0 to 67.0)" in page
    assert "| own texts | all texts | +16.0 | +16.0 | +16.0 | +16.0 | -5.0 (trec) |" in page
    assert "| own texts | default | +15.0 | +15.7 | +15.0 | +15.0 | -5.0 (trec) |" in page
    assert "| news, 300 | default | +15.0 | +15.0 | +15.0 | +15.0 | +5.0 (SICK-R-test) |" in page
    assert "| mix | all texts |" in page
    assert "| mix | default |" not in page
    json.dumps(rows)


def test_the_seven_sets_have_both_figures(data, bert):
    lab = Lab(str(bert), data)
    assert {task for *_, task in seven()} == set(SEVEN)
    found = lab.both(OWN, Candidate(method="none"), 0, "STS12")
    assert len(found) == 2
    assert found[0] == lab.figure(OWN, Candidate(method="none"), 0, "STS12")
