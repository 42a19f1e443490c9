"""Graphs of ONNX, run by ONNX Runtime: the vectors are those of the model."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import fastflow
from fastflow import FastflowError, UsageError
from fastflow.cli import main
from fastflow.evaluation.with_onnx import run
from fastflow.exports import export as exports
from fastflow.exports.export import export
from fastflow.model.locate import DEFAULT

from support.exports import MODELS, TEXTS, apart
from support.sentence_dirs import PROMPTED, dense, least_cosine, make_directory, pooling

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into"),
]
CLOSE = 5e-6
ACTIVATIONS = (
    *("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "ELU"),
    *("LeakyReLU", "Softplus", "Softsign", "ReLU6", "Hardtanh", "Mish"),
)


@pytest.mark.parametrize("kind", MODELS)
def test_the_same_vectors(kind, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    made = export(model, "onnx", tmp_path / "onnx")
    graph = onnx.load(tmp_path / "onnx" / "model.onnx")
    onnx.checker.check_model(graph, full_check=True)
    assert [each.name for each in graph.graph.output] == ["sentence_embedding"]
    found = run(tmp_path / "onnx", TEXTS)
    assert (found.shape, found.dtype) == ((len(TEXTS), made.dim), np.float32)
    assert apart(model, found, prompt="") <= CLOSE


@pytest.mark.parametrize("kind", MODELS)
def test_int8_is_near(kind, tmp_path, encoders, sentences):
    """Random encoders lose more than trained ones."""
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    whole, made = (export(model, "onnx", tmp_path / dtype, dtype=dtype) for dtype in ("float32", "int8"))
    a, b = (run(tmp_path / dtype, TEXTS) for dtype in ("float32", "int8"))
    some = a.any(axis=1)
    assert not b[~some].any()
    assert least_cosine(b[some], a[some]) >= 0.9
    assert made.size < whole.size


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation, tmp_path, bert):
    model = make_directory(tmp_path / "model", bert, [pooling("mean"), dense(24, activation)])
    export(model, "onnx", tmp_path / "onnx")
    assert apart(model, run(tmp_path / "onnx", TEXTS)) <= CLOSE


@pytest.mark.parametrize("kind", ["flow", "whiten-narrow", "table-unit"])
@pytest.mark.parametrize(("dim", "normalize"), [(None, True), (5, False), (5, True)])
def test_fewer_numbers_and_length_one(kind, dim, normalize, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    export(model, "onnx", tmp_path / "onnx", dim=dim, normalize=normalize)
    found = run(tmp_path / "onnx", TEXTS)
    assert apart(model, found, normalize_embeddings=normalize, truncate_dim=dim) <= CLOSE


@pytest.mark.parametrize(("dtype", "close", "least"), [("float32", CLOSE, 1), ("int8", np.inf, 0.998)])
@pytest.mark.parametrize("name", ["default", "static"])
def test_the_models_in_the_package(name, dtype, close, least, tmp_path):
    export(name, "onnx", tmp_path / "onnx", dtype=dtype)
    found, want = run(tmp_path / "onnx", TEXTS), fastflow.Runtime(name).encode(TEXTS)
    assert apart(name, found) <= close
    some = want.any(axis=1)
    assert least_cosine(found[some], want[some]) >= least - 1e-6


def test_a_text_has_one_vector_in_any_company(tmp_path, encoders, sentences):
    model = MODELS["raw-mpnet"](tmp_path / "model", encoders, sentences)
    export(model, "onnx", tmp_path / "onnx")
    alone = np.concatenate([run(tmp_path / "onnx", [text]) for text in TEXTS])
    assert np.abs(alone - run(tmp_path / "onnx", TEXTS)).max() <= CLOSE


def test_no_text_at_all_has_tokens(tmp_path, encoders, sentences):
    model = MODELS["table"](tmp_path / "model", encoders, sentences)
    export(model, "onnx", tmp_path / "onnx")
    assert not run(tmp_path / "onnx", ["", " "]).any()


def test_a_large_graph_keeps_its_weights_in_a_file_of_their_own(tmp_path, model, monkeypatch):
    monkeypatch.setattr("fastflow.exports.onnx_graph.LARGEST_FILE", 1000)
    export(model, "onnx", tmp_path / "onnx")
    assert (tmp_path / "onnx" / "model.onnx_data").stat().st_size > (tmp_path / "onnx" / "model.onnx").stat().st_size
    assert apart(model, run(tmp_path / "onnx", TEXTS)) <= CLOSE


def test_prompts_that_are_not_pooled_are_refused(tmp_path, bert):
    model = make_directory(tmp_path / "model", bert, [pooling("mean", include_prompt=False)], **PROMPTED)
    with pytest.raises(UsageError, match="leaves its prompts out of the pooling"):
        export(model, "onnx", tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_an_encoder_that_only_pytorch_runs_is_named(tmp_path):
    from support.builders import make_encoder

    encoder = make_encoder(tmp_path / "albert", "albert")
    with pytest.raises(FastflowError, match="architecture 'albert' is not supported"):
        export(encoder, "onnx", tmp_path / "onnx")


def test_it_is_not_installed(tmp_path, model, monkeypatch):
    monkeypatch.setattr(exports, "find_spec", lambda name: None)
    with pytest.raises(FastflowError, match=r"an export to onnx needs onnx, .* run pip install \S*onnx"):
        export(model, "onnx", tmp_path / "onnx")
    with pytest.raises(UsageError, match=r"dtype 'int8' is not one of the format st: float32$"):
        export(model, "st", tmp_path / "st", dtype="int8")


def test_verify(tmp_path, encoders, sentences, model):
    def verify(*arguments):
        return CliRunner().invoke(main, ["verify", *map(str, arguments), "--with", "onnx"])

    given = MODELS["modules"](tmp_path / "model", encoders, sentences)
    export(given, "onnx", tmp_path / "onnx", normalize=True)
    done = verify(given, tmp_path / "onnx", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)["onnx"]
    assert found["texts"] == 50
    assert found["difference"] <= 2e-6
    assert "was exported from another model" in verify(model, tmp_path / "onnx").stderr
    assert "give that directory after the model" in verify(given).stderr
    export(given, "onnx", tmp_path / "int8", dtype="int8")
    coded = verify(given, tmp_path / "int8")
    assert coded.exit_code == 0
    assert "50 texts in int8: largest difference to ONNX Runtime" in coded.stdout
    (tmp_path / "int8" / "model.onnx").replace(tmp_path / "onnx" / "model.onnx")
    other = verify(given, tmp_path / "onnx")
    assert other.exit_code == 1
    assert "fastflow and ONNX Runtime give different vectors" in other.stderr
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"x")
    assert "onnx: ONNX Runtime cannot run it: " in verify(given, tmp_path / "onnx").stderr


@pytest.mark.doors
@pytest.mark.parametrize("kind", ["default", "weights-words", "raw-roberta", "table-flow"])
def test_fastembed(kind, tmp_path, encoders, sentences):
    """As a user adds it: no pooling and no norm after the graph."""
    fastembed = pytest.importorskip("fastembed")
    from fastembed.common.model_description import ModelSource, PoolingType

    model = None if kind == "default" else MODELS[kind](tmp_path / "model", encoders, sentences)
    made = export(model, "onnx", tmp_path / "onnx")
    fastembed.TextEmbedding.add_custom_model(
        model=f"mine/{kind}", pooling=PoolingType.DISABLED, normalization=False, sources=ModelSource(hf="mine/none"),
        dim=made.dim, model_file="model.onnx",
    )  # fmt: skip
    theirs = fastembed.TextEmbedding(f"mine/{kind}", specific_model_path=made.path)
    found = np.array(list(theirs.embed(TEXTS)))
    assert apart(model or DEFAULT, found) <= CLOSE
