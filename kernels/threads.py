"""Default number of threads: OMP_NUM_THREADS, else the cores that this process may use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
V1 = ("cpu", "cpu,cpuacct")  # folders of cgroups version 1


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


def parse_openmp(text: str) -> int | None:
    """Return the first number in OMP_NUM_THREADS; None if OpenMP would ignore it."""
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text, re.ASCII):
        return None
    return int(text.partition(",")[0]) or None


@lru_cache(maxsize=1)
def count_allowed() -> tuple[int, int]:
    """Return (processors, physical cores) that this process may use."""
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    most = max(1, int(min(quotas(CGROUPS, _text(Path("/proc/self/cgroup"))), default=len(processors))))
    cores = len({_siblings(cpu) for cpu in processors})
    return min(len(processors), most), min(cores, most)


def quotas(root: Path, membership: str) -> Iterator[float]:
    """Yield the CPUs that each quota of this process's cgroups allows; ``membership``: text of /proc/self/cgroup.

    In a container ``root`` is the own cgroup, so the named folders may be missing.
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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
