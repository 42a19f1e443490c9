"""The actor of Ray without a cluster: its rows are the Runtime's, and what it cannot do is one sentence."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys

import numpy as np
import pyarrow as pa
import pytest

from fastflow import FastflowError, Runtime
from fastflow.errors import missing_extra
from fastflow.integrations import ray as integration
from fastflow.integrations.ray import Embedder, fixed_lists, job_of
from fastflow.integrations.ray_cluster import check_column, texts_of

from support.refusals import refuses

TYPES = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8(), "uint8": pa.uint8()}
TYPES |= {"binary": pa.int8(), "ubinary": pa.uint8()}


def job(model, dtype="auto", threads=1, **options):
    return job_of(model, dtype, "text", "embedding", options, threads)


def vectors_of(table):
    column = table.column("embedding").combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(table), column.type.list_size)


@pytest.mark.parametrize("precision", TYPES)
def test_rows_have_the_bytes_of_the_runtime(model, sentences, precision):
    options = {"precision": precision, "truncate_dim": 16, "normalize_embeddings": True, "prompt": "so "}
    table = pa.table({"id": range(256), "text": sentences})
    out = Embedder(job(model, **options))(table)
    want = Runtime(model, "cpu").encode(sentences, **options)
    assert out.schema.names == ["id", "text", "embedding"]
    assert out.schema.field("embedding").type == pa.list_(pa.field("element", TYPES[precision]), want.shape[1])
    assert vectors_of(out).tobytes() == want.tobytes()
    assert out.select(["id", "text"]).equals(table)


def test_a_row_is_the_same_in_any_batch(model, sentences):
    actor, table = Embedder(job(model)), pa.table({"text": sentences})
    parts = [actor(table.slice(start, 37)) for start in range(0, 256, 37)]
    assert vectors_of(pa.concat_tables(parts)).tobytes() == vectors_of(actor(table)).tobytes()


def test_float64_is_stored_as_float32_and_no_row_gives_no_row(model):
    out = Embedder(job(model, "float64"))(pa.table({"text": pa.array([], pa.string())}))
    assert out.schema.field("embedding").type.value_type == pa.float32()
    assert len(out) == 0


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_every_way_to_store_text_is_text(model, kind):
    out = Embedder(job(model))(pa.table({"text": pa.array(["a dog", "a cat", "a dog"], kind)}))
    assert np.array_equal(vectors_of(out), Runtime(model, "cpu").encode(["a dog", "a cat", "a dog"]))


def test_the_threads_are_the_actors_cpus(model, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray sets it
    assert Embedder(job(model, threads=2))._runtime._opened.backend._calibration.threads == 2


@pytest.mark.parametrize("place", [None, "default"])
def test_the_model_in_the_package_has_no_path(place):
    assert job(place).model is None


def test_the_table_in_the_package_is_named():
    assert job("static").model == "static"


def test_a_path_is_absolute_for_actors_that_work_elsewhere(model, monkeypatch):
    monkeypatch.chdir(model.parent)
    assert job(model.name).model == str(model)


def test_another_model_on_a_node_is_refused(model, model_copy, weighted_model):
    here = job(model_copy)
    shutil.rmtree(model_copy)
    shutil.copytree(weighted_model, model_copy)
    there, mine = Runtime(weighted_model).fingerprint, Runtime(model).fingerprint
    message = f"has the fingerprint {there} on the node {os.uname().nodename}, and {mine} where the job was started"
    with pytest.raises(FastflowError, match=message):
        Embedder(here)


def test_other_arithmetic_on_a_node_is_refused(model):
    here = job(model)
    other = dataclasses.replace(here, numbers=here.numbers | {"backend": "reference"})
    with pytest.raises(FastflowError, match=r"has the backend cpu on the node .* and reference where the job was"):
        Embedder(other)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"txt": ["a"]}, "the dataset has no column 'text'; its columns are txt"),
        ({"text": [1]}, "the column 'text' of the dataset is int64, not text"),
        ({"text": [["a"]]}, "the column 'text' of the dataset is list<…>, not text"),
        ({"text": ["a"], "embedding": [1]}, "has a column 'embedding' already: name another output_column"),
    ],
)
def test_columns_that_are_refused(columns, sentence):
    schema = pa.table(columns).schema
    refuses(check_column, schema.names, sentence, types=schema.types, column="text", output_column="embedding")


def test_a_null_is_named_by_what_stands_beside_it():
    some, alone = {"id": [7, 8], "text": ["a", None]}, {"text": pa.array([None], pa.string())}
    first = "rows of a batch, the first of them beside"
    refuses(texts_of, pa.table(some), f"is null in 1 of 2 {first} id=8;", column="text")
    refuses(texts_of, pa.table(alone), f"is null in 1 of 1 {first} no other col", column="text")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"precision": "int7"}, "unknown precision 'int7'"),
        ({"truncate_dim": 33}, "dim must be 1 to 32"),
        ({"threads": 0}, "num_cpus must be a whole number of at least 1, not 0"),
        ({"threads": 0.5}, "num_cpus must be a whole number of at least 1, not 0.5"),
        ({"dtype": "float15"}, "unknown dtype 'float15'"),
    ],
)
def test_options_are_tried_before_a_cluster_computes(model, options, sentence):
    refuses(job, model, sentence, **options)


def test_what_is_no_model_or_dataset_is_named(model):
    refuses(job, "no-such-model", "no-such-model: no such model directory")
    refuses(integration.embed, ["a dog"], "embed takes a ray.data.Dataset, not list", model=model, column="text")


def test_lists_of_no_vector():
    assert fixed_lists(np.zeros((0, 3), np.float32)).type.list_size == 3


def test_without_ray_the_command_to_install_it_is_said(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(FastflowError) as caught:
        integration.embed(None, model, "text")
    assert str(caught.value) == str(missing_extra("ray", "ray.data", "fastflow.integrations.ray.embed"))
