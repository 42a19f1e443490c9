"""The encoder of a run: windows give the vectors and log-densities of the Runtime, repeated texts too."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.files.encoding import Encoder, open_store, stored
from fastflow.files.run import Settings

from support.builders import make_model
from support.static_dirs import model2vec_dir

TEXTS = ["the dog", "a cat", "the dog", "the " * 600]


@pytest.fixture(scope="module", params=["layers", "table"])
def runtime(request, tmp_path_factory, model, sentences):
    """A model with layers, and one whose texts go from letters to vectors in one call; both have a density."""
    if request.param == "layers":
        return Runtime(model, "cpu")
    folder = tmp_path_factory.mktemp("encoding")
    table = model2vec_dir(folder / "t", width=32)
    return Runtime(make_model(folder / "m", table, sentences, pooling="words", max_length=None), "cpu")


@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize("options", [{}, {"dim": 8, "normalize": True}], ids=["plain", "cut"])
@pytest.mark.parametrize("dedupe", [False, True])
@pytest.mark.parametrize("scored", [False, True])
def test_a_window_gives_the_vectors_of_its_texts(runtime, tmp_path, scored, dedupe, options):
    settings = Settings(dedupe=dedupe, **options)
    with open_store(runtime, settings, None, tmp_path / "out.npy") as store:
        encoder = Encoder(runtime, settings, scored, 2, store)
        made = encoder(TEXTS)
        assert (encoder.reused, encoder.cut) == (dedupe, 1)
        assert encoder([]).vectors.shape == (0, options.get("dim", runtime.dim))
    want = runtime.encode(TEXTS, None, "dim" in options, truncate_dim=options.get("dim"))
    assert np.array_equal(made.vectors, want)
    assert np.array_equal(made.log_probs, runtime.log_prob(TEXTS)) if scored else made.log_probs is None


@pytest.mark.parametrize("runtime", ["table"], indirect=True)
@pytest.mark.parametrize("scored", [False, True])
def test_texts_of_a_table_take_one_call_a_window(runtime, monkeypatch, scored):
    fused, calls = runtime.session._fused, []
    monkeypatch.setattr(runtime.session, "_fused", lambda *given: calls.append(given[0]) or fused(*given))
    Encoder(runtime, Settings(prompt="so "), scored, 2)(TEXTS[:3])
    assert calls == [["so the dog", "so a cat"], ["so the dog"]]


def test_float64_is_for_computing_only():
    assert stored(np.zeros(2)).dtype == np.float32
    assert stored(np.zeros(2, np.int8)).dtype == np.int8
