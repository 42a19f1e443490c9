"""``dtype="auto"``: decided by what was recorded of the model, and by the processor; ``info()`` says why."""

import gc
import json
import shutil

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.backends.cpu import CUTS, LEAST_COSINE
from fastflow.errors import FastflowError
from fastflow.kernels.encoder import cpu as cpu_encoder
from fastflow.kernels.encoder.cpu import DTYPES
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.model.hashing import MANIFEST
from fastflow.model.locate import DEFAULT
from fastflow.model.manifest import fingerprint
from fastflow.train.export.export import REDUCED

from support.builders import make_encoder, make_model, make_sentences
from support.tolerances import EMBEDDING


@pytest.fixture(scope="module")
def texts():
    return make_sentences(120)


@pytest.fixture(scope="module")
def made(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("auto")
    return make_model(folder / "model", make_encoder(folder / "bert"), texts)


def record(source, target, entry):
    """A copy of the model that says ``entry`` of its least cosines."""
    shutil.copytree(source, target)
    manifest = json.loads((target / MANIFEST).read_text())
    manifest["least_cosine"] = entry
    manifest["fingerprint"] = fingerprint(manifest)
    (target / MANIFEST).write_text(json.dumps(manifest))
    return target


def test_training_records_what_reduced_precision_gives(made, texts):
    recorded = json.loads((made / MANIFEST).read_text())["least_cosine"]
    assert set(recorded) == set(REDUCED) == set(DTYPES) - {"float32"}
    exact = Runtime(made, dtype="float32").encode(texts, normalize_embeddings=True)
    for dtype, least in recorded.items():
        found = Runtime(made, dtype=dtype).encode(texts, normalize_embeddings=True)
        assert (found.astype(np.float64) * exact).sum(axis=1).min() == pytest.approx(least, abs=2e-6)
        assert 0.9 <= least < 1
    assert recorded["int8"] < recorded["bfloat16"]


@pytest.mark.parametrize(
    ("least", "native", "dtype", "said"),
    [
        (LEAST_COSINE, True, "bfloat16", "whose least cosine to float32 was"),
        (LEAST_COSINE - 1e-6, True, "float32", "under 0.9995"),
        (LEAST_COSINE, False, "float32", "this processor has no bfloat16 products that are faster"),
        (None, True, "float32", "nothing is recorded"),
    ],
)
def test_auto_follows_the_record_and_the_processor(made, tmp_path, monkeypatch, least, native, dtype, said):
    monkeypatch.setattr(cpu_encoder, "multiplies_bfloat16", lambda: native)
    runtime = Runtime(record(made, tmp_path / "model", {} if least is None else {"bfloat16": least}))
    assert (runtime.backend, runtime.info()["dtype"]) == ("cpu", dtype)
    assert any(note.startswith(f"dtype auto: {dtype}") and said in note for note in runtime.info()["details"])
    assert not any("dtype auto" in note for note in Runtime(made, dtype="float32").info()["details"])


def test_a_record_that_is_no_object_names_the_field(made, tmp_path):
    with pytest.raises(FastflowError, match="field least_cosine: not an object"):
        Runtime(record(made, tmp_path / "model", [1]))


def test_the_model_in_the_package_may_run_in_bfloat16():
    assert json.loads((DEFAULT / MANIFEST).read_text())["least_cosine"]["bfloat16"] >= LEAST_COSINE


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mpnet", "modernbert"])
def test_newer_architectures_equal_transformers_and_take_lower_precisions(tmp_path, forced_isa, family, texts):
    directory = make_encoder(tmp_path / family, family)
    texts = [*texts, "", " ".join(texts[:8])]
    want = Runtime(directory, backend="torch").encode(texts, normalize_embeddings=True)
    for threads in (1, 2):
        runtime = Runtime(directory, device="cpu", threads=threads)
        assert (runtime.backend, runtime.info()["dtype"]) == ("cpu", "float32")
        found = runtime.encode(texts, normalize_embeddings=True)
        assert np.abs(found - want).max() <= EMBEDDING
    for dtype in ("bfloat16", "int8"):
        found = Runtime(directory, dtype=dtype, backend="cpu").encode(texts, normalize_embeddings=True)
        assert np.isfinite(found).all()
        assert (found * want).sum(axis=1).min() >= 0.98  # random weights forgive less than trained ones


@pytest.mark.slow
def test_the_folded_cuts_of_many_widths_are_not_all_kept(tmp_path, texts):
    encoder = make_encoder(tmp_path / "bert")
    rt = Runtime(make_model(tmp_path / "model", encoder, texts, "flow", ordered=True), "cpu")
    assert rt.info()["truncation"] == "leading directions"
    first = rt.encode(["a text"], truncate_dim=1)
    gc.collect()
    before = sum(isinstance(each, CpuFlow) for each in gc.get_objects())
    for width in range(1, 3 * CUTS):
        rt.encode(["a text"], truncate_dim=width)
    gc.collect()
    assert sum(isinstance(each, CpuFlow) for each in gc.get_objects()) == before + CUTS - 1
    np.testing.assert_array_equal(rt.encode(["a text"], truncate_dim=1), first)


@pytest.mark.parametrize("dtype", REDUCED)
def test_without_products_every_dtype_is_float32(bert, texts, tmp_path, dtype):
    made = make_model(tmp_path / "m", bert, make_sentences(120), "standardize", pooling="words", weighted=True)
    with Runtime(made, dtype=dtype, backend="cpu") as rt, Runtime(made, dtype="float32", backend="cpu") as exact:
        assert np.array_equal(rt.encode(texts), exact.encode(texts))
        assert any(f"dtype {dtype}: its vectors are float32's" in line for line in rt.info()["details"])
        assert not any("least cosine" in line for line in rt.info()["details"])
    with Runtime(made, backend="cpu") as rt:
        assert rt.info()["dtype"] == "float32"
        assert "the embedding layer alone is pooled" in rt.info()["details"][-1]
