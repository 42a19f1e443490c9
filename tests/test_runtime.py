"""``Runtime``: its signatures, what encode and its companions return, and what they refuse."""

from __future__ import annotations

import inspect
import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fastflow import Runtime
from fastflow.backends.choose import BACKENDS
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model

from support.builders import make_encoder, make_model, make_sentences
from support.tolerances import COMPANY, EMBEDDING


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
    assert np.array_equal(rt.encode(tuple(sentences[:9])), many)
    assert np.array_equal(rt.encode(np.array(sentences[:9])), many)
    rows = rt.encode(sentences[:9], convert_to_numpy=False)
    assert isinstance(rows, list)
    assert np.array_equal(rows, many)


def test_order_is_kept_whatever_the_lengths_and_batches(rt):
    texts = [" ".join(["dog"] * n) for n in (60, 1, 33, 2, 8, 17, 7, 9, 1, 60)]
    want = np.stack([rt.encode(text) for text in texts])
    for batch in (None, 1, 3, 100):
        assert np.abs(rt.encode(texts, batch_size=batch) - want).max() <= COMPANY["float32"] * np.abs(want).max()
    assert len(np.unique(want.round(3), axis=0)) == 8


def test_backends_agree(model, sentences, backend):
    exact = Runtime(model, dtype="float64", backend="reference").encode(sentences, normalize_embeddings=True)
    assert exact.dtype == np.float64
    opened = Runtime(model, backend=backend)
    assert opened.backend == opened.info()["backend"] == backend
    found = opened.encode(sentences, normalize_embeddings=True)
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() <= EMBEDDING
    assert np.abs(unit(opened.encode(sentences)) - exact).max() <= EMBEDDING


def test_torch_in_float64_is_the_reference_in_float64(model, sentences):
    ours, theirs = (Runtime(model, dtype="float64", backend=b).encode(sentences) for b in ("reference", "torch"))
    assert np.abs(ours - theirs).max() <= 1e-10 * np.abs(theirs).max()


def test_bfloat16_on_torch_is_near(model, sentences):
    near = Runtime(model, dtype="bfloat16", backend="torch")
    assert near.info()["dtype"] == "bfloat16"
    cosines = (unit(near.encode(sentences)) * unit(Runtime(model).encode(sentences))).sum(axis=1)
    assert 0.98 <= cosines.min() < 1 - 1e-7


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "distilbert", "electra", "minilm"])
def test_every_family_runs_and_backends_agree(encoders, family, sentences, backend):
    texts = [*sentences[:20], "", "x" * 300, " ".join(["cat 7!"] * 80)]
    found, want = Runtime(encoders(family), backend=backend), Runtime(encoders(family), "cpu", "float64")
    with pytest.warns(UserWarning, match="longer than 128 tokens are cut"):
        found = found.encode(texts)
    with pytest.warns(UserWarning, match="longer than 128 tokens are cut"):
        want = want.encode(texts)
    assert np.abs(unit(found) - unit(want)).max() <= EMBEDDING


def test_truncation_comes_before_normalisation(rt, sentences, backend, model):
    opened = Runtime(model, backend=backend)
    raw = opened.encode(sentences[:7])
    cut = opened.encode(sentences[:7], truncate_dim=10, normalize_embeddings=True)
    assert np.array_equal(opened.encode(sentences[:7], truncate_dim=10), raw[:, :10])
    assert np.abs(np.linalg.norm(cut, axis=1) - 1).max() <= 1e-6
    assert np.abs(cut - unit(raw[:, :10])).max() <= 1e-6
    for wrong in (0, -1, 33):
        with pytest.raises(UsageError, match=rf"truncate_dim must be 1 to 32, the width of this model, not {wrong}"):
            opened.encode(sentences[:7], truncate_dim=wrong)


@pytest.mark.parametrize(("dim", "normalize"), [(None, False), (None, True), (20, True)])
def test_precisions(rt, sentences, dim, normalize):
    z = rt.encode(sentences[:64], normalize_embeddings=normalize, truncate_dim=dim)

    def coded(precision: str) -> np.ndarray:
        return rt.encode(sentences[:64], normalize_embeddings=normalize, truncate_dim=dim, precision=precision)

    assert np.array_equal(coded("float16"), z.astype(np.float16))
    bits = np.packbits(z > 0, axis=1)
    assert coded("ubinary").dtype == np.uint8
    assert np.array_equal(coded("ubinary"), bits)
    assert coded("binary").dtype == np.int8
    assert np.array_equal(coded("binary").astype(int) + 128, bits)
    step = (4 / np.sqrt(z.shape[1]) if normalize else 4) / 127
    small, offset = coded("int8"), coded("uint8")
    assert (small.dtype, offset.dtype) == (np.int8, np.uint8)
    assert np.array_equal(offset.astype(int) - 128, small)
    assert np.abs(small * step - np.clip(z, -127 * step, 127 * step)).max() <= step * 0.5001
    assert len(np.unique(small)) > 50
    assert rt.encode([], precision="ubinary", truncate_dim=dim).shape == (0, bits.shape[1])


def test_precisions_that_cannot_be(rt, bert, sentences):
    with pytest.raises(UsageError, match=r"unknown precision 'int4'; known are float32, float16"):
        rt.encode(sentences[:3], precision="int4")
    with pytest.raises(UsageError, match="precision 'int8' needs the range of each dimension, and this model stores"):
        Runtime(bert).encode(sentences[:3], precision="int8")


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


def test_ranges_of_another_width_are_refused_before_anything_is_computed(rt):
    for call in (rt.encode, rt.stream, rt.transform):
        with pytest.raises(UsageError, match=r"ranges must be \(2, 12\) numbers"):
            call(iter(()), precision="int8", truncate_dim=12, ranges=np.zeros((2, 32)))


def test_a_prompt_is_put_before_every_text(rt, sentences):
    want = rt.encode(["the " + text for text in sentences[:5]])
    assert np.array_equal(rt.encode(sentences[:5], prompt="the "), want)


@pytest.mark.parametrize("texts", [7, ["a", 7], ["a", None], [["a"]], [b"bytes"], np.zeros((2, 32))])
def test_inputs_that_are_no_texts(rt, texts):
    with pytest.raises(FastflowError, match=r"text [01] is .*, not str|texts come as a list .*, not as (int|ndarray)"):
        rt.encode(texts)


def test_encode_takes_its_texts_once(rt):
    for arguments in ((), ("a",)):
        with pytest.raises(UsageError, match="takes the texts once"):
            rt.encode(*arguments, **({"sentences": "b"} if arguments else {}))


def test_long_texts_are_cut_counted_and_said_once(model):
    rt = Runtime(model)
    long = " ".join(["dog"] * 100)
    with pytest.warns(UserWarning, match="longer than 64 tokens are cut"):
        rt.encode([long, "a", long])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rt.encode(long)
    assert rt.truncated == 3
    assert np.array_equal(rt.encode(long), rt.encode(" ".join(["dog"] * 62)))


def test_stream_gives_blocks_in_order_and_reads_no_further_than_it_must(rt, monkeypatch):
    monkeypatch.setattr("fastflow.options.WINDOW", 10)
    texts, taken = make_sentences(35, seed=1), []
    blocks = rt.stream((taken.append(text) or text for text in texts), normalize_embeddings=True, precision="float16")
    assert taken == []
    starts, vectors = [], []
    for number, (start, block) in enumerate(blocks, 1):
        assert len(taken) == min(10 * number, 35)
        starts.append(start)
        vectors.append(block)
    assert starts == [0, 10, 20, 30]
    assert [len(block) for block in vectors] == [10, 10, 10, 5]
    assert np.array_equal(np.concatenate(vectors), rt.encode(texts, normalize_embeddings=True, precision="float16"))
    assert list(rt.stream([])) == []
    with pytest.raises(FastflowError, match="text 12 is int"):
        list(rt.stream(["a"] * 12 + [3]))


def test_transform_is_the_calibration_of_what_pool_gives(model, sentences, backend):
    rt = Runtime(model, backend=backend)
    pooled = rt.pool(sentences[:20])
    assert pooled.shape == (20, rt.info()["pooled_dim"])
    want = rt.encode(sentences[:20])
    for form in (pooled, pooled.tolist(), pooled.astype(np.float64), np.asfortranarray(pooled), pooled[::-1][::-1]):
        assert np.abs(rt.transform(form) - want).max() <= 1e-6 * np.abs(want).max()
    assert rt.transform(pooled[:0]).shape == (0, 32)
    assert rt.transform(np.ones((2, 32), int)).dtype == np.float32


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 31)), r"shape \(B, 32\); got float64 of shape \(3, 31\)"),
        (np.zeros(32), r"got float64 of shape \(32,\)"),
        (np.zeros((1, 3, 32)), r"of shape \(1, 3, 32\)"),
        (np.full((2, 32), "x"), r"of shape \(B, 32\), not texts"),
        (np.zeros((2, 32), complex), "got complex128"),
        ([[1.0, 2.0], [3.0]], "rows of one length"),
        ("the dog", r"not texts; texts go to encode\(\)"),
        (np.where(np.arange(96).reshape(3, 32) == 70, np.nan, 0), "row 2 holds NaN or infinity"),
        (np.where(np.arange(96).reshape(3, 32) == 40, -np.inf, 0), "row 1 holds NaN or infinity"),
        (np.where(np.arange(96).reshape(3, 32) == 0, 1e300, 0), "row 0 holds NaN or infinity"),
    ],
)
def test_transform_refuses_and_says_why(rt, array, message):
    with pytest.raises(FastflowError, match=message):
        rt.transform(array)


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


def test_info_says_what_runs(rt, model, bert):
    info = rt.info()
    json.dumps(info)
    assert info["model"] == str(model)
    assert info["pooling"] == "masked mean of layers 0, 1 and 3"
    assert info["calibration"] == "flow(2x2, width 8, additive, reversal)"
    assert (info["dim"], info["pooled_dim"], info["max_length"], info["dtype"]) == (32, 32, 64, "float32")
    assert (info["fingerprint"], info["backend"], rt.dim) == (rt.fingerprint, rt.backend, 32)
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


def test_the_table_in_the_package(tmp_path, monkeypatch):
    rt = Runtime("static")
    assert rt.info()["model"] == "static"
    assert repr(rt).startswith("<Runtime: static, ")
    vectors = rt.encode(["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell."])
    near, far = rt.similarity(vectors[:1], vectors[1:])[0]
    assert near > far + 0.3
    assert np.array_equal(pickle.loads(pickle.dumps(rt)).encode("A cat."), rt.encode("A cat."))
    monkeypatch.chdir(tmp_path)
    Path("static").mkdir()
    with pytest.raises(FastflowError, match="static is not a model"):
        Runtime("static")


def test_the_model_in_the_package(sentences):
    rt = Runtime()
    assert rt.info()["model"] == "default"
    assert rt.info()["calibration"].startswith("flow(2x6, width 64, additive, reversal) -> recolour(")
    assert rt.info()["pooling"] == "weighted masked mean of word embeddings without positions"
    vectors = rt.encode(["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell."])
    assert vectors.shape == (3, rt.dim)
    near, far = rt.similarity(vectors[:1], vectors[1:])[0]
    assert near > far + 0.1


def test_a_model_that_is_open_already(weighted_model, sentences):
    held = load_model(weighted_model)
    runtime = Runtime(held)
    assert np.array_equal(runtime.encode(sentences[:5]), Runtime(weighted_model).encode(sentences[:5]))
    again = pickle.loads(pickle.dumps(runtime))
    assert np.array_equal(again.encode(sentences[:5]), runtime.encode(sentences[:5]))
    assert again.fingerprint == held.fingerprint


@pytest.mark.parametrize(
    "make", [iter, tuple, lambda texts: (text for text in texts), lambda texts: dict(enumerate(texts)).values()]
)
def test_any_iterable_in_a_fixed_order_gives_rows_in_that_order(rt, sentences, make):
    want = rt.encode(sentences[:7])
    assert np.array_equal(rt.encode(make(sentences[:7])), want)
    assert np.array_equal(np.concatenate([block for _, block in rt.stream(make(sentences[:7]))]), want)
    assert rt.encode(make([])).shape == (0, 32)


class Table:
    """As a table of pandas: iterating gives the names of its columns."""

    ndim = 2

    def __iter__(self):
        return iter(["name", "text"])


@pytest.mark.parametrize("texts", [{"a", "b"}, {"a": 1, "b": 2}, b"ab", 3.5, Table(), np.array("a")])
def test_what_has_no_texts_in_an_order_is_refused(rt, texts):
    for call in (rt.encode, rt.stream, rt.pool):
        with pytest.raises(UsageError, match="texts come as a list or another iterable of str in a fixed order"):
            call(texts)


def test_one_text_is_for_encode_alone(rt):
    for call in (rt.stream, rt.pool):
        with pytest.raises(UsageError, match="not as str"):
            call("abc")


@pytest.mark.parametrize("value", [0, -1, "2", 2.0, True, [], float("nan")])
def test_counts_are_whole_numbers_of_at_least_one(rt, model, value):
    for name in ("batch_size", "batch_tokens", "window"):
        with pytest.raises(UsageError, match=f"{name} must be a whole number of at least 1, not"):
            rt.stream(["a"], **{name: value})
    for call in (rt.encode, rt.pool):
        with pytest.raises(UsageError, match="batch_size must be a whole number of at least 1, not"):
            call(["a"], batch_size=value)
    for name in ("cpu", "reference", "torch"):
        with pytest.raises(UsageError, match="threads must be a whole number of at least 1, not"):
            Runtime(model, threads=value, backend=name)
    with pytest.raises(UsageError, match=r"truncate_dim must be 1 to 32"):
        rt.encode(["a"], truncate_dim=value if value is not True else "1")


def test_counts_of_numpy_are_counts(rt, sentences):
    found = rt.encode(sentences[:5], batch_size=np.int64(2), truncate_dim=np.int32(7))
    assert np.array_equal(found, rt.encode(sentences[:5])[:, :7])


def test_options_are_looked_at_before_anything_is_computed(rt):
    for option in ({"precision": "int4"}, {"precision": []}, {"prompt": 3}, {"truncate_dim": 40}):
        for texts in ([], ["a"]):
            with pytest.raises(UsageError, match=next(iter(option))):
                rt.encode(texts, **option)
            with pytest.raises(UsageError, match=next(iter(option))):
                rt.stream(texts, **option)


@pytest.mark.parametrize(
    ("option", "known"),
    [
        ({"dtype": "fp32"}, "float32, bfloat16, int8"), ({"dtype": np.float32}, "auto, float32"),
        ({"device": "gpu"}, "auto, cpu, cuda"), ({"device": "cuda:0"}, "auto, cpu, cuda"), ({"device": None}, "auto"),
        ({"backend": "numpy"}, "auto, cpu, triton, torch, reference"), ({"backend": None}, "auto, cpu"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("others", [{}, {"backend": "reference"}])
def test_a_name_that_no_choice_has_is_refused_with_those_it_has(model, option, known, others):
    with pytest.raises(UsageError, match=rf"unknown {next(iter(option))} .*; known are .*{known}"):
        Runtime(model, **{**others, **option})


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.ones((2, 32)), np.ones((3, 16)), "vectors of one width, not 32 and 16"),
        (np.ones((2, 2, 32)), np.ones(32), r"shape \(B, D\); got float64 of \(2, 2, 32\)"),
        ([[1.0], [1.0, 2.0]], [1.0], "vectors of one width"), (["a", 3], "b", "takes texts, or numbers"),
        (None, "b", "takes texts, or numbers"), (np.full((2, 32), np.nan), "b", "row 0 holds NaN or infinity"),
    ],
)  # fmt: skip
def test_similarity_refuses_and_says_why(rt, a, b, message):
    with pytest.raises(FastflowError, match=message):
        rt.similarity(a, b)


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


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_squares_that_overflow_in_a_layer_norm_are_no_row_of_biases(bert_copy, name):
    path = bert_copy / "model.safetensors"
    arrays = {key: np.array(array) for key, array in load_file(path).items()}
    for key in arrays:  # each number may be in a file, all together leave float32
        if key.endswith(("dense.weight", "attention.output.LayerNorm.weight")):
            arrays[key] = np.copysign(np.float32(1e6), arrays[key])
    save_file(arrays, path, {"format": "pt"})
    assert np.isfinite(Runtime(bert_copy, backend="reference", dtype="float64").encode(["the dog"])).all()
    opened = Runtime(bert_copy, backend=name)
    for call in (opened.encode, opened.pool):
        with pytest.raises(FastflowError, match="text 0 gives NaN or infinity: the model's numbers leave the range"):
            call(["the dog", "a bird"])


def test_transform_finds_what_overflows(model, backend):
    opened = Runtime(model, backend=backend)
    with pytest.raises(FastflowError, match="transform: row 1 gives NaN or infinity"):
        opened.transform(np.array([np.zeros(32), np.full(32, 3e38)]))


def test_float16_holds_what_is_asked_of_it(rt, monkeypatch):
    kind = BACKENDS[rt.backend].load()
    inner = kind.calibrate
    monkeypatch.setattr(kind, "calibrate", lambda *given: 1e5 * inner(*given))
    with pytest.raises(FastflowError, match="precision 'float16' ends at 65504"):
        rt.encode(["a"], precision="float16")
