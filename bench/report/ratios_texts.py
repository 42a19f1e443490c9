"""Ratios of the text suites: the fastest peer of a precision class, whose time is given over fastflow's."""

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
TEACHER = ("sentence-transformers", "float32")
LOW = "bfloat16"


def against(where: str, at: Mapping[Key, Row], own: Key, peers: Iterable[Key]) -> list[Row]:
    """One entry, how many times the fastest of ``peers`` takes ``own``'s time; none if one of the two is missing."""
    if (peer := fastest(at, peers)) is None or own not in at:
        return []
    name = f"{where}: {' '.join(own)} against {peer['name']} {peer['dtype']}"
    return [entry(name, at[own]["threads"], peer["median_ms"] / at[own]["median_ms"], X)]


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
            out += against(where, at, ("fastflow", dtype), peers)
        if batch == 1 and (row := at.get(("fastflow", LOW))):
            name = f"{where}: fastflow {LOW} against the machine's floor"
            out.append(entry(name, row["threads"], row["times_floor"], "x floor"))
        out += against(where, at, ("fastflow-avx2", "float32"), _in("float32", "onnxruntime"))
    return out


def ragged_ratios(rows: Sequence[Row]) -> list[Row]:
    """Entries for whole lists of texts: the best peer of the class, Sentence Transformers as it comes, and the best
    that each library of texts has in that precision or a higher one."""
    out = []
    for (subject,), at in places(rows, "subject"):
        where = f"end-to-end, {subject}"
        for dtype, peers in CLASSES.items():
            own, texts = ("fastflow", dtype), [(name, dtype) for family in LIBRARIES for name in family]
            out += against(where, at, own, (*peers, *texts)) + against(where, at, own, (TEACHER,))
            for family in LIBRARIES:
                best = [(name, other) for name in family for other in AT_BEST[dtype]]
                out += against(f"{where}, {family[0]} at its best", at, own, best)
    return out


def startup_ratios(rows: Sequence[Row]) -> list[Row]:
    """Start and memory."""
    out = []
    for (subject,), at in places(rows, "subject"):
        for name, dtype in (key for key in at if key[0] == "fastflow"):
            row, where = at[name, dtype], f"startup, {subject}"
            what = f"{where}: {name} {dtype}"
            out.append(entry(f"{what}, first vector", row["threads"], row["median_ms"] / 1e3, "s"))
            out += against(where, at, (name, dtype), (TEACHER,))
            for kind, mb in (("resident", row["resident_mb"]), ("peak resident", row["peak_mb"])):
                if mb is not None:  # only Linux gives it
                    out.append(entry(f"{what}, {kind} memory", row["threads"], mb, "MB"))
    return out


def static_ratios(rows: Sequence[Row]) -> list[Row]:
    """Token tables: fastflow against each peer in bulk, for one text and from the start of a process."""
    out = []
    for (_, batch, tokens), at in places(rows, "subject", "batch", "tokens"):
        where = "static, " + ("startup" if tokens is None else f"{batch} texts" if batch > 1 else "one text")
        for key in at:
            if key[0] != "fastflow":
                out += against(where, at, ("fastflow", "float32"), [key])
    return out


def gpu_encoder_ratios(rows: Sequence[Row]) -> list[Row]:
    """On a GPU: fastflow against PyTorch in the same dtype, alone and in a graph, for each shape (texts x tokens)."""
    out = []
    for (batch, tokens), at in places(rows, "batch", "tokens"):
        for own in (key for key in at if key[0] == "fastflow"):
            for peer in (key for key in at if key[0] != "fastflow" and key[1] == own[1]):
                out += against(f"encoder {batch}x{tokens}", at, own, [peer])
    return out


def gpu_text_ratios(rows: Sequence[Row]) -> list[Row]:
    """On a GPU, entries for texts: our time for one, and PyTorch and Sentence Transformers in float32 over ours."""
    out = []
    for (subject, batch), at in places(rows, "subject", "batch"):
        where, own = f"end-to-end, {subject}, {'one text' if batch == 1 else f'{batch:,} texts'}", ("fastflow", LOW)
        if batch == 1 and (row := at.get(own)):
            out.append(entry(f"{where}: fastflow {LOW}, text to vector", row["threads"], row["median_ms"], "ms"))
        out += against(where, at, own, [("torch-eager", "float32")]) + against(where, at, own, [TEACHER])
    return out
