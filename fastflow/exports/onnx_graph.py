"""An ONNX graph with constants in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fastflow.kernels.stored import quantise
from fastflow.version import __version__

OPSET, IR = 17, 8  # the first opset with LayerNormalization
INPUTS = ("input_ids", "attention_mask")
OUTPUT = "sentence_embedding"
LARGEST_FILE = 2_000_000_000  # bytes; protobuf ends at 2 GiB
ZERO = 128  # zero point of unsigned weights: without VNNI ONNX Runtime clips sums of signed weights at 2**15
FAR = -1e30  # hides a score from softmax; the sum of two is finite

Array = NDArray[Any]
Value = str


class OnnxGraph:
    """The nodes of an ONNX graph; ``int8``: ``linear`` multiplies in int8."""

    def __init__(self, int8: bool = False) -> None:
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._known: dict[bytes, str] = {}
        self._bytes, self._int8 = 0, int8

    def op(self, kind: str, *inputs: Value | Array | None, **attributes: Any) -> Value:
        """Add an operator; return its first output. None leaves an input out."""
        return self.add_outputs(kind, 1, *inputs, **attributes)[0]

    def add_outputs(self, kind: str, count: int, *inputs: Value | Array | None, **attributes: Any) -> list[Value]:
        names = ["" if each is None else each if isinstance(each, str) else self._add_constant(each) for each in inputs]
        outputs = [f"{kind}_{len(self._nodes)}_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(kind, names, outputs, **attributes))
        return outputs

    def _add_constant(self, array: Array) -> Value:
        array = np.asarray(array, np.float32 if array.dtype == np.float64 else array.dtype, order="C")
        key = f"{array.dtype} {array.shape} ".encode() + array.tobytes() if array.size <= 64 else b""
        if key and key in self._known:
            return self._known[key]
        name = f"constant_{len(self._constants)}"
        self._constants[name] = numpy_helper.from_array(array, name)
        self._bytes += array.nbytes
        if key:
            self._known[key] = name
        return name

    def linear(self, x: Value, weight: Array, bias: Array | None) -> Value:
        """Add x W^T + b for x (..., in), W (out, in)."""
        if not self._int8:
            y = self.op("MatMul", x, weight.T)
            return y if bias is None else self.op("Add", y, bias)
        rows, scales = quantise(np.ascontiguousarray(weight, np.float32))
        rows = (rows.astype(np.int16) + ZERO).astype(np.uint8)
        small, scale, zero = self.add_outputs("DynamicQuantizeLinear", 3, x)
        product = self.op("MatMulInteger", small, rows.T, zero, np.array(ZERO, np.uint8))
        product = self.op("Cast", product, to=TensorProto.FLOAT)
        y = self.op("Mul", product, self.op("Mul", scale, scales))
        return y if bias is None else self.op("Add", y, bias)

    def rows(self, table: Array, ids: Value) -> Value:
        if self._int8 and table.dtype != np.int8:
            stored, scales = quantise(np.ascontiguousarray(table, np.float32))
            found = self.op("Cast", self.op("Gather", stored, ids), to=TensorProto.FLOAT)
            return self.op("Mul", found, self.op("Gather", scales[:, None], ids))
        found = self.op("Gather", table, ids)
        return found if table.dtype == np.float32 else self.op("Cast", found, to=TensorProto.FLOAT)

    def norm(self, x: Value, scale: Array, bias: Array | None, eps: float) -> Value:
        shift = np.zeros_like(scale) if bias is None else bias  # ONNX Runtime 1.31 crashes without a shift
        return self.op("LayerNormalization", x, scale, shift, epsilon=eps, axis=-1)

    def columns(self, x: Value, start: int, stop: int) -> Value:
        return self.op("Slice", x, axes(start), axes(stop), axes(1))

    def positions(self, ids: Value) -> Value:
        length = self.op("Squeeze", self.op("Shape", ids, start=1, end=2))
        return self.op("Range", np.array(0, np.int64), length, np.array(1, np.int64))

    def save(self, path: Path, result: Value, dim: int) -> None:
        self._nodes.append(helper.make_node("Identity", [result], [OUTPUT]))
        takes = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in INPUTS]
        gives = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", dim])
        graph = helper.make_graph(self._nodes, "fastflow", takes, [gives], list(self._constants.values()))
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="fastflow",
            producer_version=__version__,
        )  # fmt: skip
        apart = self._bytes > LARGEST_FILE
        onnx.save(model, path, save_as_external_data=apart, location=f"{path.name}_data" if apart else None)


def axes(*numbers: int) -> Array:
    """Make an operator's axes."""
    return np.array(numbers, np.int64)


def number(value: float) -> Array:
    """Make a float32 scalar."""
    return np.array(value, np.float32)


def stack(values: Sequence[Value], graph: OnnxGraph, axis: int = -1) -> Value:
    """Concatenate ``values`` along ``axis``."""
    return values[0] if len(values) == 1 else graph.op("Concat", *values, axis=axis)
