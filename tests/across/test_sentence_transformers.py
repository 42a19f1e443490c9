"""A directory that Sentence Transformers saved gives its vectors: every module, in every order, on every backend.

The definition is ``sentence_dirs.expected``; where Sentence Transformers is installed the same directories are compared
with it.
"""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import fastflow
from fastflow.errors import UsageError

from support.builders import VOCABULARY, make_encoder, make_sentences
from support.sentence_dirs import NORMALIZE, dense, expected, make_directory, pooling, theirs
from support.tolerances import COSINE, UNIT

LONG = " ".join(make_sentences(40, seed=3))
TEXTS = ["", " ", "a", "Dog", *make_sentences(9, seed=1), LONG, "the  spaced \t text ", "É Straße 東京 x-y!"]
RARE = {"the": 0.25, "a": 0.5, "dog": 3, "[SEP]": 0.125, "sings": 0}
WEIGHTS = ("WordWeights", {"vocab": VOCABULARY, "weights": RARE, "other": 1.5})
LAYERS = ("WeightedLayerPooling", {"weights": [0.5, 0.0, 2.0]})
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
CASES = {
    **{mode: [pooling(mode)] for mode in MODES},
    "every mode": [pooling(*MODES), NORMALIZE],
    "normalize": [pooling("mean"), NORMALIZE],
    "dense": [pooling("mean"), dense(8), NORMALIZE],
    "dense last": [pooling("mean"), NORMALIZE, dense(40, "Identity", bias=False)],
    "two dense": [pooling("cls"), dense(24, "Identity"), dense(12, "Identity"), ("Dropout", {}), dense(7, "GELU")],
    "residual": [pooling("mean"), dense(32, "ReLU", residual=True), dense(9, "Sigmoid", residual=True), NORMALIZE],
    "layer norm": [pooling("mean", "cls"), ("LayerNorm", {}), dense(20, "SiLU"), ("LayerNorm", {})],
    "word weights": [WEIGHTS, pooling("mean")],
    "word weights, every mode": [WEIGHTS, pooling(*MODES)],
    "layers": [LAYERS, pooling("mean", "lasttoken", "cls"), NORMALIZE],
    "layers and words": [LAYERS, WEIGHTS, pooling("mean"), dense(32, "Identity")],
    "one layer": [("WeightedLayerPooling", {"weights": [0.0, 3.0, 0.0]}), pooling("max", "mean")],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, bert):
    made = {}

    def get(name, new=False):
        if (name, new) not in made:
            path = tmp_path_factory.mktemp("st") / "model"
            made[name, new] = make_directory(path, bert, CASES[name], new=new, folder="0_Transformer" if new else "")
        return made[name, new]

    return get


def close(found, want):
    """Largest difference of vectors whose directories end in other lengths than 1: relative to the length."""
    assert found.shape == want.shape
    assert np.isfinite(found).all()
    return np.abs(found - want).max() / max(1, np.linalg.norm(want, axis=1).max())


@pytest.fixture(scope="module")
def wanted(directory):
    made = {}

    def get(name, new=False):
        if (name, new) not in made:
            made[name, new] = expected(directory(name, new), TEXTS)
        return made[name, new]

    return get


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize("name", CASES)
def test_the_vectors_are_the_definitions(directory, wanted, name):
    for new in (False, True):  # in the files of older releases and of newer ones
        for backend in ("cpu", "reference", "torch"):
            with fastflow.Runtime(directory(name, new), backend=backend, dtype="float32") as rt:
                assert close(rt.encode(TEXTS), wanted(name, new)) <= UNIT, (backend, new)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_vectors_are_those_of_sentence_transformers(directory, name, new):
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    path = directory(name, new)
    with fastflow.Runtime(path, dtype="float32") as rt:
        assert close(rt.encode(TEXTS), theirs(path).encode(TEXTS)) <= UNIT


@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize("dtype", COSINE)
def test_lower_precisions(directory, wanted, dtype):
    for name in ("normalize", "dense", "layers and words"):
        want, found = wanted(name), fastflow.Runtime(directory(name), dtype=dtype).encode(TEXTS)
        cosines = (found * want).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(want, axis=1)
        assert cosines.min() >= COSINE[dtype]


@pytest.mark.parametrize("precision", ["int8", "uint8"])
@pytest.mark.parametrize("dim", [None, 5])
def test_ranges_give_the_bits_of_quantize_embeddings(directory, precision, dim):
    quantize = pytest.importorskip("sentence_transformers.util.quantization", exc_type=ImportError).quantize_embeddings
    rt, texts = fastflow.Runtime(directory("dense"), dtype="float32"), make_sentences(300, seed=5)
    z = rt.encode(texts, truncate_dim=dim)
    ranges = np.vstack([z[:100].min(axis=0), z[:100].max(axis=0)])  # some of the others are outside of it
    found = rt.encode(texts, precision=precision, truncate_dim=dim, ranges=ranges)
    np.testing.assert_array_equal(found, quantize(z, precision, calibration_embeddings=z[:100]), strict=True)
    ranges[:, 3] = z[0, 3]  # a dimension that does not change
    for given in (ranges, ranges.astype(np.float64), np.array([[-1], [1]]).repeat(z.shape[1], axis=1)):
        found = rt.encode(texts, precision=precision, truncate_dim=dim, ranges=given)
        np.testing.assert_array_equal(found, quantize(z, precision, ranges=given), strict=True)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_without_ranges_such_a_directory_has_no_int8(directory, precision):
    needed = rf"precision '{precision}' needs .* the option ranges, .* \(2, 32\), as quantize_embeddings"
    with pytest.raises(UsageError, match=needed):
        fastflow.Runtime(directory("mean")).encode(TEXTS[:5], precision=precision)


PROMPTS = {"query": "the old dog: ", "title": "Title ", "document": None}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory, bert):
    """With prompts, whose tokens are left out of every mode but the maximum, which an empty text would leave empty."""
    modes = [mode for mode in MODES if mode != "max"]
    path = tmp_path_factory.mktemp("st") / "prompted"
    settings = {"prompts": PROMPTS, "default_prompt_name": "title", "similarity_fn_name": "dot"}
    return make_directory(
        path, bert, [pooling(*modes, include_prompt=False), NORMALIZE], length=24, **settings, truncate_dim=100
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
def test_prompts_and_their_tokens(prompted, backend):
    rt = fastflow.Runtime(prompted, backend=backend, dtype="float32")
    title, query, long = "Title ", "the old dog: ", LONG[:200]
    for found, prompt in (
        (rt.encode(TEXTS), title),
        (rt.encode(TEXTS, prompt=""), ""),
        (rt.encode(TEXTS, prompt_name="query"), query),
        (rt.encode_query(TEXTS), query),
        (rt.encode_query(TEXTS, prompt_name="title"), title),
        (rt.encode_document(TEXTS), ""),
        (rt.encode_document(TEXTS, prompt="see "), "see "),
        (rt.encode(TEXTS, prompt=long), long),  # longer than the limit: of every text the last token is left
    ):
        assert close(found, expected(prompted, TEXTS, prompt)) <= UNIT
    np.testing.assert_array_equal(rt.encode(TEXTS[3]), rt.encode([TEXTS[3]])[0])
    np.testing.assert_array_equal(rt.transform(rt.pool(TEXTS)), rt.encode(TEXTS))
    assert (rt.dim, rt.encode([]).shape, rt.encode("a").shape) == (100, (0, 100), (100,))
    assert rt.encode("a", truncate_dim=160).shape == (160,)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(rt)).encode(TEXTS), rt.encode(TEXTS))


@pytest.mark.filterwarnings("ignore:texts longer than")
def test_prompts_as_sentence_transformers_has_them(prompted):
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    rt, model = fastflow.Runtime(prompted), theirs(prompted)
    for ours, their in (
        (rt.encode(TEXTS), model.encode(TEXTS)),
        (rt.encode(TEXTS, prompt_name="document"), model.encode(TEXTS, prompt_name="document")),
        (rt.encode_query(TEXTS), model.encode_query(TEXTS)),
        (rt.encode_document(TEXTS), model.encode_document(TEXTS)),
        (rt.encode(TEXTS, prompt=LONG[:200]), model.encode(TEXTS, prompt=LONG[:200])),
        (rt.encode(TEXTS, truncate_dim=9, normalize_embeddings=True),
         model.encode(TEXTS, truncate_dim=9, normalize_embeddings=True)),
    ):  # fmt: skip
        assert close(ours, their) <= UNIT
    assert rt.info()["prompts"] == model.prompts


def test_a_passage_is_named(tmp_path, bert):
    """Sentence Transformers 6.2 has an empty prompt document in every model, and so never comes to passage."""
    path = make_directory(tmp_path / "m", bert, [pooling("mean")], prompts={"passage": "the old "})
    rt = fastflow.Runtime(path)
    assert close(rt.encode_document(TEXTS[:9]), expected(path, TEXTS[:9])) <= UNIT
    assert close(rt.encode(TEXTS[:9], prompt_name="passage"), expected(path, TEXTS[:9], "the old ")) <= UNIT
    if pytest.importorskip("sentence_transformers", exc_type=ImportError):
        assert close(rt.encode_document(TEXTS[:9]), theirs(path).encode_document(TEXTS[:9])) <= UNIT


def test_prompts_that_cannot_be(prompted, bert):
    rt = fastflow.Runtime(prompted)
    with pytest.raises(UsageError, match="no prompt is called 'no': known are query, document, title"):
        rt.encode("a", prompt_name="no")
    with pytest.raises(UsageError, match="give prompt or prompt_name, not both"):
        rt.encode("a", prompt="a", prompt_name="query")
    with pytest.raises(UsageError, match="no prompt is called 'query': the model has none"):
        fastflow.Runtime(bert).encode("a", prompt_name="query")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_text_has_the_same_bits_whatever_its_company(directory, prompted, threads):
    for path in (directory("every mode"), directory("residual"), prompted):
        rt = fastflow.Runtime(path, backend="cpu", threads=threads)
        want = rt.encode(TEXTS[:13])
        np.testing.assert_array_equal(rt.encode(TEXTS[:13][::-1])[::-1], want)
        np.testing.assert_array_equal(np.array([rt.encode(text) for text in TEXTS[:13]]), want)
        np.testing.assert_array_equal(rt.encode(TEXTS[:13], batch_size=3), want)
        np.testing.assert_array_equal(
            fastflow.Runtime(path, backend="cpu", threads=3 - threads).encode(TEXTS[:13]), want
        )


def test_do_lower_case_of_a_cased_tokenizer(tmp_path):
    encoder = make_encoder(tmp_path / "roberta", "roberta")
    texts = ["The DOG sings", " A cat", "ÉCOLE"]
    found = {}
    for lower in (False, True):
        path = make_directory(tmp_path / f"m{lower}", encoder, [pooling("mean")], lower=lower)
        found[lower] = fastflow.Runtime(path).encode(texts)
        assert close(found[lower], expected(path, texts)) <= UNIT
    assert np.abs(found[True] - found[False]).max() > 0.01


@pytest.mark.parametrize("family", ["distilbert", "xlm-roberta", "electra"])
def test_other_encoders(tmp_path, encoders, family):
    path = make_directory(tmp_path / "m", encoders(family), [pooling("mean"), dense(9), NORMALIZE], new=True)
    texts = TEXTS[2:13]
    assert close(fastflow.Runtime(path, dtype="float32").encode(texts), expected(path, texts)) <= UNIT


def test_the_fingerprint_covers_every_file_that_decides_a_vector(tmp_path, bert):
    path = make_directory(
        tmp_path / "m", bert, [LAYERS, WEIGHTS, pooling("mean"), dense(8), ("LayerNorm", {}), NORMALIZE]
    )
    seen = {fastflow.Runtime(path).fingerprint}
    assert fastflow.Runtime(path).fingerprint in seen
    (path / "README.md").write_text("of no meaning")
    assert fastflow.Runtime(path).fingerprint in seen
    for name in (
        "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "config.json",
        "tokenizer.json", "1_WeightedLayerPooling/config.json", "2_WordWeights/config.json", "3_Pooling/config.json",
        "4_Dense/config.json", "5_LayerNorm/config.json",
    ):  # fmt: skip
        (path / name).write_text((path / name).read_text() + " ")
        found = fastflow.Runtime(path).fingerprint
        assert found not in seen, name
        seen.add(found)
    for name in ("4_Dense", "5_LayerNorm", "1_WeightedLayerPooling"):
        weights = path / name / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1  # the sign or exponent of the last number stays small enough
        data[-1] &= 0x3F
        data[-2] ^= 1
        weights.write_bytes(data)
        found = fastflow.Runtime(path).fingerprint
        assert found not in seen, name
        seen.add(found)


def test_info_describes_it(prompted):
    found = fastflow.Runtime(prompted).info()
    assert found["modules"] == ["Pooling (cls, mean, mean_sqrt_len_tokens, weightedmean, lasttoken)", "Normalize"]
    assert found["prompts"] == {"query": "the old dog: ", "document": "", "title": "Title "}
    assert (found["default_prompt"], found["similarity"], found["max_length"]) == ("title", "dot", 24)
    assert (found["dim"], found["pooled_dim"], found["calibration"]) == (100, 160, "none")
    json.dumps(found)
