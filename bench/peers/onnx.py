"""The engines that start from an ONNX file: ONNX Runtime and OpenVINO. The weighted mean is part of the graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from fastflow.bench.measure.machine import describe
from fastflow.bench.measure.subject import Array, Subject
from fastflow.bench.peers.pooled import pooled

Call = Callable[[], Any]
Graph = Callable[[Subject], Path]
NAMES = ("input_ids", "attention_mask")
TABLE = "token_weights"  # the tensor of that name in Pooled, and so in its files
GROUP = "768"  # activations are scaled by this many at a time: as near to one scale a token as the option allows


def exported(subject: Subject) -> Path:
    """The subject as an ONNX file, batch and length free."""
    path = subject.folder / "model.onnx"
    if not path.exists():
        ids, mask = torch.randint(5, 100, (2, 8)), torch.ones(2, 8, dtype=torch.long)
        mask[1, 5:] = 0
        free = {name: {0: "batch", 1: "tokens"} for name in NAMES} | {"pooled": {0: "batch"}}
        with torch.inference_mode(False), torch.no_grad(), silence():
            torch.onnx.export(
                pooled(subject, torch.float32, "eager"), (ids, mask), str(path),
                input_names=list(NAMES), output_names=["pooled"], dynamic_axes=free, opset_version=17, dynamo=False,
            )  # fmt: skip
    return path


def fused(subject: Subject) -> Path:
    """``exported`` after ONNX Runtime's optimiser for BERT: attention, GELU, LayerNorm with skip as one node."""
    path = subject.folder / "fused.onnx"
    if not path.exists():
        from onnxruntime.transformers import optimizer

        with silence():
            model = optimizer.optimize_model(
                str(exported(subject)), model_type="bert", num_heads=subject.shape.heads,
                hidden_size=subject.shape.hidden, opt_level=1,
            )  # fmt: skip
            model.save_model_to_file(str(path))
    return path


def quantised(subject: Subject, graph: Graph = fused) -> Path:
    """Dynamic int8 of ``graph`` by ONNX Runtime's tool: weights a channel, activations measured at run time.

    Weights are signed, the fastest, where the processor has VNNI; without it ONNX Runtime cuts their sums off at 2**15.
    """
    source = graph(subject)
    path = source.with_name(f"{source.stem}-int8.onnx")
    if not path.exists():
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # a mean's weights stay float32: in int8 the small ones would keep a digit or none, at one operation more
        lookups = [node.name for node in onnx.load(str(source)).graph.node if TABLE in node.input]
        whole = {"avx512_vnni", "avx_vnni"} & set(describe()["instruction_sets"])
        weights = QuantType.QInt8 if whole else QuantType.QUInt8
        with silence():
            quantize_dynamic(
                str(source), str(path), per_channel=True, weight_type=weights, nodes_to_exclude=lookups,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )  # fmt: skip
    return path


def session_options(threads: int) -> Any:
    """ONNX Runtime's; its threads stop spinning when a call ends, so that they do not slow the next one."""
    import onnxruntime as library

    options = library.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def onnxruntime(subject: Subject, dtype: str, threads: int, graph: Graph = fused) -> Callable[[Array, Array], Call]:
    """ONNX Runtime on the CPU, on the graph after its offline optimiser for BERT."""
    import onnxruntime as library

    path = quantised(subject, graph) if dtype == "int8" else graph(subject)
    session = library.InferenceSession(str(path), session_options(threads), providers=["CPUExecutionProvider"])

    def prepare(ids: Array, mask: Array) -> Call:
        given = dict(zip(NAMES, (ids, mask), strict=True))
        return lambda: session.run(None, given)[0]

    return prepare


def onnxruntime_plain(subject: Subject, dtype: str, threads: int) -> Callable[[Array, Array], Call]:
    """ONNX Runtime on the graph as exported, which the session optimises by itself."""
    return onnxruntime(subject, dtype, threads, exported)


def openvino(subject: Subject, dtype: str, threads: int) -> Callable[[Array, Array], Call]:
    """OpenVINO, latency hint. int8: NNCF's int8 weights, and activations quantised at run time by the plugin."""
    import openvino as library

    core = library.Core()
    model = core.read_model(str(exported(subject)))
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

    def prepare(ids: Array, mask: Array) -> Call:
        given = dict(zip(NAMES, (ids, mask), strict=True))

        def call() -> Array:
            request.infer(given, share_inputs=True)
            return request.get_output_tensor(0).data

        return call

    return prepare


@contextmanager
def silence() -> Iterator[None]:
    """Without warnings, remarks and progress tables: standard output is the bench's table."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
