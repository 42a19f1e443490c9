"""Rules of one library each, which test_contract.py does not have: its calls, its fields, and what it refuses."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle

import numpy as np
import pytest

import fastflow
from fastflow.evaluation.evaluate import HEADER

from support.commands import run
from support.doors import TEXTS, unit
from support.rerankers import make_reranker
from support.sentence_dirs import make_directory, pooling
from support.tasks import write

pytestmark = pytest.mark.doors
QUIET = {"cache": None, "co2_tracker": False, "show_progress_bar": False}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """The folder that mteb makes when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTEB_CACHE", str(tmp_path_factory.mktemp("mteb")))
        yield


def test_chroma_compares_the_model_of_a_function_only_in_modify(prompted, other, rt, tmp_path, monkeypatch):
    """Of a function that get_collection is given, Chroma asks only the name, and docs/integrations.md says so."""
    import chromadb
    from chromadb.utils.embedding_functions import known_embedding_functions

    from fastflow.integrations.chromadb import FastflowEmbeddingFunction as Function

    def client():
        return chromadb.PersistentClient(str(tmp_path), settings=chromadb.Settings(anonymized_telemetry=False))

    made = client().create_collection("texts", embedding_function=Function(str(prompted)))
    assert not Function(rt).is_legacy()
    assert made.configuration["hnsw"]["space"] == "cosine"
    with pytest.raises((fastflow.FastflowError, ValueError), match="the stored vectors are of the model"):
        made.modify(configuration={"embedding_function": Function(str(other))})
    given = client().get_collection("texts", embedding_function=Function(str(other)))
    given.add(ids=["a"], documents=["a dog"])
    with pytest.raises(Exception, match="dimension"):
        client().get_collection("texts", embedding_function=Function()).add(ids=["b"], documents=["a dog"])
    monkeypatch.delitem(known_embedding_functions, "fastflow")  # a program without the adapter
    with pytest.raises(ValueError, match="fastflow"):
        client().get_collection("texts").add(ids=["c"], documents=["a dog"])


def test_distances_are_those_by_which_the_model_compares(dotted, bert, tmp_path):
    from fastflow.integrations.chromadb import FastflowEmbeddingFunction
    from fastflow.integrations.qdrant import vector_params

    made = FastflowEmbeddingFunction(dotted)
    assert (made.default_space(), made.supported_spaces()) == ("ip", ["ip"])
    assert vector_params(fastflow.Runtime(dotted)).distance == "Dot"
    for name, distance in (("euclidean", "Euclid"), ("manhattan", "Manhattan"), ("cosine", "Cosine")):
        path = make_directory(tmp_path / name, bert, [pooling("mean")], similarity_fn_name=name)
        assert vector_params(fastflow.Runtime(path)).distance == distance
    with pytest.raises(fastflow.UsageError, match="Chroma has no manhattan distance"):
        FastflowEmbeddingFunction(tmp_path / "manhattan")


def test_qdrants_points_have_the_texts_and_are_made_as_texts_are_read(prompted, monkeypatch):
    from qdrant_client import QdrantClient

    from fastflow.integrations import qdrant

    runtime, client, read = fastflow.Runtime(prompted), QdrantClient(":memory:"), []
    client.create_collection("texts", vectors_config=qdrant.vector_params(runtime))
    client.upload_points("texts", qdrant.points(runtime, iter(TEXTS), start=10))
    found = client.retrieve("texts", range(10, 14), with_vectors=True)
    assert [(each.id, each.payload) for each in found] == [(i, {"text": t}) for i, t in enumerate(TEXTS, 10)]
    assert np.allclose([each.vector for each in found], unit(runtime.encode_document(TEXTS)), atol=1e-6)
    monkeypatch.setattr(qdrant, "WINDOW", 2)
    points = qdrant.points(runtime, (read.append(text) or text for text in TEXTS))
    next(points)
    assert read == TEXTS[:2]
    assert [each.id for each in points] == [1, 2, 3]


def test_lancedb_has_the_width_for_a_schema_and_tries_a_failure_once(rt, tmp_path, monkeypatch):
    import lancedb
    from lancedb.pydantic import LanceModel, Vector

    from fastflow.integrations.lancedb import FastflowTextEmbeddings

    function = FastflowTextEmbeddings.create(model=rt)

    class Row(LanceModel):
        text: str = function.SourceField()
        vector: Vector(function.ndims()) = function.VectorField()

    made = lancedb.connect(tmp_path).create_table("texts", schema=Row)
    made.add([{"text": text} for text in TEXTS])
    assert made.search("kitten").limit(1).to_pydantic(Row)[0].text == TEXTS[1]
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"sleeps {seconds} s"))
    with pytest.raises(RuntimeError, match="text 1 is NoneType"):
        made.add([{"text": "a"}, {"text": None}])


def test_haystack_is_told_which_document_has_no_text(rt):
    from haystack import Document

    from fastflow.integrations.haystack import FastflowDocumentEmbedder, FastflowTextEmbedder

    assert FastflowDocumentEmbedder(rt).run(documents=[]) == {"documents": []}
    with pytest.raises(fastflow.UsageError, match="a query is one text"):
        FastflowTextEmbedder(rt).run(text=TEXTS)
    with pytest.raises(fastflow.FastflowError, match="text 1 "):
        FastflowDocumentEmbedder(rt).run(documents=[Document(content="a"), Document(meta={"n": 1})])


def test_the_asynchronous_calls_of_langchain_and_llamaindex_give_the_same(prompted):
    from langchain_core.embeddings import Embeddings

    from fastflow.integrations.langchain import FastflowTextEmbeddings
    from fastflow.integrations.llama_index import FastflowEmbedding

    chain, llama = FastflowTextEmbeddings(prompted), FastflowEmbedding(prompted)
    assert isinstance(chain, Embeddings)
    assert chain.embed_documents([]) == []
    assert isinstance(chain.embed_documents(TEXTS)[0][0], float)
    for call, later, given in (
        (chain.embed_documents, chain.aembed_documents, TEXTS),
        (chain.embed_query, chain.aembed_query, TEXTS[0]),
        (llama.get_text_embedding_batch, llama.aget_text_embedding_batch, TEXTS),
        (llama.get_text_embedding, llama.aget_text_embedding, TEXTS[0]),
        (llama.get_query_embedding, llama.aget_query_embedding, TEXTS[0]),
    ):
        assert asyncio.run(later(given)) == call(given), call.__name__


def test_llamaindex_keeps_its_fields_and_its_cache_does_not_mix_two_models(prompted, other, rt):
    from llama_index.core.ingestion import IngestionPipeline
    from llama_index.core.ingestion.pipeline import get_transformation_hash
    from llama_index.core.schema import TextNode

    from fastflow.integrations.llama_index import FastflowEmbedding

    nodes = [TextNode(text=text, id_=text) for text in TEXTS]
    hashes = {get_transformation_hash(nodes, FastflowEmbedding(model)) for model in (prompted, str(prompted), other)}
    assert len(hashes) == 2
    made = FastflowEmbedding(prompted)
    assert FastflowEmbedding.from_json(made.to_json()).get_query_embedding("a dog") == made.get_query_embedding("a dog")
    found = IngestionPipeline(transformations=[made]).run(nodes=nodes)
    assert np.allclose(found[0].embedding, made.get_text_embedding(TEXTS[0]))
    made = FastflowEmbedding(rt, embed_batch_size=7)
    assert (made.embed_batch_size, made.model_name) == (7, f"fastflow {rt.fingerprint}")
    assert made.class_name() == "FastflowEmbedding"


def test_a_transformer_gives_the_vectors_of_encode_and_so_do_its_clone_and_pickle(prompted):
    import pandas as pd
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError

    from fastflow.integrations.sklearn import FastflowTransformer

    options = {"truncate_dim": 8, "normalize_embeddings": True, "prompt_name": "query"}
    want = fastflow.Runtime(prompted).encode(TEXTS, **options)
    made, by_runtime = (FastflowTransformer(each, **options) for each in (str(prompted), fastflow.Runtime(prompted)))
    for texts in (TEXTS, np.array(TEXTS), np.array(TEXTS, object)):
        assert np.array_equal(made.fit_transform(texts), want)
    again = clone(made)
    assert again.get_params() == made.get_params()
    with pytest.raises(NotFittedError):
        again.transform(TEXTS)
    for other in (again.fit(TEXTS), pickle.loads(pickle.dumps(made)), clone(by_runtime).fit(TEXTS)):
        assert np.array_equal(other.transform(TEXTS), want)
    for wrong in (TEXTS[0], np.array([TEXTS]), pd.DataFrame({"text": TEXTS})):
        with pytest.raises(fastflow.UsageError, match="one column of texts"):
            made.transform(wrong)
    with pytest.raises(fastflow.FastflowError, match="text 1 "):
        made.transform(["a", None])


def test_a_pipeline_of_scikit_learn_learns_and_names_its_columns(rt):
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import Pipeline

    from fastflow.integrations.sklearn import FastflowTransformer

    steps = Pipeline([("embed", FastflowTransformer(rt)), ("learn", LogisticRegression())])
    found = GridSearchCV(steps, {"embed__truncate_dim": [32, None]}, cv=2).fit(TEXTS * 4, [0, 0, 1, 1] * 4)
    assert found.best_score_ == 1
    assert list(found.predict(["The puppy plays.", "Investors sold bonds."])) == [0, 1]
    frame = pd.DataFrame({"text": TEXTS, "n": range(4)}, index=list("abcd"))
    made = FastflowTransformer(rt, truncate_dim=4).set_output(transform="pandas")
    out = made.fit_transform(frame["text"])
    assert list(out.index) == list("abcd")
    assert list(out.columns) == list(made.get_feature_names_out()) == [f"fastflowtransformer{i}" for i in range(4)]
    both = ColumnTransformer([("e", FastflowTransformer(rt, truncate_dim=4), "text")], remainder="passthrough")
    assert both.fit_transform(frame).shape == (4, 5)


def make_task(base, kind, score, load):
    """A task of mteb in memory; ``load`` makes its data."""
    from mteb.abstasks.task_metadata import TaskMetadata

    class Local(base):
        metadata = TaskMetadata(
            name=f"Local{kind}", description="Rows of a local file.", type=kind, category="t2t", eval_splits=["test"],
            eval_langs=["eng-Latn"], main_score=score, dataset={"path": "none", "revision": "1"},
        )  # fmt: skip

        def load_data(self, *_, **__):
            self.dataset, self.data_loaded = load(), True

    return Local()


def test_mteb_has_the_figure_of_fastflow_eval(rt, tmp_path):
    import mteb
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskSTS

    from fastflow.integrations.mteb import FastflowEncoder

    sides = itertools.combinations([*TEXTS, "A puppy runs.", "The cat is asleep.", "Stocks fell."], 2)
    rows = [(i * 7 % 11 / 2, a, b) for i, (a, b) in enumerate(sides)]
    path = write(tmp_path / "pairs.tsv", HEADER, *("\t".join(("all", *map(str, row))) for row in rows))
    assert run("eval", path, "--json", tmp_path / "out.json", "-q").exit_code == 0
    [row] = json.loads((tmp_path / "out.json").read_text())["rows"]

    def load():
        columns = zip(("score", "sentence1", "sentence2"), zip(*rows, strict=True), strict=True)
        return DatasetDict({"test": Dataset.from_dict(dict(columns))})

    task = make_task(AbsTaskSTS, "STS", "cosine_spearman", load)
    found = mteb.evaluate(FastflowEncoder(), task, **QUIET).task_results[0]
    assert row["pairs"] == len(rows)
    assert round(100 * found.get_score(), 2) == row["all"]
    assert found.scores["test"][0]["spearman"] == pytest.approx(found.get_score(), abs=1e-4)
    with pytest.raises(NotImplementedError, match="No model implementation"):
        mteb.evaluate(rt, task, **QUIET)


def test_mteb_embeds_with_the_prompts_and_ranks_and_names_the_model(prompted, dotted):
    import mteb
    from datasets import Dataset
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.models import EncoderProtocol
    from mteb.types import PromptType

    from fastflow.integrations.mteb import FastflowEncoder

    runtime, made = fastflow.Runtime(prompted), FastflowEncoder(prompted)
    calls = {None: runtime.encode, PromptType.query: runtime.encode_query, PromptType.document: runtime.encode_document}
    settings = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
    for kind, call in calls.items():
        found = made.encode([{"text": TEXTS[:3]}, {"text": TEXTS[3:]}], prompt_type=kind, batch_size=32, **settings)
        assert np.array_equal(found, call(TEXTS)), kind
    with pytest.raises(fastflow.UsageError, match="encode has no option 'no_such'"):
        made.encode([{"text": TEXTS}], no_such=1, **settings)
    meta, vectors = made.mteb_model_meta, runtime.encode(TEXTS)
    assert isinstance(made, EncoderProtocol)
    assert (meta.name, meta.revision, meta.embed_dim) == ("fastflow/dir", runtime.fingerprint, runtime.dim)
    assert np.array_equal(made.similarity(vectors, vectors), runtime.similarity(vectors, vectors))
    dots = FastflowEncoder(dotted).similarity_pairwise(vectors, vectors)
    assert np.allclose(dots, (vectors**2).sum(1), rtol=1e-5)
    queries = {"q1": TEXTS[0].lower(), "q2": "shares and bonds"}
    scores = runtime.similarity([*runtime.encode_query([*queries.values()])], runtime.encode_document(TEXTS))

    def load():
        split = {
            "corpus": Dataset.from_list([{"id": f"d{i}", "title": "", "text": t} for i, t in enumerate(TEXTS)]),
            "queries": Dataset.from_list([{"id": name, "text": text} for name, text in queries.items()]),
            "relevant_docs": {query: {f"d{row.argmax()}": 1} for query, row in zip(queries, scores, strict=True)},
            "top_ranked": None,
        }
        return {"default": {"test": split}}

    task = make_task(AbsTaskRetrieval, "Retrieval", "mrr_at_1", load)
    assert mteb.evaluate(made, task, **QUIET).task_results[0].get_score() == 1


def test_langchain_keeps_the_best_documents(tmp_path):
    from langchain_core.documents import Document

    from fastflow.integrations.langchain import FastflowCompressor

    reranker = fastflow.Reranker(make_reranker(tmp_path / "judge"))
    documents = [Document(page_content=text, metadata={"at": i}) for i, text in enumerate(TEXTS)]
    found = FastflowCompressor(reranker=reranker, top_n=2).compress_documents(documents, TEXTS[0])
    want = reranker.rank(TEXTS[0], TEXTS, 2)
    assert [document.page_content for document in found] == [TEXTS[each["corpus_id"]] for each in want]
    assert [d.metadata for d in found] == [{"at": it["corpus_id"], "relevance_score": it["score"]} for it in want]
    assert documents[0].metadata == {"at": 0}
