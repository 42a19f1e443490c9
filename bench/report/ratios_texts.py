"""Ratios of the text suites: fastflow against the fastest peer of its precision class, with the project's bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastflow.bench.report.ratios import Row, X, entry, fastest

Key = tuple[str, str]  # name and dtype of a row


def _in(dtype: str, *names: str) -> tuple[Key, ...]:
    """The rows of ``names`` in ``dtype``."""
    return tuple((name, dtype) for name in names)


ONNX = ("onnxruntime", "onnxruntime-plain")
# precision -> the peers of its class; the fastest that was measured counts
CLASSES: dict[str, tuple[Key, ...]] = {
    "float32": _in(
        "float32", *ONNX, "openvino", "ctranslate2", "torch-eager", "torch-compile", "zentorch", "xllamacpp"
    ),
    "bfloat16": (
        *_in("bfloat16", "openvino", "torch-eager", "zentorch", "xllamacpp"),
        *_in("float32", *ONNX, "xllamacpp"),
    ),
    "int8": _in("int8", *ONNX, "openvino", "ctranslate2", "xllamacpp"),
}
# the precisions of texts that a library may have besides ours: the library's best row counts
AT_BEST = {"float32": ("float32",), "bfloat16": ("float32", "bfloat16"), "int8": ("float32", "bfloat16", "int8")}
LIBRARIES = (("sentence-transformers", "sentence-transformers-onnx", "sentence-transformers-openvino"), ("fastembed",))
# by precision, of one text and of 8 x 32 and above
ENCODER_AIMS = {"float32": (1 / 0.85, 1 / 0.85), "bfloat16": (None, 1 / 0.4), "int8": (1 / 0.45, 4.0)}
FLOOR_AIM = 1.2  # bfloat16 at batch 1
RAGGED_MUST = 2.0  # the best peer, and a library of texts at its best
RAGGED_AIM = 4.0  # Sentence Transformers as it comes
START_S, START_AIM_S, START_RATIO = 1.0, 0.4, 5.0
MEMORY_MB = {"bfloat16": 300.0, "int8": 200.0}
TEACHER = ("sentence-transformers", "float32")
EAGER = ("torch-eager", "float32")
LOW = "bfloat16"
GPU_ALONE_MS = 0.6  # on a GPU: text to vector, one text of at most 32 tokens
GPU_EAGER, GPU_GRAPH, GPU_TEACHER = 8.0, 1.2, 10.0


def against(
    where: str, at: Mapping[Key, Row], own: Key, peers: Iterable[Key], must: float | None = None,
    aim: float | None = None,
) -> list[Row]:  # fmt: skip
    """One entry, how many times the fastest of ``peers`` takes ``own``'s time; none if one of the two is missing."""
    if (peer := fastest(at, peers)) is None or own not in at:
        return []
    name = f"{where}: {' '.join(own)} against {peer['name']} {peer['dtype']}"
    return [entry(name, at[own]["threads"], peer["median_ms"] / at[own]["median_ms"], X, must, aim)]


def places(rows: Sequence[Row], *fields: str) -> list[tuple[tuple[Any, ...], dict[Key, Row]]]:
    """The values of ``fields`` that occur in ``rows``, and the rows that have them by name and dtype."""
    found: dict[tuple[Any, ...], dict[Key, Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[field] for field in fields), {})[row["name"], row["dtype"]] = row
    return list(found.items())


def encoder_ratios(rows: Sequence[Row]) -> list[Row]:
    """Entries (``ratios.entry``) for each shape in ``rows``."""
    out = []
    for (batch, tokens), at in places(rows, "batch", "tokens"):
        where = f"encoder {batch}x{tokens}"
        for dtype, peers in CLASSES.items():
            out += against(where, at, ("fastflow", dtype), peers, 1.0, ENCODER_AIMS[dtype][batch != 1])
        if batch == 1 and (row := at.get(("fastflow", LOW))):
            name = f"{where}: fastflow {LOW} against the machine's floor"
            out.append(entry(name, row["threads"], row["times_floor"], "x floor", aim=FLOOR_AIM))
        out += against(where, at, ("fastflow-avx2", "float32"), _in("float32", "onnxruntime"), 1.0)
    return out


def ragged_ratios(rows: Sequence[Row]) -> list[Row]:
    """Entries for whole lists of texts: the best peer of the class, Sentence Transformers as it comes, and the best
    that each library of texts has in that precision or a higher one."""
    out = []
    for (subject,), at in places(rows, "subject"):
        where = f"end-to-end, {subject}"
        for dtype, peers in CLASSES.items():
            own, texts = ("fastflow", dtype), [(name, dtype) for family in LIBRARIES for name in family]
            out += against(where, at, own, (*peers, *texts), RAGGED_MUST)
            out += against(where, at, own, (TEACHER,), aim=RAGGED_AIM)
            for family in LIBRARIES:
                best = [(name, other) for name in family for other in AT_BEST[dtype]]
                out += against(f"{where}, {family[0]} at its best", at, own, best, RAGGED_MUST)
    return out


def startup_ratios(rows: Sequence[Row], judged: str) -> list[Row]:
    """Start and memory; the bounds hold for the subject ``judged``, others are for information."""
    out = []
    for (subject,), at in places(rows, "subject"):
        for name, dtype in (key for key in at if key[0] == "fastflow"):
            row, where = at[name, dtype], f"startup, {subject}"
            bounds = (START_S, START_AIM_S, START_RATIO, MEMORY_MB.get(dtype))
            must, aim, ratio, most = bounds if subject == judged else (None, None, None, None)
            what = f"{where}: {name} {dtype}"
            out.append(entry(f"{what}, first vector", row["threads"], row["median_ms"] / 1e3, "s", must, aim))
            out += against(where, at, (name, dtype), (TEACHER,), ratio)
            for kind, mb, bound in (("resident", row["resident_mb"], most), ("peak resident", row["peak_mb"], None)):
                if mb is not None:  # only Linux gives it
                    out.append(entry(f"{what}, {kind} memory", row["threads"], mb, "MB", bound))
    return out


def static_ratios(rows: Sequence[Row]) -> list[Row]:
    """Token tables: fastflow against each peer in bulk, for one text and from the start of a process; no bounds."""
    out = []
    for (_, batch, tokens), at in places(rows, "subject", "batch", "tokens"):
        where = "static, " + ("startup" if tokens is None else f"{batch} texts" if batch > 1 else "one text")
        for key in at:
            if key[0] != "fastflow":
                out += against(where, at, ("fastflow", "float32"), [key])
    return out


def gpu_encoder_ratios(rows: Sequence[Row]) -> list[Row]:
    """On a GPU: the ratios of fastflow to PyTorch, alone and in a graph, for each shape (texts x tokens)."""
    out = []
    for (batch, tokens), at in places(rows, "batch", "tokens"):
        where, peers = f"encoder {batch}x{tokens}", [key for key in at if key[0] != "fastflow"]
        for dtype in ("float32", "float16", LOW):
            out += against(where, at, ("fastflow", dtype), [key for key in peers if key[1] == dtype])
        if batch == 1:
            out += against(where, at, ("fastflow", LOW), [EAGER], aim=GPU_EAGER)
            out += against(where, at, ("fastflow", LOW), [("torch-graph", LOW)], aim=GPU_GRAPH)
    return out


def gpu_text_ratios(rows: Sequence[Row]) -> list[Row]:
    """On a GPU, entries for texts: one at a time against the clock, and whole lists."""
    out = []
    for (subject, batch), at in places(rows, "subject", "batch"):
        where, own = f"end-to-end, {subject}, {'one text' if batch == 1 else f'{batch:,} texts'}", ("fastflow", LOW)
        if batch == 1 and (row := at.get(own)):
            out.append(entry(f"{where}: fastflow {LOW}, text to vector", row["threads"], row["median_ms"], "ms",
                             aim=GPU_ALONE_MS))  # fmt: skip
        out += against(where, at, own, [EAGER], aim=GPU_EAGER if batch == 1 else None)
        out += against(where, at, own, [TEACHER], aim=GPU_TEACHER if batch == 1 else None)
    return out
