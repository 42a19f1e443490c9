"""A Runtime as a server sees it."""

from __future__ import annotations

import numpy as np
import pytest

import fastflow
from fastflow.errors import UsageError
from fastflow.serve.batch import How
from fastflow.serve.model import ServedModel
from fastflow.serve.refusals import Refused

from support.sentence_dirs import NORMALIZE, make_directory, pooling
from support.servers import serving
from support.static_dirs import model2vec_dir, static_embedding_dir

OURS = ("default", "static")  # models of the package
PROMPTS = {"query": "query: ", "passage": "passage: ", "clustering": "cluster: "}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory, bert):
    """A model of Sentence Transformers with prompts, whose tokens are not pooled."""
    path = tmp_path_factory.mktemp("prompted") / "st-model"
    make_directory(path, bert, [pooling("mean", include_prompt=False), NORMALIZE], prompts=PROMPTS)
    return ServedModel(fastflow.Runtime(path, "cpu"))


def test_vectors_are_the_runtimes_to_the_bit(prompted, sentences):
    tokens = prompted.tokenize(sentences, "query: ")
    found = prompted.embed(tokens, How(True, 5, "query: "))
    assert np.array_equal(found, prompted.runtime.encode_query(sentences, normalize_embeddings=True, truncate_dim=5))


@pytest.mark.parametrize(
    ("input_type", "name", "text"),
    [
        (None, None, ""),
        ("query", None, "query: "),
        ("search_query", None, "query: "),
        ("document", None, "passage: "),  # the model's name for it
        ("passage", None, "passage: "),
        ("search_document", None, "passage: "),
        ("clustering", None, "cluster: "),
        (None, "passage", "passage: "),
    ],
)
def test_the_prompt_of_a_request(prompted, input_type, name, text):
    assert prompted.resolve_prompt(input_type, name) == text
    assert input_type is None or input_type in prompted.input_types


@pytest.mark.parametrize(("input_type", "name"), [("query", "passage"), (None, "other"), (None, "")])
def test_a_wrong_prompt_is_refused(prompted, input_type, name):
    with pytest.raises(Refused) as refused:
        prompted.resolve_prompt(input_type, name)
    assert refused.value.param == "prompt_name"


def test_a_model_without_an_encoder_cannot_be_served(vector_model):
    with pytest.raises(UsageError, match="no encoder"):
        ServedModel(fastflow.Runtime(vector_model, "cpu"))


def test_names_hide_the_path(model):
    served = ServedModel(fastflow.Runtime(model, "cpu"), ("mine",))
    assert served.names == ("mine", model.name, "default")
    assert str(model.parent) not in str(served.describe())


def test_vectors_stay_as_they_are_where_the_similarity_is_no_cosine(tmp_path, bert):
    path = tmp_path / "dot"
    make_directory(path, bert, [pooling("mean")], similarity_fn_name="dot")
    assert ServedModel(fastflow.Runtime(path, "cpu")).normalize is False


@pytest.mark.parametrize(
    "make",
    [
        model2vec_dir,
        static_embedding_dir,
        *(pytest.param(lambda path, name=name: name, id=name, marks=pytest.mark.slow) for name in OURS),
    ],
)
def test_the_tokens_that_tokenize_shows_are_the_ones_that_the_model_reads(tmp_path, make):
    """A model2vec table reads neither special tokens nor unknown ones, a StaticEmbedding no special ones."""
    texts = ["the dog runs", "zzz ☃ the dog ☃ 東京", "☃", ""]
    served = ServedModel(fastflow.Runtime(make(tmp_path / "table"), "cpu"))
    read = served.tokenize(texts, "")
    for i, pieces in enumerate(served.runtime.tokenizer.describe(texts)):
        assert [piece.id for piece in pieces] == read.ids[read.offsets[i] : read.offsets[i + 1]].tolist()
        for piece in pieces:
            assert piece.special or texts[i][piece.start : piece.stop].lower() == piece.text.strip("#")


def test_the_speed_is_measured(prompted):
    assert prompted.measure_rate() > 100


@pytest.mark.slow
def test_a_server_has_the_names_it_was_given():
    with serving(names=("text-embedding-3-small", "b"), rate=50_000.0) as server:
        names = [each["id"] for each in server.get("/v1/models").json["data"]]
        answer = server.post("/v1/embeddings", {"input": "a", "model": "b"})
    assert names == ["text-embedding-3-small", "b", "default"]
    assert (answer.status, answer.json["model"]) == (200, "text-embedding-3-small")
