"""Fixtures of the tests of training."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def train(bert: Path, corpus: Path, tmp_path: Path) -> Callable[..., Any]:
    """``commands.make_train`` of the small BERT and the corpus of sentences."""
    from support.commands import make_train

    return make_train(bert, corpus, tmp_path)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the current one, the one of caches and the one of temporary files."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(scope="session")
def encoder(bert: Path) -> Any:
    """The small BERT as training opens it."""
    from fastflow.train.data.encoder import open_encoder

    return open_encoder(str(bert), "first-last", 64)


@pytest.fixture(scope="session")
def pooled(encoder: Any, sentences: list[str]) -> Any:
    """(256, 16) pooled embeddings of the sentences."""
    from fastflow.train.data.embeddings import Embedder

    return Embedder(encoder, "cpu")(sentences)


@pytest.fixture(scope="session")
def read_training() -> Callable[[Path], dict[str, Any]]:
    """The record of the fit in a model's manifest."""
    return lambda directory: json.loads((directory / "fastflow.json").read_text())["training"]
