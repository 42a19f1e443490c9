"""The plan, a calibration folded for execution, and its definition in NumPy.

D, M and N are the input, state and output channels, K the coupling steps, w their width. A plan begins with
v = (x - m) * s, then u = L v, or u = v without the prologue L.

Step k = 0 .. K-1 updates u in place on the range writes[k]:
    a_k = U_k u + c_k;   h_k = relu(B_k relu(a_k) + d_k);
    u <- (u + V_k h_k + p_k) * sigmoid(R_k h_k + q_k), without the gate if R is None;   at the end z = S u + t.

S is a diagonal with a gather index, S u = S * u[gather], or dense with gather None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
UNTOUCHED = 64.0  # gate bias with a sigmoid of exactly 1, which keeps the channel


@dataclass(frozen=True)
class Plan:
    """One folded calibration. Arrays are C-contiguous: float64 as folded, float32 as executed."""

    m: Array  # (D,) centre
    s: Array  # (D,) scale
    L: Array | None  # (M, D) dense prologue; None: u = v and M = D
    U: Array  # (K w, M) block row k: nonzero only in columns reads[k]
    c: Array  # (K w,)
    B: Array  # (K, w, w) inner layers
    d: Array  # (K, w)
    V: Array  # (M, K w); block column k: nonzero only in rows writes[k]
    p: Array  # (K, M) shift biases
    R: Array | None  # (M, K w) gate weights; None without gates
    q: Array | None  # (K, M) gate biases, else UNTOUCHED; None as R
    S: Array  # (N,) diagonal, or (N, M) dense
    gather: Array | None  # (N,) int32; None with a dense S
    t: Array  # (N,) output bias
    reads: Array  # (K, 2) int32: step k reads u[reads[k, 0]:reads[k, 1]]
    writes: Array  # (K, 2) int32: step k changes u[writes[k, 0]:writes[k, 1]]

    @property
    def inputs(self) -> int:
        """D, the width of x."""
        return len(self.m)

    @property
    def state(self) -> int:
        """M, the width of u."""
        return len(self.m) if self.L is None else len(self.L)

    @property
    def outputs(self) -> int:
        """N, the width of z."""
        return len(self.t)

    @property
    def steps(self) -> int:
        """K, the coupling steps."""
        return len(self.d)

    @property
    def width(self) -> int:
        """w, a step's width; 0 without steps."""
        return int(self.d.shape[1])

    def arrays(self) -> dict[str, Array]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def astype(self, dtype: Any) -> Plan:
        cast: dict[str, Any] = {k: v.astype(dtype) for k, v in self.arrays().items() if v.dtype.kind == "f"}
        return replace(self, **cast)


def execute(plan: Plan, x: Array) -> Array:
    """Map x (B, D) to z (B, N) in the plan's dtype."""
    u = (x.astype(plan.m.dtype) - plan.m) * plan.s
    if plan.L is not None:
        u = u @ plan.L.T
    w = plan.width
    for k in range(plan.steps):
        own, rows = slice(k * w, (k + 1) * w), slice(*plan.writes[k])
        h = (u @ plan.U[own].T + plan.c[own]).clip(min=0)
        h = (h @ plan.B[k].T + plan.d[k]).clip(min=0)
        u[:, rows] += h @ plan.V[rows, own].T + plan.p[k, rows]
        if plan.R is not None and plan.q is not None:
            log_gate = -np.logaddexp(0, -(h @ plan.R[rows, own].T + plan.q[k, rows]))  # log sigmoid, without overflow
            u[:, rows] *= np.exp(log_gate)
    z = u @ plan.S.T if plan.gather is None else u[:, plan.gather] * plan.S
    return np.asarray(z + plan.t)


def stack(plans: Sequence[Plan]) -> Plan:
    """Return one plan that computes ``plans``, which have no gates; its state is z, then a_K .. a_1.

    L computes what z and every step read of v. Step k reads a_k, and adds to z and to later a.
    """
    if any(plan.R is not None for plan in plans):
        raise ValueError("stack takes plans without gates: a gate is not linear in the hidden units")
    first, k, w = plans[0], sum(plan.steps for plan in plans), max(plan.width for plan in plans)
    inputs, size, step = first.inputs, k * w, 0
    a, B, d = np.zeros((k, w, inputs + size + 1)), np.zeros((k, w, w)), np.zeros((k, w))
    L = np.eye(inputs) if first.L is None else first.L
    y = np.pad(L, ((0, 0), (0, size + 1)))  # coefficients of v, of all h and of 1
    for plan in plans:
        if plan is not first:
            y[:, -1] -= plan.m
            y *= plan.s[:, None]
            y = y if plan.L is None else plan.L @ y
        for i, (low, high) in enumerate(plan.reads):
            n, own = plan.width, slice(i * plan.width, (i + 1) * plan.width)
            a[step, :n] = plan.U[own, low:high] @ y[low:high]
            a[step, :n, -1] += plan.c[own]
            B[step, :n, :n], d[step, :n] = plan.B[i], plan.d[i]
            y[:, inputs + step * w : inputs + step * w + n] = plan.V[:, own]
            y[:, -1] += plan.p[i]
            step += 1
        y = plan.S @ y if plan.gather is None else plan.S[:, None] * y[plan.gather]
        y[:, -1] += plan.t
    rows = np.concatenate([y, a[::-1].reshape(size, inputs + size + 1)])
    starts = len(y) + w * np.arange(k, dtype=np.int32)[::-1]
    of_a, V = (starts[:, None] + np.arange(w)).reshape(size), rows[:, inputs:-1].copy()
    written = [np.flatnonzero(V[:, i * w : (i + 1) * w].any(axis=1)) for i in range(k)]
    ends = [(found[0], found[-1] + 1) if len(found) else (0, 1) for found in written]
    return replace(
        first, L=rows[:, :inputs].copy(), U=np.eye(len(rows))[of_a], c=rows[of_a, -1], B=B, d=d, V=V,
        p=np.zeros((k, len(rows))), S=np.ones(len(y)), gather=np.arange(len(y), dtype=np.int32), t=y[:, -1].copy(),
        reads=np.column_stack([starts, starts + w]), writes=np.array(ends, np.int32).reshape(k, 2),
    )  # fmt: skip
