"""The algebra of folding: add an affine map, coupling or split to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.flow import UNTOUCHED, Plan, stack

Array = NDArray[Any]
Layer = tuple[Array, Array]
LARGEST = 1e12  # products of two such numbers and their sums fit float32
INVERTIBLE = 1e30  # largest scale with an inverse that fits float32


class Linear:
    """A matrix (N, M): row i is scale[i] in column gather[i], until it becomes ``dense``."""

    def __init__(self, size: int) -> None:
        self.columns = size
        self.scale: Array = np.ones(size)
        self.gather: Array = np.arange(size)
        self.dense: Array | None = None

    def __len__(self) -> int:
        return len(self.scale) if self.dense is None else len(self.dense)

    def matrix(self) -> Array:
        if self.dense is not None:
            return self.dense
        return self.place(np.diag(self.scale), slice(None))

    def place(self, weight: Array, rows: slice) -> Array:
        """Move columns of ``weight`` (n, len(rows)) to the columns that ``rows`` gather: (n, M). Diagonal only."""
        out = np.zeros((len(weight), self.columns))
        out[:, self.gather[rows]] = weight
        return out

    def read(self, weight: Array, rows: slice) -> tuple[Array, tuple[int, int]]:
        """Return ``weight`` @ self[rows], (n, M), and the range of columns that may be nonzero."""
        if self.dense is not None:
            return weight @ self.dense[rows], (0, self.columns)
        return self.place(weight * self.scale[rows], rows), hull(self.gather[rows])

    def take(self, order: Array) -> None:
        if self.dense is None:
            self.scale, self.gather = self.scale[order], self.gather[order]
        else:
            self.dense = self.dense[order]

    def times(self, a: Array) -> None:
        if self.dense is None:
            self.scale = self.scale * a
        else:
            self.dense = a[:, None] * self.dense


def hull(indices: Array) -> tuple[int, int]:
    """Return the smallest range (lo, hi), hi exclusive, of ``indices``."""
    return int(indices.min()), int(indices.max()) + 1


def magnitude(array: Array) -> float:
    """Return the largest absolute value, or NaN, without np.abs's copy."""
    return max(float(array.max(initial=0)), -float(array.min(initial=0)))


def products(plan: Plan) -> int:
    """Count the multiply-adds for one vector, without blocks that are always 0."""
    w, reads, writes = plan.width, plan.reads, plan.writes
    steps = int(w * (reads[:, 1] - reads[:, 0]).sum()) + plan.B.size
    written = int(w * (writes[:, 1] - writes[:, 0]).sum()) * (1 if plan.R is None else 2)
    return steps + written + plan.S.size + (0 if plan.L is None else plan.L.size)


def join(plans: Sequence[Plan]) -> list[Plan]:
    """Replace neighbours with dense matrices by their ``stack`` if it takes fewer products."""
    groups: list[list[Plan]] = []
    for plan in plans:
        both = [*groups[-1], plan] if groups else []
        if both and all(map(_is_dense, both)) and _estimate(both) < _estimate(groups[-1]) + products(plan):
            groups[-1] = both
        else:
            groups.append([plan])
    return [group[0] if len(group) == 1 else stack(group) for group in groups]


def _is_dense(plan: Plan) -> bool:
    return plan.R is None and (plan.L is not None or plan.gather is None)


def _estimate(plans: Sequence[Plan]) -> int:
    """Count the products of ``plans``, stacked if several; a step then writes what dense matrices reach."""
    if len(plans) == 1:
        return products(plans[0])
    k, w, outputs = sum(plan.steps for plan in plans), max(plan.width for plan in plans), plans[-1].outputs
    reached = 0 if plans[-1].gather is None else outputs
    written = sum(plan.steps * (outputs - int(plan.reads.min(initial=reached))) for plan in plans)
    return plans[0].inputs * (k * w + outputs) + 2 * k * w * w + w * (written + k * (k - 1) // 2 * w) + outputs


def divides(scale: NDArray[Any], *largest: float) -> bool:
    """Return whether float32 can divide by ``scale`` (N,), and numbers up to ``largest`` stay within LARGEST."""
    low, high = np.abs(scale).min(), np.abs(scale).max()
    return bool(low > 1 / INVERTIBLE and high < INVERTIBLE and max(largest) <= low * LARGEST)


class CouplingStep(NamedTuple):
    """Weights of one coupling, which reads and writes the state u: fields as in Plan; V, R transposed."""

    U: Array
    c: Array
    B: Array
    d: Array
    read: tuple[int, int]
    V: Array
    write: tuple[int, int]
    p: Array
    R: Array | None = None
    q: Array | None = None


class Builder:
    """An unfinished plan: y = M u + t, where M is a diagonal times a gather once a coupling updates u."""

    def __init__(self, size: int) -> None:
        self.done: list[Plan] = []
        self.start = 0  # splits finished y[:start]; only y[start:] changes
        self._begin(size)

    def _begin(self, size: int) -> None:
        self.m, self.s, self.t = np.zeros(size), np.ones(size), np.zeros(size)
        self.M = Linear(size)
        self.L: Array | None = None
        self.steps: list[CouplingStep] = []
        self.centred = False

    def _active(self, values: Array, fill: float | None = None) -> Array:
        head = np.arange(self.start) if fill is None else np.full(self.start, fill)
        return np.concatenate([head, values + self.start if fill is None else values])

    def scale(self, a: Array, b: Array) -> None:
        """Apply y <- a (y + b); the first call becomes the centring v = (x - m) s."""
        a, b = self._active(a, 1.0), self._active(b, 0.0)
        if not self.centred:
            self.m, self.s, self.centred = -b, a, True
            return
        self.M.times(a)
        self.t = a * (self.t + b)

    def permute(self, order: Array) -> None:
        order = self._active(order)
        self.centred = True
        self.M.take(order)
        self.t = self.t[order]

    def dense(self, matrix: Array) -> None:
        """Apply y <- matrix y; after couplings, in a new plan."""
        if self.steps:
            self.close()
        self.centred = True
        mixed = self.M.read(matrix, slice(self.start, None))[0]
        self.M.dense = np.concatenate([self.M.matrix()[: self.start], mixed])
        self.t = np.concatenate([self.t[: self.start], matrix @ self.t[self.start :]])

    @property
    def diagonal(self) -> bool:
        return self.M.dense is None

    def remove(self, directions: Array) -> None:
        """Apply y <- y - V^T V y, V (k, C) orthonormal, by hidden units relu(+-V y). M must be diagonal."""
        both, every = np.concatenate([directions, -directions]), slice(None)
        zeros = np.zeros(len(both))
        self._couple((both, zeros), (np.eye(len(both)), zeros), every, every, (-both.T, np.zeros(len(self.t))))

    def split(self) -> None:
        """Move the second half of y[start:] before the first; later steps leave it unchanged."""
        half = (len(self.t) - self.start) // 2
        self.permute(np.roll(np.arange(2 * half), -half))
        self.start += half
        low, high = hull(self.M.gather[self.start :])
        if self.steps and high - low > half:  # scattered by a random permutation: steps would read and write all of u
            self.close()

    def join(self) -> None:
        """End a flow: work on all channels again."""
        self.start = 0

    def _halves(self) -> tuple[slice, slice]:
        middle = (self.start + len(self.t)) // 2
        return slice(self.start, middle), slice(middle, len(self.t))

    def couple_additive(self, first: Layer, inner: Layer, last: Layer) -> None:
        """Apply y2 <- y2 + g(y1), with the three layers of g."""
        self._couple(first, inner, *self._halves(), last)

    def couple_affine(self, first: Layer, inner: Layer, last: Layer) -> None:
        """Apply y2 <- (y2 + o[0::2]) sigmoid(o[1::2] + 2), o = g(y1)."""
        shift, gate = (last[0][0::2], last[1][0::2]), (last[0][1::2], last[1][1::2] + 2)
        self._couple(first, inner, *self._halves(), shift, gate)

    def _couple(
        self, first: Layer, inner: Layer, kept: slice, changed: slice, last: Layer, gate: Layer | None = None
    ) -> None:
        weight, bias = last
        if self.M.dense is not None:  # before the first coupling: couplings then read half of u
            self.L, self.M = self.M.dense, Linear(len(self.t))
        other = bool(self.steps) and (self.steps[0].R is None) != (gate is None)
        if other or not divides(self.M.scale[changed], magnitude(weight), magnitude(bias + self.t[changed])):
            self.close()
        self.centred = True
        U, read = self.M.read(first[0], kept)
        c = first[0] @ self.t[kept] + first[1]
        scale, where = self.M.scale[changed], self.M.gather[changed]
        V = self.M.place(weight.T / scale, changed)
        p, R, q = np.zeros(self.M.columns), None, None
        if gate is None:
            self.t[changed] += bias
        else:
            R, q = self.M.place(gate[0].T, changed), np.full(self.M.columns, UNTOUCHED)
            p[where], q[where] = (bias + self.t[changed]) / scale, gate[1]
            self.t[changed] = 0
        self.steps.append(CouplingStep(U, c, *inner, read, V, hull(where), p, R, q))

    def close(self) -> None:
        """Append the plan to ``done`` and begin the next at y = x; raises if it exceeds float32."""
        self.done.append(finish(self))
        self._begin(len(self.t))


def finish(b: Builder) -> Plan:
    """Build the plan of ``b``; steps are padded to the same width with hidden units of weight 0."""
    steps, k, n = b.steps, len(b.steps), b.M.columns
    w, gated = max((len(step.d) for step in steps), default=0), any(step.R is not None for step in steps)
    plan = Plan(
        m=b.m, s=b.s, L=b.L,
        U=_pad([step.U for step in steps], w, n).reshape(k * w, n),
        c=_pad([step.c for step in steps], w).reshape(k * w),
        B=_pad([step.B for step in steps], w, w), d=_pad([step.d for step in steps], w),
        V=_pad([step.V for step in steps], w, n).reshape(k * w, n).T.copy(), p=_pad([step.p for step in steps], n),
        R=_pad([step.R for step in steps], w, n).reshape(k * w, n).T.copy() if gated else None,
        q=_pad([step.q for step in steps], n) if gated else None,
        S=b.M.scale if b.M.dense is None else b.M.dense, gather=b.M.gather.astype(np.int32) if b.diagonal else None,
        t=b.t, reads=np.array([step.read for step in steps], np.int32).reshape(k, 2),
        writes=np.array([step.write for step in steps], np.int32).reshape(k, 2),
    )  # fmt: skip
    largest = float(np.finfo(np.float32).max)
    for name, array in plan.arrays().items():
        if not magnitude(array) <= largest:  # false for NaN
            raise FastflowError(
                f"the calibration folds to numbers that float32 cannot hold (array {name}, largest "
                f"{magnitude(array):.1e}); fit it again, with fewer epochs or more varied text"
            )
    return plan


def _pad(arrays: Sequence[Any], *shape: int) -> Array:
    out = np.zeros((len(arrays), *shape))
    for place, array in zip(out, arrays, strict=True):
        place[tuple(map(slice, array.shape))] = array
    return out
