"""The algebra of folding: one affine map, coupling or split applied to the plan being built (float64 throughout)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.flow.plan import UNTOUCHED, Plan
from fastflow.plan.in_place import divides

Array = NDArray[Any]
Layer = tuple[Array, Array]  # weight (out, in), bias (out,)


class Linear:
    """A matrix (N, M): ``scale`` and ``gather``, (N,) each, for diagonal times gather, until it has to be ``dense``."""

    def __init__(self, size: int) -> None:
        """The identity."""
        self.columns = size
        self.scale: Array = np.ones(size)
        self.gather: Array = np.arange(size)
        self.dense: Array | None = None

    def __len__(self) -> int:
        return len(self.scale) if self.dense is None else len(self.dense)

    def matrix(self) -> Array:
        """(N, M), dense."""
        if self.dense is not None:
            return self.dense
        return self.place(np.diag(self.scale), slice(None))

    def place(self, weight: Array, rows: slice) -> Array:
        """(n, len(rows)) -> (n, M): columns moved to where ``rows`` gather from, zero elsewhere. Diagonal only."""
        out = np.zeros((len(weight), self.columns))
        out[:, self.gather[rows]] = weight
        return out

    def read(self, weight: Array, rows: slice) -> tuple[Array, tuple[int, int]]:
        """``weight`` @ self[rows], (n, M), and the range of columns that may be nonzero."""
        if self.dense is not None:
            return weight @ self.dense[rows], (0, self.columns)
        return self.place(weight * self.scale[rows], rows), hull(self.gather[rows])

    def take(self, order: Array) -> None:
        """Reorder the rows."""
        if self.dense is None:
            self.scale, self.gather = self.scale[order], self.gather[order]
        else:
            self.dense = self.dense[order]

    def times(self, a: Array) -> None:
        """Multiply row i by a[i]."""
        if self.dense is None:
            self.scale = self.scale * a
        else:
            self.dense = a[:, None] * self.dense


def hull(indices: Array) -> tuple[int, int]:
    """The smallest range (lo, hi), hi exclusive, that holds all ``indices``; contiguous ones give exactly theirs."""
    return int(indices.min()), int(indices.max()) + 1


@dataclass
class Step:
    """One coupling: its reading, inner and writing weights, as the fields of a plan of one step."""

    U: Array
    c: Array
    B: Array
    d: Array
    read: tuple[int, int]
    G: list[Array | None]  # additive: blocks against the earlier steps, None where zero by structure
    V: Array  # additive: (N, w), carried along to the output; affine: (M, w), final
    touched: Array  # bool, the rows of V that may be nonzero
    p: Array | None = None
    R: Array | None = None
    q: Array | None = None


class Builder:
    """The plan so far, as the invariant of ``fastflow.plan.fold``; finished plans are appended to ``done``."""

    def __init__(self, size: int, done: list[Plan], apart: bool = False) -> None:
        """``apart``: a dense matrix behind additive couplings starts another plan."""
        self.done, self.apart = done, apart
        self.start = 0  # y[:start] was emitted by splits; only y[start:] is still worked on
        self._begin(size)

    def _begin(self, size: int) -> None:
        self.m, self.s, self.t = np.zeros(size), np.ones(size), np.zeros(size)
        self.M, self.logdet = Linear(size), 0.0
        self.L: Array | None = None
        self.steps: list[Step] = []
        self.form, self.centred = "hidden", False

    def _active(self, values: Array, fill: float | None = None) -> Array:
        """``values`` for y[start:], with ``fill``, or the identity order, for the emitted channels before it."""
        head = np.arange(self.start) if fill is None else np.full(self.start, fill)
        return np.concatenate([head, values + self.start if fill is None else values])

    def scale(self, a: Array, b: Array) -> None:
        """y <- a (y + b). The first time, before anything else, it becomes the centring v = (x - m) s."""
        self.logdet += float(np.log(np.abs(a)).sum())
        a, b = self._active(a, 1.0), self._active(b, 0.0)
        if not self.centred:
            self.m, self.s, self.centred = -b, a, True
            return
        self.M.times(a)
        self.t = a * (self.t + b)
        if self.form == "hidden":
            for step in self.steps:
                step.V = a[:, None] * step.V

    def permute(self, order: Array) -> None:
        """y <- y[order]."""
        order = self._active(order)
        self.centred = True
        self.M.take(order)
        self.t = self.t[order]
        if self.form == "hidden":
            for step in self.steps:
                step.V, step.touched = step.V[order], step.touched[order]

    def dense(self, matrix: Array, log_det: float) -> None:
        """y <- matrix y. Behind affine couplings, and where plans are ``apart``, this starts another plan."""
        if self.form == "state" or (self.apart and self.steps and self.diagonal):
            self.close()
        self.centred = True
        self.logdet += log_det
        mixed = self.M.read(matrix, slice(self.start, None))[0]
        self.M.dense = np.concatenate([self.M.matrix()[: self.start], mixed])
        self.t = self._mix(matrix, self.t)
        for step in self.steps:
            if step.touched[self.start :].any():
                step.V = self._mix(matrix, step.V)
                step.touched = np.concatenate([step.touched[: self.start], np.ones(len(matrix), bool)])

    @property
    def diagonal(self) -> bool:
        """Whether no channels are mixed but by couplings."""
        return self.M.dense is None

    def remove(self, directions: Array) -> None:
        """y <- y - V^T V y for orthonormal ``directions`` V (k, C): a coupling whose hidden units are relu(+-V y).

        Only where M is diagonal and nothing is emitted. Behind affine couplings this starts another plan.
        """
        if self.form == "state":
            self.close()
        both = np.concatenate([directions, -directions])
        weight, read = self.M.read(both, slice(None))
        gram = [both @ step.V if step.touched.any() else None for step in self.steps]
        size = len(both)
        inner = np.eye(size), np.zeros(size)
        everywhere = np.ones(len(self.t), bool)
        self.steps.append(Step(weight, both @ self.t, *inner, read, gram, -both.T, everywhere))
        self.centred, self.logdet = True, np.nan

    def _mix(self, matrix: Array, values: Array) -> Array:
        return np.concatenate([values[: self.start], matrix @ values[self.start :]])

    def split(self) -> None:
        """Emit the second half of y[start:] and go on with the first: the order becomes emitted, second, first."""
        half = (len(self.t) - self.start) // 2
        self.permute(np.roll(np.arange(2 * half), -half))
        self.start += half

    def join(self) -> None:
        """End of a flow: all channels are worked on again."""
        self.start = 0

    def _factor(self) -> None:
        """Turn a dense M in front of the first coupling into the prologue L, so that the couplings read halves."""
        if self.M.dense is not None and not self.steps:
            self.L, self.M = self.M.dense, Linear(len(self.t))

    def _halves(self) -> tuple[slice, slice]:
        middle = (self.start + len(self.t)) // 2
        return slice(self.start, middle), slice(middle, len(self.t))

    def couple_additive(self, first: Layer, inner: Layer, last: Layer, linear_follows: bool) -> None:
        """y2 <- y2 + g(y1). ``linear_follows``: M will be dense anyway, so a prologue would only add work."""
        if self.form == "state":
            self.close()
        if not linear_follows:
            self._factor()
        kept, changed = self._halves()
        weight, read = self.M.read(first[0], kept)
        gram = [first[0] @ step.V[kept] if step.touched[kept].any() else None for step in self.steps]
        write, touched = np.zeros((len(self.t), len(inner[1]))), np.zeros(len(self.t), bool)
        write[changed], touched[changed] = last[0], True
        bias = first[0] @ self.t[kept] + first[1]
        self.t[changed] += last[1]
        self.centred = True
        self.steps.append(Step(weight, bias, *inner, read, gram, write, touched))

    def couple_affine(self, first: Layer, inner: Layer, last: Layer) -> None:
        """y2 <- (y2 + o[0::2]) sigmoid(o[1::2] + 2), o = g(y1)."""
        if self.form == "hidden" and self.steps:
            self.close()
        self._factor()
        self.form = "state"
        kept, changed = self._halves()
        weight, read = self.M.read(first[0], kept)
        bias = first[0] @ self.t[kept] + first[1]
        scale, where = self.M.scale[changed], self.M.gather[changed]
        if not divides(scale):
            raise FastflowError(
                f"the flow scales a channel by {np.abs(scale).min():.1e} to {np.abs(scale).max():.1e} before an affine "
                "coupling, which float32 cannot undo; fit it again, with fewer epochs or more varied text"
            )
        shift, gate = self.M.place(last[0][0::2].T / scale, changed).T, self.M.place(last[0][1::2].T, changed).T
        p, q = np.zeros(self.M.columns), np.full(self.M.columns, UNTOUCHED)
        p[where], q[where] = (last[1][0::2] + self.t[changed]) / scale, last[1][1::2] + 2
        self.t[changed] = 0
        self.centred = True
        touched = np.zeros(self.M.columns, bool)
        touched[where] = True
        self.steps.append(Step(weight, bias, *inner, read, [], shift, touched, p, gate, q))

    def close(self) -> None:
        """Finish the plan under construction and begin the next one, at the identity."""
        self.done.append(finish(self))
        self._begin(len(self.t))


def finish(b: Builder) -> Plan:
    """The finished plan of ``b``. Steps of different widths are padded with hidden units that stay zero."""
    k, w = len(b.steps), max((len(step.d) for step in b.steps), default=0)
    inputs, outputs, hidden = b.M.columns, len(b.t), b.form == "hidden"
    rows = outputs if hidden else inputs
    U, c, G = np.zeros((k, w, inputs)), np.zeros((k, w)), np.zeros((k, w, k, w))
    B, d, V, R = np.zeros((k, w, w)), np.zeros((k, w)), np.zeros((rows, k, w)), np.zeros((rows, k, w))
    for i, step in enumerate(b.steps):
        n = len(step.d)
        U[i, :n], c[i, :n], B[i, :n, :n], d[i, :n], V[:, i, :n] = step.U, step.c, step.B, step.d, step.V
        for j, block in enumerate(step.G):
            if block is not None:
                G[i, :n, j, : block.shape[1]] = block
        if step.R is not None:
            R[:, i, :n] = step.R
    plan = Plan(
        form=b.form,
        m=b.m,
        s=b.s,
        L=b.L,
        U=U.reshape(k * w, inputs),
        c=c.reshape(k * w),
        G=G.reshape(k * w, k * w) if hidden else None,
        B=B,
        d=d,
        V=V.reshape(rows, k * w),
        p=None if hidden else np.array([step.p for step in b.steps]),
        R=None if hidden else R.reshape(rows, k * w),
        q=None if hidden else np.array([step.q for step in b.steps]),
        S=b.M.scale if b.M.dense is None else b.M.dense,
        gather=b.M.gather.astype(np.int32) if b.M.dense is None else None,
        t=b.t,
        reads=np.array([step.read for step in b.steps], np.int32).reshape(k, 2),
        writes=np.array([hull(np.flatnonzero(step.touched)) for step in b.steps], np.int32).reshape(k, 2),
        logdet=b.logdet,
    )
    largest = float(np.finfo(np.float32).max)
    for name, array in plan.arrays().items():
        if not magnitude(array) <= largest:  # NaN is not
            raise FastflowError(
                f"the calibration folds to numbers that float32 cannot hold (array {name}, largest "
                f"{magnitude(array):.1e}); fit it again, with fewer epochs or more varied text"
            )
    return plan


def magnitude(array: Array) -> float:
    """The largest absolute value, NaN if one is there; without np.abs, whose copy takes longer than the rest."""
    return max(float(array.max(initial=0)), -float(array.min(initial=0)))
