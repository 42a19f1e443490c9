"""The static suite: everybody opens one directory, gives the same vectors, and is timed; who is wrong is left out."""

import json

import numpy as np
import pytest

from fastflow.bench import cli
from fastflow.bench.suites import static
from fastflow.bench.suites.workbench import open_workbench
from fastflow.errors import FastflowError, UsageError
from fastflow.model.static.write import write_static

from support.benches import ENCODER, ask
from support.builders import wordpiece
from support.static_dirs import numbers


@pytest.fixture
def table(tmp_path):
    tokenizer = wordpiece()
    path = tmp_path / "table"
    write_static(path, tokenizer, numbers((tokenizer.get_vocab_size(), 16)), normalize=True, max_length=None)
    return path


@pytest.fixture(autouse=True)
def few_texts(monkeypatch):
    """Texts of which the tokenizer knows every word, and one of which it does not."""
    texts = ["the dog sees the bird", "a cat runs", "two trees near the river", "☃"]
    monkeypatch.setattr(static, "real_texts", lambda most: (texts, "texts"))


@pytest.mark.slow
def test_a_run_has_bulk_single_texts_and_starts(table, tmp_path, capsys):
    file = tmp_path / "bench.json"
    cli.run(str(table), ["static"], ["tokenizers-numpy"], sizes=ENCODER, json_path=file, device="cpu", threads=1)
    report, shown = json.loads(file.read_text()), capsys.readouterr().out
    assert report["skipped"] == []
    kinds = [(row["name"], row["batch"], row["tokens"] is None) for row in report["rows"]]
    names = ("fastflow", "tokenizers-numpy")
    assert kinds == [(name, *kind) for kind in ((3, False), (1, False), (1, True)) for name in names]
    bulk, _, single, *_ = report["rows"]
    assert bulk["texts_per_s"] > 0
    assert bulk["max_abs_err"] < 1e-6
    assert single["p99_ms"] >= single["median_ms"]
    assert len(report["ratios"]) == 3
    assert "static, 3 texts of" in shown


def test_the_table_of_a_model_is_taken():
    with open_workbench("static") as bench:
        subject = static.make_subject(bench)
    assert subject.label == "the model given: a table of 30522 x 256"
    assert (subject.path.parent.name, subject.path.name) == ("static", "0_Transformer")


def test_a_peer_with_other_vectors_is_left_out(table, monkeypatch):
    monkeypatch.setattr(static, "open_numpy", lambda path: lambda texts: np.ones((len(texts), 16)))
    monkeypatch.setattr(static, "add_starts", lambda *given: None)
    with open_workbench(str(table)) as bench:
        results = static.run_static(ask(bench, ["tokenizers-numpy"], ENCODER))
    assert {row["name"] for row in results.rows} == {"fastflow"}
    assert "it is not timed" in results.skipped[0]["reason"]


def test_our_own_fault_ends_the_run(table, monkeypatch):
    encode = static.Runtime.encode
    wrong = {"cpu": -1, "reference": 1}
    monkeypatch.setattr(static.Runtime, "encode", lambda self, texts: wrong[self.backend] * encode(self, texts))
    with open_workbench(str(table)) as bench, pytest.raises(FastflowError):
        static.run_static(ask(bench, [], ENCODER))


@pytest.mark.parametrize(
    ("model", "against", "sentence"),
    [("bert", None, "no directory of model2vec"), (None, ["keras"], "unknown peer 'keras' for the static suite")],
)
def test_wrong_usage(request, model, against, sentence):
    path = model and request.getfixturevalue(model)
    with open_workbench(path and str(path)) as bench, pytest.raises(UsageError, match=sentence):
        static.run_static(ask(bench, against, ENCODER))
