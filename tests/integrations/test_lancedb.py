"""LanceDB with an embedding function of ours, and with a Runtime alone."""

import numpy as np
import pytest

import fastflow

from support.doors import TEXTS, examples_run, exchange, nearest, unit

pytestmark = pytest.mark.doors
COLUMNS = {"source_column": "text", "vector_column": "vector"}


@pytest.fixture(scope="module")
def embeddings():
    from fastflow.integrations.lancedb import FastflowEmbeddings

    return FastflowEmbeddings


def table(folder, function, texts=TEXTS):
    import lancedb
    from lancedb.embeddings import EmbeddingFunctionConfig

    config = EmbeddingFunctionConfig(function=function, **COLUMNS)
    rows = [{"text": text} for text in texts]
    return lancedb.connect(folder).create_table("texts", rows, embedding_functions=[config])


def again(folder):
    import lancedb

    return lancedb.connect(folder).open_table("texts")


def test_the_example_runs():
    examples_run("lancedb")


def test_its_vectors_are_the_models(embeddings, prompted, tmp_path):
    runtime, made = fastflow.Runtime(prompted), embeddings.create(model=str(prompted))
    rows = table(tmp_path, made).to_arrow()
    assert np.allclose(rows["vector"].to_pylist(), unit(runtime.encode_document(TEXTS)), atol=1e-6)
    assert rows["text"].to_pylist() == TEXTS
    assert np.allclose(made.compute_query_embeddings(TEXTS[0]), [unit(runtime.encode_query(TEXTS[0]))], atol=1e-6)
    assert made.ndims() == runtime.dim == rows["vector"].type.list_size


@pytest.mark.parametrize("given", [True, False], ids=["runtime", "default"])
def test_a_table_finds_what_the_model_finds_and_keeps_its_model(embeddings, rt, tmp_path, given):
    """By Euclidean distance, which LanceDB takes."""
    table(tmp_path, embeddings.create(model=rt) if given else embeddings.create(), TEXTS[:2])
    reopened = again(tmp_path)
    reopened.add([{"text": text} for text in TEXTS[2:]])
    for query in ("kitten", "stock exchange", "central bank"):
        [found] = reopened.search(query).limit(1).to_list()
        assert found["text"] == TEXTS[nearest(rt, query, TEXTS)]


def test_a_schema_of_pydantic_has_the_width(embeddings, rt, tmp_path):
    import lancedb
    from lancedb.pydantic import LanceModel, Vector

    function = embeddings.create(model=rt)

    class Row(LanceModel):
        text: str = function.SourceField()
        vector: Vector(function.ndims()) = function.VectorField()

    made = lancedb.connect(tmp_path).create_table("texts", schema=Row)
    made.add([{"text": text} for text in TEXTS])
    assert made.search("kitten").limit(1).to_pydantic(Row)[0].text == TEXTS[1]


def test_a_table_refuses_another_model(embeddings, place, other, tmp_path):
    table(tmp_path / "db", embeddings.create(model=str(place)))
    exchange(place, other)
    with pytest.raises(fastflow.FastflowError, match="the stored vectors are of the model"):
        again(tmp_path / "db").search("kitten").limit(1).to_list()


def test_a_failure_is_not_tried_again(embeddings, rt, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"sleeps {seconds} s"))
    with pytest.raises(RuntimeError, match="text 1 is NoneType"):
        table(tmp_path, embeddings.create(model=rt), ["a", None])


def test_a_runtime_alone_is_refused(rt):
    from lancedb.embeddings import EmbeddingFunctionConfig

    with pytest.raises(ValueError, match="Input should be a valid dictionary or instance of EmbeddingFunction"):
        EmbeddingFunctionConfig(function=rt, **COLUMNS)
