"""Models for the adapters."""

import shutil

import pytest

import fastflow

from support.sentence_dirs import make_directory, pooling

PROMPTS = {"query": "find: ", "document": "text: "}


@pytest.fixture(scope="session")
def prompted(tmp_path_factory, bert):
    """A model with other prompts for queries than for documents, whose vectors are not of length 1."""
    return make_directory(tmp_path_factory.mktemp("prompted") / "dir", bert, [pooling("mean")], prompts=PROMPTS)


@pytest.fixture
def place(prompted, tmp_path):
    """A copy of ``prompted``, in whose place another model may come."""
    return shutil.copytree(prompted, tmp_path / "place")


@pytest.fixture(scope="session")
def other(tmp_path_factory, bert):
    """A model as wide as ``prompted``, with another fingerprint."""
    return make_directory(tmp_path_factory.mktemp("other") / "dir", bert, [pooling("cls")], prompts=PROMPTS)


@pytest.fixture(scope="session")
def dotted(tmp_path_factory, bert):
    """A model that compares by dot products."""
    path = tmp_path_factory.mktemp("dotted") / "dir"
    return make_directory(path, bert, [pooling("mean")], similarity_fn_name="dot")


@pytest.fixture(scope="session")
def rt():
    """The model in the package."""
    return fastflow.Runtime()
