"""Lay out the folded flow for the compiled kernels, and call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu, processor
from fastflow.kernels._cpu import OP, Flow, isas
from fastflow.kernels.flow import UNTOUCHED, Plan
from fastflow.kernels.processor import resolve_threads
from fastflow.kernels.stored import record

Array = NDArray[Any]
ALIGN = 16  # floats in a cache line
CHAIN = 128  # most multiply-adds in a partial sum, which bounds rounding
PIECE = 32  # fewest, if a product is cut into partial sums
# most weights (1.2 MB) that stay in L2; more are read once for four tiles of rows
CACHED = 300_000


class Program:
    """Operations, weights and tables of ``plans``, for vectors of ``vector`` floats and tiles of ``tile`` rows."""

    def __init__(self, plans: Sequence[Plan], vector: int, tile: int) -> None:
        self.vector = vector
        self.columns = self.size = self.cost = 0
        self.ops: list[Array] = []
        self.table: list[int] = [0]
        self.chunks: list[Array] = []
        source = _cpu.INPUT
        for plan in plans:
            source = self._plan(plan.astype(np.float32), source)
        self.result, self.inputs, self.outputs = source, plans[0].inputs, plans[-1].outputs
        self.stride = -(-self.columns // 32) * 32 + ALIGN  # an odd number of cache lines: rows use different cache sets
        self.block = tile if self.size <= CACHED else 4 * tile

    def arrays(self) -> tuple[Array, Array, Array]:
        """Return weights (float32, 64-byte aligned), ops (n,) of ``_cpu.OP``, table int32."""
        buffer = np.zeros(self.size + ALIGN, np.float32)
        weights = buffer[(-buffer.ctypes.data // 4) % ALIGN :][: self.size]
        weights[:] = np.concatenate(self.chunks)
        return weights, np.array(self.ops, OP), np.array(self.table, np.int32)

    def _plan(self, plan: Plan, source: int) -> int:
        v = self._slot(plan.inputs)
        centre, scale = self._put(plan.m), self._put(plan.s)
        self._op(_cpu.CENTRE, to=v, columns=plan.inputs, weights=centre, bias=scale, source=source)
        u = v
        if plan.L is not None:
            u = self._slot(plan.state)
            self._product(u, plan.L.T, np.zeros(plan.state, np.float32), v)
        z, h = self._slot(plan.outputs), self._slot(self._whole(plan.width))
        for k in range(plan.steps):
            self._step(plan, k, u, h)
        if plan.gather is None:
            self._product(z, plan.S.T, plan.t, u)
        else:
            self._diagonal(plan, u, z)
        return z

    def _step(self, plan: Plan, k: int, u: int, h: int) -> None:
        own, a = slice(k * plan.width, (k + 1) * plan.width), self._slot(plan.width)
        read, rows = slice(*plan.reads[k].tolist()), slice(*plan.writes[k].tolist())
        self._product(a, plan.U[own, read].T, plan.c[own], u + read.start, _cpu.RELU)
        self._product(h, plan.B[k].T, plan.d[k], a, _cpu.RELU)
        to, shift = u + rows.start, (plan.V[rows, own].T, plan.p[k, rows])
        if plan.R is None or plan.q is None:
            self._product(to, *shift, h, _cpu.ADD)
        else:
            weight, bias = self._interleave(shift, (plan.R[rows, own].T, plan.q[k, rows]))
            self._product(to, weight, bias, h, _cpu.GATE, rows.stop - rows.start)

    def _interleave(self, shift: tuple[Array, Array], gate: tuple[Array, Array]) -> tuple[Array, Array]:
        n = self.vector
        spare = -len(shift[1]) % n
        pairs = [
            (np.pad(weight, ((0, 0), (0, spare))).reshape(len(weight), -1, n),
             np.pad(bias, (0, spare), constant_values=fill).reshape(-1, n))
            for (weight, bias), fill in ((shift, 0.0), (gate, UNTOUCHED))
        ]  # fmt: skip
        weight = np.stack([pair[0] for pair in pairs], axis=2).reshape(len(shift[0]), -1)
        return weight, np.stack([pair[1] for pair in pairs], axis=1).reshape(-1)

    def _diagonal(self, plan: Plan, u: int, z: int) -> None:
        assert plan.gather is not None  # noqa: S101 - for mypy
        index = u + np.pad(plan.gather, (0, -plan.outputs % self.vector), mode="edge").reshape(-1, self.vector)
        table = len(self.table)
        self.table += [number for run in _runs(index) for number in run]
        scale, bias, indices = self._put(plan.S), self._put(plan.t), len(self.table)
        self._op(_cpu.GATHER, to=z, columns=plan.outputs, weights=scale, bias=bias, source=table, depth=indices)
        self.table += index.ravel().tolist()

    def _product(
        self, to: int, weight: Array, bias: Array, source: int, mode: int = 0, columns: int | None = None
    ) -> None:
        depth, columns, chain = len(weight), weight.shape[1] if columns is None else columns, CHAIN
        if weight.shape[1] <= 4 * self.vector:  # one or two panels are too few independent sums
            mode, chain = mode | _cpu.SPLIT, min(CHAIN, max(PIECE, -(-depth // 4)))
        panels, biases, n = [], [], 2 * self.vector
        for low in range(0, weight.shape[1], n):
            wide = n if weight.shape[1] - low > self.vector else self.vector
            panels.append(_widen(weight[:, low : low + wide], wide).ravel())
            biases.append(_widen(bias[low : low + wide], wide))
        w, b = self._put(np.concatenate(panels)), self._put(np.concatenate(biases))
        self._op(
            _cpu.PRODUCT, to=to, columns=columns, weights=w, bias=b, source=source, depth=depth, chain=chain, mode=mode
        )
        self.cost += weight.size

    def _op(self, kind: int, **fields: int) -> None:
        self.ops.append(record(OP, {"kind": kind} | fields))

    def _whole(self, width: int) -> int:
        return -(-width // self.vector) * self.vector

    def _slot(self, columns: int) -> int:
        start = self.columns
        self.columns += -(-(columns + 2 * self.vector) // ALIGN) * ALIGN
        return start

    def _put(self, values: Array) -> int:
        start = self.size
        self.chunks.append(_widen(values, -(-len(values) // ALIGN) * ALIGN))
        self.size += len(self.chunks[-1])
        return start


def _widen(values: Array, columns: int) -> Array:
    out = np.zeros((*values.shape[:-1], columns), np.float32)
    out[..., : values.shape[-1]] = values
    return out


def _runs(index: Array) -> list[list[int]]:
    runs: list[list[int]] = []
    for before, row in zip([index[0], *index[:-1]], index, strict=True):
        steps = np.diff(row)
        order = _cpu.ASCENDING if (steps == 1).all() else _cpu.DESCENDING if (steps == -1).all() else _cpu.SCATTERED
        if runs and order == runs[-1][0] and (order == _cpu.SCATTERED or row[0] - before[-1] == steps[0]):
            runs[-1][2] += 1
        else:
            runs.append([order, int(row[0]), 1])
    return runs


class CpuFlow:
    """Apply plans in order in one compiled call: x (B, D) -> z (B, N), float32.

    A row's bits do not depend on other rows or threads. Safe in threads and after fork.
    """

    def __init__(self, plans: Sequence[Plan], threads: int | None = None, isa: str | None = None) -> None:
        self.isa = processor.isa(isa)
        self.threads = resolve_threads(threads)
        number, _, vector, tile = isas()[self.isa]
        p = Program(plans, vector, tile)
        self.inputs, self.outputs = p.inputs, p.outputs
        self.compiled = Flow(
            *p.arrays(), inputs=p.inputs, outputs=p.outputs, result=p.result, stride=p.stride, block=p.block,
            cost=min(p.cost, 2**31 - 1), isa=number,
        )  # fmt: skip

    def __call__(
        self, x: NDArray[Any], normalize: bool = False, truncate: int | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return z (B, N), or its first ``truncate`` columns, of x (B, D), both C-contiguous float32.

        ``normalize`` divides rows by their L2 norms, after truncation. ``out`` receives the result, and may be ``x``.
        Raises ValueError for other shapes or types.
        """
        keep = self.outputs if truncate is None else truncate
        if not 1 <= keep <= self.outputs:
            raise ValueError(f"truncate must be 1 to {self.outputs}, the width of the flow, not {keep}")
        if x.ndim != 2 or x.shape[1] != self.inputs or x.dtype != np.float32 or not x.flags.c_contiguous:
            raise ValueError(
                f"the flow takes C-contiguous float32 of shape (B, {self.inputs}), not {x.dtype} of shape {x.shape}"
            )
        z = np.empty((len(x), keep), np.float32) if out is None else out
        if z.shape != (len(x), keep) or z.dtype != np.float32 or not z.flags.carray:
            raise ValueError(
                f"out must be C-contiguous, writable float32 of shape {(len(x), keep)}, not {z.dtype} {z.shape}"
            )
        self.compiled.run(x, z, normalize, self.threads)
        return z
