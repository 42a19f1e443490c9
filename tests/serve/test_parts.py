"""A Runtime as a server sees it, formats of vectors, metrics, keys, and batches of several requests."""

from __future__ import annotations

import base64
import json
import logging
import re

import numpy as np
import pytest

import fastflow
from fastflow.errors import FastflowError, UsageError
from fastflow.model.tokenizer import Tokens
from fastflow.serve import KEY_VARIABLE, read_keys
from fastflow.serve.answers import (
    encode_base64,
    format_openai,
    format_rows,
    format_tei,
    make_response,
    to_octets,
    wants_octets,
)
from fastflow.serve.engine import EmbedResult, Times
from fastflow.serve.model import EmbedOptions, Part, ServedModel, compute, join_tokens, take_texts
from fastflow.serve.requests import Refused
from fastflow.serve.service import COUNTERS, Metrics

from support.builders import read_languages
from support.sentence_dirs import NORMALIZE, make_directory, pooling
from support.servers import serving
from support.static_dirs import model2vec_dir, static_embedding_dir

ODD = [0.0, -0.0, 1.0, -1 / 3, 1e-45, 1.17549435e-38, 3.4028235e38, 0.1, 16777217.0, -2.5e-7]

# ---- formats


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_json_gives_every_number_back_exactly(dtype):
    z = np.concatenate([np.random.default_rng(0).normal(size=(5, 10)), [ODD]]).astype(dtype)
    for rows in (z, z[:, ::2]):  # a view with gaps too
        assert np.array_equal(np.array([json.loads(row) for row in format_rows(rows)], dtype), rows)
        assert np.array_equal(np.array(json.loads(format_tei(rows)), dtype), rows)


def test_bytes_and_base64_are_little_endian_float32():
    z = np.array([[1.0, 9.0, 2.0], [3.0, 9.0, -4.0]], ">f4")[:, ::2]
    rows = ["0000803f00000040", "00004040000080c0"]
    assert to_octets(z).hex() == "".join(rows)
    assert [base64.b64decode(json.loads(row)).hex() for row in encode_base64(z)] == rows


def test_the_name_of_a_model_is_escaped():
    answer = json.loads(format_openai(np.zeros((1, 1), np.float32), "float", 'a"b', 3, 1))
    assert answer["model"] == 'a"b'
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "truncated_texts": 1}


def test_bytes_are_sent_if_accept_names_them_and_no_json():
    for accept, wanted in (
        ([], False), (["*/*"], False), (["application/octet-stream"], True),
        (["Application/Octet-Stream;q=0.9"], True), (["application/json, application/octet-stream"], False),
        (["text/html", "application/octet-stream"], True),
    ):  # fmt: skip
        assert wants_octets(accept) is wanted, accept


# ---- metrics

TEI = {
    *("te_request_count", "te_request_success", "te_request_failure", "te_request_duration", "te_embed_count"),
    *("te_request_tokenization_duration", "te_request_queue_duration", "te_request_inference_duration"),
    *("te_request_input_length", "te_queue_size", "te_batch_next_size", "te_batch_next_tokens", "te_embed_success"),
}


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    """(name, value of the label) -> number; every line must be one of the text format."""
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("# ")]
    found = [re.fullmatch(r'([a-z_]+)(?:\{[a-z]+="([^"]*)"\})? ([-+.\deinfINF]+)', line) for line in lines]
    assert all(found), lines
    return {(match[1], match[2] or ""): float(match[3]) for match in found if match}


def test_metrics_keep_teis_names_and_count():
    metrics, other = Metrics(), Metrics()
    named = {line.split()[2] for line in metrics.text().decode().splitlines() if line.startswith("# TYPE")}
    assert named >= TEI | set(COUNTERS)
    metrics.count("te_request_count", method="single")
    metrics.count("te_request_count", 2, method="batch")
    metrics.record_request(0.5, Times(0.1, 0.2, 0.2), [3, 5])
    metrics.record_batch(2, 8, 0.2)
    want = {
        ("te_request_count", "single"): 1, ("te_request_count", "batch"): 2, ("te_embed_count", ""): 0,
        ("te_request_duration_sum", ""): 0.5, ("te_request_queue_duration_sum", ""): 0.2,
        ("te_request_input_length_count", ""): 2, ("te_request_input_length_sum", ""): 8,
        ("te_batch_next_size_sum", ""): 2, ("te_batch_next_tokens_sum", ""): 8,
    }  # fmt: skip
    assert want.items() <= samples(metrics).items()
    assert metrics.value("te_request_count", method="batch") == 2
    assert other.value("te_request_count", method="batch") == 0  # two servers in a process count apart


def test_times_of_an_answer_are_told_in_milliseconds():
    done = EmbedResult(np.zeros((1, 2)), np.array([3]), 0, Times(0.0123, 12.3456, 0.0))
    headers = make_response(b"", done, "application/json").headers
    assert [headers[f"x-{name}-time"] for name in ("tokenization", "queue", "inference")] == ["12", "12346", "0"]


# ---- keys


@pytest.mark.parametrize(
    ("variable", "text", "keys"),
    [
        (None, None, ()),
        ("from-env", "# ours\n\n one \ntwo\n", ("from-env", "one", "two")),
        ("", None, "FASTFLOW_API_KEY is empty: set it to a key, or unset it"),
        ("with space", None, "variable FASTFLOW_API_KEY: an API key must be"),
        (None, "", "holds no API key"),
        (None, "# none\n", "holds no API key"),
        (None, "good\n\nwith space\n", "keys, line 3: an API key must be"),
        (None, "ключ\n", "keys, line 1: an API key must be"),
        (None, "\0\n", "keys, line 1: an API key must be"),
    ],
)
def test_keys_come_from_a_file_and_from_the_environment(tmp_path, monkeypatch, variable, text, keys):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(KEY_VARIABLE, variable)
    path = None if text is None else tmp_path / "keys"
    if path:
        path.write_text(text, encoding="utf-8")
    if isinstance(keys, tuple):
        assert read_keys(path) == keys
        return
    with pytest.raises(FastflowError, match=keys):
        read_keys(path)


# ---- batches


def make_tokens(*lengths: int, first: int = 0, cut: tuple[int, ...] = (), skip: int = 0) -> Tokens:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.arange(first, first + int(offsets[-1]), dtype=np.int32)
    return Tokens(ids, offsets, np.array(cut, np.int64), skip)


def sums(tokens, options):
    """The vector of a text is the sum of its ids, and how it was asked for; 13 is unlucky."""
    if 13 in tokens.ids:
        raise ValueError("13")
    rows = [tokens.ids[a:b].sum() for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]
    return np.array([[row, options.normalize, tokens.skip] for row in rows], np.float32)


def test_parts_with_equal_options_are_computed_together():
    calls, parts = (
        [],
        [
            Part(make_tokens(2, 1), EmbedOptions(prompt="p: ")),
            Part(make_tokens(1, first=2), EmbedOptions(normalize=False)),
            Part(make_tokens(1, first=3, skip=4), EmbedOptions()),
            Part(make_tokens(1, first=4), EmbedOptions(dim=2)),
            Part(make_tokens(3, first=20), EmbedOptions()),
        ],
    )
    found = compute(lambda tokens, options: calls.append(len(tokens.offsets) - 1) or sums(tokens, options), parts)
    assert [z[:, 0].tolist() for z in found] == [[1, 2], [2], [3], [4], [63]]
    assert [z[0, 1:].tolist() for z in found] == [[1, 0], [0, 0], [1, 4], [1, 0], [1, 0]]
    assert calls == [3, 1, 1, 1]


def test_a_part_that_fails_fails_alone():
    good, bad, other = compute(sums, [Part(make_tokens(1, first=i), EmbedOptions()) for i in (12, 13, 14)])
    assert isinstance(bad, ValueError)
    assert (good[0, 0], other[0, 0]) == (12, 14)


def test_tokens_are_joined_and_taken_in_order():
    both = join_tokens([make_tokens(2, 1, cut=(1,)), make_tokens(1, 3, first=10, cut=(0,))])
    assert both.ids.tolist() == [0, 1, 2, 10, 11, 12, 13]
    assert (both.offsets.tolist(), both.cut.tolist()) == ([0, 2, 3, 4, 7], [1, 2])
    found = take_texts(make_tokens(2, 1, 3, 2, skip=1), 1, 3)
    assert (found.ids.tolist(), found.offsets.tolist(), found.skip) == ([2, 3, 4, 5], [0, 1, 4], 1)


OURS = ("default", "static")  # models of the package
PROMPTS = {"query": "query: ", "passage": "passage: ", "clustering": "cluster: "}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory, bert):
    path = tmp_path_factory.mktemp("prompted") / "st-model"
    make_directory(path, bert, [pooling("mean", include_prompt=False), NORMALIZE], prompts=PROMPTS)
    return ServedModel(fastflow.Runtime(path, "cpu"))


def test_vectors_are_the_runtimes_to_the_bit(prompted, sentences):
    tokens = prompted.tokenize(sentences, "query: ")
    found = prompted.embed(tokens, EmbedOptions(True, 5, "query: "))
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


def test_the_log_has_one_line_for_texts_of_another_language(caplog):
    languages, served = read_languages(), ServedModel(fastflow.Runtime(None, "cpu"))
    with caplog.at_level(logging.WARNING, "fastflow.serve"):
        served.measure_rate()  # its texts are ours
        served.tokenize(["Two dogs run across a field of snow in the morning."] * 2, "")
        assert caplog.messages == []
        for name in ("French", "German", "French"):
            served.tokenize([languages[name]] * 9, "")
    (line,) = caplog.messages
    assert line.startswith("texts of the requests so far: the texts look like French, and the vocabulary was not ")
    assert "Deux chiens" not in line


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
