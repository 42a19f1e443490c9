"""The study of tuned encoders: which cells it has, vectors that are kept, rows of other encoders, the page."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fastflow import Runtime
from fastflow.bench.research import tuned
from fastflow.bench.research.default_page import KINDS
from fastflow.bench.research.study import read
from fastflow.bench.research.tuned import AS_IS, CANDIDATES, NEWS, OWN, SETS, Tuned, cells, main, markdown
from fastflow.evaluation.evaluate import HEADER
from fastflow.stages.vectors import paired_cosine

from support.builders import make_tuned
from support.sentence_dirs import NORMALIZE, make_directory, pooling


@pytest.fixture
def data(tmp_path, sentences):
    """A folder of two sets of scored pairs and one corpus."""
    folder = tmp_path / "data"
    for name in ("sts", "corpora"):
        (folder / name).mkdir(parents=True)
    for name in ("STS12", "STS13"):
        rows = [f"a\t{i % 5}\t{sentences[i]}\t{sentences[i + 1]}" for i in range(40)]
        (folder / "sts" / f"{name}.tsv").write_text("\n".join([HEADER, *rows]))
    (folder / "corpora" / "leipzig-eng-news-2016-10k.txt").write_text("\n".join(sentences))
    return folder


@pytest.fixture
def encoder(bert, tmp_path):
    return make_directory(tmp_path / "encoder", make_tuned(tmp_path / "bert", bert), [pooling("mean"), NORMALIZE])


def test_a_candidate_without_a_fit_has_one_corpus_and_flows_may_be_left_out():
    everything, some = list(cells(())), list(cells(("flow", "STS12")))
    assert len(set(everything)) == len(everything)
    assert {corpus for corpus, name, _ in everything if name == AS_IS} == {OWN}
    assert {corpus for corpus, name, _ in everything if name == "whiten"} == {OWN, NEWS}
    assert {task for *_, task in everything} == set(SETS) == {name for sets in KINDS.values() for name in sets}
    assert {corpus for corpus, name, _ in some if "flow" in name} == {NEWS}
    assert "STS12" not in {task for *_, task in some}


def test_vectors_are_the_directorys_and_kept(tmp_path, data, encoder, monkeypatch):
    lab = Tuned(str(encoder), data, tmp_path / "cells")
    frozen, texts = lab.weighed(OWN, "model", None), list(lab.task("STS12").texts)
    found = lab.embed(frozen, texts)
    with Runtime(encoder, dtype="float32") as rt:
        assert paired_cosine(found, rt.encode(texts)).min() > 0.999
    monkeypatch.setattr(tuned, "CpuBackend", None)  # no other pass
    assert np.array_equal(lab.embed(frozen, texts), found)


@pytest.mark.slow
def test_the_command_keeps_the_rows_of_other_encoders(tmp_path, data, encoder, monkeypatch):
    monkeypatch.setattr(tuned, "SETS", ("STS12", "STS13"))
    monkeypatch.setattr(tuned, "CANDIDATES", {n: CANDIDATES[n] for n in (AS_IS, "token weights", "nullspace:1")})
    out, other = tmp_path / "out", encoder.rename(tmp_path / "other")
    for directory in (other, encoder):
        if directory == encoder:
            other.rename(encoder)
        result = CliRunner().invoke(main, ["--encoder", str(directory), "--data", str(data), "--out", str(out)])
        assert result.exit_code == 0, result.output
    found = read(out.with_suffix(".json"))
    assert [row["encoder"] for row in found["rows"]] == ["other"] * 10 + ["encoder"] * 10
    first, second = ([{**row, "encoder": ""} for row in found["rows"][i : i + 10]] for i in (0, 10))
    assert first == second
    assert set(found["crowding"]) == {"other", "encoder"}
    assert json.loads((tmp_path / "out.cells" / "other" / "crowding.json").read_text()) < 0.3


def test_the_page_has_gains_over_the_encoder_as_it_is():
    rows = [
        {"encoder": "e", "corpus": corpus, "candidate": name, "set": task,
         "value": 50.0 + (name == "whiten") * (-4.0 if task != "cisi" else 3.0)}
        for corpus, name, task in cells(("trec",))
    ]  # fmt: skip
    page = markdown({"command": "python -m this", "crowding": {"e": 0.04}, "rows": rows})
    assert "python -m this" in page
    assert "Mean cosine of unrelated sentences, last layer: 0.04." in page
    assert "| as it is | 50.0 | 50.0 | 50.0 | 50.0 |  |  |" in page
    assert page.count("| whiten | -4.0 | -4.0 | -2.2 | -4.0 | 1 of 17 | +3.0 (cisi) |") == 2
    assert "| trec |" not in page
    assert "| cisi | 50.0 | 50.0 | 50.0 | 50.0 | 50.0 | 53.0 |" in page
