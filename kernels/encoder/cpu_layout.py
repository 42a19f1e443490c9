"""The frozen encoder as the compiled kernels want it: steps, products, buffers, and one block of packed weights.

Every width is padded with zeros to whole panels of NR = 2 x vector columns, heads included, so that no kernel has a
remainder to treat. Fields and numbers are those of ``c/encoder/encoder.h``; names of weights are those of
``kernels.reference``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels._cpu import (
    ATTEND,
    BF16,
    BF16_WIDE,
    BIAS_MARGIN,
    CONVERT,
    EMBED,
    FIRST,
    FLOAT,
    GELU,
    GELU_TANH,
    INT8,
    INT8_SIGNED,
    INT8_TILES,
    LINEAR,
    LINEAR_FIELDS,
    LINEAR_ONLY,
    NORM,
    PACK,
    POOL,
    RELU_ONLY,
    STEP_FIELDS,
    TANH,
    TILE_STEPS,
    ZERO_POINT,
    pack,
)
from fastflow.kernels.encoder.reference import EncoderShape
from fastflow.kernels.panels import STORED, Matrix, NotFinite, raw, record, storable, usable, widen

ACTIVATIONS = {"none": LINEAR_ONLY, "gelu": GELU, "gelu_tanh": GELU_TANH, "relu": RELU_ONLY, "tanh": TANH}
LINE = 64  # bytes of a cache line
CONVERTED = {BF16: 2, INT8: 1, INT8_SIGNED: 1, INT8_TILES: 1}  # bytes of an element, where operands are not float32
BATCH = 32 << 20  # bytes of stored weights that are packed between two calls of `release`
Array = NDArray[Any]
# as kernels.encoder.reference.Weights, in any dtype of packing.STORED; a `qkv` may be a tuple of three
Stored = Mapping[str, Array | tuple[Array, ...]]


class EncoderProgram:
    """Steps, products and the memory they read, for one encoder, panel width, format of products and of attention.

    ``matrices`` are those that ``arrays`` has still to pack; ``used`` names the weights that are read.
    """

    def __init__(
        self, weights: Stored, shape: EncoderShape, mode: str, layers: Sequence[int], panel: int, form: int,
        attention: int = FLOAT,
    ) -> None:  # fmt: skip
        self.weights, self.shape, self.panel, self.format = weights, shape, panel, form
        self.attention = attention
        self.head = self._pad(shape.hidden // shape.heads)
        self._steps: list[Array] = []
        self._linears: list[Array] = []
        self._strides: dict[str, int] = {}  # buffer -> bytes in a row
        self._fill: list[Callable[[Array], None]] = []  # each writes its part of the memory
        self.matrices: list[Matrix] = []
        self.used: set[str] = set()
        self._bytes = 0
        self._build(mode, tuple(layers))

    def _build(self, mode: str, layers: tuple[int, ...]) -> None:
        """All steps, as far as the highest wanted layer."""
        hidden, width, heads = self.shape.hidden, self._parts("word")[0].shape[1], self.shape.heads * self.head
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
            self._linear(f"{prefix}qkv", "x", "wide", by_head=True, form=self.format)
            self._attend("wide", "context")
            self._linear(f"{prefix}out", "context", "y", add="x", from_heads=True, form=self.format)
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

    def _attend(self, source: str, target: str, window: int | None = None, bias: Array | None = None) -> None:
        """Attention as ``reference.attention`` defines it, of queries, keys and values by head, the queries scaled."""
        fields = {"window": -1 if window is None else window, "format": self.attention}
        if bias is not None:
            if bias.shape[0] != self.shape.heads or bias.shape[1] % 2 == 0:
                raise ValueError(f"a table of biases is (heads, 2 reach + 1), not {bias.shape}")
            ends = np.pad(bias.astype(np.float32), ((0, 0), (BIAS_MARGIN, BIAS_MARGIN)), mode="edge")
            fields |= {"table": self._vector(ends.reshape(-1)), "reach": bias.shape[1] // 2}
        for kind in (PACK, ATTEND):
            self._step(kind, source=source, target=target, **fields)

    def _step(self, kind: int, **fields: Any) -> None:
        fields = {"kind": kind, "source": -1, "target": -1, "add": -1, "window": -1, "table": -1} | fields
        buffers = list(self._strides)
        numbers = {name: buffers.index(v) if isinstance(v, str) else v for name, v in fields.items()}
        self._steps.append(record(STEP_FIELDS, numbers))

    def _parts(self, name: str) -> tuple[Array, ...]:
        self.used.add(name)
        return parts_of(self.weights, name)

    def _norm(self, name: str) -> dict[str, int]:
        return {part: self._vector(self.vector(f"{name}.{part}")) for part in ("scale", "bias")}

    def vector(self, name: str) -> Array:
        """A small weight as float32, its parts in a row; raises NotFinite."""
        parts = [widen(part) for part in self._parts(name)]
        for i, part in enumerate(parts):
            if not usable(part):
                raise NotFinite(name, i)
        return np.concatenate(parts, dtype=np.float32)

    def _linear(
        self, name: str, source: str, target: str, activation: str = "none", *, add: str | int = -1, texts: int = 0,
        by_head: bool = False, from_heads: bool = False, form: int = FLOAT,
    ) -> None:  # fmt: skip
        """target = activation(source W^T + b) + add; rows of W and b by head, or columns of W from heads."""
        parts, bias = self._parts(f"{name}.weight"), self.vector(f"{name}.bias")
        if by_head and len(parts) == 1:
            parts = tuple(np.split(parts[0], 3))
        parts = tuple(map(storable, parts))
        if any(part.dtype != parts[0].dtype for part in parts):
            parts = tuple(widen(part).astype(np.float32) for part in parts)
        rows = self._rows_by_head() if by_head else _padded_range(len(bias), self._pad(len(bias)))
        factor = 1 / sqrt(self.shape.hidden // self.shape.heads) if by_head else 1.0  # of the queries
        columns = parts[0].shape[1]
        groups, padded = (self.shape.heads, self.head) if from_heads else (1, self._pad(columns))
        height, inner = len(rows), groups * padded
        lanes = {FLOAT: 1, BF16: 2, BF16_WIDE: 2}.get(form, 4)  # elements along k in a lane of 32 bits
        if form in CONVERTED:
            self._step(CONVERT, source=source, target=f"{source} operand", width=inner, format=form)
            source = f"{source} operand"
        if by_head:
            bias[: len(parts[0])] *= np.float32(factor)
        start = self._vector(np.where(rows < 0, np.float32(0), bias[rows]))
        scale, shift = (self._reserve(4 * height), self._reserve(4 * height)) if lanes == 4 else (0, 0)
        steps = inner // lanes
        spare = -steps % TILE_STEPS if form == INT8_TILES else 0
        panels = self._reserve(4 * height * (steps + spare))
        matrix = Matrix(
            f"{name}.weight", tuple(map(raw, parts)), STORED.index(parts[0].dtype), len(parts[0]), columns, rows,
            groups, padded, factor, lanes, panels, scale, shift, zero=ZERO_POINT if form == INT8 else 0, spare=spare,
        )  # fmt: skip
        self.matrices.append(matrix)
        fields = {"weights": panels, "bias": start, "scale": scale, "shift": shift, "columns": height, "steps": steps}
        self._linears.append(record(LINEAR_FIELDS, fields | {"format": form}))
        self._step(
            LINEAR, source=source, target=target, linear=len(self._linears) - 1, activation=ACTIVATIONS[activation],
            add=add, texts=texts,
        )  # fmt: skip

    def _rows_by_head(self) -> NDArray[np.int32]:
        """For each row in the order [head][q|k|v][padded head] which of [q; k; v] (3D) it is, -1 for padding."""
        heads, size = self.shape.heads, self.shape.hidden // self.shape.heads
        out = np.full((heads, 3, self.head), -1, np.int32)
        out[:, :, :size] = np.arange(3 * self.shape.hidden).reshape(3, heads, size).swapaxes(0, 1)
        return out.reshape(-1)

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

    def arrays(self, threads: int = 1, release: Callable[[], None] = lambda: None) -> tuple[Array, Array, Array, Array]:
        """memory (uint8, on a line), linears, steps and strides, each (n,), as ``_cpu.Encoder`` takes them.

        ``release`` is called each time that some 32 MB of the stored weights have been packed, and at the end. Raises
        NotFinite for weights that hold NaN or infinity. Can be called once.
        """
        space = np.empty(self._bytes + LINE, np.uint8)  # NumPy asks for huge pages where the system gives them
        memory = space[-space.ctypes.data % LINE :][: self._bytes]
        while self._fill:
            self._fill.pop()(memory)
        while self.matrices:  # emptied, because they hold on to the stored weights
            batch, size = [], 0
            while self.matrices and size < BATCH:
                batch.append(self.matrices.pop(0))
                size += sum(part.nbytes for part in batch[-1].parts)
            for i, part in pack(batch, memory, self.panel, threads):
                raise NotFinite(batch[i].name, part)
            release()
        linears, steps = np.array(self._linears, LINEAR_FIELDS), np.array(self._steps, STEP_FIELDS)
        return memory, linears, steps, np.array(list(self._strides.values()), np.int64)


def parts_of(weights: Stored, name: str) -> tuple[Array, ...]:
    """The weight ``name`` as a tuple of its parts, one or three."""
    weight = weights[name]
    return weight if isinstance(weight, tuple) else (weight,)


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE


def _padded_range(count: int, height: int) -> NDArray[np.int32]:
    rows = np.arange(height, dtype=np.int32)
    rows[count:] = -1
    return rows
