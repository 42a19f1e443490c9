"""What the comparisons of the kernel ladder share: timing in turn, and the check of builds that lack a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import process_time
from types import ModuleType
from typing import Any

import click
import numpy as np

from fastflow.bench.measure.subject import Array
from fastflow.bench.measure.timing import Effort, alternate, cpu_watch

SHIPPED = "as shipped"
Builds = Mapping[str, ModuleType]
Rows = list[dict[str, Any]]
Call = Callable[[], Any]


def processor_watch(call: Call, calls: int) -> float:
    """Seconds of processor time, of all threads of this process, that ``calls`` calls take."""
    return cpu_watch(call, calls, process_time)


def timed(calls: Mapping[str, Call], effort: Effort, details: Mapping[str, Any], **where: Any) -> Rows:
    """A row for each call, all timed in turn; ``gain``: how many times the shipped kernel of its dtype it takes."""
    timings, rows = alternate(calls, effort, processor_watch), []
    for name, found in timings.items():
        more = details.get(name, {})
        own = [timings.get(f"{SHIPPED}, {dtype}") for dtype in (more.get("dtype"), "float32")]
        shipped = next((timing for timing in own if timing), None) or timings[SHIPPED]
        times = {"median_ms": found.median_ms, "p20_ms": found.p20_ms, "p80_ms": found.p80_ms, "runs": found.runs}
        gain = found.median_ms / shipped.median_ms
        rows.append({**where, "step": name, **times, "gain": gain, **more})
    return rows


def same_bits(results: Mapping[str, Array]) -> None:
    """A build without a step changes no bit of the result of the kernel as shipped."""
    for name, found in results.items():
        dtype = name.rpartition(", ")[2]
        shipped = f"{SHIPPED}, {dtype}" if f"{SHIPPED}, {dtype}" in results else SHIPPED
        if name.startswith("without") and not np.array_equal(found, results[shipped]):
            raise click.ClickException(f"{name}: the result differs from that of the kernel as shipped")
