"""Ratios of the text suites: fastflow against the fastest peer of its precision class, with the project's targets."""

from __future__ import annotations

from collections.abc import Sequence

from fastflow.bench.report.ratios import Key, Row, against, by_key, entry


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
LIBRARIES = (
    ("sentence-transformers", "sentence-transformers-onnx", "sentence-transformers-openvino"),
    ("fastembed",),
)
ALONE, MANY = "batch 1", "8 x 32 and above"
ENCODER_AIMS = {
    ("float32", ALONE): 1 / 0.85,
    ("float32", MANY): 1 / 0.85,
    ("bfloat16", MANY): 1 / 0.4,
    ("int8", ALONE): 1 / 0.45,
    ("int8", MANY): 4.0,
}
FLOOR_AIM = 1.2  # bfloat16 at batch 1
RAGGED_MUST = 2.0  # the best peer, and a library of texts at its best
RAGGED_AIM = 4.0  # Sentence Transformers as it comes
START_S, START_AIM_S, START_RATIO = 1.0, 0.4, 5.0
MEMORY_MB = {"bfloat16": 300.0, "int8": 200.0}
TEACHER = ("sentence-transformers", "float32")


def encoder_ratios(rows: Sequence[Row]) -> list[Row]:
    """Entries (``ratios.entry``) for each shape in ``rows``."""
    out = []
    for batch, tokens in dict.fromkeys((row["batch"], row["tokens"]) for row in rows):
        at = by_key(rows, batch=batch, tokens=tokens)
        where = f"encoder {batch}x{tokens}"
        for dtype, peers in CLASSES.items():
            size = ALONE if batch == 1 else MANY
            out += against(where, at, ("fastflow", dtype), peers, 1.0, ENCODER_AIMS.get((dtype, size)))
        if batch == 1 and (row := at.get(("fastflow", "bfloat16"))):
            name = f"{where}: fastflow bfloat16 against the machine's floor"
            out.append(entry(name, row["threads"], row["times_floor"], "x floor", aim=FLOOR_AIM))
        out += against(where, at, ("fastflow-avx2", "float32"), _in("float32", "onnxruntime"), 1.0)
    return out


def ragged_ratios(rows: Sequence[Row]) -> list[Row]:
    """The same for whole lists of texts: the best peer of the class, Sentence Transformers as it comes, and the best
    that each library of texts has in that precision or a higher one."""
    out = []
    for subject in dict.fromkeys(row["subject"] for row in rows):
        at = by_key(rows, subject=subject)
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
    for row in (row for row in rows if row["name"] == "fastflow"):
        bound, dtype, threads = row["subject"] == judged, row["dtype"], row["threads"]
        of_subject = by_key(rows, subject=row["subject"])
        where = f"startup, {row['subject']}"
        limits = (START_S, START_AIM_S) if bound else (None, None)
        out.append(entry(f"{where}: fastflow {dtype}, first vector", threads, row["median_ms"] / 1e3, "s", *limits))
        out += against(where, of_subject, ("fastflow", dtype), (TEACHER,), START_RATIO if bound else None)
        most = MEMORY_MB.get(dtype) if bound else None
        for what, mb, must in (("resident", row["resident_mb"], most), ("peak resident", row["peak_mb"], None)):
            if mb is not None:  # only Linux gives it
                out.append(entry(f"{where}: fastflow {dtype}, {what} memory", threads, mb, "MB", must))
    return out
