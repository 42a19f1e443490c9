"""A directory that Sentence Transformers saved gives its vectors: every module, in every order, on every backend.

``sentence_dirs.expected`` is the definition; Sentence Transformers is asked too, if it is installed. At the end are
published models, with few layers and random weights.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest

import fastflow
from fastflow.errors import UsageError

from support.builders import VOCABULARY, calm, make_encoder, make_sentences
from support.sentence_dirs import (
    NORMALIZE,
    Module,
    apart,
    dense,
    expected,
    least_cosine,
    make_directory,
    pooling,
    theirs,
)
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


FAMILY = [pooling("mean"), dense(9), NORMALIZE]
OTHERS = {name: (name, FAMILY, False) for name in ("distilbert", "xlm-roberta", "electra")}
OTHERS |= {"lower case of a cased tokenizer": ("roberta", [pooling("mean")], True)}
CHAINS = {name: ("bert", modules, False) for name, modules in CASES.items()} | OTHERS


@pytest.fixture(scope="module")
def directory(tmp_path_factory, encoders):

    @cache
    def get(name, new=False):
        family, modules, lower = CHAINS[name]
        path, folder = tmp_path_factory.mktemp("st") / "model", "0_Transformer" if new else ""
        return make_directory(path, encoders(family), modules, new=new, folder=folder, lower=lower)

    return get


@pytest.fixture(scope="module")
def wanted(directory):
    return cache(lambda name, new=False: expected(directory(name, new), TEXTS))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_the_vectors_are_the_definitions_and_those_of_sentence_transformers(directory, wanted, name, new):
    path = directory(name, new)
    for backend in ("cpu", "reference", "torch"):
        with fastflow.Runtime(path, backend=backend, dtype="float32") as rt:
            found = rt.encode(TEXTS)
            assert apart(found, wanted(name, new)) <= UNIT, backend
    if find_spec("sentence_transformers"):
        assert apart(found, theirs(path).encode(TEXTS)) <= UNIT


@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize("dtype", COSINE)
def test_lower_precisions(directory, wanted, dtype):
    for name in ("normalize", "dense", "layers and words"):
        want, found = wanted(name), fastflow.Runtime(directory(name), dtype=dtype).encode(TEXTS)
        assert least_cosine(found, want) >= COSINE[dtype]


@pytest.mark.slow
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


BEYOND = LONG[:200]  # longer than the limit: of every text the last token is left
CALLS = [  # of Runtime and of SentenceTransformer, and the prompt that each uses
    ("encode", {}, "Title "),
    ("encode", {"prompt": ""}, ""),
    ("encode", {"prompt_name": "query"}, "the old dog: "),
    ("encode", {"prompt_name": "document"}, ""),
    ("encode_query", {}, "the old dog: "),
    ("encode_query", {"prompt_name": "title"}, "Title "),
    ("encode_document", {}, ""),
    ("encode_document", {"prompt": "see "}, "see "),
    ("encode", {"prompt": BEYOND}, BEYOND),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize(("call", "options", "prompt"), CALLS)
def test_prompts_and_their_tokens(prompted, call, options, prompt):
    want = expected(prompted, TEXTS, prompt)
    for backend in ("cpu", "reference", "torch"):
        with fastflow.Runtime(prompted, backend=backend, dtype="float32") as rt:
            assert apart(getattr(rt, call)(TEXTS, **options), want) <= UNIT, backend


@pytest.mark.filterwarnings("ignore:texts longer than")
def test_prompts_as_sentence_transformers_has_them(prompted):
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    rt, model = fastflow.Runtime(prompted), theirs(prompted)
    short = {"truncate_dim": 9, "normalize_embeddings": True}
    for call, options, _ in [*CALLS, ("encode", short, "")]:
        found, want = (getattr(each, call)(TEXTS, **options) for each in (rt, model))
        assert apart(found, want) <= UNIT, (call, options)
    assert rt.info()["prompts"] == model.prompts


def test_the_width_of_a_directory_is_its_default(prompted, backend):
    rt = fastflow.Runtime(prompted, backend=backend, dtype="float32")
    assert (rt.dim, rt.encode([]).shape, rt.encode("a").shape) == (100, (0, 100), (100,))
    assert rt.encode("a", truncate_dim=160).shape == (160,)


def test_a_passage_is_named(tmp_path, bert):
    """Sentence Transformers 6.2 has an empty prompt document in every model, and so never comes to passage."""
    path = make_directory(tmp_path / "m", bert, [pooling("mean")], prompts={"passage": "the old "})
    rt, texts = fastflow.Runtime(path), TEXTS[:9]
    assert apart(rt.encode_document(texts), expected(path, texts)) <= UNIT
    assert apart(rt.encode(texts, prompt_name="passage"), expected(path, texts, "the old ")) <= UNIT
    if find_spec("sentence_transformers"):
        assert apart(rt.encode_document(texts), theirs(path).encode_document(texts)) <= UNIT


def test_the_fingerprint_covers_every_file_that_decides_a_vector(tmp_path, bert):
    modules = [LAYERS, WEIGHTS, pooling("mean"), dense(8), ("LayerNorm", {}), NORMALIZE]
    path = make_directory(tmp_path / "m", bert, modules)
    seen = {fastflow.Runtime(path).fingerprint}
    (path / "README.md").write_text("of no meaning")
    assert fastflow.Runtime(path).fingerprint in seen
    decisive = ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "config.json"]
    decisive += ["tokenizer.json", *(f"{i}_{kind}/config.json" for i, (kind, _) in enumerate(modules[:-1], 1))]
    decisive += [f"{name}/model.safetensors" for name in ("4_Dense", "5_LayerNorm", "1_WeightedLayerPooling")]
    for name in decisive:
        data = bytearray((path / name).read_bytes())
        if name.endswith(".json"):
            data += b" "
        else:
            data[-1] = (data[-1] ^ 1) & 0x3F  # the sign or exponent of the last number stays small enough
            data[-2] ^= 1
        (path / name).write_bytes(data)
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


MEAN, CLS = pooling("mean"), pooling("cls")
QUERY = "Represent this sentence for searching relevant passages: "


class Published(NamedTuple):
    hidden: int
    heads: int
    modules: list[Module]
    length: int = 512
    family: str = "bert"
    prompts: dict[str, str] = {}  # noqa: RUF012 - never changed
    wide: int | None = None  # 4 ``hidden``

    def settings(self) -> dict[str, Any]:
        wide = self.wide or 4 * self.hidden
        if self.family == "distilbert":
            return {"dim": self.hidden, "n_layers": 2, "n_heads": self.heads, "hidden_dim": wide}
        own = {"num_hidden_layers": 4, "local_attention": 128} if self.family == "modernbert" else {}
        shape = {"hidden_size": self.hidden, "num_attention_heads": self.heads, "intermediate_size": wide}
        return {"num_hidden_layers": 2, **shape, **own}


PUBLISHED = {  # of models that differ in depth or pooling only, one
    "all-MiniLM-L6-v2": Published(384, 12, [MEAN, NORMALIZE], 256),
    "bge-small-en-v1.5": Published(384, 12, [CLS, NORMALIZE]),
    "paraphrase-multilingual-MiniLM-L12-v2": Published(384, 12, [MEAN], 128),
    "distiluse-base-multilingual-cased-v2": Published(768, 12, [MEAN, dense(512, "Tanh")], 128, "distilbert"),
    "mxbai-embed-large-v1": Published(1024, 16, [CLS], prompts={"query": QUERY, "passage": ""}),
    "snowflake-arctic-embed-m": Published(768, 12, [CLS, NORMALIZE], prompts={"query": QUERY}),
    "all-mpnet-base-v2": Published(768, 12, [MEAN, NORMALIZE], 384, "mpnet"),
    "multilingual-e5-base": Published(768, 12, [MEAN, NORMALIZE], family="xlm-roberta"),
    "gte-modernbert-base": Published(768, 12, [CLS], 8192, "modernbert", wide=1152),
}
POSITIONS = {"modernbert": 8192, "mpnet": 514, "xlm-roberta": 514}
BEYOND_LIMIT = make_sentences(30, seed=6)  # of 256 tokens; several blocks of the others


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model(name, tmp_path):
    model = PUBLISHED[name]
    positions = POSITIONS.get(model.family, 512)
    encoder = make_encoder(tmp_path / "encoder", model.family, max_position_embeddings=positions, **model.settings())
    calm(encoder, model.hidden)
    path = make_directory(tmp_path / "m", encoder, model.modules, length=model.length, prompts=model.prompts)
    long = " ".join(BEYOND_LIMIT[: 30 if model.length <= 256 else 8])
    texts = ["", "a", *make_sentences(6, seed=5), long]
    want = expected(path, texts)
    with fastflow.Runtime(path, backend="cpu", dtype="float32") as rt:
        assert apart(rt.encode(texts), want) <= UNIT
        for prompt_name, prompt in model.prompts.items():
            assert apart(rt.encode(texts[:4], prompt_name=prompt_name), expected(path, texts[:4], prompt)) <= UNIT
        if find_spec("sentence_transformers"):
            other = theirs(path)
            for call in ("encode", "encode_query", "encode_document"):
                assert apart(getattr(rt, call)(texts), getattr(other, call)(texts)) <= UNIT, call
    for dtype, least in {**COSINE, "int8": 0.99}.items():
        with fastflow.Runtime(path, backend="cpu", dtype=dtype) as rt:
            assert least_cosine(rt.encode(texts), want) >= least, dtype
