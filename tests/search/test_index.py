"""Index: texts and vectors as queries, the model's prompt and similarity, and models that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.search import Index
from fastflow.stages.vectors import cosine

from support.builders import make_model
from support.commands import run
from support.databases import make
from support.refusals import refuses
from support.sentence_dirs import make_directory, pooling


@pytest.fixture(scope="module")
def runtime(model):
    return Runtime(model)


@pytest.fixture(scope="module")
def made(model, corpus, tmp_path_factory):
    """``made(suffix, *options)``: the corpus embedded with ``model``."""
    folder = tmp_path_factory.mktemp("made")

    def get(suffix=".db", *options, of=model):
        path = folder / ("_".join(["x", *map(str, options), of.parent.name]).replace("/", "") + suffix)
        if not path.exists():
            done = run("embed", corpus, "-m", of, "-o", path, "--quiet", *options)
            assert done.exit_code == 0, done.stderr
        return path

    return get


@pytest.mark.parametrize("suffix", [".db", ".npy"])
def test_texts_and_vectors_find_the_same_rows(runtime, made, sentences, suffix):
    texts = ["the dog sleeps", *sentences[:2]]
    want = cosine(runtime.encode(texts).astype(np.float64), runtime.encode(sentences).astype(np.float64))
    with Index(made(suffix), runtime) as index:
        assert (index.dim, index.precision, index.similarity) == (32, "float32", "cosine")
        found = index.search(texts, 5)
        assert index.search(texts[0], 5) == found[0]
        assert index.search(runtime.encode(texts), 5) == found
        assert index.search(runtime.encode(texts[0]), 5) == found[0]
        assert index.search([]) == []
        assert len(index) == 256
        assert len(index.search(texts[0])) == 10
    for of_one, scores in zip(found, want, strict=True):
        assert [hit.row for hit in of_one] == np.argsort(-scores)[:5].tolist()
        assert np.allclose([hit.score for hit in of_one], np.sort(scores)[::-1][:5], atol=1e-6)
        assert [hit.text for hit in of_one] == [sentences[hit.row] if suffix == ".db" else None for hit in of_one]
    assert found[1][0].row == 0


@pytest.mark.parametrize("precision", ["float16", "int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("options", [(), ("--normalize",), ("--dim", 12), ("--dim", 32)])
def test_other_precisions_and_shortened_vectors(runtime, made, sentences, precision, options):
    with Index(made(".db", "--precision", precision, *options), runtime) as index:
        for at in (3, 77):
            hits = index.search(sentences[at], 256)
            assert at in [hit.row for hit in hits if hit.score == hits[0].score]  # few bits are equal for several texts
        best = index.search(sentences[3], 2)
    dim = options[1] if "--dim" in options else None
    queries = runtime.encode(sentences[:4], truncate_dim=dim).astype(np.float64)
    rows = runtime.encode(sentences, truncate_dim=dim, precision=precision)
    if precision in ("binary", "ubinary"):
        rows = (rows.astype(int) + 128 * (precision == "binary")).astype(np.uint8)
        signs = np.where(np.unpackbits(rows, axis=1, count=queries.shape[1]), 1.0, -1.0)
        assert np.isclose(best[1].score, np.sort(cosine(np.where(queries > 0, 1.0, -1.0), signs)[3])[-2])
    elif not options:
        rows = rows.astype(np.float64) - 128 * (precision == "uint8")
        assert np.isclose(best[1].score, np.sort(cosine(queries, rows)[3])[-2], atol=1e-6)


@pytest.fixture(scope="module")
def ordered(bert, sentences, tmp_path_factory):
    """A model that stores the order of its directions: it rotates what it shortens, even to its own width."""
    return make_model(tmp_path_factory.mktemp("ordered") / "flow", bert, sentences[:64], ordered=True)


@pytest.mark.parametrize(
    ("options", "normalize", "dim"),
    [((), False, None), (("--normalize",), True, None), (("--dim", 8), False, 8), (("--dim", 32), False, 32)],
)
def test_a_query_is_embedded_as_the_rows_were(made, ordered, sentences, options, normalize, dim):
    runtime = Runtime(ordered)
    assert not np.allclose(runtime.encode("dog"), runtime.encode("dog", truncate_dim=32))
    with Index(made(".db", *options, of=ordered), runtime) as index:
        assert index.query_options() == {"normalize_embeddings": normalize, "truncate_dim": dim}
        assert np.isclose(index.search(sentences[9], 1)[0].score, 1, atol=1e-6)
        query = runtime.encode_query("the dog sleeps", **index.query_options())
        assert index.search(query, 5) == index.search("the dog sleeps", 5)
    if dim != 32:  # a .npy does not say that it was shortened to the width of the model
        with Index(made(".npy", *options, of=ordered), runtime) as index:
            assert np.isclose(index.search(sentences[9], 1)[0].score, 1, atol=1e-6)


def test_texts_of_an_npy_and_conditions_that_choose_rows(runtime, made, corpus, sentences):
    with Index(made(".npy"), runtime, texts=corpus) as index:
        assert index.search(sentences[4], 1)[0].text == sentences[4]
    want = {i for i, text in enumerate(sentences) if i % 2 and "dog" in text.lower()}
    with Index(made(), runtime) as index:
        found = index.search(sentences[:2], 300, where="row % 2 = 1 AND text LIKE '%dog%'")
        assert [{hit.row for hit in of_one} for of_one in found] == [want, want]
        assert index.search("dog", where="0") == []


def test_another_model_is_refused(runtime, made, bert, model_copy):
    with pytest.raises(FastflowError) as caught:
        Index(made(), Runtime(bert))
    said = f"was made with another model, of the fingerprint {runtime.fingerprint[:12]}…, and this is {bert}"
    assert said in str(caught.value)
    assert "give the model that made it with -m" in str(caught.value)
    Index(made(), Runtime(model_copy)).close()  # the same files elsewhere are the same model


def test_prompt_and_similarity_of_a_sentence_transformers_model(bert, tmp_path, corpus, sentences):
    prompts = {"query": "the old ", "document": ""}
    directory = make_directory(tmp_path / "st", bert, [pooling("mean")], prompts=prompts, similarity_fn_name="dot")
    runtime = Runtime(directory)
    assert run("embed", corpus, "-m", directory, "-o", tmp_path / "x.db", "--quiet").exit_code == 0
    rows, query = runtime.encode(sentences), runtime.encode_query("dog")
    assert not np.array_equal(query, runtime.encode("dog"))
    with Index(tmp_path / "x.db", runtime) as index:
        assert index.similarity == "dot"
        found = index.search("dog", 5)
    assert [hit.row for hit in found] == np.argsort(-(rows @ query))[:5].tolist()
    assert np.allclose([hit.score for hit in found], np.sort(rows @ query)[::-1][:5], rtol=1e-5)
    with Index(tmp_path / "x.db") as index:  # without the model
        assert index.similarity == "cosine"
        assert index.query_options() == {"normalize_embeddings": False, "truncate_dim": None}


def test_what_does_not_fit_is_refused(runtime, made, bert, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 33), np.float32))
    far = Runtime(make_directory(tmp_path / "st", bert, [pooling("mean")], similarity_fn_name="euclidean"))
    whole = make(tmp_path / "x.db", np.zeros((3, 32), np.int8), {"precision": "int8"})
    for path, model, sentence in (
        (tmp_path / "x.npy", runtime, "x.npy has 33 dimensions, and …gives 32: give the model"),
        (whole, far, "holds int8, of which cosines can be computed, …compares by euclidean"),
        (np.zeros((3, 4)), None, "Index takes the path of a .db or .npy file, not ndarray"),
        (made(), "default", "runtime must be a fastflow.Runtime, not str; give Runtime(MODEL)"),
    ):
        refuses(lambda path, model: Index(path, model), path, sentence, model=model)
    with Index(made()) as index:
        for query, k, sentence in (
            (np.zeros(3), 10, "has 32 dimensions, and the query 3"),
            ("a text", 10, "was opened without a model: search with vectors, or give runtime="),
            (np.full(32, np.nan), 10, "NaN"),
            (np.zeros(32), 0, "k must be a whole number of at least 1"),
        ):
            refuses(index.search, query, sentence, k=k)
