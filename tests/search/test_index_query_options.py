"""The options that embed a query like the rows of a file, for those who embed it themselves."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow import Index, Runtime

from support.builders import make_model
from support.commands import run
from support.databases import make


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), {"normalize_embeddings": False, "truncate_dim": None}),
        (("--normalize",), {"normalize_embeddings": True, "truncate_dim": None}),
        (("--dim", 8), {"normalize_embeddings": False, "truncate_dim": 8}),
        (("--dim", 32), {"normalize_embeddings": False, "truncate_dim": 32}),
    ],
)
def test_a_query_that_is_embedded_with_them_finds_what_its_text_finds(
    bert, tmp_path, corpus, sentences, options, expected
):
    runtime = Runtime(make_model(tmp_path / "m", bert, sentences[:64], ordered=True))
    path = tmp_path / "x.db"
    assert run("embed", corpus, "-m", tmp_path / "m", "-o", path, "--quiet", *options).exit_code == 0
    with Index(path, runtime) as index:
        assert index.query_options() == expected
        query = runtime.encode_query("the dog sleeps", **index.query_options())
        assert index.search(query, 5) == index.search("the dog sleeps", 5)


def test_without_a_model_all_dimensions_stay(tmp_path):
    with Index(make(tmp_path / "x.db", np.eye(4, dtype=np.float32))) as index:
        assert index.query_options() == {"normalize_embeddings": False, "truncate_dim": None}
