"""Steps that update the state in place, and the number of products of a plan.

The hidden form corrects step k by earlier outputs, G_kj h_j with G_kj = U_k P_j, and adds V h at the end. In place,
step
k adds P_k h_k to the state: with a diagonal S, V_k = S P_k. Wider hidden vectors save more products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.flow.plan import Plan

LARGEST = 1e12  # products of two such numbers and their sums fit float32
INVERTIBLE = 1e30  # a diagonal inverts exactly while both fit float32


def products(plan: Plan) -> int:
    """Count the multiply-adds of a row in blocks that are not zero by structure."""
    w, reads, writes = plan.width, plan.reads, plan.writes
    steps = int(w * (reads[:, 1] - reads[:, 0]).sum()) + plan.B.size + int(plan.links.sum()) * w * w
    written = int(w * (writes[:, 1] - writes[:, 0]).sum()) * (1 if plan.R is None else 2)
    return steps + written + plan.S.size + (0 if plan.L is None else plan.L.size)


def divides(scale: NDArray[Any]) -> bool:
    """Return whether ``scale`` (N,) can be divided by in float32."""
    return bool(np.abs(scale).min() > 1 / INVERTIBLE and np.abs(scale).max() < INVERTIBLE)
