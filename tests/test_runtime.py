"""``Runtime``: its signatures, what encode and its companions return, and what they refuse.

tests/across/test_same_vectors.py has the law that batches, threads, forks, windows and formats change no vector.
"""

from __future__ import annotations

import inspect
import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.backends.choose import BACKENDS
from fastflow.errors import FastflowError, FastflowWarning, UsageError
from fastflow.model.artifact import load_model

from support.builders import make_encoder, make_model, make_sentences
from support.sentence_dirs import NORMALIZE, make_directory, pooling, theirs
from support.tolerances import COMPANY, EMBEDDING

PLAIN = ["the dog sings.", "a cat", "the river turns"]
THREE = ["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell."]


@pytest.fixture(scope="module")
def rt(model):
    return Runtime(model)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def defaults(function: object) -> dict[str, object]:
    given = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in given if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"}


def test_signatures_are_the_contracts():
    empty = inspect.Parameter.empty
    assert defaults(Runtime.__init__) == {"model": None, "device": "auto", "dtype": "auto", "threads": None}
    assert list(defaults(Runtime.encode).items()) == [
        ("inputs", None), ("batch_size", None), ("normalize_embeddings", False), ("convert_to_numpy", True),
        ("show_progress_bar", None), ("precision", "float32"), ("truncate_dim", None), ("prompt", None),
    ]  # fmt: skip
    assert defaults(Runtime.transform) == {"array": empty}
    assert defaults(Runtime.similarity) == {"a": empty, "b": empty}
    assert next(iter(defaults(Runtime.stream))) == "iterable"
    assert defaults(Runtime.info) == defaults(Runtime.close) == {}
    assert all(isinstance(getattr(Runtime, name), property) for name in ("fingerprint", "backend", "dim"))


def test_one_text_many_and_none(rt, sentences):
    one, many = rt.encode(sentences[0]), rt.encode(sentences[:9])
    assert (one.shape, many.shape, rt.encode([]).shape) == ((32,), (9, 32), (0, 32))
    assert one.dtype == many.dtype == rt.encode([]).dtype == np.float32
    assert np.abs(many[0] - one).max() <= COMPANY["float32"] * np.abs(one).max()
    assert np.array_equal(rt.encode(sentences=sentences[:9]), many)
    assert isinstance(rt.encode(sentences[:9], convert_to_numpy=False), list)
    assert np.array_equal(rt.encode(sentences[:9], prompt="the "), rt.encode(["the " + text for text in sentences[:9]]))
    counted = rt.encode(sentences[:5], batch_size=np.int64(2), truncate_dim=np.int32(7))
    assert np.array_equal(counted, many[:5, :7]), "counts of NumPy are counts"


def test_backends_agree(model, sentences, backend):
    exact = Runtime(model, dtype="float64", backend="reference").encode(sentences, normalize_embeddings=True)
    assert exact.dtype == np.float64
    opened = Runtime(model, backend=backend)
    assert opened.backend == opened.info()["backend"] == backend
    found = opened.encode(sentences, normalize_embeddings=True)
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() <= EMBEDDING
    raw = opened.encode(sentences)
    assert np.abs(unit(raw) - exact).max() <= EMBEDDING
    assert np.array_equal(opened.encode(sentences, truncate_dim=10), raw[:, :10])
    cut = opened.encode(sentences, truncate_dim=10, normalize_embeddings=True)
    assert np.abs(cut - unit(raw[:, :10])).max() <= 1e-6, "truncated, then normalised"


@pytest.mark.filterwarnings("ignore:texts longer than 128 tokens are cut")
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "distilbert", "electra", "minilm"])
def test_every_family_runs_and_backends_agree(encoders, family, sentences, backend):
    texts = [*sentences[:20], "", "x" * 300, " ".join(["cat 7!"] * 80)]
    found, want = Runtime(encoders(family), backend=backend), Runtime(encoders(family), "cpu", "float64")
    assert np.abs(unit(found.encode(texts)) - unit(want.encode(texts))).max() <= EMBEDDING
    assert found.truncated == want.truncated > 0


@pytest.mark.parametrize(("dim", "normalize"), [(None, False), (None, True), (20, True)])
def test_precisions(rt, sentences, dim, normalize):
    z = rt.encode(sentences[:64], normalize_embeddings=normalize, truncate_dim=dim)

    def coded(precision: str) -> np.ndarray:
        return rt.encode(sentences[:64], normalize_embeddings=normalize, truncate_dim=dim, precision=precision)

    bits = np.packbits(z > 0, axis=1)
    assert np.array_equal(coded("float16"), z.astype(np.float16))
    assert (coded("ubinary").dtype, coded("binary").dtype) == (np.uint8, np.int8)
    assert np.array_equal(coded("ubinary"), bits)
    assert np.array_equal(coded("binary").astype(int) + 128, bits)
    step = (4 / np.sqrt(z.shape[1]) if normalize else 4) / 127
    small, offset = coded("int8"), coded("uint8")
    assert (small.dtype, offset.dtype) == (np.int8, np.uint8)
    assert np.array_equal(offset.astype(int) - 128, small)
    assert np.abs(small * step - np.clip(z, -127 * step, 127 * step)).max() <= step * 0.5001
    assert len(np.unique(small)) > 50
    assert rt.encode([], precision="ubinary", truncate_dim=dim).shape == (0, bits.shape[1])


@pytest.mark.parametrize(("dim", "normalize"), [(None, False), (20, True)])
def test_ranges_are_of_every_call_that_quantises(rt, sentences, dim, normalize):
    options = {"normalize_embeddings": normalize, "truncate_dim": dim}
    z = rt.encode(sentences, **options)
    ranges = np.stack([z.min(axis=0), z.max(axis=0)]).astype(np.float64)
    for precision, zero in (("int8", -128), ("uint8", 0)):
        options |= {"precision": precision, "ranges": ranges}
        found = rt.encode(sentences, **options)
        assert (found.min(axis=0) == zero).all()
        assert (found.max(axis=0) >= zero + 254).all()
        assert np.array_equal(np.concatenate([block for _, block in rt.stream(sentences, window=50, **options)]), found)
        assert np.array_equal(rt.transform(rt.pool(sentences), **options), found)
        assert np.array_equal(rt.encode_query(sentences[3], **options), found[3])
        assert rt.encode([], **options).shape == (0, z.shape[1])


def test_long_texts_are_cut_counted_and_said_once_with_the_callers_line(model):
    long = " ".join(["dog"] * 100)
    rt = Runtime(model)
    with pytest.warns(UserWarning, match="longer than 64 tokens are cut"):
        rt.encode([long, "a", long])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rt.encode(long)
    assert rt.truncated == 3
    assert np.array_equal(rt.encode(long), rt.encode(" ".join(["dog"] * 62)))
    for name in ("encode", "encode_query", "pool", "stream"):
        rt = Runtime(model)
        with pytest.warns(FastflowWarning, match="longer than 64 tokens are cut") as warned:
            list(getattr(rt, name)([long]))
        assert [each.filename for each in warned] == [__file__], name


def test_stream_gives_blocks_in_order_and_reads_no_further_than_it_must(rt):
    texts, taken, starts, vectors = make_sentences(35, seed=1), [], [], []
    options = {"normalize_embeddings": True, "precision": "float16"}
    blocks = rt.stream((taken.append(text) or text for text in texts), window=10, **options)
    assert taken == []
    for number, (start, block) in enumerate(blocks, 1):
        assert len(taken) == min(10 * number, 35)
        starts.append(start)
        vectors.append(block)
    assert starts == [0, 10, 20, 30]
    assert [len(block) for block in vectors] == [10, 10, 10, 5]
    assert np.array_equal(np.concatenate(vectors), rt.encode(texts, **options))
    assert list(rt.stream([])) == []
    blocks = rt.stream(["a"] * 12 + [3], window=5)
    assert [next(blocks)[0], next(blocks)[0]] == [0, 5]
    with pytest.raises(FastflowError, match="text 12 is int"):
        next(blocks)


def test_transform_is_the_calibration_of_what_pool_gives(weighted_model, sentences, backend):
    rt = Runtime(weighted_model, backend=backend)
    pooled = rt.pool(sentences[:20])
    for options in ({"truncate_dim": 7, "normalize_embeddings": True}, {"precision": "ubinary"}):
        found, encoded = rt.transform(pooled, **options), rt.encode(sentences[:20], **options)
        assert found.dtype == encoded.dtype
        assert "precision" in options or np.abs(found - encoded).max() <= 20 * EMBEDDING
    for options in ({"truncate_dim": 33}, {"precision": "int4"}):
        with pytest.raises(UsageError, match=r"truncate_dim must be 1 to 32|unknown precision 'int4'"):
            rt.transform(pooled, **options)
    assert pooled.shape == (20, rt.info()["pooled_dim"])
    want = rt.encode(sentences[:20])
    for form in (pooled, pooled.tolist(), pooled.astype(np.float64), np.asfortranarray(pooled), pooled[::-1][::-1]):
        assert np.abs(rt.transform(form) - want).max() <= 1e-6 * np.abs(want).max()
    assert rt.transform(pooled[:0]).shape == (0, 32)
    assert rt.transform(np.ones((2, 32), int)).dtype == np.float32


def test_similarity_of_texts_vectors_and_both(rt, sentences):
    a, b = rt.encode(sentences[:3]), rt.encode(sentences[3:8])
    want = unit(a) @ unit(b).T
    for left, right in ((a, b), (sentences[:3], b), (sentences[:3], sentences[3:8])):
        found = rt.similarity(left, right)
        assert found.shape == (3, 5)
        assert np.abs(found - want).max() <= 1e-5
    assert rt.similarity(sentences[0], sentences[0]).shape == (1, 1)
    assert abs(rt.similarity(a[0], sentences[0])[0, 0] - 1) <= 1e-5
    assert rt.similarity(np.zeros((1, 32)), b).tolist() == [[0.0] * 5]
    z = np.random.default_rng(0).normal(size=(400, 32)).astype(np.float32)
    assert np.abs(rt.similarity(z, z)).max() <= 1
    assert np.abs(rt.similarity_pairwise(z, 3 * z)).max() <= 1
    assert np.abs(rt.similarity_pairwise(sentences[:3], b[:3]) - np.diag(want)).max() <= EMBEDDING


@pytest.mark.parametrize("name", ["cosine", "dot", "dot_product", "euclidean", "manhattan", None])
def test_similarity_is_the_models(tmp_path, bert, name):
    settings = {} if name is None else {"similarity_fn_name": name}
    rt = Runtime(make_directory(tmp_path / "m", bert, [pooling("mean")], **settings))
    z = rt.encode(PLAIN).astype(np.float64)
    differences = z[:, None] - z
    wanted = {
        "dot": z @ z.T, "dot_product": z @ z.T, "euclidean": -np.sqrt((differences**2).sum(-1)),
        "manhattan": -np.abs(differences).sum(-1),
    }.get(name, unit(z) @ unit(z).T)  # fmt: skip
    found = rt.similarity(PLAIN, rt.encode(PLAIN))
    assert np.abs(found - wanted).max() <= EMBEDDING * max(1, np.abs(wanted).max())
    if name not in (None, "dot_product"):
        pytest.importorskip("sentence_transformers", exc_type=ImportError)
        model = theirs(tmp_path / "m")
        their = model.similarity(model.encode(PLAIN), model.encode(PLAIN)).numpy()
        assert np.abs(found - their).max() <= 10 * EMBEDDING * max(1, np.abs(wanted).max())


def test_queries_and_documents_go_by_the_model(rt, tmp_path, bert):
    for call in (rt.encode_query, rt.encode_document):
        assert np.array_equal(call(PLAIN), rt.encode(PLAIN))
        assert np.array_equal(call(PLAIN[0], prompt="the "), rt.encode("the " + PLAIN[0]))
        assert np.array_equal(call(PLAIN, normalize_embeddings=True), rt.encode(PLAIN, normalize_embeddings=True))
    other = Runtime(make_directory(tmp_path / "m", bert, [pooling("mean"), NORMALIZE]))
    assert other.encode_query(PLAIN, truncate_dim=3).shape == (3, 3)
    assert isinstance(other.encode_document(PLAIN, convert_to_numpy=False), list)


def test_info_says_what_runs(rt, model, bert):
    info = rt.info()
    json.dumps(info)
    assert info["model"] == str(model)
    assert info["pooling"] == "masked mean of layers 0, 1 and 3"
    assert info["calibration"] == "flow(2x2, width 8, additive, reversal)"
    assert (info["dim"], info["pooled_dim"], info["max_length"], info["dtype"]) == (32, 32, 64, "float32")
    assert (info["fingerprint"], info["backend"], rt.dim) == (rt.fingerprint, rt.backend, 32)
    assert (info["takes"], info["device"], info["notes"]) == ("texts", "cpu", [])
    info["details"].append("mine")
    assert "mine" not in rt.info()["details"], "a copy"
    plain = Runtime(bert).info()
    assert (plain["pooling"], plain["calibration"]) == ("masked mean of layer 3", "none")
    assert "plain encoder: no calibration, masked mean of the last layer" in plain["notes"][0]


def test_a_narrower_calibration_shows_in_dim(tmp_path, bert, sentences, backend):
    rt = Runtime(make_model(tmp_path / "m", bert, sentences, "whiten:12"), backend=backend)
    assert (rt.dim, rt.info()["pooled_dim"]) == (12, 32)
    assert (rt.encode(sentences[:4]).shape, rt.encode([]).shape) == ((4, 12), (0, 12))
    assert rt.transform(np.zeros((2, 32))).shape == (2, 12)


@pytest.mark.slow
def test_fingerprints_tell_models_apart(model, bert, tmp_path, sentences):
    fingerprint = Runtime(model).fingerprint
    assert len(fingerprint) == 64
    assert fingerprint == Runtime(model, backend="reference", dtype="float64").fingerprint
    again = make_model(tmp_path / "again", bert, sentences)
    other = make_model(tmp_path / "other", bert, sentences, "standardize")
    twin = make_encoder(tmp_path / "twin", "bert")
    changed = make_encoder(tmp_path / "changed", "bert", seed=1)
    assert Runtime(again).fingerprint == fingerprint  # training is deterministic, and no clock is in a model
    assert Runtime(twin).fingerprint == Runtime(bert).fingerprint
    assert len({fingerprint, *(Runtime(m).fingerprint for m in (other, bert, changed))}) == 4


@pytest.mark.parametrize(("name", "margin"), [(None, 0.1), ("static", 0.3), ("multilingual", 0.3)])
def test_the_models_in_the_package(tmp_path, monkeypatch, name, margin):
    rt, said = Runtime(name), name or "default"
    assert rt.info()["model"] == said
    assert repr(rt).startswith(f"<Runtime: {said}, ")
    near, far = rt.similarity(rt.encode(THREE[:1]), rt.encode(THREE[1:]))[0]
    assert near > far + margin
    assert np.array_equal(pickle.loads(pickle.dumps(rt)).encode("A cat."), rt.encode("A cat."))
    if name is None:
        assert rt.info()["calibration"].startswith("flow(2x6, width 64, additive, reversal) -> recolour(")
        assert rt.info()["pooling"] == "weighted masked mean of layer 3"
        return
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    with pytest.raises(FastflowError, match=f"{name} is not a model"):
        Runtime(name)


def test_the_multilingual_model_finds_translations():
    english = ["The dog is asleep on the sofa.", "We take the train to Berlin tomorrow.", "The soup needs more salt."]
    others = {
        "German": ["Der Hund schläft auf dem Sofa.", "Morgen nehmen wir den Zug nach Berlin.", "Der Suppe fehlt Salz."],
        "Russian": ["Собака спит на диване.", "Завтра мы едем на поезде в Берлин.", "В супе не хватает соли."],
        "Chinese": ["狗在沙发上睡觉。", "我们明天坐火车去柏林。", "汤里需要多放点盐。"],
    }
    runtime = Runtime("multilingual")
    wanted = runtime.encode(english)
    for language, texts in others.items():
        nearest = runtime.similarity(wanted, runtime.encode(texts)).argmax(axis=1)
        assert list(nearest) == [0, 1, 2], language


def test_a_model_that_is_open_already(weighted_model, sentences):
    held = load_model(weighted_model)
    wanted = Runtime(weighted_model).encode(sentences[:5])
    for runtime in (Runtime(held), pickle.loads(pickle.dumps(Runtime(held)))):
        assert np.array_equal(runtime.encode(sentences[:5]), wanted)
        assert runtime.fingerprint == held.fingerprint


def test_a_vector_that_is_not_finite_is_an_error_that_names_the_text(model, backend, monkeypatch):
    opened = Runtime(model, backend=backend)
    bad, kind = iter((7, 0, None, 2)), BACKENDS[backend].load()

    def spoilt(self, pooled, *options, inner=kind.calibrate):
        z = np.array(inner(self, pooled, *options))
        if (row := next(bad)) is not None:
            z[row, 3] = np.nan
        return z

    monkeypatch.setattr(kind, "calibrate", spoilt)
    with pytest.raises(FastflowError, match="text 7 gives NaN or infinity"):
        opened.encode(["a"] * 9)
    with pytest.raises(FastflowError, match="text 0 gives NaN or infinity"):
        opened.encode("a", precision="int8")
    blocks = opened.stream(["a"] * 9, window=4)
    assert next(blocks)[0] == 0
    with pytest.raises(FastflowError, match="text 6 gives NaN or infinity"):
        next(blocks)
