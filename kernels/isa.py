"""The instruction set of the compiled kernels: the one that the caller or FASTFLOW_ISA names, or the best here."""

from __future__ import annotations

import os

from fastflow.kernels._cpu import amx_missing as amx_missing
from fastflow.kernels._cpu import isas as isas

TILES = ("amx", "amx-emulated")  # products of the encoder in reduced precision; AVX-512 in all else


def usable_isas() -> tuple[str, ...]:
    """Instruction sets that have float32 kernels and can run here, best first."""
    return tuple(name for name, (_, usable, _, _) in reversed(isas().items()) if usable and name not in TILES)


def forced_isa(name: str | None = None) -> str:
    """The instruction set that the caller forces: ``name``, else the value of FASTFLOW_ISA, else "".

    Raises ValueError if it cannot run on this machine.
    """
    asked = os.environ.get("FASTFLOW_ISA", "") if name is None else name
    if (asked or name is not None) and not isas().get(asked, (0, False))[1]:
        why = f" ({amx_missing()})" if asked == "amx" else ""
        usable = (*TILES[: not amx_missing()], *usable_isas())
        named = f"FASTFLOW_ISA={asked}" if name is None else f"instruction set {asked!r}"
        raise ValueError(f"{named} cannot run on this machine{why}; usable here: {', '.join(usable)}")
    return asked


def isa(name: str | None = None) -> str:
    """The instruction set for a new float32 kernel: ``name``, else the one that FASTFLOW_ISA names, else the best.

    Raises ValueError if the named one cannot run here.
    """
    asked = forced_isa(name)
    return "avx512" if asked in TILES else asked or usable_isas()[0]
