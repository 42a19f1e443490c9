"""The common parts of the adapters, without a library: which model is opened, its vectors, and what is refused."""

import importlib
import json
import subprocess
import sys

import numpy as np
import pytest

import fastflow
from fastflow.integrations.adapter import StoreModel, ensure_runtime
from fastflow.model.artifact import open_model

from support.doors import TEXTS, exchange, unit

PACKAGES = {  # module of an adapter -> what it imports, and the package to install
    "chromadb": ("chromadb", "chromadb"),
    "haystack": ("haystack", "haystack-ai"),
    "lancedb": ("lancedb", "lancedb"),
    "langchain": ("langchain_core", "langchain-core"),
    "llama_index": ("llama_index", "llama-index-core"),
    "mteb": ("mteb", "mteb"),
    "qdrant": ("qdrant_client", "qdrant-client"),
    "sklearn": ("sklearn", "scikit-learn"),
    "txtai": ("txtai", "txtai"),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_library_that_is_missing_is_a_sentence(name, monkeypatch):
    library, package = PACKAGES[name]
    for known in [known for known in sys.modules if known.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"fastflow.integrations.{name}", raising=False)
    with pytest.raises(fastflow.FastflowError, match=f"needs {library}.*: run pip install {package}$") as caught:
        importlib.import_module(f"fastflow.integrations.{name}")
    assert isinstance(caught.value, ModuleNotFoundError)
    assert caught.value.name.partition(".")[0] == library


def test_the_integrations_import_no_library():
    program = (
        "import sys, fastflow.integrations, fastflow.integrations.adapter\n"
        f"found = {dict(PACKAGES.values()).keys() | set()} & set(sys.modules)\n"
        "assert not found | {'torch', 'transformers', 'scipy'} & set(sys.modules), found"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr


def test_a_runtime_is_itself_and_a_path_is_opened(rt, prompted):
    assert ensure_runtime(rt) is rt
    assert ensure_runtime(prompted).fingerprint == fastflow.Runtime(prompted).fingerprint
    assert ensure_runtime(None).fingerprint == rt.fingerprint
    for call, message in (
        (lambda: ensure_runtime(3), "a model is the path of a directory, not 3"),
        (lambda: StoreModel(fastflow.Runtime(open_model(prompted))).settings(), "keeps a model by its path"),
        (lambda: StoreModel(rt).query(TEXTS), "a query is one text, not"),
    ):
        with pytest.raises(fastflow.UsageError, match=message):
            call()


def test_settings_open_the_same_model_and_refuse_another(place, other):
    settings = json.loads(json.dumps(StoreModel(fastflow.Runtime(place, "cpu", "float32")).settings()))
    assert settings["dtype"] == "float32"
    assert ensure_runtime(settings).fingerprint == settings["fingerprint"]
    assert ensure_runtime(settings).dtype == "float32"
    exchange(place, other)
    with pytest.raises(fastflow.FastflowError, match=r"the stored vectors are of the model .* embed the texts again"):
        ensure_runtime(settings)


def test_vectors_have_the_prompts_and_length_1_if_the_model_compares_by_cosines(prompted, dotted):
    for path, same in ((prompted, unit), (dotted, lambda z: z)):
        runtime, found = fastflow.Runtime(path), StoreModel(path)
        assert np.allclose(found.documents(iter(TEXTS)), same(runtime.encode_document(TEXTS)), atol=1e-6)
        assert np.allclose(found.query(TEXTS[0]), same(runtime.encode_query(TEXTS[0])), atol=1e-6)
        assert not np.allclose(np.linalg.norm(runtime.encode(TEXTS), axis=1), 1, atol=0.1)
    assert not np.allclose(
        StoreModel(prompted).documents(TEXTS[:1])[0], StoreModel(prompted).query(TEXTS[0]), atol=1e-3
    )
