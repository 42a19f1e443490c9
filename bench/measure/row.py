"""The rows of the published JSON: who was timed, on what, and with which result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastflow.bench.measure.timing import Timing

_WHO = ("suite", "subject", "name", "backend", "dtype", "threads", "batch", "tokens")
_TIMES = ("median_ms", "p20_ms", "p80_ms", "runs", "calls_per_run")
_LOAD = ("share", "texts_per_s", "refused", "refused_p99_ms", "failed", "lag_p99_ms", "generator_cpu", "batch_ms")
_FLOOR = ("floor_ms", "times_floor", "note")
# suite -> the keys of its rows in their order; readers of kept files rely on both
KEYS: dict[str, tuple[str, ...]] = {
    "flow": (*_WHO, *_TIMES, "max_abs_err", "relative_err", "err_against_unfused", "gflops", "gbs", *_FLOOR),
    "encoder": (
        *(*_WHO, *_TIMES, "max_abs_err", "least_cosine", "gflops", "gbs", "compute_fraction", "bandwidth_fraction"),
        *_FLOOR,
    ),
    "end-to-end": (*_WHO, *_TIMES, "max_abs_err", "least_cosine", "texts_per_s", "gflops", "note"),
    "serve": (*_WHO, "median_ms", "p20_ms", "p80_ms", "p99_ms", "runs", *_LOAD, "resident_mb", "note"),
    "startup": (*_WHO, *_TIMES, "max_abs_err", "peak_mb", "resident_mb", "anonymous_mb", "note"),
    "static": (
        *(*_WHO, *_TIMES, "p99_ms", "max_abs_err", "least_cosine", "texts_per_s", *_FLOOR),
        *("resident_mb", "anonymous_mb"),
    ),
}
# at the end of the rows that have them; quantiles of single calls are taken end to end on a GPU
ADDED = ("p95_ms", "p99_ms", "gpu_ms", "compute_fraction", "operations", "synchronisations")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One candidate at one size. Fields without a default are in every row, the others in those of some suites."""

    suite: str
    subject: str
    name: str
    backend: str
    dtype: str
    threads: int
    batch: int
    tokens: int | None
    median_ms: float
    p20_ms: float
    p80_ms: float
    runs: int
    calls_per_run: int = 1
    max_abs_err: float | None = None  # against float64 (flow) or PyTorch in float32
    p95_ms: float | None = None
    p99_ms: float | None = None
    gpu_ms: float | None = None  # of GPU time; flow: a call among many in one CUDA graph; encoder: its graph, replayed
    relative_err: float | None = None
    err_against_unfused: float | None = None
    least_cosine: float | None = None
    texts_per_s: float | None = None
    gflops: float | None = None
    gbs: float | None = None
    compute_fraction: float | None = None  # of the arithmetic ceiling
    bandwidth_fraction: float | None = None
    floor_ms: float | None = None
    times_floor: float | None = None
    peak_mb: float | None = None
    resident_mb: float | None = None
    anonymous_mb: float | None = None
    share: float | None = None  # serve: requests sent over what the Runtime computes alone
    refused: int | None = None  # serve: answers of 429
    refused_p99_ms: float | None = None
    failed: int | None = None  # serve: neither answered nor refused
    lag_p99_ms: float | None = None  # serve: how late the generator sent
    generator_cpu: float | None = None  # serve: processors that the generator took
    batch_ms: float | None = None  # serve: of the kernel, for the server's largest batch
    note: str | None = None
    operations: int | None = None
    synchronisations: int | None = None

    @classmethod
    def timed(cls, timing: Timing, **fields: Any) -> Row:
        """A row with the times of ``timing``; ``fields`` are all the others."""
        return cls(
            median_ms=timing.median_ms, p20_ms=timing.p20_ms, p80_ms=timing.p80_ms, runs=timing.runs,
            calls_per_run=timing.inner, **fields,
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """The row as the JSON has it: the keys of its suite in their order, a value that is not known as None."""
        added = {key: getattr(self, key) for key in ADDED if getattr(self, key) is not None}
        return {key: getattr(self, key) for key in KEYS[self.suite]} | added


_kept_in: Path | None = None  # the file that each row is appended to as soon as it is measured


@contextmanager
def keeping(path: Path | None) -> Iterator[None]:
    """Inside the block rows are appended to ``path``, a line of JSON each; it is removed when the block ends well.

    Rows that an earlier run left there are removed first.
    """
    global _kept_in
    _kept_in = path
    try:
        if path is not None:
            path.unlink(missing_ok=True)
        yield
        if path is not None:
            path.unlink(missing_ok=True)
    finally:
        _kept_in = None


@dataclass
class Results:
    """The results of a suite: the parts of the JSON besides ``machine``."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    ratios: list[dict[str, Any]] = field(default_factory=list)
    subjects: list[dict[str, Any]] = field(default_factory=list)
    ceilings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, rows: Iterable[Row]) -> None:
        """Append ``rows`` as the JSON has them."""
        made = [row.as_dict() for row in rows]
        self.rows += made
        if _kept_in is not None:
            with _kept_in.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in made)
