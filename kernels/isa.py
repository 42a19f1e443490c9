"""Which instruction set the compiled kernels use here: the best that can run, or the one that FASTFLOW_ISA names."""

from __future__ import annotations

import os

from fastflow.kernels._cpu import amx_missing as amx_missing
from fastflow.kernels._cpu import isas as isas

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
