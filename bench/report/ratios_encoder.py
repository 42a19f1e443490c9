"""Ratios of the text suites: fastflow against the fastest peer of its precision class, with the project's targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
# precision -> the peers (name, dtype) of its class; the fastest that was measured counts
CLASSES: dict[str, tuple[tuple[str, str], ...]] = {
    "float32": (
        *(("onnxruntime", "float32"), ("onnxruntime-plain", "float32"), ("openvino", "float32")),
        *(
            ("ctranslate2", "float32"),
            ("torch-eager", "float32"),
            ("torch-compile", "float32"),
            ("zentorch", "float32"),
            ("xllamacpp", "float32"),
        ),
    ),
    "bfloat16": (
        *(("openvino", "bfloat16"), ("torch-eager", "bfloat16"), ("zentorch", "bfloat16")),
        *(("xllamacpp", "bfloat16"), ("onnxruntime", "float32"), ("onnxruntime-plain", "float32")),
        ("xllamacpp", "float32"),
    ),
    "int8": (
        *(("onnxruntime", "int8"), ("onnxruntime-plain", "int8"), ("openvino", "int8"), ("ctranslate2", "int8")),
        ("xllamacpp", "int8"),
    ),
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
RAGGED_MUST, RAGGED_AIM = (
    2.0,
    4.0,
)  # the best peer, and a library of texts at its best; Sentence Transformers as it comes
START_S, START_AIM_S, START_RATIO = 1.0, 0.4, 5.0
MEMORY_MB = {"bfloat16": 300.0, "int8": 200.0}
TEACHER = ("sentence-transformers", "float32")


def encoder_ratios(rows: Sequence[Row]) -> list[Row]:
    """Entries {name, threads, value, unit, must, aim, reached} for each shape in ``rows``."""
    out = []
    for batch, tokens in dict.fromkeys((row["batch"], row["tokens"]) for row in rows):
        at = {(r["name"], r["dtype"]): r for r in rows if (r["batch"], r["tokens"]) == (batch, tokens)}
        where = f"encoder {batch}x{tokens}"
        for dtype, peers in CLASSES.items():
            size = ALONE if batch == 1 else MANY
            out += against(where, at, ("fastflow", dtype), peers, 1.0, ENCODER_AIMS.get((dtype, size)))
        if batch == 1 and (row := at.get(("fastflow", "bfloat16"))):
            name = f"{where}: fastflow bfloat16 against the machine's floor"
            out.append(at_most(name, row["threads"], row["times_floor"], "x floor", None, FLOOR_AIM))
        out += against(where, at, ("fastflow-avx2", "float32"), (("onnxruntime", "float32"),), 1.0, None)
    return out


def ragged_ratios(rows: Sequence[Row]) -> list[Row]:
    """The same for whole lists of texts: the best peer of the class, Sentence Transformers as it comes, and the best
    that each library of texts has in that precision or a higher one."""
    out = []
    for subject in dict.fromkeys(row["subject"] for row in rows):
        at = {(row["name"], row["dtype"]): row for row in rows if row["subject"] == subject}
        where = f"end-to-end, {subject}"
        for dtype, peers in CLASSES.items():
            own, texts = ("fastflow", dtype), [(name, dtype) for family in LIBRARIES for name in family]
            out += against(where, at, own, (*peers, *texts), RAGGED_MUST, None)
            out += against(where, at, own, (TEACHER,), None, RAGGED_AIM)
            for family in LIBRARIES:
                best = [(name, other) for name in family for other in AT_BEST[dtype]]
                out += against(f"{where}, {family[0]} at its best", at, own, best, RAGGED_MUST, None)
    return out


def startup_ratios(rows: Sequence[Row], judged: str) -> list[Row]:
    """Start and memory; the bounds hold for the subject ``judged``, others are for information."""
    out = []
    for row in (row for row in rows if row["name"] == "fastflow"):
        bound, dtype, threads = row["subject"] == judged, row["dtype"], row["threads"]
        of_subject = {(r["name"], r["dtype"]): r for r in rows if r["subject"] == row["subject"]}
        where = f"startup, {row['subject']}"
        limits = (START_S, START_AIM_S) if bound else (None, None)
        out.append(at_most(f"{where}: fastflow {dtype}, first vector", threads, row["median_ms"] / 1e3, "s", *limits))
        out += against(where, of_subject, ("fastflow", dtype), (TEACHER,), START_RATIO if bound else None, None)
        most = MEMORY_MB.get(dtype) if bound else None
        for what, mb, must in (("resident", row["resident_mb"], most), ("peak resident", row["peak_mb"], None)):
            if mb is not None:  # only Linux gives it
                out.append(at_most(f"{where}: fastflow {dtype}, {what} memory", threads, mb, "MB", must, None))
    return out


def against(
    where: str, at: dict[tuple[str, str], Row], own: tuple[str, str], peers: Iterable[tuple[str, str]],
    must: float | None, aim: float | None,
) -> list[Row]:  # fmt: skip
    """One entry, how many times the fastest of ``peers`` takes ``own``'s time; none when one is not there."""
    measured = [at[peer] for peer in peers if peer in at]
    if own not in at or not measured:
        return []
    peer = min(measured, key=lambda row: float(row["median_ms"]))
    value = peer["median_ms"] / at[own]["median_ms"]
    bound = aim if must is None else must
    name = f"{where}: {' '.join(own)} against {peer['name']} {peer['dtype']}"
    return [
        {
            "name": name, "threads": at[own]["threads"], "value": value, "unit": "x", "must": must, "aim": aim,
            "reached": None if bound is None else value >= bound,
        }
    ]  # fmt: skip


def at_most(name: str, threads: int, value: float, unit: str, must: float | None, aim: float | None) -> Row:
    """An entry that is reached when ``value`` is at most ``must``, or without one ``aim``."""
    bound = aim if must is None else must
    return {
        "name": name, "threads": threads, "value": value, "unit": unit, "must": must, "aim": aim,
        "reached": None if bound is None else value <= bound,
    }  # fmt: skip
