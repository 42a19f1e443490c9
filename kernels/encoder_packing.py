"""The frozen encoder as the compiled kernels want it: steps, products, buffers, and one block of packed weights.

Every width is padded with zeros to whole panels of NR = 2 x vector columns, heads included, so that no kernel has a
remainder to treat. Fields and numbers are those of ``cpu/encoder.h``; names of weights those of ``kernels.reference``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.reference import EncoderShape, Weights

EMBED, LINEAR, ATTEND, NORM, POOL, FIRST, CONVERT = range(7)
FLOAT, BF16, BF16_WIDE, INT8, INT8_SIGNED, INT8_TILES = range(6)
ACTIVATIONS = {"none": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "tanh": 4}
STEP = ("kind", "source", "target", "linear", "activation", "add", "scale", "bias", "width", "slot", "texts", "format")
LINE = 64  # bytes of a cache line
TILE = 16  # steps of a reduction in a tile of AMX
CONVERTED = {BF16: 2, INT8: 1, INT8_SIGNED: 1, INT8_TILES: 1}  # bytes of an element, where operands are not float32
Array = NDArray[Any]
Arrange = Callable[[Array], Array]


class EncoderProgram:
    """Steps, products and the memory that they read, for one encoder, panel width and format of products."""

    def __init__(
        self, weights: Weights, shape: EncoderShape, mode: str, layers: Sequence[int], panel: int, form: int
    ) -> None:
        self.weights, self.shape, self.panel, self.format = weights, shape, panel, form
        self.head = self._pad(shape.hidden // shape.heads)
        self._steps: list[list[int]] = []
        self._linears: list[list[int]] = []
        self._strides: dict[str, int] = {}  # buffer -> bytes in a row
        self._fill: list[Callable[[Array], None]] = []  # each writes its part of the memory
        self._bytes = 0
        self._build(mode, tuple(layers))

    def _build(self, mode: str, layers: tuple[int, ...]) -> None:
        """All steps, as far as the highest wanted layer."""
        hidden, width, heads = self.shape.hidden, self.weights["word"].shape[1], self.shape.heads * self.head
        projected = "projection.weight" in self.weights
        self._buffers(
            x=hidden, y=max(hidden, width), context=max(hidden, heads), wide=max(3 * heads, self.shape.intermediate)
        )
        self._step(EMBED, target="y" if projected else "x", width=width, **self._norm("embed_norm"))
        if projected:
            self._linear("projection", "y", "x")
        self._pool(mode, layers, 0)
        for layer in range(1, max(layers) + 1):
            prefix = f"layer.{layer - 1}."
            self._linear(f"{prefix}qkv", "x", "wide", rows=self._by_head, form=self.format)
            self._step(ATTEND, source="wide", target="context")
            self._linear(f"{prefix}out", "context", "y", add="x", columns=self._from_heads, form=self.format)
            self._step(NORM, source="y", target="x", width=hidden, **self._norm(f"{prefix}norm1"))
            self._linear(f"{prefix}up", "x", "wide", self.shape.activation, form=self.format)
            self._linear(f"{prefix}down", "wide", "y", add="x", form=self.format)
            self._step(NORM, source="y", target="x", width=hidden, **self._norm(f"{prefix}norm2"))
            self._pool(mode, layers, layer)

    def _buffers(self, **widths: int) -> None:
        for name, columns in widths.items():
            # one line more than the columns: rows a power of two apart would share cache sets, and scales need a place
            self._strides[name] = _lines(4 * self._pad(columns)) + LINE
            if name != "y" and self.format in CONVERTED:
                self._strides[f"{name} operand"] = _lines(CONVERTED[self.format] * self._pad(columns)) + LINE

    def _pool(self, mode: str, layers: tuple[int, ...], layer: int) -> None:
        if layer not in layers:
            return
        slot, width = layers.index(layer), self.shape.hidden
        if mode == "mean":
            self._step(POOL, source="x", width=width, slot=slot, linear=int(layer == min(layers)))
        elif mode == "cls":
            self._step(FIRST, source="x", width=width, slot=slot)
        elif mode == "pooler":
            if "pooler.weight" not in self.weights:
                raise ValueError("the encoder has no pooler")
            self._step(FIRST, source="x", target="y", width=width, slot=slot)
            self._linear("pooler", "y", "context", "tanh", texts=1)
            self._step(FIRST, source="context", width=width, texts=1)
        else:
            raise ValueError(f"pooling {mode!r} is not known; known are mean, cls and pooler")

    def _step(self, kind: int, **fields: Any) -> None:
        fields = {"kind": kind, "source": -1, "target": -1, "add": -1} | fields
        buffers = list(self._strides)
        self._steps.append([buffers.index(v) if isinstance(v := fields.get(f, 0), str) else v for f in STEP])

    def _norm(self, name: str) -> dict[str, int]:
        return {part: self._vector(self.weights[f"{name}.{part}"]) for part in ("scale", "bias")}

    def _linear(
        self, name: str, source: str, target: str, activation: str = "none", *, add: str | int = -1, texts: int = 0,
        rows: Arrange | None = None, columns: Arrange | None = None, form: int = FLOAT,
    ) -> None:  # fmt: skip
        """target = activation(source W^T + b) + add, with the rows of W and b, or the columns of W, rearranged."""
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        height = 3 * self.shape.heads * self.head if rows else self._pad(len(bias))
        inner = self.shape.heads * self.head if columns else self._pad(weight.shape[1])
        lanes = {FLOAT: 1, BF16: 2, BF16_WIDE: 2}.get(form, 4)  # elements along k in a lane of 32 bits
        if form in CONVERTED:
            self._step(CONVERT, source=source, target=f"{source} operand", width=inner, format=form)
            source = f"{source} operand"

        def padded() -> Array:
            out = np.zeros((height, inner), np.float32)
            arranged = rows(weight) if rows else columns(weight) if columns else weight
            out[: arranged.shape[0], : arranged.shape[1]] = arranged
            return out

        steps = inner // lanes
        stored = -(-steps // TILE) * TILE if form == INT8_TILES else steps
        numbers = [0, self._vector(rows(bias[:, None])[:, 0] if rows else bias), 0, 0, height, steps, form, 0]
        if CONVERTED.get(form) == 1:
            numbers[2], numbers[3] = self._reserve(4 * height), self._reserve(4 * height)

        def fill(memory: Array) -> None:
            values = padded()
            if form in (BF16, BF16_WIDE):
                values = to_bfloat16(values)
            elif form != FLOAT:
                values, scale = quantised(values)
                memory[numbers[2] : numbers[2] + 4 * height].view(np.float32)[:] = scale
                zero = 128 if form == INT8 else 0
                memory[numbers[3] : numbers[3] + 4 * height].view(np.int32)[:] = -zero * values.sum(
                    axis=1, dtype=np.int32
                )
            panels = memory[numbers[0] : numbers[0] + 4 * height * stored].view(values.dtype)
            panels = panels.reshape(-1, stored, self.panel, lanes)
            panels[:, :steps] = values.reshape(-1, self.panel, steps, lanes).swapaxes(1, 2)
            panels[:, steps:] = 0

        numbers[0] = self._reserve(4 * height * stored, fill)
        self._linears.append(numbers)
        self._step(
            LINEAR, source=source, target=target, linear=len(self._linears) - 1, activation=ACTIVATIONS[activation],
            add=add, texts=texts,
        )  # fmt: skip

    def _by_head(self, stacked: Array) -> Array:
        """Rows of [q; k; v] (3D, ...) in the order [head][q|k|v][padded head], q divided by sqrt(d)."""
        heads, size = self.shape.heads, self.shape.hidden // self.shape.heads
        out = np.zeros((heads, 3, self.head, stacked.shape[1]), np.float32)
        out[:, :, :size] = stacked.reshape(3, heads, size, -1).swapaxes(0, 1)
        out[:, 0] *= np.float32(1 / sqrt(size))
        return out.reshape(-1, stacked.shape[1])

    def _from_heads(self, weight: Array) -> Array:
        """Columns of (n, D) in the order [head][padded head]."""
        heads, size = self.shape.heads, self.shape.hidden // self.shape.heads
        out = np.zeros((len(weight), heads, self.head), np.float32)
        out[:, :, :size] = weight.reshape(len(weight), heads, size)
        return out.reshape(len(weight), -1)

    def _pad(self, width: int) -> int:
        return -(-width // self.panel) * self.panel

    def _vector(self, values: Array) -> int:
        def fill(memory: Array) -> None:
            to = memory[where : where + 4 * self._pad(len(values))].view(np.float32)
            to[: len(values)], to[len(values) :] = values, 0

        where = self._reserve(4 * self._pad(len(values)), fill)
        return where

    def _reserve(self, size: int, fill: Callable[[Array], None] | None = None) -> int:
        where = self._bytes
        self._bytes += _lines(size)
        if fill:
            self._fill.append(fill)
        return where

    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """memory (uint8, on a line), linears (n, 8), steps (n, 12) and strides (n,), as ``_cpu.Encoder`` wants."""
        raw = np.empty(self._bytes + LINE, np.uint8)  # NumPy asks for huge pages where the system gives them
        memory = raw[-raw.ctypes.data % LINE :][: self._bytes]
        while self._fill:  # emptied, because what fills holds on to the unpacked weights
            self._fill.pop()(memory)
        linears, steps = np.array(self._linears, np.int64).reshape(-1, 8), np.array(self._steps, np.int64)
        return memory, linears, steps, np.array(list(self._strides.values()), np.int64)


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE


def to_bfloat16(values: Array) -> Array:
    """float32 rounded to the nearest bfloat16, ties to even, as uint16."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def quantised(values: Array) -> tuple[Array, Array]:
    """int8 (n, k) and float32 scales (n,) with values ~ int8 * scale: a row's largest magnitude is worth 127."""
    scale = np.abs(values).max(axis=1) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    return np.rint(values * inverse[:, None]).astype(np.int8), scale
