"""Static encoders: vectors of model2vec's own, of Sentence Transformers' own, and what is not obeyed is refused."""

import json
import pickle
import shutil

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.model import hashing
from fastflow.model.static.write import write_static

from support.builders import wordpiece
from support.sentence_dirs import theirs
from support.static_dirs import TEXTS, TOKENIZERS, model2vec_dir, numbers, static_embedding_dir

pytestmark = pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into")
EQUAL = 1e-6  # largest difference, relative to the largest number of a vector above 1
F16, F32, F64, I8 = np.float16, np.float32, np.float64, np.int8
SHAPES = {
    "plain": {},
    "unit": {"normalize": True},
    "weights": {"weights": F32},
    "exact-weights": {"weights": F64, "normalize": True},
    "mapping": {"clusters": 20, "weights": F32, "normalize": True},
    "mapping-alone": {"clusters": 20},
    **{f"mapping-{dtype}": {"clusters": 20, "mapping": np.dtype(dtype)} for dtype in "bBhHiIqQ"},
    "half": {"dtype": F16, "normalize": True},
    "half-weights": {"dtype": F16, "weights": F64},
    "bytes": {"dtype": I8},
    "bytes-weights": {"dtype": I8, "weights": F32, "normalize": True},
    "wide": {"dtype": F64, "weights": F64},
    "one": {"width": 1},
    "exact": {"weights": F64},
    "wide-mapping": {"dtype": F64, "clusters": 20},
    "narrow": {"width": 7, "normalize": True},
    "256": {"width": 256},
    "short": {"max_length": 8, "normalize": True},
    "unlimited": {"max_length": None},
}


def near(found, want):
    assert found.dtype == np.float32
    assert found.shape == want.shape
    assert np.abs(found - want).max() <= EQUAL * max(1, np.abs(want).max())


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_of_model2vec(tmp_path, shape, kind):
    model2vec = pytest.importorskip("model2vec")
    path = model2vec_dir(tmp_path / "m", TOKENIZERS[kind](), **SHAPES[shape])
    library = model2vec.StaticModel.from_pretrained(path)
    half = library.embedding.dtype == F16
    library.embedding = library.embedding.astype(F32) if half else library.embedding  # it rounds results to float16
    want = library.encode(TEXTS).astype(F32)
    near(Runtime(path).encode(TEXTS), want)
    assert not want[TEXTS.index("")].any()


LONG = ["plain", "one", "wide", "wide-mapping", "exact", "bytes", "bytes-weights"]
LONG_TEXT = "the dog " * 60_000 + "the " * 120_000


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "reference", "torch"])
@pytest.mark.parametrize("shape", LONG)
def test_a_long_text_has_the_vectors_of_model2vec(tmp_path, shape, backend):
    """One word again and again, so that no rounding of a sum makes up for another."""
    model2vec = pytest.importorskip("model2vec")
    path = model2vec_dir(tmp_path / "m", **{"width": 3, "max_length": None, **SHAPES[shape]})
    want = model2vec.StaticModel.from_pretrained(path).encode([LONG_TEXT])
    near(Runtime(path, backend=backend).encode([LONG_TEXT]), want)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["plain", "wide", "exact"])
def test_a_long_text_has_the_vectors_of_sentence_transformers(tmp_path, shape):
    pytest.importorskip("sentence_transformers")
    path = static_embedding_dir(tmp_path / "m", width=3)
    own = model2vec_dir(tmp_path / "own", width=3, **SHAPES[shape])
    shutil.copy(own / "model.safetensors", path / "0_StaticEmbedding" / "model.safetensors")
    near(Runtime(path).encode([LONG_TEXT]), theirs(path).encode([LONG_TEXT]).astype(F32))


def test_rounded_vectors_of_model2vec(tmp_path):
    """With a table of float16 the library rounds the mean, and the unit vector of that, to float16."""
    model2vec = pytest.importorskip("model2vec")
    path = model2vec_dir(tmp_path / "m", dtype=F16)
    want = model2vec.StaticModel.from_pretrained(path).encode(TEXTS[:24])
    assert want.dtype == F16
    assert (Runtime(path).encode(TEXTS[:24]).astype(F16) == want).mean() > 0.999


BAGS = {
    "alone": ([], {}),
    "unit": ([("Normalize", {})], {"new": True}),
    "root": ([("Normalize", {})], {"folder": ""}),
    "dense": ([("Dense", {"out_features": 12, "activation_function": "torch.nn.modules.activation.Tanh"})], {}),
    "half": ([("Normalize", {})], {"dtype": F16}),
    "prompts": ([], {"prompts": {"query": "the dog "}, "default_prompt_name": "query"}),
    "cut": ([("Normalize", {})], {"truncate_dim": 9}),
    "short": ([], {"limit": 5}),  # as tokenizer.json says
    "tables": ([], {"own": True}),  # model2vec's tensors, which the library folds into one table
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("shape", BAGS)
def test_vectors_of_sentence_transformers(tmp_path, shape, kind):
    pytest.importorskip("sentence_transformers")
    after, settings = BAGS[shape]
    path = make_bag(tmp_path, TOKENIZERS[kind](), after, **settings)
    near(Runtime(path).encode(TEXTS), theirs(path).float().encode(TEXTS))
    assert shape != "short" or Runtime(path).info()["max_length"] == 5


def make_bag(place, tokenizer, after, limit=None, own=False, **settings):
    if limit is not None:
        tokenizer.enable_truncation(limit)
    path = static_embedding_dir(place / "m", after, tokenizer=tokenizer, **settings)
    if own:
        table = model2vec_dir(place / "own", tokenizer, clusters=9, weights=F32)
        shutil.copy(table / "model.safetensors", path / "0_StaticEmbedding" / "model.safetensors")
    return path


def test_model2vec_without_a_model_type(tmp_path):
    """As its library saves a model made from arrays: next to a modules.json, and by its own rules."""
    model2vec = pytest.importorskip("model2vec")
    tokenizer = wordpiece()
    made = model2vec.StaticModel(numbers((tokenizer.get_vocab_size(), 9)), tokenizer, normalize=True, max_length=6)
    made.save_pretrained(tmp_path / "m")
    assert "model_type" not in json.loads((tmp_path / "m" / "config.json").read_text())
    near(Runtime(tmp_path / "m").encode(TEXTS), made.encode(TEXTS))


def test_sentence_transformers_keeps_unknown_tokens_and_texts_whole(tmp_path):
    """And model2vec neither: the two libraries make different vectors of one table."""
    bag, own = static_embedding_dir(tmp_path / "bag"), model2vec_dir(tmp_path / "own", max_length=4)
    texts = ["\u2603 the dog", "the dog sees the bird near the river"]
    one, other = (Runtime(path) for path in (bag, own))
    assert one.tokenizer(texts).offsets.tolist() == [0, 3, 11]
    assert other.tokenizer(texts).offsets.tolist() == [0, 2, 5]  # of 4 tokens times 3 characters: "the dog sees"
    assert np.abs(one.encode(texts) - other.encode(texts)).max(axis=1).min() > 0.01


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_written_directories_open_everywhere(tmp_path, dtype, weighted, normalize):
    model2vec = pytest.importorskip("model2vec")
    tokenizer = wordpiece()
    table = numbers((tokenizer.get_vocab_size(), 48), 7)
    weights = np.abs(numbers((len(table),), 8)) if weighted else None
    write_static(tmp_path / "m", tokenizer, table, weights, normalize, dtype, name="someone/teacher")
    library = model2vec.StaticModel.from_pretrained(tmp_path / "m")
    library.embedding = library.embedding.astype(F32) if dtype == "float16" else library.embedding
    found = Runtime(tmp_path / "m").encode(TEXTS)
    near(found, library.encode(TEXTS))
    write_static(tmp_path / "exact", tokenizer, table, weights, normalize)
    exact = Runtime(tmp_path / "exact").encode(TEXTS)
    rounded = {"float32": 0, "float16": 1e-3, "int8": 2e-2}[dtype]
    assert np.abs(found - exact).max() <= rounded * max(1, np.abs(exact).max())


def test_the_writer_keeps_the_tokenizer_and_refuses_what_exists(tmp_path):
    tokenizer = wordpiece()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    table = numbers((tokenizer.get_vocab_size(), 8))
    write_static(tmp_path / "m", tokenizer, table)
    assert tokenizer.truncation["max_length"] == 3
    saved = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    assert saved["truncation"] is saved["padding"] is None
    with pytest.raises(FastflowError, match="exists already"):
        write_static(tmp_path / "m", tokenizer, table)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


@pytest.mark.parametrize(
    ("table", "weights", "dtype", "sentence"),
    [
        (numbers((3, 8)), None, "float32", "a row for each of the tokenizer's"),
        (None, numbers((3,)), "float32", "the weights must be of shape"),
        (None, None, "bfloat16", "saved as float32, float16, int8, not as bfloat16"),
        (1e5, None, "float16", "the table must be finite, and within what float16 holds"),
        (np.nan, None, "int8", "the table must be finite"),
    ],
)
def test_the_writer_refuses_what_does_not_fit(tmp_path, table, weights, dtype, sentence):
    tokenizer = wordpiece()
    if not isinstance(table, np.ndarray):
        table = np.full((tokenizer.get_vocab_size(), 8), table or 1, np.float32)
    with pytest.raises(UsageError, match=sentence):
        write_static(tmp_path / "m", tokenizer, table, weights, dtype=dtype)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("kind", ["model2vec", "StaticEmbedding"])
def test_the_fingerprint_is_computed_when_asked_for(tmp_path, monkeypatch, kind):
    path = model2vec_dir(tmp_path / "m") if kind == "model2vec" else static_embedding_dir(tmp_path / "m")
    asked, combine_hashes = [], hashing.combine_hashes
    monkeypatch.setattr(
        hashing, "combine_hashes", lambda files, **root: asked.append(files) or combine_hashes(files, **root)
    )
    runtime = Runtime(path)
    runtime.encode("the dog")
    assert asked == []
    assert runtime.fingerprint == runtime.fingerprint
    assert len(asked) == 1
    assert {"model.safetensors", "tokenizer.json"} <= {file.name for file in asked[0]}
    assert pickle.loads(pickle.dumps(runtime)).fingerprint == runtime.fingerprint


def test_every_file_is_in_the_fingerprint(tmp_path):
    seen = set()
    for i, changes in enumerate([{}, {"normalize": True}, {"max_length": 9}, {"weights": F32}, {"width": 38}]):
        seen.add(Runtime(model2vec_dir(tmp_path / f"{i}", **changes)).fingerprint)
    for i, (after, settings) in enumerate([*BAGS.values()]):
        seen.add(Runtime(make_bag(tmp_path / f"bag{i}", wordpiece(), after, **settings)).fingerprint)
    assert len(seen) == 5 + len(BAGS)


def test_opening_reads_no_rows(tmp_path, run_python):
    """Of a table of 400 MB, which lies in no page: a sparse file."""
    path = static_embedding_dir(tmp_path / "m", width=256)
    rows, file = 400_000, path / "0_StaticEmbedding" / "model.safetensors"
    head = json.dumps(
        {"embedding.weight": {"dtype": "F32", "shape": [rows, 256], "data_offsets": [0, rows * 1024]}}
    ).encode()
    head += b" " * (-len(head) % 8)
    with file.open("wb") as handle:
        handle.write(len(head).to_bytes(8, "little") + head)
        handle.truncate(8 + len(head) + rows * 1024)
    code = """
import json, re, sys, fastflow
def resident():
    return {k: int(v) for k, v in re.findall(r"(RssFile|RssAnon):\\s+(\\d+)", open("/proc/self/status").read())}
fastflow.Runtime(sys.argv[1]).encode("the dog")
before = resident()
fastflow.Runtime(sys.argv[2]).encode("the dog")
after = resident()
print(json.dumps({k: after[k] - before[k] for k in after}))
"""
    done = run_python(code, static_embedding_dir(tmp_path / "small"), path)
    assert (done.returncode, done.stderr) == (0, "")
    grown = json.loads(done.stdout)
    assert grown["RssFile"] < 2048  # kB
    assert grown["RssAnon"] < 4096
