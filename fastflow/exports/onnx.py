"""A model as one ONNX graph, with its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt
from pathlib import Path

import numpy as np
from onnx import TensorProto

from fastflow.errors import UsageError
from fastflow.exports.onnx_graph import FAR, Array, OnnxGraph, Value, axes, number, stack
from fastflow.exports.record import (
    CONFIG,
    FOREIGN,
    ExportRecord,
    read_pooler,
    write_json,
    write_static_tokenizer,
    write_tokenizer,
)
from fastflow.kernels.encoder import (
    LEAST,
    LEAST_NORM,
    WORDS,
    Dense,
    EncoderShape,
    Head,
    Norm,
    mean_position,
    relative_bias,
    rotary_table,
)
from fastflow.kernels.flow import Plan
from fastflow.kernels.table.reference import Table
from fastflow.model import Model
from fastflow.model.encoder import encoder_shape, is_static, read_config
from fastflow.model.encoder.weights import load_weights
from fastflow.model.static.table import open_table
from fastflow.model.tensors import Arrays
from fastflow.plan import fold
from fastflow.transforms.calibration import output_dim
from fastflow.transforms.pooling import Pooling


class OnnxEncoder:
    """Hidden states (B, T, D) of an encoder for ids and mask (B, T) of the graph."""

    def __init__(self, graph: OnnxGraph, weights: Arrays, shape: EncoderShape) -> None:
        self._graph, self._weights, self._shape = graph, weights, shape
        self._places = graph.positions("input_ids")

    def __call__(self, layers: tuple[int, ...]) -> dict[int, Value]:
        found = {WORDS: self._embed(self._average_positions())} if WORDS in layers else {}
        if max(layers) < 0:
            return found
        x = self._embed(self._add_positions())
        if 0 in layers:
            found[0] = x
        for layer in range(1, max(layers) + 1):
            x = self._layer(x, layer - 1)
            if layer == self._shape.layers and "final_norm.scale" in self._weights:
                x = self._norm(x, "final_norm")
            if layer in layers:
                found[layer] = x
        return found

    def _average_positions(self) -> Array | None:
        if "position" not in self._weights:
            return None
        mean: Array = mean_position(self._weights["position"], self._shape.position_start)
        return mean + self._weights["segment"]

    def _add_positions(self) -> Value | None:
        if "position" not in self._weights:
            return None
        graph, shape = self._graph, self._shape
        table = self._weights["position"] + self._weights["segment"]
        if shape.pad_id is None:
            return graph.op("Gather", table[shape.position_start :], self._places)
        pad = np.array(shape.pad_id, np.int64)
        same = graph.op("Equal", "input_ids", pad)
        real = graph.op("Cast", graph.op("Not", same), to=TensorProto.INT64)
        counted = graph.op("CumSum", real, np.array(1, np.int64))
        places = graph.op("Add", counted, np.array(shape.position_start - 1, np.int64))
        return graph.op("Gather", table, graph.op("Where", same, pad, places))

    def _embed(self, place: Value | Array | None) -> Value:
        weights, graph = self._weights, self._graph
        x = graph.rows(weights["word"], "input_ids")
        if place is not None:
            x = graph.op("Add", x, place)
        x = self._norm(x, "embed_norm")
        if "projection.weight" in weights:
            x = graph.linear(x, weights["projection.weight"], weights["projection.bias"])
        return x

    def _norm(self, x: Value, name: str) -> Value:
        scale, bias = self._weights[f"{name}.scale"], self._weights.get(f"{name}.bias")
        return self._graph.norm(x, scale, bias, self._shape.eps)

    def _linear(self, x: Value, name: str) -> Value:
        return self._graph.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _layer(self, x: Value, layer: int) -> Value:
        graph, prefix, shape = self._graph, f"layer.{layer}.", self._shape
        if shape.pre_norm:
            first = self._norm(x, f"{prefix}norm1") if f"{prefix}norm1.scale" in self._weights else x
            x = graph.op("Add", x, self._attend(first, layer))
            return graph.op("Add", x, self._feed(self._norm(x, f"{prefix}norm2"), prefix))
        x = self._norm(graph.op("Add", x, self._attend(x, layer)), f"{prefix}norm1")
        return self._norm(graph.op("Add", x, self._feed(x, prefix)), f"{prefix}norm2")

    def _attend(self, x: Value, layer: int) -> Value:
        graph, shape = self._graph, self._shape
        size = shape.hidden // shape.heads
        joined = self._linear(x, f"layer.{layer}.qkv")
        parts = graph.op("Reshape", joined, axes(0, 0, 3, shape.heads, size))
        q, k, v = (
            graph.op("Squeeze", part, axes(0))
            for part in graph.add_outputs("Split", 3, graph.op("Transpose", parts, perm=[2, 0, 3, 1, 4]), axis=0)
        )
        if shape.rotary:
            q, k = self._rotate(q, shape.rotary[layer], size), self._rotate(k, shape.rotary[layer], size)
        scores = graph.op("MatMul", q, graph.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = graph.op("Mul", scores, number(1 / sqrt(size)))
        for bias in self._add_biases(layer):
            scores = graph.op("Add", scores, bias)
        seen = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), v)
        back = graph.op("Reshape", graph.op("Transpose", seen, perm=[0, 2, 1, 3]), axes(0, 0, shape.hidden))
        return self._linear(back, f"layer.{layer}.out")

    def _add_biases(self, layer: int) -> list[Value]:
        """Add attention biases (B, heads, T, T): padding, local windows, MPNet's distances."""
        graph, shape = self._graph, self._shape
        padding = graph.op("Equal", "attention_mask", np.array(0, np.int64))
        found = [graph.op("Unsqueeze", graph.op("Where", padding, number(FAR), number(0)), axes(1, 2))]
        window = shape.windows[layer] if shape.windows else None
        if window is None and "relative" not in self._weights:
            return found
        here = graph.op("Unsqueeze", self._places, axes(1))
        distance = graph.op("Sub", graph.op("Unsqueeze", self._places, axes(0)), here)
        if window is not None:
            outside = graph.op("Greater", graph.op("Abs", distance), np.array(window, np.int64))
            found.append(graph.op("Where", outside, number(FAR), number(0)))
        if "relative" in self._weights:
            table = np.ascontiguousarray(relative_bias(self._weights["relative"]), np.float32)
            reach = table.shape[1] // 2
            near = graph.op("Clip", distance, np.array(-reach, np.int64), np.array(reach, np.int64))
            found.append(graph.op("Gather", table, graph.op("Add", near, np.array(reach, np.int64)), axis=1))
        return found

    def _rotate(self, x: Value, base: float, size: int) -> Value:
        """Rotate channel pairs (i, i + d/2) of x (B, heads, T, d) by position."""
        graph = self._graph
        tables = rotary_table(self._shape.positions, size, base)
        cos, sin = (graph.op("Gather", table.astype(np.float32), self._places) for table in tables)
        low, high = graph.add_outputs("Split", 2, x, axis=-1)
        first = graph.op("Sub", graph.op("Mul", low, cos), graph.op("Mul", high, sin))
        second = graph.op("Add", graph.op("Mul", high, cos), graph.op("Mul", low, sin))
        return graph.op("Concat", first, second, axis=-1)

    def _feed(self, x: Value, prefix: str) -> Value:
        graph, wide = self._graph, self._linear(x, f"{prefix}up")
        if not self._shape.gated:
            return self._linear(activate(graph, wide, self._shape.activation), f"{prefix}down")
        given, gate = graph.add_outputs("Split", 2, wide, axis=-1)
        given = activate(graph, given, self._shape.activation)
        return self._linear(graph.op("Mul", given, gate), f"{prefix}down")


def activate(graph: OnnxGraph, x: Value, kind: str) -> Value:
    """Add gelu, gelu_tanh or relu of x."""
    if kind == "relu":
        return graph.op("Relu", x)
    if kind == "gelu":
        inner = graph.op("Erf", graph.op("Mul", x, number(sqrt(0.5))))
    else:
        cube = graph.op("Mul", graph.op("Mul", x, graph.op("Mul", x, x)), number(0.044715))
        inner = graph.op("Tanh", graph.op("Mul", graph.op("Add", x, cube), number(sqrt(2 / pi))))
    return graph.op("Mul", graph.op("Mul", x, number(0.5)), graph.op("Add", inner, number(1)))


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
    graph = OnnxGraph(int8=record.dtype == "int8")
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


def _encode(graph: OnnxGraph, model: Model) -> str:
    config = read_config(model.encoder)
    shape = encoder_shape(config, model.encoder)
    weights = load_weights(model.encoder, config, shape, np.float32)
    hidden = OnnxEncoder(graph, weights, shape)(model.pooling.layers)
    if model.pooling.mode != "pooler":
        return _add_pooling(graph, hidden, model.pooling)
    first = graph.op("Gather", hidden[model.pooling.layers[0]], np.array(0, np.int64), axis=1)
    return _add_head(graph, first, [Dense(*read_pooler(model), "tanh")])


class OnnxPooling:
    """Pool states (B, T, D) to vectors (B, P) as ``kernels.encoder.texts.pool`` does."""

    def __init__(self, graph: OnnxGraph, how: Pooling) -> None:
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


def _add_table(graph: OnnxGraph, table: Table, weights: Array | None, left_out: int | None) -> Value:
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


def _add_pooling(graph: OnnxGraph, hidden: dict[int, Value], how: Pooling) -> Value:
    """Add (B, P): the weighted sum of layers, then every pooling mode side by side."""
    states = None
    for layer, share in zip(how.layers, how.factors, strict=True):
        part = hidden[layer] if share == 1 else graph.op("Mul", hidden[layer], number(share))
        states = part if states is None else graph.op("Add", states, part)
    assert states is not None  # noqa: S101 - for mypy
    pool = OnnxPooling(graph, how)
    return stack([pool(states, mode) for mode in how.parts], graph)


def _add_head(graph: OnnxGraph, x: Value, head: Head) -> Value:
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


def _divide_by_norm(graph: OnnxGraph, x: Value) -> Value:
    norm = graph.op("ReduceL2", x, axes=[1], keepdims=1)
    return graph.op("Div", x, graph.op("Max", norm, number(LEAST_NORM)))


def _dense(graph: OnnxGraph, x: Value, weight: Array, bias: Array) -> Value:
    return graph.op("Gemm", x, weight, bias, transB=1)


def _activate(graph: OnnxGraph, x: Value, kind: str) -> Value:
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


def _add_calibration(graph: OnnxGraph, x: Value, plans: Sequence[Plan]) -> Value:
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


def _add_steps(graph: OnnxGraph, u: Value, plan: Plan) -> Value:
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
