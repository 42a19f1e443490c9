"""Which instruction set the compiled kernels use here: the one named, by FASTFLOW_ISA too, or the best that can run."""

from __future__ import annotations

import os

from fastflow.kernels._cpu import amx_missing as amx_missing
from fastflow.kernels._cpu import isas as isas

TILES = ("amx", "amx-emulated")  # products of the encoder in reduced precision; AVX-512 in all else


def usable_isas() -> tuple[str, ...]:
    """Instruction sets with kernels of their own for all that is float32 and can run here, best first."""
    return tuple(name for name, (_, usable, _, _) in reversed(isas().items()) if usable and name not in TILES)


def forced_isa(name: str | None = None) -> str:
    """The instruction set that the caller forces: ``name``, else the value of FASTFLOW_ISA, else "".

    Raises ValueError if it cannot run on this machine.
    """
    asked = os.environ.get("FASTFLOW_ISA", "") if name is None else name
    if (asked or name is not None) and not isas().get(asked, (0, False))[1]:
        why = f" ({amx_missing()})" if asked == "amx" else ""
        usable = (*TILES[: not amx_missing()], *usable_isas())
        said = f"FASTFLOW_ISA={asked}" if name is None else f"instruction set {asked!r}"
        raise ValueError(f"{said} cannot run on this machine{why}; usable here: {', '.join(usable)}")
    return asked


def isa(name: str | None = None) -> str:
    """The instruction set of a float32 kernel made now: ``name``, else the one FASTFLOW_ISA names, else the best.

    Raises ValueError for a named one that cannot run here.
    """
    asked = forced_isa(name)
    return "avx512" if asked in TILES else asked or usable_isas()[0]
