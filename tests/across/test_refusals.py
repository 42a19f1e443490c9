"""One law: what cannot be obeyed is refused in one sentence. A row: the arguments of the call, words of the sentence.

Commands, directories and requests have tables of their own, in tests/commands, tests/model and tests/serve.
"""

import json
import os
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.stages.calibration import Stage

from support import stages as make
from support.builders import make_model
from support.laws import check_refusal, every, refuse
from support.static_dirs import model2vec_dir

NAN, INF = float("nan"), float("inf")

# ---- the Runtime


class Columns:
    """As a table of pandas: iterating gives the names of its columns."""

    ndim = 2

    def __iter__(self):
        return iter(["name", "text"])


class NoValue:
    """As NA of pandas."""

    def __str__(self):
        return "<NA>"


UNORDERED = [{"a", "b"}, {"a": 1, "b": 2}, b"ab", 3.5, Columns(), np.array("a"), np.zeros((2, 32)), 7]
NO_COUNTS = [0, -1, "2", 2.0, True, [], NAN]
COUNT = "must be a whole number of at least 1, not"
SUBJECTS = {"texts": lambda at: at.model, "encoder": lambda at: at.bert, "vectors": lambda at: at.vector_model,
            "table": lambda at: model2vec_dir(at.tmp_path / "table")}  # fmt: skip
OPTIONS = [
    ({"precision": "int4"}, r"unknown precision 'int4'; known are float32, float16"),
    ({"precision": []}, "precision"), ({"prompt": 3}, "prompt must be a text, not 3"),
    *(({"truncate_dim": width}, f"must be 1 to 32, the width of this model, not {width}") for width in (33, -1)),
    ({"precision": "int8", "truncate_dim": 12, "ranges": np.zeros((2, 32))}, r"ranges must be \(2, 12\) numbers"),
    ({"ranges": np.ones((2, 3))}, "ranges"),
]  # fmt: skip
UNKNOWN = [
    ({"dtype": "fp32"}, "float32, bfloat16, int8"), ({"dtype": np.float32}, "auto, float32"),
    ({"device": "gpu"}, "auto, cpu, cuda"), ({"device": "cuda:x"}, "auto, cpu, cuda"), ({"device": None}, "auto"),
    ({"backend": "numpy"}, "auto, cpu, triton, torch, reference"), ({"backend": None}, "auto, cpu"),
]  # fmt: skip
RUNTIME = [
    *refuse(
        FastflowError, lambda at, array: Runtime(at.model).transform(array),
        (np.zeros((3, 31)), r"shape \(B, 32\); got float64 of shape \(3, 31\)"),
        (np.zeros(32), r"got float64 of shape \(32,\)"), (np.zeros((1, 3, 32)), r"of shape \(1, 3, 32\)"),
        (np.full((2, 32), "x"), r"of shape \(B, 32\), not texts"), (np.zeros((2, 32), complex), "got complex128"),
        ([[1.0, 2.0], [3.0]], "rows of one length"), ("the dog", r"not texts; texts go to encode\(\)"),
        *((np.where(np.arange(96).reshape(3, 32) == place, value, 0), f"row {place // 32} holds NaN or infinity")
          for value, place in ((NAN, 70), (-INF, 40), (1e300, 0))),
    ),
    *refuse(
        FastflowError, lambda at, a, b, name="similarity": getattr(Runtime(at.model), name)(a, b),
        (np.ones((2, 32)), np.ones((3, 16)), "vectors of one width, not 32 and 16"),
        (np.ones((2, 2, 32)), np.ones(32), r"shape \(B, D\); got float64 of \(2, 2, 32\)"),
        ([[1.0], [1.0, 2.0]], [1.0], "vectors of one width"),
        *every([["a", 3], None], ["b"], said="takes texts, or numbers"),
        (np.full((2, 32), NAN), "b", "row 0 holds NaN or infinity"),
        (np.ones((9, 32)), np.ones((8, 32)), "similarity_pairwise", "as many rows on both sides, not 9 and 8"),
    ),
    *refuse(
        UsageError, lambda at, name, *given: getattr(Runtime(at.model), name)(*given),
        *every(["encode", "stream", "pool"], UNORDERED, said="texts come as a list or another iterable of str in a"),
        *every(["stream", "pool"], ["abc"], said="not as str"),
        ("encode", "takes the texts once"),
        *every(["encode", "pool"], [["a"]], NO_COUNTS, said=f"batch_size {COUNT}"),
    ),
    *refuse(UsageError, lambda at: Runtime(at.model).encode("a", sentences="b"), ("takes the texts once",)),
    *refuse(
        FastflowError, lambda at, value: Runtime(at.model).encode(["a", value]),
        *every([7, ["a"], b"bytes"], said=r"text 1 is .*, not str"),
        *every([None, NAN, np.datetime64("NaT"), NoValue()], said=r"text 1 is \S+ \(a missing value\): fill or drop"),
    ),
    *refuse(
        UsageError, lambda at, name, texts, options: getattr(Runtime(at.model), name)(texts, **options),
        *((name, texts, *row) for name, texts, row in product(["encode", "stream"], [[], ["a"], iter(())], OPTIONS)),
        *(("stream", ["a"], {name: value}, f"{name} {COUNT}")
          for name, value in product(["batch_size", "batch_tokens", "window"], NO_COUNTS)),
        *(("encode", ["a"], {"truncate_dim": value}, "truncate_dim must be 1 to 32")
          for value in NO_COUNTS if value is not True),
    ),
    *refuse(
        UsageError, lambda at, subject, options: Runtime(SUBJECTS[subject](at), **options),
        *(("texts", more | option, f"unknown {next(iter(option))} .*; known are .*{known}")
          for option, known in UNKNOWN for more in ({}, {"backend": "reference"})),
        *(("texts", {"threads": value, "backend": name}, f"threads {COUNT}")
          for value, name in product(NO_COUNTS, ["cpu", "reference", "torch"])),
        ("texts", {"dtype": "bfloat16", "backend": "reference"}, "usable are float32, float64"),
        *(("texts", {"backend": "reference", "device": device}, "runs on the CPU") for device in ("cuda", "cuda:1")),
        ("texts", {"backend": "triton", "device": "cpu"}, "the triton backend runs on a CUDA device"),
        ("vectors", {"backend": "triton"}, "'triton' runs an encoder, and .* has none; usable are cpu, torch, ref"),
        ("vectors", {"backend": "gpu"}, "unknown backend 'gpu'"),
        ("vectors", {"device": "tpu"}, "unknown device 'tpu'"),
        ("vectors", {"dtype": "int8"}, "'int8' does not run on the cpu backend without an encoder; .* are float32$"),
        ("vectors", {"dtype": "bfloat16", "backend": "torch"}, "without an encoder; usable are float32, float64$"),
        ("vectors", {"dtype": "float64", "backend": "cpu"}, "dtype 'float64' does not run on the cpu backend"),
        ("vectors", {"device": "cuda", "backend": "cpu"}, "the cpu backend runs on the CPU"),
        ("vectors", {"threads": 0}, "threads must be a whole number of at least 1"),
        ("table", {"backend": "triton"}, "'triton' runs a transformer, .* usable are cpu, torch, reference"),
        ("table", {"dtype": "int8"}, "dtype 'int8' does not run on the cpu backend on a token table"),
    ),
    *refuse(
        UsageError, lambda at: Runtime(at.bert).encode(["a"], precision="int8"),
        ("precision 'int8' needs the range of each dimension, and this model stores",),
    ),
    *refuse(
        UsageError, lambda at, value: at("stages.vectors").check_count("threads", value),
        *every([0, -1, 1.5, 2.0, True, "2"], said="threads must be a whole number of at least 1"),
    ),
    *refuse(
        UsageError, lambda at, value: at("stages.vectors").check_truncation(value, 10),
        *every([0, -1, 1.5, 2.0, True, "2", 11], said="truncate_dim must be 1 to 10"),
    ),
    *refuse(
        FastflowError, lambda at, size, name: at("stages.vectors").quantise(size * np.ones((6, 10)), name, False, None),
        (1, "int8", r"this model stores none .* the option ranges, .* \(2, 10\), as quantize_embeddings"),
        (1, "int4", "unknown precision 'int4'; known are float32"),
        (1e6, "float16", "'float16' ends at 65504"),
    ),
]  # fmt: skip

# ---- files and fields


def read_written(at, content):
    (at.tmp_path / "a.json").write_bytes(content)
    at("values").read_object(at.tmp_path / "a.json")


def read_strange(at, name, read):
    os.mkfifo(at.tmp_path / "pipe")
    getattr(at("values"), read)(at.tmp_path / name)


STRANGE = [("pipe", "it is not a file"), ("absent", "No such file"), (".", "it is not a file")]
FROM_0_TO_1 = "field x: must be a number from 0 to 1, not"
FILES = [
    *refuse(
        FastflowError, read_written,
        *every([b"[1]", b"null"], said="a.json cannot be read: it does not hold a JSON object"),
        *every([b"{", b'{"a": "\xff"}', b""], said="a.json is not JSON: "),
        (b"[" * 200_000, "its JSON is nested too deep"),
    ),
    *refuse(
        FastflowError, read_strange,
        *((name, read, f"cannot be read: {said}") for name, said in STRANGE for read in ("read_object", "read_json")),
    ),
    *refuse(OSError, read_strange, *((name, "open_regular", said) for name, said in STRANGE)),
    *refuse(
        FastflowError, lambda at, name, *given: getattr(at("values"), name)(*given[:2], Path("folder"), *given[2:]),
        ("whole_number", {}, "n", r"folder/config\.json, field n: missing$"),
        *(("whole_number", {"n": value}, "n", f"field n: missing or not a whole number: {value}")
          for value in (4.0, True)),
        ("whole_number", {"n": 2}, "n", 3, "config.json, field n: must be at least 3, not 2"),
        ("whole_number", {"n": 2}, "n", 0, 1, "config.json, field n: must be at most 1, not 2"),
        *(("number", value, "x", 0, 1, f"config.json, {FROM_0_TO_1} {value}") for value in (NAN, True, 1.5)),
        ("flag", {"on": 1}, "on", "config.json, field on: must be true or false, not 1"),
    ),
    *refuse(
        UsageError, lambda at, *given: at("model").Prompts({"query": "q: ", "title": ""}, "title").resolve(*given),
        *every([None], ["no", 7, ""], said=r"no prompt is called .*: known are query, title"),
        ("x", "query", "give prompt or prompt_name, not both"),
    ),
    *refuse(
        UsageError, lambda at, name: at("model").Prompts().resolve(None, name),
        *every(["no", 7, ""], said="the model has none"),
    ),
]  # fmt: skip

# ---- stages, models and the bench

SHIFT, SCALE = "levels.0.1.actnorm.shift", "levels.0.1.actnorm.logscale"


def fold_flow(at, name, value):
    flow = make.flow(np.random.default_rng(0), 16, 2, 2, 8, "additive")
    at("plan").fold([Stage("flow", flow.settings, flow.params | {name: value})], 16)


def find_density(at, *kinds):
    rng = np.random.default_rng(0)
    at("stages.calibration").density_of([kind(rng) for kind in kinds], "m")


def flow_of(dim):
    return lambda rng: make.flow(rng, dim)


def whiten_to(dim):
    return lambda rng: make.whiten(rng, 16, dim)


def write_header(at, header):
    text = json.dumps(header).encode()
    (at.tmp_path / "t.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(32))
    at("model.tensors").MappedTensors(at.tmp_path / "t.safetensors")


def fit_pooler(at, family):
    make_model(at.tmp_path / "model", at.encoders(family), at.sentences[:64], "none", pooling="pooler")


LAYER_NAMES = [
    "mean", "", "First-Last", "mean-of-layers:", "mean-of-layers:1,,2", "mean-of-layers:13", "mean-of-layers:-1",
    "avg-last-last-14", "avg-last-0", "mean-of-layers:word", "mean-of-layers:words,13", "mean-of-layers:0*1,2",
    "mean-of-layers:2*1,1", "mean-of-layers:1000*1,2", "mean-of-layers:*1,2", "mean-of-layers:0.5*1,2",
    "mean-of-layers:2*13,1", "3*words", "words-last", "avg-last-last-0", "avg-last-13",
]  # fmt: skip
ADDRESSES = ["", "head", "127.0.0.1", ":6379", "head:", "-o", "--out:1", "http://head:8265"]
MINILM = {"suites": ["encoder"], "shape": "minilm-l6"}
MODELS = [
    *refuse(
        FastflowError, fold_flow,
        (SHIFT, np.full(16, NAN), r"stage 0 \(flow\).*NaN"),
        (SHIFT, np.zeros(15), r"stage 0 \(flow\).*shape"),
        (SCALE, np.full(16, 300.0), r"stage 0 \(flow\).*fit it again"),
        (SCALE, np.full(16, 40.0), "float32 cannot hold.*array"),
    ),
    *refuse(
        UsageError, find_density,
        ("log_prob needs a flow, and the calibration of m is none: fit one with the method flow",),
        (whiten_to(16), r"log_prob needs a flow, and the calibration of m is whiten\(16\)"),
        (whiten_to(8), flow_of(8), r"whiten\(8\) of m leaves some out: fit a model"),
        (lambda rng: make.nullspace(rng, 16), flow_of(16), r"nullspace\(3\) of m leaves some out"),
        (lambda _: Stage("whiten", {}, {"mean": np.zeros(16), "matrix": np.ones((16, 16))}), flow_of(16),
         r"whiten\(16\) of m leaves some out"),
    ),
    *refuse(
        UsageError, lambda at, *given: at("stages.pooling").parse_pooling(*given),
        *every(LAYER_NAMES, [12], said="pooling"),
        ("avg-last-4", 3, "pooling"),
    ),
    *refuse(FastflowError, fit_pooler, *every(["distilbert", "electra"], said="needs a pooler, and this encoder has")),
    *refuse(
        FastflowError, write_header,
        ({"x": {"dtype": "BOOL", "shape": [32], "data_offsets": [0, 32]}}, "x has dtype BOOL, which is not supported"),
    ),
    *refuse(
        FastflowError, lambda at, name: at("model.tensors").MappedTensors(at.tmp_path / name),
        *every(["", "absent"], said="is damaged or not safetensors|cannot be read"),
    ),
    *refuse(
        FastflowError, lambda at, sign, count: at("model.tokenizer").Tokens(
            sign * np.array([2, 0, 5, 1], np.int32), np.array([0, 4]), np.empty(0, np.int64)).check(count),
        (1, 5, "token id 5;"),
        (-1, 6, "token id -"),
    ),
    *refuse(
        UsageError, lambda at, name: at("model.sharing").pull(name, at.tmp_path / "out"),
        *every(["model", "a/b/c", "../model", "", "@main"], said="takes the id of a repository, such as ORG"),
        ("someone/model@", "someone/model@ names no revision after @"),
    ),
    *refuse(
        FastflowError, lambda at, subject: at("evaluation.agreement").compare_with_st(SUBJECTS[subject](at)),
        ("encoder", r"was not saved by Sentence Transformers: it has no modules\.json"),
        ("table", "was not saved by Sentence Transformers: it is a table of model2vec"),
    ),
    *refuse(
        FastflowError, lambda at, code: at("bench.suites.starts").start("peer int8", [sys.executable, "-c", code]),
        ("raise ValueError('no such file')", "peer int8 failed: ValueError: no such file"),
    ),
    *refuse(
        UsageError, lambda at, address: at("integrations.ray").check_address(address),
        *every(ADDRESSES, said="^--ray .*: "),
    ),
    *refuse(
        UsageError, lambda at, model, options: at("bench.cli").run(model, **options),
        (None, {"suites": ["flow", "speed"]}, "no bench suite 'speed'; suites: flow, encoder, end-to-end, startup"),
        (None, {"against": ["keras"], "device": "cpu"}, "unknown peer 'keras'.*torch-lean-eager"),
        (None, {"json_path": Path("absent", "bench.json")}, "its folder does not exist"),
        (None, {"device": "tpu"}, "unknown device"),
        (None, MINILM | {"shape": "tiny"}, "no shape 'tiny'; shapes: minilm-l6, minilm-l12, bert-base"),
        ("m", MINILM, "give a model or a shape, not both"),
        (None, MINILM | {"suites": ["flow", "encoder", "startup"]},
         "a shape is for the suites encoder, end-to-end, serve, rerank, not for flow, startup"),
    ),
]  # fmt: skip


@pytest.mark.each
@pytest.mark.parametrize(("error", "call", "given", "said"), [*RUNTIME, *FILES, *MODELS])
def test_it_is_refused_in_one_sentence(request, error, call, given, said):
    check_refusal(request, error, call, given, said)
