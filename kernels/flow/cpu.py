"""The CPU backend: chooses the instruction set once, packs, and calls the compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels._cpu import Flow, amx_missing, isas
from fastflow.kernels.flow.cpu_layout import Program
from fastflow.kernels.flow.plan import Plan
from fastflow.kernels.threads import default_threads

TILES = ("amx", "amx-emulated")  # products of the encoder in reduced precision; AVX-512 in all else


def usable_isas() -> tuple[str, ...]:
    """Instruction sets with kernels of their own for all that is float32 and can run here, best first."""
    return tuple(name for name, (_, usable, _, _) in reversed(isas().items()) if usable and name not in TILES)


def forced_isa() -> str:
    """The instruction set that FASTFLOW_ISA names, or nothing. Raises ValueError for one that cannot run here."""
    asked = os.environ.get("FASTFLOW_ISA", "")
    if asked and not isas().get(asked, (0, False))[1]:
        why = f" ({amx_missing()})" if asked == "amx" else ""
        usable = (*TILES[: not amx_missing()], *usable_isas())
        raise ValueError(f"FASTFLOW_ISA={asked} cannot run on this machine{why}; usable here: {', '.join(usable)}")
    return asked


def isa() -> str:
    """The instruction set that a float32 kernel made now will use: the best, or the one FASTFLOW_ISA names.

    Raises ValueError when FASTFLOW_ISA names one that cannot run here.
    """
    asked = forced_isa()
    return "avx512" if asked in TILES else asked or usable_isas()[0]


class CpuFlow:
    """Plans in order, as one compiled call: x (B, D) float32 -> z (B, N) float32, accumulated in float32.

    Every row has the same bits whatever the batch, the order and the number of threads. Safe from several Python
    threads at once, and after fork. ``threads``: at most this many, None for ``default_threads()``.
    """

    def __init__(self, plans: Sequence[Plan], threads: int | None = None) -> None:
        self.isa = isa()
        self.threads = default_threads() if threads is None else threads
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        number, _, vector, tile = isas()[self.isa]
        p = Program(plans, vector, tile)
        self.inputs, self.outputs, self.cost = p.inputs, p.outputs, p.cost
        self._flow = Flow(
            *p.arrays(), inputs=p.inputs, outputs=p.outputs, result=p.result, stride=p.stride, block=p.block,
            cost=min(p.cost, 2**31 - 1), isa=number,
        )  # fmt: skip

    def __call__(
        self, x: NDArray[Any], normalize: bool = False, truncate: int | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """z (B, N) of ``x`` (B, D), C-contiguous float32; (B, ``truncate``) of its first columns.

        ``normalize`` divides each row by its L2 norm, after truncation. ``out`` receives the result instead of a new
        array, and may be ``x`` itself when the shapes agree. Raises ValueError for any other shape or type.
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
        self._flow.run(x, z, normalize, self.threads)
        return z
