"""``kernels.encoder.reference`` as ONNX operators, for texts padded on the right."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
from onnx import TensorProto

from fastflow.exports.onnx_graph import FAR, Array, Graph, Value, axes, number
from fastflow.kernels.encoder import WORDS, EncoderShape, mean_position
from fastflow.kernels.encoder.distances import relative_bias, rotary_table
from fastflow.model.tensors import Arrays


class Encoder:
    """Hidden states (B, T, D) of an encoder for ids and mask (B, T) of the graph."""

    def __init__(self, graph: Graph, weights: Arrays, shape: EncoderShape) -> None:
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


def activate(graph: Graph, x: Value, kind: str) -> Value:
    """Add gelu, gelu_tanh or relu of x."""
    if kind == "relu":
        return graph.op("Relu", x)
    if kind == "gelu":
        inner = graph.op("Erf", graph.op("Mul", x, number(sqrt(0.5))))
    else:
        cube = graph.op("Mul", graph.op("Mul", x, graph.op("Mul", x, x)), number(0.044715))
        inner = graph.op("Tanh", graph.op("Mul", graph.op("Add", x, cube), number(sqrt(2 / pi))))
    return graph.op("Mul", graph.op("Mul", x, number(0.5)), graph.op("Add", inner, number(1)))
