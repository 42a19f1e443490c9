"""ONNX Runtime and OpenVINO on token ids, Sentence Transformers and fastembed on texts."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastflow.backends.torch import restore_words
from fastflow.bench.measure.machine import describe
from fastflow.bench.measure.row import Array, Subject
from fastflow.bench.peers.encoder import Call, Embed, Prepare, open_pooled
from fastflow.evaluation.agreement import quiet

Graph = Callable[[Subject], Path]
NAMES = ("input_ids", "attention_mask", "token_type_ids")  # the last of a cross-encoder only
TABLE = "token_weights"  # name of the token weights in Pooled and its ONNX files
BATCH = 32  # texts, Sentence Transformers' default
COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")
GROUP = "768"  # activations that share an int8 scale


def export_onnx(subject: Subject) -> Path:
    """Export the subject as an ONNX file for any batch and length."""
    path = subject.folder / "model.onnx"
    if not path.exists():
        ids, mask = torch.randint(5, 100, (2, 8)), torch.ones(2, 8, dtype=torch.long)
        mask[1, 5:] = 0
        given = (ids, mask, torch.zeros_like(ids))[: 2 + subject.pairs]
        names = NAMES[: len(given)]
        free = {name: {0: "batch", 1: "tokens"} for name in names} | {"pooled": {0: "batch"}}
        with torch.inference_mode(False), torch.no_grad(), silence():
            torch.onnx.export(
                open_pooled(subject, torch.float32, "eager"), given, str(path),
                input_names=list(names), output_names=["pooled"], dynamic_axes=free, opset_version=17, dynamo=False,
            )  # fmt: skip
    return path


def fuse(subject: Subject) -> Path:
    """Export the subject, fused by ONNX Runtime's optimiser for BERT."""
    path = subject.folder / "fused.onnx"
    if not path.exists():
        from onnxruntime.transformers import optimizer

        with silence():
            model = optimizer.optimize_model(
                str(export_onnx(subject)), model_type="bert", num_heads=subject.shape.heads,
                hidden_size=subject.shape.hidden, opt_level=1,
            )  # fmt: skip
            model.save_model_to_file(str(path))
    return path


def quantise(subject: Subject, graph: Graph = fuse) -> Path:
    """Quantise ``graph`` by ONNX Runtime's tool: int8 weights by channel, activations at run time.

    Weights are signed with VNNI; without VNNI, ONNX Runtime saturates their sums.
    """
    source = graph(subject)
    path = source.with_name(f"{source.stem}-int8.onnx")
    if not path.exists():
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # the mean's small weights would lose all digits in int8
        lookups = [node.name for node in onnx.load(str(source)).graph.node if TABLE in node.input]
        whole = {"avx512_vnni", "avx_vnni"} & set(describe()["instruction_sets"])
        with silence():
            quantize_dynamic(
                str(source), str(path), per_channel=True, nodes_to_exclude=lookups,
                weight_type=QuantType.QInt8 if whole else QuantType.QUInt8,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )  # fmt: skip
    return path


def make_session_options(threads: int) -> Any:
    """Return ONNX Runtime's options; its threads do not spin after a call."""
    import onnxruntime as library

    options = library.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def open_onnxruntime(subject: Subject, dtype: str, threads: int, graph: Graph = fuse) -> Prepare:
    """Open ONNX Runtime on the optimised graph."""
    import onnxruntime as library

    path = quantise(subject, graph) if dtype == "int8" else graph(subject)
    session = library.InferenceSession(str(path), make_session_options(threads), providers=["CPUExecutionProvider"])

    def prepare(*arrays: Array) -> Call:
        given = dict(zip(NAMES, arrays, strict=False))
        return lambda: session.run(None, given)[0]

    return prepare


def open_onnxruntime_plain(subject: Subject, dtype: str, threads: int) -> Prepare:
    """Open ONNX Runtime on the graph as exported."""
    return open_onnxruntime(subject, dtype, threads, export_onnx)


def open_openvino(subject: Subject, dtype: str, threads: int) -> Prepare:
    """Open OpenVINO for latency; int8: NNCF's weights, and activations quantised at run time."""
    import openvino as library

    core = library.Core()
    model = core.read_model(str(export_onnx(subject)))
    config: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32",
    }
    if dtype == "int8":
        import nncf

        with silence():
            model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = GROUP
    compiled = core.compile_model(model, "CPU", config)
    if dtype == "bfloat16" and compiled.get_property("INFERENCE_PRECISION_HINT") != library.Type.bf16:
        raise ValueError("this processor has no bfloat16 arithmetic that it uses")
    request = compiled.create_infer_request()

    def prepare(*arrays: Array) -> Call:
        given = dict(zip(NAMES, arrays, strict=False))

        def call() -> Array:
            request.infer(given, share_inputs=True)
            return request.get_output_tensor(0).data

        return call

    return prepare


def open_sentence_transformers(subject: Subject, dtype: str, _: int = 0, device: str = "cpu") -> Embed:
    """Open SentenceTransformer or CrossEncoder as users call it."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    directory, kind = str(subject.saved or subject.encoder), CrossEncoder if subject.pairs else SentenceTransformer
    with quiet():
        model: Any = kind(directory, device=device, local_files_only=True, model_kwargs={"dtype": dtype})
    asked: dict[str, Any] = {"batch_size": BATCH, "show_progress_bar": False}
    if subject.pairs:
        asked["activation_fn"] = torch.nn.Identity()
    else:
        restore_words(model[0].auto_model, subject.encoder)
        model.max_seq_length = subject.max_length
    call = model.predict if subject.pairs else model.encode
    return lambda texts: np.asarray(call(list(texts), **asked), np.float32)


def open_fastembed(subject: Subject, dtype: str, threads: int) -> Embed:
    """Open fastembed on the subject's ONNX file."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    graph = quantise(subject, export_onnx) if dtype == "int8" else export_onnx(subject)
    folder = make_fastembed_folder(subject, graph)
    name = f"fastflow-bench/{folder}"  # fastembed refuses a name twice
    opening: dict[str, Any] = {"threads": threads, "specific_model_path": str(folder), "local_files_only": True}
    if subject.pairs:
        TextCrossEncoder.add_custom_model(name, ModelSource(url="file:///nowhere"), "model.onnx")
        scorer = TextCrossEncoder(name, **opening)
        return lambda pairs: np.fromiter(scorer.rerank_pairs(list(pairs), batch_size=BATCH), np.float32)
    if all(known["model"] != name for known in TextEmbedding.list_supported_models()):
        TextEmbedding.add_custom_model(
            model=name, pooling=PoolingType.DISABLED, normalization=False, sources=ModelSource(url="file:///nowhere"),
            dim=subject.shape.hidden, model_file="model.onnx",
        )  # fmt: skip
    model = TextEmbedding(name, **opening)
    before = subject.prompt
    return lambda texts: np.asarray(list(model.embed([before + text for text in texts], batch_size=BATCH)), np.float32)


def make_fastembed_folder(subject: Subject, graph: Path) -> Path:
    """Make a folder for fastembed: the graph and the tokenizer with its length limit."""
    folder = subject.folder / f"fastembed-{graph.stem}"
    if not folder.is_dir():
        folder.mkdir()
        for name in COPIED:
            if (subject.encoder / name).is_file():
                shutil.copy(subject.encoder / name, folder)
        settings = folder / "tokenizer_config.json"
        given = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
        given |= {"model_max_length": subject.max_length, "max_length": subject.max_length}
        settings.write_text(json.dumps(given), encoding="utf-8")
        if not (folder / "special_tokens_map.json").is_file():
            (folder / "special_tokens_map.json").write_text("{}", encoding="utf-8")
        shutil.copy(graph, folder / "model.onnx")
    return folder


@contextmanager
def silence() -> Iterator[None]:
    """Drop warnings and progress bars."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
