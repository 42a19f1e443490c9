"""The processor: instruction sets and threads of compiled kernels."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from fastflow.kernels._cpu import amx_missing as amx_missing
from fastflow.kernels._cpu import isas as isas
from fastflow.kernels._cpu import usable, wrong

TILES = ("amx", "amx-emulated")  # only for bfloat16 and int8 products
CGROUPS = Path("/sys/fs/cgroup")
V1 = ("cpu", "cpu,cpuacct")  # folders of cgroups version 1


def best_first() -> Iterator[str]:
    """Yield the float32 instruction sets that run here and pass their self-tests, the best first."""
    for name, (number, present, _, _) in reversed(isas().items()):
        if present and name not in TILES and usable(number):
            yield name


def usable_isas() -> tuple[str, ...]:
    """Return the instruction sets of ``best_first``."""
    return tuple(best_first())


def has_tiles() -> bool:
    """Return whether AMX can run here."""
    return not amx_missing() and usable(isas()["amx"][0])


def faults() -> list[str]:
    """Return a sentence per instruction set that failed a self-test."""
    found = {name: wrong(number) for name, (number, *_) in isas().items()}
    return [
        f"instruction set {name} computes wrong numbers on this machine ({', '.join(what)}): slower kernels run in its "
        "place; have the processor, the hypervisor or the build checked"
        for name, what in found.items()
        if what
    ]


def find_forced_isa(name: str | None = None) -> str:
    """Return ``name``, else FASTFLOW_ISA, else "". Raises ValueError if the instruction set cannot run here."""
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

    Raises ValueError if the named one cannot run, or none can.
    """
    asked = find_forced_isa(name)
    found = "avx512" if asked in TILES else asked or next(best_first(), "")
    if not found:
        raise ValueError(f"no compiled kernel computes right numbers on this machine: {'; '.join(faults())}")
    return found


def default_threads() -> int:
    """Return OMP_NUM_THREADS, limited to this process's processors; if unset, its physical cores."""
    processors, cores = count_allowed()
    asked = parse_openmp(os.environ.get("OMP_NUM_THREADS", ""))
    return cores if asked is None else min(asked, processors)


def resolve_threads(threads: int | None) -> int:
    """Return ``threads``, the default for None; raise ValueError below 1."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    return default_threads() if threads is None else threads


@lru_cache
def parse_openmp(text: str) -> int | None:
    """Return the first number in OMP_NUM_THREADS; None if OpenMP would ignore it."""
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text, re.ASCII):
        return None
    return int(text.partition(",")[0]) or None


@lru_cache(maxsize=1)
def count_allowed() -> tuple[int, int]:
    """Return (processors, physical cores, of Apple's the performance cores) that this process may use."""
    if sys.platform == "darwin":
        every = os.cpu_count() or 1
        return every, _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu") or every
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    most = max(1, int(min(quotas(CGROUPS, _text(Path("/proc/self/cgroup"))), default=len(processors))))
    cores = len({_siblings(cpu) for cpu in processors})
    return min(len(processors), most), min(cores, most)


def quotas(root: Path, membership: str) -> Iterator[float]:
    """Yield the CPUs that each quota of this process's cgroups allows; ``membership``: text of /proc/self/cgroup.

    In a container ``root`` is its own cgroup, so folders in ``membership`` may be missing.
    """
    for line in membership.splitlines() or ["0::/"]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in V1 if controllers else ("", "unified"):
            group = root / mount
            for part in ("", *filter(None, path.split("/"))):
                group /= part
                yield from _quota(group)


def _quota(group: Path) -> Iterator[float]:
    quota = _text(group / "cpu.max") or f"{_text(group / 'cpu.cfs_quota_us')} {_text(group / 'cpu.cfs_period_us')}"
    match = re.fullmatch(r"(\d+)\s+([1-9]\d*)\s*", quota)  # "max", and -1 in version 1, are no limit
    if match:
        yield int(match[1]) / int(match[2])


def _siblings(cpu: int) -> str:
    return _text(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")) or str(cpu)


def _sysctl(name: str) -> int:
    value, size = ctypes.c_int32(), ctypes.c_size_t(4)
    ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t())
    return value.value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
