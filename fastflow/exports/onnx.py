"""A model as one ONNX graph, with its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import TensorProto

from fastflow.errors import UsageError
from fastflow.exports.encoder import CONFIG, FOREIGN, read_pooler
from fastflow.exports.onnx_encoder import Encoder, activate
from fastflow.exports.onnx_graph import Array, Graph, Value, axes, number, stack
from fastflow.exports.record import ExportRecord, write_json
from fastflow.exports.tokens import write_static_tokenizer, write_tokenizer
from fastflow.kernels.encoder import LEAST, LEAST_NORM, Dense, Head, Norm
from fastflow.kernels.flow import Plan
from fastflow.kernels.table.reference import Table
from fastflow.model import Model
from fastflow.model.encoder import encoder_shape, is_static, read_config
from fastflow.model.encoder.weights import load_weights
from fastflow.model.static.table import open_table
from fastflow.plan import fold
from fastflow.stages.calibration import output_dim
from fastflow.stages.pooling import Pooling

MODEL = "model.onnx"
LOWEST = float(np.finfo(np.float32).min)
PLAIN = {
    "tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "elu": "Elu", "softplus": "Softplus", "softsign": "Softsign",
}  # fmt: skip
CLIPS = {"relu6": (0.0, 6.0), "hardtanh": (-1.0, 1.0)}


def write_onnx(model: Model, folder: Path, record: ExportRecord) -> None:
    """Write graph and tokenizer; raises for prompts that are not pooled."""
    if not model.prompts.pooled and any(model.prompts.texts.values()):
        raise UsageError(
            f"{model.path} leaves its prompts out of the pooling (include_prompt false), which a graph of token ids "
            "cannot: it does not see where a prompt ends"
        )
    graph = Graph(int8=record.dtype == "int8")
    if is_static(model.encoder):
        x = _add_table(graph, open_table(model.encoder), model.pooling.weights, model.tokenizer().left_out)
        write_static_tokenizer(model, folder, batches=True)
    else:
        x = _encode(graph, model)
        write_tokenizer(model, folder, batches=True)
        config = read_config(model.encoder)
        write_json(folder / CONFIG, {name: value for name, value in config.items() if name not in FOREIGN})
    x = _add_calibration(graph, _add_head(graph, x, model.head), fold(model.calibration, model.pooled_dim))
    dim = output_dim(model.calibration, model.pooled_dim)
    kept = record.dim or model.truncate_dim
    if kept is not None and model.truncation is not None:
        x = graph.op("MatMul", x, model.truncation.basis[:, :kept])
    elif kept is not None:
        x = graph.columns(x, 0, kept)
    graph.save(folder / MODEL, _divide_by_norm(graph, x) if record.normalize else x, kept or dim)


def _encode(graph: Graph, model: Model) -> str:
    config = read_config(model.encoder)
    shape = encoder_shape(config, model.encoder)
    weights = load_weights(model.encoder, config, shape, np.float32)
    hidden = Encoder(graph, weights, shape)(model.pooling.layers)
    if model.pooling.mode != "pooler":
        return _add_pooling(graph, hidden, model.pooling)
    first = graph.op("Gather", hidden[model.pooling.layers[0]], np.array(0, np.int64), axis=1)
    return _add_head(graph, first, [Dense(*read_pooler(model), "tanh")])


class Pool:
    """Pool states (B, T, D) to vectors (B, P) as ``kernels.encoder.texts.pool`` does."""

    def __init__(self, graph: Graph, how: Pooling) -> None:
        self._graph, self._weighted = graph, how.weights is not None
        self._mask = graph.op("Cast", "attention_mask", to=TensorProto.FLOAT)
        self._counts = self._mask
        if how.weights is not None:
            self._counts = graph.op("Mul", self._mask, graph.op("Gather", how.weights, "input_ids"))

    def __call__(self, states: Value, mode: str) -> Value:
        graph = self._graph
        if mode in ("cls", "lasttoken"):
            return self._pick(states, last=mode == "lasttoken")
        if mode == "max":
            weighted = graph.op("Mul", states, self._over_columns(self._counts)) if self._weighted else states
            there = graph.op("Cast", self._over_columns(self._mask), to=TensorProto.BOOL)
            return graph.op("ReduceMax", graph.op("Where", there, weighted, number(LOWEST)), axes=[1], keepdims=0)
        factors = self._counts
        if mode == "weightedmean":
            place = graph.op("Cast", graph.positions("input_ids"), to=TensorProto.FLOAT)
            factors = graph.op("Mul", factors, graph.op("Add", place, number(1)))
        total = graph.op("ReduceSum", self._counts if self._weighted else factors, axes(1), keepdims=1)
        divisor = graph.op("Max", total, number(LEAST))
        if mode == "mean_sqrt_len_tokens":
            divisor = graph.op("Sqrt", divisor)
        return graph.op("Div", self._sum(states, factors), divisor)

    def _pick(self, states: Value, last: bool) -> Value:
        graph = self._graph
        place = graph.op("Cast", graph.positions("input_ids"), to=TensorProto.FLOAT)
        length = graph.op("ReduceSum", self._mask, axes(1), keepdims=1)
        at = graph.op("Sub", length, number(1)) if last else number(0)
        chosen = graph.op("Cast", graph.op("Equal", place, at), to=TensorProto.FLOAT)
        return self._sum(states, graph.op("Mul", chosen, self._counts))

    def _sum(self, states: Value, factors: Value) -> Value:
        row = self._graph.op("Unsqueeze", factors, axes(1))
        return self._graph.op("Squeeze", self._graph.op("MatMul", row, states), axes(1))

    def _over_columns(self, values: Value) -> Value:
        return self._graph.op("Unsqueeze", values, axes(2))


def _add_table(graph: Graph, table: Table, weights: Array | None, left_out: int | None) -> Value:
    """Add the mean (B, D) of a token table's rows; 0 for a text without tokens."""
    counts = graph.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    if left_out is not None:
        known = graph.op("Not", graph.op("Equal", "input_ids", np.array(left_out, np.int64)))
        counts = graph.op("Mul", counts, graph.op("Cast", known, to=TensorProto.FLOAT))
    if weights is not None:
        counts = graph.op("Mul", counts, graph.op("Gather", weights, "input_ids"))
    ids: Value = "input_ids"
    if table.mapping is not None:
        ids = graph.op("Gather", table.mapping.astype(np.int64), ids)
    rows, factors = graph.rows(table.rows, ids), counts
    if table.scales is not None:
        factors = graph.op("Mul", counts, graph.op("Gather", table.scales, "input_ids"))
    total = graph.op("ReduceSum", counts, axes(1), keepdims=1)
    summed = graph.op("Squeeze", graph.op("MatMul", graph.op("Unsqueeze", factors, axes(1)), rows), axes(1))
    return graph.op("Div", summed, graph.op("Max", total, number(LEAST)))


def _add_pooling(graph: Graph, hidden: dict[int, Value], how: Pooling) -> Value:
    """Add (B, P): the weighted sum of layers, then every pooling mode side by side."""
    states = None
    for layer, share in zip(how.layers, how.factors, strict=True):
        part = hidden[layer] if share == 1 else graph.op("Mul", hidden[layer], number(share))
        states = part if states is None else graph.op("Add", states, part)
    assert states is not None  # noqa: S101 - for mypy
    pool = Pool(graph, how)
    return stack([pool(states, mode) for mode in how.parts], graph)


def _add_head(graph: Graph, x: Value, head: Head) -> Value:
    for module in head:
        if isinstance(module, Dense):
            y = _activate(graph, _dense(graph, x, module.weight, module.bias), module.activation)
            if module.residual:
                own = x if module.projection is None else graph.op("MatMul", x, module.projection.T)
                y = graph.op("Add", y, own)
            x = y
        elif isinstance(module, Norm):
            x = graph.norm(x, module.scale, module.bias, module.eps)
        else:
            x = _divide_by_norm(graph, x)
    return x


def _divide_by_norm(graph: Graph, x: Value) -> Value:
    norm = graph.op("ReduceL2", x, axes=[1], keepdims=1)
    return graph.op("Div", x, graph.op("Max", norm, number(LEAST_NORM)))


def _dense(graph: Graph, x: Value, weight: Array, bias: Array) -> Value:
    return graph.op("Gemm", x, weight, bias, transB=1)


def _activate(graph: Graph, x: Value, kind: str) -> Value:
    if kind == "identity":
        return x
    if kind == "gelu":
        return activate(graph, x, kind)
    if kind in PLAIN:
        return graph.op(PLAIN[kind], x)
    if kind in CLIPS:
        return graph.op("Clip", x, *map(number, CLIPS[kind]))
    if kind == "leaky_relu":
        return graph.op("LeakyRelu", x, alpha=0.01)
    gate = graph.op("Sigmoid", x) if kind == "silu" else graph.op("Tanh", graph.op("Softplus", x))  # mish
    return graph.op("Mul", x, gate)


def _add_calibration(graph: Graph, x: Value, plans: Sequence[Plan]) -> Value:
    for plan in plans:
        u = graph.op("Mul", graph.op("Sub", x, plan.m), plan.s)
        if plan.L is not None:
            u = graph.op("MatMul", u, plan.L.T)
        u = _add_steps(graph, u, plan)
        if plan.gather is None:
            u = graph.op("MatMul", u, plan.S.T)
        else:
            u = graph.op("Mul", graph.op("Gather", u, plan.gather.astype(np.int64), axis=1), plan.S)
        x = graph.op("Add", u, plan.t)
    return x


def _add_steps(graph: Graph, u: Value, plan: Plan) -> Value:
    for k in range(plan.steps):
        own, (first, last) = slice(k * plan.width, (k + 1) * plan.width), (int(n) for n in plan.writes[k])
        h = graph.op("Relu", _dense(graph, u, plan.U[own], plan.c[own]))
        h = graph.op("Relu", _dense(graph, h, plan.B[k], plan.d[k]))
        rows = slice(first, last)
        changed = graph.op("Add", graph.columns(u, first, last), _dense(graph, h, plan.V[rows, own], plan.p[k, rows]))
        if plan.R is not None and plan.q is not None:
            gate = graph.op("Sigmoid", _dense(graph, h, plan.R[rows, own], plan.q[k, rows]))
            changed = graph.op("Mul", changed, gate)
        parts = [graph.columns(u, 0, first)] if first else []
        u = stack([*parts, changed, *([graph.columns(u, last, plan.state)] if last < plan.state else [])], graph)
    return u
