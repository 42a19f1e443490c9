"""What every backend inherits, and the description of a model as a backend runs it."""

from dataclasses import replace

import numpy as np
import pytest

from fastflow.backends.base import Backend
from fastflow.backends.info import describe
from fastflow.backends.reference import ReferenceBackend
from fastflow.model.artifact import load_model
from fastflow.model.tokenizer.encode import Tokens
from fastflow.session import Session


class Counting(Backend):
    """Pools a text to its number of tokens and its first id; calibration doubles them."""

    name, dtypes = "counting", ("float32", "float64")

    def __init__(self, model, dtype="float32"):
        super().__init__(model, dtype, "cpu", None)
        self.asked = []

    def pool(self, tokens):
        self.asked.append(len(tokens.offsets) - 1)
        out = np.zeros((len(tokens.offsets) - 1, self.pooled_dim), self.floats)
        out[:, 0], out[:, 1] = np.diff(tokens.offsets), tokens.ids[tokens.offsets[:-1]]
        return out

    def calibrate(self, pooled, normalize=False, truncate=None):
        self.asked.append((normalize, truncate))
        return 2 * pooled


@pytest.fixture
def tokens():
    """Five texts of 1, 2, 3, 4 and 5 tokens, each of its own id."""
    ids = np.repeat(np.arange(10, 15), np.arange(1, 6)).astype(np.int32)
    return Tokens(ids, np.cumsum([0, 1, 2, 3, 4, 5]), np.empty(0, np.int64))


def test_rows_come_back_in_the_texts_order_whatever_the_batches(bert, tokens):
    backend = Counting(load_model(bert))
    found = backend.embed(tokens, [np.array([4, 0]), np.array([2]), np.array([1, 3])], True, 7)
    assert found[:, 0].tolist() == [2, 4, 6, 8, 10]
    assert found[:, 1].tolist() == [20, 22, 24, 26, 28]
    assert backend.asked == [2, 1, 2, (True, 7)], "calibrated once, as it was asked for"
    none = Tokens(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, np.int64))
    assert backend.pool_batches(none, []).shape == (0, 32)
    for dtype, floats in (("float32", np.float32), ("float64", np.float64)):
        backend = Counting(load_model(bert), dtype)
        assert backend.floats == backend.pool_batches(tokens, [np.arange(5)]).dtype == floats


def test_an_unfinished_backend_cannot_be_opened(bert):
    class Half(Backend):
        """Without calibrate."""

        def pool(self, tokens):
            return np.zeros((0, 0))

    with pytest.raises(TypeError, match="calibrate"):
        Half(load_model(bert), "float32", "cpu", None)


def test_a_model_of_texts_is_described_as_it_runs(model):
    opened = Session(None, "cpu", "float64", 2, "reference", False)
    opened.model = loaded = replace(load_model(model), note="assumed")
    opened._calibrator = runs = ReferenceBackend(loaded, "float64", "cpu", 2)
    runs.details.append("a detail")
    opened.packaged, opened.tokenizer.max_length = None, loaded.max_length
    found = describe(opened)
    wanted = {
        "model": str(model), "takes": "texts", "fingerprint": loaded.fingerprint, "backend": "reference",
        "device": "cpu", "dtype": "float64", "dim": 32, "pooled_dim": 32, "max_length": 64,
        "pooling": loaded.pooling.describe(), "notes": ["assumed", "threads: NumPy's BLAS decides"],
        "details": ["a detail"],
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    found["details"].append("mine")
    assert runs.details == ["a detail"], "a copy: what a caller changes is not the backend's"
    opened.packaged = "default"
    assert describe(opened)["model"] == "default"
