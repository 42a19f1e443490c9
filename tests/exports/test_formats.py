"""The formats, opened by their libraries: the vectors are the model's."""

import json
from pathlib import Path

import numpy as np
import pytest

from fastflow import FastflowError, Runtime
from fastflow.evaluation.agreement import run
from fastflow.exports import sentence_transformers
from fastflow.exports.export import export
from fastflow.model.locate import DEFAULT

from support.builders import make_encoder, make_model
from support.exports import MODELS, REFUSED, TEXTS, apart
from support.sentence_dirs import PROMPTED, dense, least_cosine, make_directory, pooling
from support.static_dirs import TEXTS as STATIC_TEXTS
from support.static_dirs import model2vec_dir

pytestmark = pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into", "ignore:.*prompt")


def open_st(path):
    """Open it as a user does: no trust flag, no dtype."""
    sentence_transformers = pytest.importorskip("sentence_transformers", exc_type=ImportError)
    return sentence_transformers.SentenceTransformer(str(path), device="cpu", local_files_only=True)


def run_st(path, texts=TEXTS):
    return open_st(path).encode(texts, show_progress_bar=False)


def run_onnx(path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    graph = onnx.load(f"{path}/model.onnx")
    onnx.checker.check_model(graph, full_check=True)
    assert [each.name for each in graph.graph.output] == ["sentence_embedding"]
    return run(Path(path), TEXTS)


def run_model2vec(path):
    library = pytest.importorskip("model2vec").StaticModel.from_pretrained(path)
    if library.embedding.dtype == np.float16:  # it rounds results to float16
        library.embedding = library.embedding.astype(np.float32)
    return np.asarray(library.encode(TEXTS), np.float32)


TABLES = ("table", "table-unit", "table-half", "table-int8", "table-clusters", "table-short", "table-endless")
RUN = {"st": run_st, "onnx": run_onnx, "model2vec": run_model2vec}
CLOSE = {"st": 5e-6, "onnx": 5e-6, "model2vec": 2e-6}
OPTIONS = {"st": {}, "onnx": {"prompt": ""}, "model2vec": {}}  # a graph adds no prompt


def each(**kinds):
    """Parametrize by (format, kind of model); formats with PyTorch or a graph are slow."""
    rows = [(to, kind) for to, names in kinds.items() for kind in names]
    slow = {"model2vec": ()}
    return pytest.mark.parametrize(
        ("to", "kind"), [pytest.param(*row, marks=slow.get(row[0], pytest.mark.slow)) for row in rows]
    )


@each(st=[name for name in MODELS if name not in REFUSED], onnx=MODELS, model2vec=TABLES)
def test_the_same_vectors(to, kind, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    made = export(model, to, tmp_path / to)
    found = RUN[to](made.path)
    assert (found.shape, found.dtype) == ((len(TEXTS), made.dim), np.float32)
    assert apart(model, found, **OPTIONS[to]) <= CLOSE[to]


@each(st=["flow", "whiten-narrow", "table-unit", "modules"], onnx=["flow", "whiten-narrow", "table-unit"],
      model2vec=["table"])  # fmt: skip
@pytest.mark.parametrize(("dim", "normalize"), [(None, True), (5, False), (5, True)])
def test_fewer_numbers_and_length_one(to, kind, dim, normalize, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    made = export(model, to, tmp_path / to, dim=dim, normalize=normalize)
    assert apart(model, RUN[to](made.path), truncate_dim=dim, normalize_embeddings=normalize) <= CLOSE[to]


@pytest.mark.slow
@each(st=["default", "static"], onnx=["default", "static"], model2vec=["static"])
def test_the_models_in_the_package(to, kind, tmp_path):
    made = export(kind, to, tmp_path / to)
    assert (made.dim, made.format) == (256, to)
    assert to != "model2vec" or made.size < 10e6
    assert apart(kind, RUN[to](made.path)) <= CLOSE[to]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "kind", "reason"),
    [
        *(("st", kind, reason) for kind, reason in REFUSED.items()),
        ("model2vec", "raw-bert", "it is no table of token vectors; fastflow distill makes one of it"),
        ("model2vec", "flow", "it is no table of token vectors"),
        ("model2vec", "table-flow", r"its calibration, flow\(.*, comes after the mean"),
        ("model2vec", "table-weighted", "its token weights divide by their sum"),
        ("model2vec", "static-embedding", "its mean counts unknown tokens"),
        ("onnx", "prompts", "leaves its prompts out of the pooling"),
        ("onnx", "albert", "architecture 'albert' is not supported"),
    ],
)
def test_a_part_that_the_format_lacks_is_named(to, kind, reason, tmp_path, encoders, sentences):
    def make_weighted(path, encoders, texts):
        source = model2vec_dir(tmp_path / "table", width=32)
        return make_model(path, source, texts, "none", pooling="words", max_length=64, weighted=True)

    makers = MODELS | {
        "table-weighted": make_weighted,
        "prompts": lambda path, encoders, _: make_directory(
            path, encoders("bert"), [pooling("mean", include_prompt=False)], **PROMPTED
        ),
        "albert": lambda path, *_: make_encoder(path, "albert"),
    }
    model = makers[kind](tmp_path / "model", encoders, sentences)
    with pytest.raises(FastflowError, match=reason):
        export(model, to, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


# ---- Sentence Transformers


@pytest.mark.slow
@pytest.mark.parametrize("limit", [8, None])
def test_a_table_of_any_mean_is_a_static_embedding(limit, tmp_path):
    """Unknown tokens count for the limit, and not in the mean; a text may have no others."""
    model = model2vec_dir(tmp_path / "model", max_length=limit)
    made = export(model, "st", tmp_path / "st")
    found, want = run_st(made.path, STATIC_TEXTS), Runtime(model).encode(STATIC_TEXTS)
    assert np.abs(found - want).max() <= CLOSE["st"]
    assert not found[~want.any(axis=1)].any()
    types = [entry["type"].rpartition(".")[2] for entry in json.loads((tmp_path / "st" / "modules.json").read_text())]
    assert types == ["StaticEmbedding", "Normalize", "Dense"]


@pytest.mark.slow
def test_weights_that_a_static_embedding_would_round_away_are_refused(tmp_path, encoders, sentences, monkeypatch):
    monkeypatch.setattr(sentence_transformers, "HEAVIER", 1.5)
    model = MODELS["table-weights"](tmp_path / "model", encoders, sentences)
    with pytest.raises(FastflowError, match=r"the largest is over 1\.5 times the least"):
        export(model, "st", tmp_path / "st")


@pytest.mark.slow
def test_half_precision_is_computed_in_float32_and_prompts_stay(tmp_path, encoders, sentences):
    """The package's weights are float16; Sentence Transformers would compute in that."""
    theirs = open_st(export(None, "st", tmp_path / "half").path)
    assert {str(p.dtype) for p in theirs.parameters()} == {"torch.float32"}
    model = MODELS["modules"](tmp_path / "model", encoders, sentences)
    theirs = open_st(export(model, "st", tmp_path / "st").path)
    assert theirs.prompts["query"] == PROMPTED["prompts"]["query"]
    assert theirs.default_prompt_name == "query"
    want = Runtime(model, dtype="float32").encode(TEXTS, prompt_name="query")
    assert np.abs(theirs.encode(TEXTS, prompt_name="query") - want).max() <= CLOSE["st"]


@pytest.mark.slow
def test_loaders_that_would_leave_modules_out_find_no_model(tmp_path, model):
    """An encoder without the modules, and a table without the modules and with unknown tokens."""
    transformers, model2vec = pytest.importorskip("transformers"), pytest.importorskip("model2vec")
    made = export(model, "st", tmp_path / "st")
    assert not (tmp_path / "st" / "config.json").exists()
    with pytest.raises((OSError, ValueError)):
        transformers.AutoModel.from_pretrained(made.path)
    made = export("static", "st", tmp_path / "table", dim=8)
    with pytest.raises(ValueError, match="Could not find expected model files"):
        model2vec.StaticModel.from_pretrained(made.path)


@pytest.mark.slow
def test_only_their_own_modules(tmp_path, weighted_model):
    export(weighted_model, "st", tmp_path / "st")
    types = [entry["type"] for entry in json.loads((tmp_path / "st" / "modules.json").read_text())]
    assert all(each.startswith("sentence_transformers.models.") for each in types)
    first = ["Transformer", "WeightedLayerPooling", "WordWeights", "Pooling"]
    assert [each.rpartition(".")[2] for each in types][:4] == first
    assert open_st(tmp_path / "st")[0].unpad_inputs is False


# ---- ONNX


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*MODELS, "default", "static"])
def test_int8_is_near(kind, tmp_path, encoders, sentences):
    """Random encoders lose more than trained ones."""
    pytest.importorskip("onnx")
    model = MODELS[kind](tmp_path / "model", encoders, sentences) if kind in MODELS else kind
    whole, made = (export(model, "onnx", tmp_path / dtype, dtype=dtype) for dtype in ("float32", "int8"))
    a, b = (run_onnx(each.path) for each in (whole, made))
    some = a.any(axis=1)
    assert not b[~some].any()
    assert least_cosine(b[some], a[some]) >= (0.9 if kind in MODELS else 0.99)
    assert made.size < whole.size


@pytest.mark.slow
@pytest.mark.parametrize(
    "activation",
    ["Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "ELU", "LeakyReLU", "Softplus", "Softsign", "ReLU6",
     "Hardtanh", "Mish"],
)  # fmt: skip
def test_activations(activation, tmp_path, bert):
    pytest.importorskip("onnx")
    model = make_directory(tmp_path / "model", bert, [pooling("mean"), dense(24, activation)])
    export(model, "onnx", tmp_path / "onnx")
    assert apart(model, run_onnx(tmp_path / "onnx")) <= CLOSE["onnx"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["raw-mpnet", "table"])
def test_a_text_has_one_vector_in_any_company(kind, tmp_path, encoders, sentences):
    pytest.importorskip("onnx")
    export(MODELS[kind](tmp_path / "model", encoders, sentences), "onnx", tmp_path / "onnx")
    alone = np.concatenate([run(tmp_path / "onnx", [text]) for text in TEXTS])
    assert np.abs(alone - run(tmp_path / "onnx", TEXTS)).max() <= CLOSE["onnx"]


@pytest.mark.slow
def test_a_large_graph_keeps_its_weights_in_a_file_of_their_own(tmp_path, model, monkeypatch):
    monkeypatch.setattr("fastflow.exports.onnx_graph.LARGEST_FILE", 1000)
    export(model, "onnx", tmp_path / "onnx")
    assert (tmp_path / "onnx" / "model.onnx_data").stat().st_size > (tmp_path / "onnx" / "model.onnx").stat().st_size
    assert apart(model, run_onnx(tmp_path / "onnx")) <= CLOSE["onnx"]


@pytest.mark.doors
@pytest.mark.slow
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
    assert apart(model or DEFAULT, found) <= CLOSE["onnx"]


# ---- model2vec


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_keeps_its_dtype_and_its_bits(kind, tmp_path, encoders, sentences):
    model2vec = pytest.importorskip("model2vec")
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    made = export(model, "model2vec", tmp_path / "out")
    given, stored = (model2vec.StaticModel.from_pretrained(path).embedding for path in (model, made.path))
    assert given.dtype == stored.dtype
    assert np.array_equal(given, stored)
    assert np.array_equal(Runtime(made.path).encode(TEXTS), Runtime(model).encode(TEXTS))


def test_a_saved_table_with_a_limit_of_its_own(tmp_path, sentences):
    source = model2vec_dir(tmp_path / "table", width=32)
    model = make_model(tmp_path / "model", source, sentences, "none", pooling="words", max_length=20)
    made = export(model, "model2vec", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["max_length"] == 20
    assert apart(model, run_model2vec(made.path)) <= CLOSE["model2vec"]
