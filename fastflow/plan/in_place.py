"""Steps that update the state in place: when they can, and how many products a plan takes.

The hidden form corrects step k's reading by what earlier steps have added, G_kj h_j with G_kj = U_k P_j, and adds V h
to the output at the end. In place step k adds P_k h_k to the state, so that later steps read it there: with a diagonal
S, V_k = S P_k. The wider the hidden vectors are, the more products this spares.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.flow.plan import Plan

LARGEST = 1e12  # products of two such numbers and their sums stay within float32
INVERTIBLE = 1e30  # a diagonal inverts exactly, channel by channel, as long as both stay within float32


def products(plan: Plan) -> int:
    """Multiply-adds of a row: every block that is not zero by structure."""
    w, reads, writes = plan.width, plan.reads, plan.writes
    steps = int(w * (reads[:, 1] - reads[:, 0]).sum()) + plan.B.size + int(plan.links.sum()) * w * w
    written = int(w * (writes[:, 1] - writes[:, 0]).sum()) * (1 if plan.R is None else 2)
    return steps + written + plan.S.size + (0 if plan.L is None else plan.L.size)


def divides(scale: NDArray[Any]) -> bool:
    """Whether ``scale`` (N,) can be divided by in float32."""
    return bool(np.abs(scale).min() > 1 / INVERTIBLE and np.abs(scale).max() < INVERTIBLE)
