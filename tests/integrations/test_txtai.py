"""txtai with vectors of ours, and with a Runtime alone."""

import numpy as np
import pytest

import fastflow

from support.doors import TEXTS, examples_run, exchange, nearest, unit

pytestmark = pytest.mark.doors
OURS = {"method": "fastflow.integrations.txtai.FastflowVectors"}


@pytest.fixture(autouse=True)
def no_other_model(monkeypatch):
    """txtai refuses to load a model by its name."""
    from txtai.vectors import HFVectors

    own = HFVectors.loadmodel

    def load(self, path):
        assert not isinstance(path, str), "txtai loads a model of its own"
        return own(self, path)

    monkeypatch.setattr(HFVectors, "loadmodel", load)


@pytest.fixture(scope="module")
def embeddings():
    from txtai import Embeddings

    return Embeddings


def test_the_example_runs():
    examples_run("txtai")


def test_its_vectors_are_the_models(embeddings, prompted):
    runtime, made = fastflow.Runtime(prompted), embeddings(path=str(prompted), **OURS)
    assert np.allclose(made.batchtransform(TEXTS, "data"), unit(runtime.encode_document(TEXTS)), atol=1e-6)
    assert np.allclose(made.batchtransform(TEXTS, "query"), unit(runtime.encode_query(TEXTS)), atol=1e-6)
    assert np.allclose(made.transform(TEXTS[0]), unit(runtime.encode_query(TEXTS[0])), atol=1e-6)


@pytest.mark.parametrize("path", [None, "default", "runtime"])
def test_an_index_finds_what_the_model_finds_and_keeps_its_model(embeddings, rt, tmp_path, path):
    made = embeddings(path=rt if path == "runtime" else path, **OURS)
    made.index(TEXTS)
    made.save(str(tmp_path / "index"))
    again = embeddings()
    again.load(str(tmp_path / "index"))
    for query in ("kitten", "stock exchange", "central bank"):
        assert again.search(query, 1)[0][0] == made.search(query, 1)[0][0] == nearest(rt, query, TEXTS)


def test_an_index_refuses_another_model(embeddings, place, other, tmp_path):
    made = embeddings(path=str(place), **OURS)
    made.index(TEXTS)
    made.save(str(tmp_path / "index"))
    exchange(place, other)
    with pytest.raises(ImportError) as caught:
        embeddings().load(str(tmp_path / "index"))
    assert "the stored vectors are of the model" in str(caught.value.__cause__)


def test_a_runtime_alone_is_refused(embeddings, rt):
    for wrong, kind in (
        ({"path": rt}, AttributeError),
        ({"transform": rt}, TypeError),
        ({"transform": rt.encode}, fastflow.UsageError),
        ({"method": rt}, ImportError),
    ):
        with pytest.raises(kind):
            embeddings(**wrong).index(TEXTS)
