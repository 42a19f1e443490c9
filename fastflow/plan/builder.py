"""The algebra of folding: add an affine map, coupling or split to a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.flow import UNTOUCHED, Plan
from fastflow.plan.linear import LARGEST, Linear, divides, hull, magnitude, width

Array = NDArray[Any]
Layer = tuple[Array, Array]


@dataclass(eq=False, repr=False)
class Step:
    """Weights of one coupling: U, c read; B, d are the inner layer; V writes; p, R, q as in Plan."""

    U: Array
    c: Array
    B: Array
    d: Array
    read: tuple[int, int]
    linked: list[bool]  # additive: whether it reads each earlier step's output
    G: list[Array | None]  # "hidden": products with V of earlier steps, None if always 0
    V: Array  # "hidden": (N, w), which later maps change; else (M, w), final
    touched: Array  # bool, rows of V that may be nonzero
    after: Array  # additive: bool, outputs (N,) that may depend on the step
    p: Array | None = None
    R: Array | None = None
    q: Array | None = None


class Builder:
    """An unfinished plan, with the equation of ``fastflow.plan``.

    ``form``: "hidden"; "state" for affine couplings; "in place" for additive couplings that update
    the state u. ``apart``: as ``sparse`` of ``fold``.
    """

    def __init__(self, size: int, done: list[Plan], apart: bool = False) -> None:
        self.done, self.apart = done, apart
        self.start = 0  # splits finished y[:start]; only y[start:] changes
        self._begin(size)

    def _begin(self, size: int) -> None:
        self.m, self.s, self.t = np.zeros(size), np.ones(size), np.zeros(size)
        self.M, self.logdet = Linear(size), 0.0
        self.L: Array | None = None
        self.steps: list[Step] = []
        self.form, self.centred = "hidden", False

    def _active(self, values: Array, fill: float | None = None) -> Array:
        head = np.arange(self.start) if fill is None else np.full(self.start, fill)
        return np.concatenate([head, values + self.start if fill is None else values])

    def scale(self, a: Array, b: Array) -> None:
        """Apply y <- a (y + b); the first call becomes the centring v = (x - m) s."""
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
        order = self._active(order)
        self.centred = True
        self.M.take(order)
        self.t = self.t[order]
        if self.form == "state":
            return
        for step in self.steps:
            step.after = step.after[order]
            if self.form == "hidden":
                step.V, step.touched = step.V[order], step.after

    def dense(self, matrix: Array, log_det: float) -> None:
        """Apply y <- matrix y, in another plan after affine couplings or if ``apart``."""
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
                step.after = step.touched

    @property
    def diagonal(self) -> bool:
        return self.M.dense is None

    def remove(self, directions: Array) -> None:
        """Apply y <- y - V^T V y, V (k, C) orthonormal, by hidden units relu(+-V y). M must be diagonal."""
        if self.form == "state":
            self.close()
        both = np.concatenate([directions, -directions])
        inner = np.eye(len(both)), np.zeros(len(both))
        self._additive((both, np.zeros(len(both))), inner, -both.T, slice(None), slice(None))
        self.logdet = np.nan

    def _mix(self, matrix: Array, values: Array) -> Array:
        return np.concatenate([values[: self.start], matrix @ values[self.start :]])

    def split(self) -> None:
        """Finish the second half of y[start:], which moves before the first half."""
        half = (len(self.t) - self.start) // 2
        self.permute(np.roll(np.arange(2 * half), -half))
        self.start += half

    def join(self) -> None:
        """End a flow: work on all channels again."""
        self.start = 0

    def _factor(self) -> None:
        """Move a dense M before the first coupling to L, so that couplings read half of u."""
        if self.M.dense is not None and not self.steps:
            self.L, self.M = self.M.dense, Linear(len(self.t))

    def _halves(self) -> tuple[slice, slice]:
        middle = (self.start + len(self.t)) // 2
        return slice(self.start, middle), slice(middle, len(self.t))

    def couple_additive(self, first: Layer, inner: Layer, last: Layer, linear_follows: bool) -> None:
        """Apply y2 <- y2 + g(y1), with the three layers of g.

        ``linear_follows``: a dense matrix is next, so M may stay dense.
        """
        if self.form == "state":
            self.close()
        if not linear_follows:
            self._factor()
        kept, changed = self._halves()
        self._additive(first, inner, last[0], kept, changed)
        self.t[changed] += last[1]

    def _additive(self, first: Layer, inner: Layer, last: Array, kept: slice, changed: slice) -> None:
        weight, bias = first
        U, read = self.M.read(weight, kept)
        c, linked = weight @ self.t[kept] + bias, [bool(step.after[kept].any()) for step in self.steps]
        after = np.zeros(len(self.t), bool)
        after[changed] = True
        self.centred = True
        if self._fits_in_place(self.M.scale[changed]):
            self.form = "in place"
            V = self.M.place(last.T / self.M.scale[changed], changed).T
            self.steps.append(Step(U, c, *inner, read, linked, [], V, self._from(changed), after))
            return
        self._carry()
        G = [weight @ step.V[kept] if link else None for step, link in zip(self.steps, linked, strict=True)]
        V = np.zeros((len(self.t), last.shape[1]))
        V[changed] = last
        self.steps.append(Step(U, c, *inner, read, linked, G, V, after, after))

    def _fits_in_place(self, scale: Array) -> bool:
        begun = self.form == "in place" or not self.steps
        return self.apart and begun and self.diagonal and divides(scale)

    def _from(self, rows: slice) -> Array:
        found = np.zeros(self.M.columns, bool)
        found[self.M.gather[rows]] = True
        return found

    def _carry(self) -> None:
        """Turn the form "in place" into "hidden"."""
        if self.form == "hidden":
            return
        for step in self.steps:
            step.G = [step.U @ self.steps[j].V if link else None for j, link in enumerate(step.linked)]
        for step in self.steps:
            step.V, step.touched = self.M.scale[:, None] * step.V[self.M.gather], step.after
        self.form = "hidden"

    def _choose(self) -> None:
        """Keep "in place" only if it takes fewer products than "hidden", and fits float32."""
        if self.form != "in place":
            return
        links = max(len(step.d) for step in self.steps) * sum(sum(step.linked) for step in self.steps)
        here, carried = sum(width(step.touched) for step in self.steps), sum(width(step.after) for step in self.steps)
        if here >= carried + links or max(magnitude(step.V) for step in self.steps) > LARGEST:
            self._carry()

    def couple_affine(self, first: Layer, inner: Layer, last: Layer) -> None:
        """Apply y2 <- (y2 + o[0::2]) sigmoid(o[1::2] + 2), o = g(y1)."""
        if self.form != "state" and self.steps:
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
        touched = self._from(changed)
        self.steps.append(Step(weight, bias, *inner, read, [], [], shift, touched, touched, p, gate, q))

    def close(self) -> None:
        """Append the plan to ``done`` and begin the next at y = x; raises if it exceeds float32."""
        self._choose()
        self.done.append(finish(self))
        self._begin(len(self.t))


def finish(b: Builder) -> Plan:
    """Build the plan of ``b``; steps are padded to the same width with hidden units of weight 0."""
    k, w = len(b.steps), max((len(step.d) for step in b.steps), default=0)
    inputs, hidden, gated = b.M.columns, b.form == "hidden", b.form == "state"
    rows = len(b.t) if hidden else inputs
    U, c, B, d = np.zeros((k, w, inputs)), np.zeros((k, w)), np.zeros((k, w, w)), np.zeros((k, w))
    V, G, R = np.zeros((rows, k, w)), np.zeros((k, w, k, w) if hidden else 0), np.zeros((rows, k, w) if gated else 0)
    for i, step in enumerate(b.steps):
        n = len(step.d)
        U[i, :n], c[i, :n], B[i, :n, :n], d[i, :n], V[:, i, :n] = step.U, step.c, step.B, step.d, step.V
        for j, block in enumerate(step.G):
            if block is not None:
                G[i, :n, j, : block.shape[1]] = block
        if step.R is not None:
            R[:, i, :n] = step.R
    plan = Plan(
        form="hidden" if hidden else "state",
        m=b.m,
        s=b.s,
        L=b.L,
        U=U.reshape(k * w, inputs),
        c=c.reshape(k * w),
        G=G.reshape(k * w, k * w) if hidden else None,
        B=B,
        d=d,
        V=V.reshape(rows, k * w),
        p=None if hidden else np.array([step.p for step in b.steps]) if gated else np.zeros((k, inputs)),
        R=R.reshape(rows, k * w) if gated else None,
        q=np.array([step.q for step in b.steps]) if gated else None,
        S=b.M.scale if b.M.dense is None else b.M.dense,
        gather=b.M.gather.astype(np.int32) if b.M.dense is None else None,
        t=b.t,
        reads=np.array([step.read for step in b.steps], np.int32).reshape(k, 2),
        writes=np.array([hull(np.flatnonzero(step.touched)) for step in b.steps], np.int32).reshape(k, 2),
        logdet=b.logdet,
    )
    largest = float(np.finfo(np.float32).max)
    for name, array in plan.arrays().items():
        if not magnitude(array) <= largest:  # false for NaN
            raise FastflowError(
                f"the calibration folds to numbers that float32 cannot hold (array {name}, largest "
                f"{magnitude(array):.1e}); fit it again, with fewer epochs or more varied text"
            )
    return plan
