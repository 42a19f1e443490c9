"""The plan, a calibration folded for execution, and its definition in NumPy.

D, M and N are the input, state and output channels, K the coupling steps, w their width. Both forms begin with
v = (x - m) * s, then u = L v, or u = v without the prologue L.

``hidden`` (additive couplings and linear maps), for k = 0 .. K-1 in order:
    a_k = U_k u + c_k + sum_{j<k} G_kj h_j;   h_k = relu(B_k relu(a_k) + d_k);   at the end z = S u + V h + t.
``state`` (affine couplings, or additive ones) updates u in place on the range writes[k]:
    a_k = U_k u + c_k;   h_k = relu(B_k relu(a_k) + d_k);
    u <- (u + V_k h_k + p_k) * sigmoid(R_k h_k + q_k), without the gate if R is None;   at the end z = S u + t.

S is a diagonal with a gather index, S u = S * u[gather], or dense with gather None.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
UNTOUCHED = 64.0  # gate bias with a sigmoid of exactly 1, which keeps the channel


@dataclass(frozen=True)
class Plan:
    """One folded calibration. Arrays are C-contiguous: float64 as folded, float32 as executed."""

    form: str  # "hidden" or "state"
    m: Array  # (D,) centre
    s: Array  # (D,) scale
    L: Array | None  # (M, D) dense prologue; None: u = v and M = D
    U: Array  # (K w, M) block row k: nonzero only in columns reads[k]
    c: Array  # (K w,)
    G: Array | None  # hidden (K w, K w), block strictly lower triangular; state None
    B: Array  # (K, w, w) inner layers
    d: Array  # (K, w)
    V: Array  # hidden (N, K w), state (M, K w); block column k: nonzero only in rows writes[k]
    p: Array | None  # state (K, M) shift biases; hidden None
    R: Array | None  # state (M, K w) gate weights; None without gates
    q: Array | None  # state (K, M) gate biases, else UNTOUCHED; None as R
    S: Array  # (N,) diagonal, or (N, M) dense (hidden only)
    gather: Array | None  # (N,) int32; None with a dense S
    t: Array  # (N,) output bias
    reads: Array  # (K, 2) int32: step k reads u[reads[k, 0]:reads[k, 1]]
    writes: Array  # (K, 2) int32: rows of z (hidden) or u (state) that step k changes
    logdet: float  # log|det dz/dx| without the gates' part; nan: none

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

    @property
    def links(self) -> NDArray[np.bool_]:
        """(K, K) mask of nonzero blocks G_kj: step k reads step j."""
        k, w = self.steps, self.width
        if self.G is None or not w:
            return np.zeros((k, k), bool)
        return np.asarray(self.G.reshape(k, w, k, w).any(axis=(1, 3)))

    def arrays(self) -> dict[str, Array]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def astype(self, dtype: Any) -> Plan:
        cast: dict[str, Any] = {k: v.astype(dtype) for k, v in self.arrays().items() if v.dtype.kind == "f"}
        return replace(self, **cast)


def execute(plan: Plan, x: Array) -> Array:
    """Map x (B, D) to z (B, N) in the plan's dtype."""
    return execute_with_log_det(plan, x)[0]


def execute_with_log_det(plan: Plan, x: Array) -> tuple[Array, Array]:
    """Return z (B, N) and log|det dz/dx| (B,) of x (B, D), in the plan's dtype."""
    u = (x.astype(plan.m.dtype) - plan.m) * plan.s
    if plan.L is not None:
        u = u @ plan.L.T
    log_det = np.full(len(u), plan.logdet, u.dtype)
    if plan.form == "state":
        u, log_gates = _state(plan, u)
        return u[:, plan.gather] * plan.S + plan.t, log_det + log_gates
    linear = u @ plan.S.T if plan.gather is None else u[:, plan.gather] * plan.S
    return linear + _hidden(plan, u) @ plan.V.T + plan.t, log_det


def _hidden(plan: Plan, u: Array) -> Array:
    assert plan.G is not None  # noqa: S101 - for mypy
    w, h = plan.width, np.zeros((len(u), len(plan.c)), u.dtype)
    a = u @ plan.U.T + plan.c
    for k in range(plan.steps):
        own, before = slice(k * w, (k + 1) * w), slice(0, k * w)
        inner = (a[:, own] + h[:, before] @ plan.G[own, before].T).clip(min=0)
        h[:, own] = (inner @ plan.B[k].T + plan.d[k]).clip(min=0)
    return h


def _state(plan: Plan, u: Array) -> tuple[Array, Array]:
    assert plan.p is not None  # noqa: S101 - for mypy
    w, log_gates = plan.width, np.zeros(len(u), u.dtype)
    for k in range(plan.steps):
        own, rows = slice(k * w, (k + 1) * w), slice(*plan.writes[k])
        h = (u @ plan.U[own].T + plan.c[own]).clip(min=0)
        h = (h @ plan.B[k].T + plan.d[k]).clip(min=0)
        u[:, rows] += h @ plan.V[rows, own].T + plan.p[k, rows]
        if plan.R is not None and plan.q is not None:
            log_gate = -np.logaddexp(0, -(h @ plan.R[rows, own].T + plan.q[k, rows]))  # log sigmoid, without overflow
            u[:, rows] *= np.exp(log_gate)
            log_gates += log_gate.sum(axis=1)
    return u, log_gates
