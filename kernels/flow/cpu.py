"""The folded flow on a CPU: lays its plans out once, and calls the compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import isa as instructions
from fastflow.kernels._cpu import Flow, isas
from fastflow.kernels.flow.cpu_layout import Program
from fastflow.kernels.flow.plan import Plan
from fastflow.kernels.threads import default_threads


class CpuFlow:
    """Plans in order, as one compiled call: x (B, D) float32 -> z (B, N) float32, accumulated in float32.

    Every row has the same bits whatever the batch, the order and the number of threads. Safe from several Python
    threads at once, and after fork. ``threads``: at most this many, None for ``default_threads()``; ``isa``: None for
    the one FASTFLOW_ISA names or the best.
    """

    def __init__(self, plans: Sequence[Plan], threads: int | None = None, isa: str | None = None) -> None:
        self.isa = instructions.isa(isa)
        self.threads = default_threads() if threads is None else threads
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
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
        """z (B, N), or its first columns (B, ``truncate``), of ``x`` (B, D), both C-contiguous float32.

        ``normalize`` divides each row by its L2 norm, after truncation. ``out`` receives the result instead of a new
        array, and may be ``x`` itself if the shapes agree. Raises ValueError for any other shape or type.
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
