"""The rows of the published JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fastflow.kernels.encoder import EncoderShape

Row = dict[str, Any]
_WHO = ("suite", "subject", "name", "backend", "dtype", "threads", "batch", "tokens")
_TIMES = ("median_ms", "p20_ms", "p80_ms", "runs", "calls_per_run")
# share: requests sent over the Runtime's own rate; lag: lateness of the generator; generator_cpu: its processors;
# batch_ms: of the server's largest batch
_LOAD = ("share", "texts_per_s", "refused", "refused_p99_ms", "failed", "lag_p99_ms", "generator_cpu", "batch_ms")
_FLOOR = ("floor_ms", "times_floor", "note")
# suite -> the keys of its rows in order
KEYS: dict[str, tuple[str, ...]] = {
    "flow": (*_WHO, *_TIMES, "max_abs_err", "relative_err", "err_against_unfused", "gflops", "gbs", *_FLOOR),
    "encoder": (
        *(*_WHO, *_TIMES, "max_abs_err", "least_cosine", "gflops", "gbs", "compute_fraction", "bandwidth_fraction"),
        *_FLOOR,
    ),
    "end-to-end": (*_WHO, *_TIMES, "max_abs_err", "least_cosine", "texts_per_s", "gflops", "note"),
    "rerank": (*_WHO, *_TIMES, "max_abs_err", "least_cosine", "texts_per_s"),
    # cpu_ms: processor time; gflops: 10^9 int8 operations in a processor second; anonymous_mb: added by the call
    "duplicates": (*_WHO, *_TIMES, "cpu_ms", "pairs", "recall", "gflops", "compute_fraction", "anonymous_mb", "note"),
    "serve": (*_WHO, "median_ms", "p20_ms", "p80_ms", "p99_ms", "runs", *_LOAD, "resident_mb", "note"),
    "startup": (*_WHO, *_TIMES, "max_abs_err", "peak_mb", "resident_mb", "anonymous_mb", "note"),
    "static": (
        *(*_WHO, *_TIMES, "p99_ms", "max_abs_err", "least_cosine", "texts_per_s", *_FLOOR),
        *("resident_mb", "anonymous_mb"),
    ),
}
# keys at the end of some rows
ADDED = ("p95_ms", "p99_ms", "gpu_ms", "compute_fraction", "operations", "synchronisations")


def make_row(suite: str, **fields: Any) -> Row:
    """Return a row: the KEYS of ``suite`` in order, None if missing, then ADDED ones.

    Raises TypeError for another field.
    """
    keys = KEYS[suite]
    if unknown := fields.keys() - {*keys, *ADDED}:
        raise TypeError(f"no field of the suite {suite}: {', '.join(sorted(unknown))}")
    row = dict.fromkeys(keys) | {"suite": suite}
    return row | {key: fields[key] for key in (*keys, *ADDED) if fields.get(key) is not None}


_kept_in: Path | None = None  # the file that rows are appended to


@contextmanager
def keeping(path: Path | None) -> Iterator[None]:
    """Append rows to ``path``, emptied first, until the block ends; only a failed block leaves the file."""
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
    """The results of a run, lists of its JSON."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[Row] = field(default_factory=list)
    ratios: list[Row] = field(default_factory=list)
    subjects: list[Row] = field(default_factory=list)

    def add(self, rows: Iterable[Row]) -> None:
        made = list(rows)
        self.rows += made
        if _kept_in is not None:
            with _kept_in.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in made)

    def leave_out(self, subject: str, name: str, reason: str, **place: Any) -> None:
        entry = {"subject": subject, **place, "name": name, "reason": reason}
        self.skipped += [entry] if entry not in self.skipped else []

    def merge(self, other: Results) -> None:
        for part, values in vars(other).items():
            getattr(self, part).extend(values)


Array = NDArray[Any]
BYTES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "int8": 1}  # bytes of a weight


@dataclass(frozen=True)
class Subject:
    """A model under test: its files, its pooling, and a folder for the files that other engines need."""

    label: str
    model: str | None  # as Runtime takes it; None is the model in the package
    encoder: Path
    layers: tuple[int, ...]  # layers averaged by ``shares``, then pooled
    max_length: int
    shape: EncoderShape
    folder: Path
    weights: Array | None = field(default=None, compare=False, repr=False)  # (vocabulary,) token weights of the mean
    mode: str = "mean"  # mean, cls or pooler
    saved: Path | None = None  # a directory of Sentence Transformers that pools by its own modules
    prompt: str = ""  # before every text
    shares: tuple[float, ...] | None = None  # weights of the layers in this mean; None: equal
    pairs: bool = False  # a cross-encoder, whose vectors are logits of pairs

    @property
    def depth(self) -> int:
        return self.shape.layers

    @property
    def computed(self) -> int:
        return max(0, *self.layers) if self.mode == "mean" else self.depth

    def matrix_weights(self) -> int:
        """Count the weights in the matrices of the needed layers."""
        inner = 3 if self.shape.gated else 2  # matrices of the feed-forward
        return self.computed * (4 * self.shape.hidden**2 + inner * self.shape.hidden * self.shape.intermediate)

    def flop(self, batch: int, tokens: int) -> float:
        """Count the operations of the products for ``batch`` x ``tokens``; a multiply-add is two."""
        return 2.0 * batch * tokens * (self.matrix_weights() + 2 * self.computed * tokens * self.shape.hidden)
