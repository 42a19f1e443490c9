"""Choose the instruction set of the compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fastflow.kernels._cpu import amx_missing as amx_missing
from fastflow.kernels._cpu import isas as isas
from fastflow.kernels._cpu import usable, wrong

TILES = ("amx", "amx-emulated")  # reduced-precision products only


def best_first() -> Iterator[str]:
    """Yield the float32 instruction sets that run here and pass their self-tests, the best first."""
    for name, (number, present, _, _) in reversed(isas().items()):
        if present and name not in TILES and usable(number):
            yield name


def usable_isas() -> tuple[str, ...]:
    """Return all of ``best_first``."""
    return tuple(best_first())


def has_tiles() -> bool:
    """Return whether AMX can run here."""
    return not amx_missing() and usable(isas()["amx"][0])


def faults() -> list[str]:
    """Return one sentence for each instruction set that has failed a self-test."""
    found = {name: wrong(number) for name, (number, *_) in isas().items()}
    return [
        f"instruction set {name} computes wrong numbers on this machine ({', '.join(what)}): slower kernels run in its "
        "place; have the processor, the hypervisor or the build checked"
        for name, what in found.items()
        if what
    ]


def find_forced_isa(name: str | None = None) -> str:
    """Return ``name``, else FASTFLOW_ISA, else "". Raises ValueError if that cannot run here."""
    asked = os.environ.get("FASTFLOW_ISA", "") if name is None else name
    if (asked or name is not None) and not usable(number := isas().get(asked, (-1,))[0]):
        why = amx_missing() if asked == "amx" else ""
        if number >= 0 and (what := wrong(number)):
            why = f"it computes wrong numbers in its self-tests: {', '.join(what)}"
        named = f"FASTFLOW_ISA={asked}" if name is None else f"instruction set {asked!r}"
        names = ", ".join((*TILES[: has_tiles()], *best_first()))
        raise ValueError(f"{named} cannot run on this machine{f' ({why})' * bool(why)}; usable here: {names}")
    return asked


def isa(name: str | None = None) -> str:
    """Return the instruction set of a float32 kernel: ``name``, else FASTFLOW_ISA's, else the best.

    Raises ValueError if it, or every one, cannot run.
    """
    asked = find_forced_isa(name)
    found = "avx512" if asked in TILES else asked or next(best_first(), "")
    if not found:
        raise ValueError(f"no compiled kernel computes right numbers on this machine: {'; '.join(faults())}")
    return found
