"""A model as one ONNX graph from token ids to the final embedding, with its tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fastflow.errors import UsageError
from fastflow.exports.encoder import CONFIG, FOREIGN, read_pooler
from fastflow.exports.folder import write_json
from fastflow.exports.onnx_encoder import Encoder
from fastflow.exports.onnx_graph import Graph
from fastflow.exports.onnx_texts import add_calibration, add_head, add_pooling, add_table, divide_by_norm
from fastflow.exports.record import Record
from fastflow.exports.tokens import write_static_tokenizer, write_tokenizer
from fastflow.kernels.encoder.shape import Dense
from fastflow.model.encoder.architecture import encoder_shape, is_static, read_config
from fastflow.model.encoder.weights import load_weights
from fastflow.model.kinds import Model
from fastflow.model.static.table import open_table
from fastflow.plan.fold import fold
from fastflow.stages.calibration import output_dim

MODEL = "model.onnx"


def write_onnx(model: Model, folder: Path, record: Record) -> None:
    """Write the graph and the tokenizer to ``folder``.

    Raises a FastflowError for an encoder without equations here, and for prompts that are not pooled.
    """
    if not model.prompts.pooled and any(model.prompts.texts.values()):
        raise UsageError(
            f"{model.path} leaves its prompts out of the pooling (include_prompt false), which a graph of token ids "
            "cannot: it does not see where a prompt ends"
        )
    graph = Graph(int8=record.dtype == "int8")
    if is_static(model.encoder):
        x = add_table(graph, open_table(model.encoder), model.pooling.weights, model.tokenizer().left_out)
        write_static_tokenizer(model, folder, batches=True)
    else:
        x = _encode(graph, model)
        write_tokenizer(model, folder, batches=True)
        config = read_config(model.encoder)
        write_json(folder / CONFIG, {name: value for name, value in config.items() if name not in FOREIGN})
    x = add_calibration(graph, add_head(graph, x, model.head), fold(model.calibration, model.pooled_dim, sparse=True))
    dim = output_dim(model.calibration, model.pooled_dim)
    kept = record.dim or model.truncate_dim
    if kept is not None and model.truncation is not None:
        x = graph.op("MatMul", x, model.truncation.basis[:, :kept])
    elif kept is not None:
        x = graph.columns(x, 0, kept)
    graph.save(folder / MODEL, divide_by_norm(graph, x) if record.normalize else x, kept or dim)


def _encode(graph: Graph, model: Model) -> str:
    config = read_config(model.encoder)
    shape = encoder_shape(config, model.encoder)
    weights = load_weights(model.encoder, config, shape, np.float32)
    hidden = Encoder(graph, weights, shape)(model.pooling.layers)
    if model.pooling.mode != "pooler":
        return add_pooling(graph, hidden, model.pooling)
    first = graph.op("Gather", hidden[model.pooling.layers[0]], np.array(0, np.int64), axis=1)
    return add_head(graph, first, [Dense(*read_pooler(model), "tanh")])
