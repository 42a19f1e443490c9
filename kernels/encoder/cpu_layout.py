"""An encoder's steps, products, buffers and packed weights for the compiled kernels.

Widths, also of heads, are padded with zeros to whole panels. Fields are as in ``c/encoder/encoder.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu
from fastflow.kernels._cpu import APART, BF16, BF16_WIDE, FLOAT, INT8, INT8_SIGNED, INT8_TILES, LINEAR_FIELDS, STEPS
from fastflow.kernels.encoder import PLAIN, EncoderShape, Outliers, PoolingSpec, head_width
from fastflow.kernels.stored import STORED, NotFinite, PackedMatrix, raw, record, storable, usable, widen

LINE = 64  # bytes of a cache line
ACTIVATIONS = {
    "none": _cpu.LINEAR_ONLY,
    "gelu": _cpu.GELU,
    "gelu_tanh": _cpu.GELU_TANH,
    "relu": _cpu.RELU_ONLY,
    "tanh": _cpu.TANH,
}
CONVERTED = {BF16: 2, INT8: 1, INT8_SIGNED: 1, INT8_TILES: 1}  # format -> bytes of an element
BATCH = 32 << 20  # stored bytes packed between calls of `release`
Array = NDArray[Any]
# reference.Weights in dtypes of stored.STORED; weight `qkv` may be three arrays
Stored = Mapping[str, Array | tuple[Array, ...]]


class Products(NamedTuple):
    """Panel width, the formats of products and attention, the outliers of int8, and how panels lie."""

    panel: int
    form: int
    attention: int = FLOAT
    outliers: Outliers = PLAIN
    together: int = 1  # steps, as in ``ff_steps_together``


class EncoderProgram:
    """An encoder's steps and products, and their memory.

    ``used``: names of the weights read. ``pooled``, ``outputs``: widths of a vector before and after the head.
    """

    def __init__(self, weights: Stored, shape: EncoderShape, pooling: PoolingSpec, products: Products) -> None:
        self.weights, self.shape = weights, shape
        self.panel, self.format, self.attention, (self.smoothing, self.apart), self.together = products
        layers, self.modules = len(pooling.layers), pooling.head
        self.shares = [1 / layers] * layers if pooling.shares is None else list(pooling.shares)
        self.pooled = shape.hidden * len(pooling.mode.split("+"))
        self.outputs = head_width(pooling.head, self.pooled)
        self.head = self.pad(shape.hidden // shape.heads)
        self._steps: list[tuple[int, ...]] = []
        self._linears: list[Array] = []
        self._strides: dict[str, int] = {}  # buffer -> bytes in a row
        self._widths: dict[str, int] = {}  # buffer -> floats in a row
        self._operands: set[str] = set()
        self._halves: set[str] = set()
        self._tables: dict[float, int] = {}  # base of rotary angles -> offset
        self._fill: list[Callable[[Array], None]] = []  # functions that write parts of the memory
        self._apart_weights: dict[str, Callable[[Array], None]] = {}  # weight -> writer of its outlier columns
        self.matrices: list[PackedMatrix] = []
        self.used: set[str] = set()
        self._bytes = 0

    def check_outliers(self) -> None:
        smooth = {m.name.removesuffix(".weight") for m in self.matrices if m.by is not None}
        if unknown := (self.smoothing.keys() | self.apart.keys()) - smooth:
            raise ValueError(f"smoothing is of products of bytes in these layers, not of {min(unknown)}")

    def buffers(self, **widths: int) -> None:
        """Add buffers of float32, name -> columns."""
        for name, columns in widths.items():
            # one line more: rows use different cache sets, and int8 rows end in their scale
            self._strides[name] = _whole_lines(4 * self.pad(columns)) + LINE
            self._widths[name] = self.pad(columns)

    def _operand(self, source: str) -> str:
        name = f"{source} operand"
        self._strides.setdefault(name, _whole_lines(CONVERTED[self.format] * self._widths[source]) + LINE)
        self._operands.add(name)
        if self.format == BF16:
            self._halves.add(name)
        return name

    def choose_buffer(self, buffer: str) -> str:
        """Return the buffer for rows that only the next product reads."""
        return self._operand(buffer) if self.format == BF16 else buffer

    def halves(self, name: str, columns: int) -> str:
        """Add a buffer of bfloat16."""
        self._strides[name] = _whole_lines(2 * columns) + LINE
        self._halves.add(name)
        return name

    def attend(self, source: str, target: str, window: int | None = None, bias: Array | None = None) -> None:
        """Add attention from the heads in ``source``, with scaled queries, to ``target``."""
        result = BF16 if target in self._halves else FLOAT
        biases, reach = -1, 0
        if bias is not None:
            if bias.shape[0] != self.shape.heads or bias.shape[1] % 2 == 0:
                raise ValueError(f"a table of biases is (heads, 2 reach + 1), not {bias.shape}")
            ends = np.pad(bias.astype(np.float32), ((0, 0), (_cpu.BIAS_MARGIN, _cpu.BIAS_MARGIN)), mode="edge")
            biases, reach = self.put(ends.reshape(-1)), bias.shape[1] // 2
        for kind in (_cpu.PACK, _cpu.ATTEND):
            self.step(
                kind, source=source, target=target, format=self.attention, result=result,
                window=-1 if window is None else window, biases=biases, reach=reach,
            )  # fmt: skip

    def step(self, kind: int, **fields: str | int) -> None:
        """Add a step with the fields of its ``kind``; buffers are given by name."""
        wanted = [name for name in STEPS[kind].names or () if name != "kind"]
        if fields.keys() != set(wanted):
            raise ValueError(f"a step of kind {kind} has the fields {', '.join(wanted)}, not {', '.join(fields)}")
        buffers = list(self._strides)
        numbers = {name: buffers.index(v) if isinstance(v, str) else v for name, v in fields.items()}
        self._steps.append((kind, *(numbers[name] for name in wanted)))

    def parts(self, name: str) -> tuple[Array, ...]:
        """Return the arrays of weight ``name``, and mark it as used."""
        self.used.add(name)
        return parts_of(self.weights, name)

    def normalise(self, name: str, source: str, target: str) -> None:
        width = self.shape.hidden
        self.step(_cpu.NORM, source=source, target=target, texts=0, width=width, eps=-1, **self.norm(name, width))

    def norm(self, name: str, width: int) -> dict[str, int]:
        scale, bias = self.vector(f"{name}.scale"), self.bias(f"{name}.bias", width)
        return {"scale": self.put(scale), "bias": self.put(bias)}

    def bias(self, name: str, width: int) -> Array:
        """Return bias ``name`` as float32 (width,), or zeros."""
        return self.vector(name) if name in self.weights else np.zeros(width, np.float32)

    def vector(self, name: str) -> Array:
        """Return a small weight as float32 (n,). Raises NotFinite."""
        parts = [widen(part) for part in self.parts(name)]
        for i, part in enumerate(parts):
            if not usable(part):
                raise NotFinite(name, i)
        return np.concatenate(parts, dtype=np.float32)

    def linear(
        self, name: str, source: str, target: str, activation: str = "none", *, add: str | int = -1, texts: int = 0,
        by_head: bool = False, from_heads: bool = False, rows: NDArray[np.int32] | None = None, form: int = FLOAT,
    ) -> None:  # fmt: skip
        """Add target = activation(source W^T + b) + add.

        ``by_head``: result order is [head][q, k, v]; ``from_heads``: operand order is by head; ``rows``: W's row order.
        """
        parts = self.parts(f"{name}.weight")
        bias = self.bias(f"{name}.bias", sum(len(part) for part in parts))
        if by_head and len(parts) == 1:
            parts = tuple(np.split(parts[0], 3))
        parts = tuple(map(storable, parts))
        if any(part.dtype != parts[0].dtype for part in parts):
            parts = tuple(widen(part).astype(np.float32) for part in parts)
        if rows is None:
            rows = self._rows_by_head() if by_head else _pad_range(len(bias), self.pad(len(bias)))
        factor = 1 / sqrt(self.shape.hidden // self.shape.heads) if by_head else 1.0  # scales queries
        columns = parts[0].shape[1]
        groups, padded = (self.shape.heads, self.head) if from_heads else (1, self.pad(columns))
        height, inner = len(rows), groups * padded
        lanes = {FLOAT: 1, BF16: 2, BF16_WIDE: 2}.get(form, 4)  # elements in a 32-bit lane
        by, apart = (self.smoothing.get(name), self.apart.get(name)) if lanes == 4 and groups == 1 else (None, None)
        factors = numbers = beside = -1
        if apart is not None:
            numbers, beside = self._apart_numbers(apart), self._apart_offset(name, parts, rows, factor, apart)
            by = np.ones(columns, np.float32) if by is None else by.copy()
            by[apart] = 0
        if by is not None:
            factors = self.put(np.divide(1, by, out=np.zeros_like(by), where=by > 0))
        if form in CONVERTED and source not in self._operands:
            operand = self._operand(source)
            self.step(
                _cpu.CONVERT, source=source, target=operand, width=inner, format=form, factors=factors, apart=numbers
            )
            source = operand
        if by_head:
            bias[: len(parts[0])] *= np.float32(factor)
        start = self.put(np.where(rows < 0, np.float32(0), bias[rows]))
        scale, shift = (self._reserve(4 * height), self._reserve(4 * height)) if lanes == 4 else (0, 0)
        steps = inner // lanes
        spare = -steps % _cpu.TILE_STEPS if form == INT8_TILES else 0
        panels = self._reserve(4 * height * (steps + spare))
        matrix = PackedMatrix(
            f"{name}.weight", tuple(map(raw, parts)), STORED.index(parts[0].dtype), len(parts[0]), columns, rows,
            groups, padded, factor, lanes, panels, scale, shift, _cpu.ZERO_POINT if form == INT8 else 0, spare, by,
            1 if form == FLOAT else self.together,
        )  # fmt: skip
        self.matrices.append(matrix)
        result = BF16 if target in self._halves else FLOAT
        if result == BF16 and activation == "tanh":
            raise ValueError(f"the product {name!r} applies tanh to results of float32 alone, not of bfloat16")
        fields = {"weights": panels, "bias": start, "scale": scale, "shift": shift, "columns": height, "steps": steps}
        fields |= {"format": form, "apart": beside, "result": result}
        self._linears.append(record(LINEAR_FIELDS, fields))
        self.step(
            _cpu.LINEAR, source=source, target=target, texts=texts, product=len(self._linears) - 1,
            activation=ACTIVATIONS[activation], add=add,
        )  # fmt: skip

    def _apart_numbers(self, apart: Array) -> int:
        def fill(memory: Array) -> None:
            memory[where : where + 4 * APART].view(np.int32)[:] = np.pad(apart, (0, APART - len(apart)))

        where = self._reserve(4 * APART, fill)
        return where

    def _apart_offset(
        self, name: str, parts: tuple[Array, ...], rows: NDArray[np.int32], factor: float, apart: Array
    ) -> int:  # fmt: skip
        def fill(memory: Array) -> None:
            columns = np.concatenate([widen(part[:, apart]) for part in parts], dtype=np.float32, casting="same_kind")
            columns[: len(parts[0])] *= np.float32(factor)
            to = memory[where : where + 4 * APART * len(rows)].view(np.float32).reshape(APART, len(rows))
            to[: len(apart)], to[len(apart) :] = np.where(rows < 0, np.float32(0), columns[rows].T), 0

        where = self._reserve(4 * APART * len(rows))
        self._apart_weights[f"{name}.weight"] = fill
        return where

    def _rows_by_head(self) -> NDArray[np.int32]:
        """Return, for each row of [head][q, k, v][padded head], its row in [q; k; v] (3D), or -1 for padding.

        Rotation pads each half of a head.
        """
        heads, size = self.shape.heads, self.shape.hidden // self.shape.heads
        rows = np.arange(3 * self.shape.hidden).reshape(3, heads, size).swapaxes(0, 1)
        out = np.full((heads, 3, self.head), -1, np.int32)
        out[:, :, :size] = rows
        if self.shape.rotary:
            halves = np.full((heads, 2, 2, self.head // 2), -1, np.int32)
            halves[..., : size // 2] = rows[:, :2].reshape(heads, 2, 2, size // 2)
            out[:, :2] = halves.reshape(heads, 2, self.head)
        return out.reshape(-1)

    def rotary(self, base: float) -> int:
        """Return the offset of the table of angles for ``base``: float32 (positions, head), cosines then sines."""
        from fastflow.kernels.encoder import rotary_table

        def fill(memory: Array) -> None:
            table = memory[where : where + size].view(np.float32).reshape(self.shape.positions, 2, self.head // 2)
            table[:] = 0
            head = self.shape.hidden // self.shape.heads
            table[:, 0, : head // 2], table[:, 1, : head // 2] = rotary_table(self.shape.positions, head, base)

        if base not in self._tables:
            size = 4 * self.shape.positions * self.head
            where = self._tables[base] = self._reserve(size, fill)
        return self._tables[base]

    def pad(self, width: int) -> int:
        """Round ``width`` up to whole panels."""
        return -(-width // self.panel) * self.panel

    def put(self, values: Array) -> int:
        """Reserve memory for ``values`` (n,) as float32, padded to whole panels; return the offset."""

        def fill(memory: Array) -> None:
            to = memory[where : where + 4 * self.pad(len(values))].view(np.float32)
            to[: len(values)], to[len(values) :] = values, 0

        where = self._reserve(4 * self.pad(len(values)), fill)
        return where

    def _reserve(self, size: int, fill: Callable[[Array], None] | None = None) -> int:
        where = self._bytes
        self._bytes += _whole_lines(size)
        if fill:
            self._fill.append(fill)
        return where

    def arrays(self, threads: int = 1, release: Callable[[], None] = lambda: None) -> tuple[Array, Array, Array, Array]:
        """Return memory (uint8), linears (n,), steps (n, STEP_NUMBERS) and strides (n,), only once.

        Calls ``release`` after every BATCH bytes of packed weights. Raises NotFinite.
        """
        space = np.empty(self._bytes + LINE, np.uint8)
        memory = space[-space.ctypes.data % LINE :][: self._bytes]
        while self._fill:
            self._fill.pop()(memory)
        while self.matrices:  # removing them frees stored weights
            batch, size = [], 0
            while self.matrices and size < BATCH:
                batch.append(self.matrices.pop(0))
                size += sum(part.nbytes for part in batch[-1].parts)
            for i, part in _cpu.pack(batch, memory, self.panel, threads):
                raise NotFinite(batch[i].name, part)
            for matrix in batch:
                if fill := self._apart_weights.pop(matrix.name, None):
                    fill(memory)
            release()
        linears, steps = (
            np.array(self._linears, LINEAR_FIELDS),
            np.zeros((len(self._steps), _cpu.STEP_NUMBERS), np.int64),
        )
        for row, step in zip(steps, self._steps, strict=True):
            row[: len(step)] = step
        return memory, linears, steps, np.array(list(self._strides.values()), np.int64)


def parts_of(weights: Stored, name: str) -> tuple[Array, ...]:
    """Return the arrays of weight ``name``, one or three."""
    weight = weights[name]
    return weight if isinstance(weight, tuple) else (weight,)


def _whole_lines(size: int) -> int:
    return -(-size // LINE) * LINE


def _pad_range(count: int, height: int) -> NDArray[np.int32]:
    rows = np.arange(height, dtype=np.int32)
    rows[count:] = -1
    return rows
