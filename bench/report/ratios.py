"""The ratios of a run: the fastest peer's time over fastflow's; and some times and sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

Row = dict[str, Any]
Key = tuple[str, str]  # name and dtype of a row
At = Mapping[Key, Row]  # the rows of one comparison
X = "x"  # the unit of a peer's time over ours
BATCHES = {"cpu": (1, 1024), "cuda": (1, 32, 1024, 1_000_000)}  # batches of the flow to compare
FLOW = {  # device -> peer in words -> name of its row
    "cpu": {"unfused PyTorch eager, lean": "torch-lean-eager", "unfused PyTorch eager, the equations": "torch-eager"},
    "cuda": {"unfused PyTorch eager, lean": "torch-lean-eager", "the same in a CUDA graph": "torch-lean-graph"},
}


def _keys(dtype: str, *names: str) -> tuple[Key, ...]:
    return tuple((name, dtype) for name in names)


ONNX = ("onnxruntime", "onnxruntime-plain")
# dtype of fastflow -> peers to compare with
CLASSES: dict[str, tuple[Key, ...]] = {
    "float32": _keys("float32", *ONNX, "openvino", "torch-eager", "torch-compile"),
    "bfloat16": (*_keys("bfloat16", "openvino", "torch-eager"), *_keys("float32", *ONNX)),
    "int8": _keys("int8", *ONNX, "openvino"),
}
# dtype of fastflow -> dtypes that a library may use
AT_BEST = {"float32": ("float32",), "bfloat16": ("float32", "bfloat16"), "int8": ("float32", "bfloat16", "int8")}
LIBRARIES = ("sentence-transformers", "fastembed")
RERANK = {  # dtype of fastflow -> peers of the rerank suite in any dtype that may be used
    own: [(name, dtype) for name in (*LIBRARIES, "onnxruntime", "openvino") for dtype in dtypes]
    for own, dtypes in AT_BEST.items()
}
TEACHER = ("sentence-transformers", "float32")
LOW = "bfloat16"


def _make_entry(name: str, threads: int, value: float, unit: str) -> Row:
    return {"name": name, "threads": threads, "value": value, "unit": unit}


def find_fastest(at: Mapping[Any, Row], peers: Iterable[Any]) -> Row | None:
    """Return the row of ``peers`` with the least time; None if none was measured."""
    return min((at[peer] for peer in peers if peer in at), key=lambda row: float(row["median_ms"]), default=None)


def _divide(where: str, at: At, own: Key, peers: Iterable[Key]) -> list[Row]:
    if (peer := find_fastest(at, peers)) is None or own not in at:
        return []
    name = f"{where}: {' '.join(own)} against {peer['name']} {peer['dtype']}"
    return [_make_entry(name, at[own]["threads"], peer["median_ms"] / at[own]["median_ms"], X)]


def group(rows: Sequence[Row], *fields: str) -> list[tuple[tuple[Any, ...], At]]:
    """Group ``rows`` by the values of ``fields``, then by name and dtype."""
    found: dict[tuple[Any, ...], dict[Key, Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[field] for field in fields), {})[row["name"], row["dtype"]] = row
    return list(found.items())


def compute_flow_ratios(rows: Sequence[Row], device: str) -> list[Row]:
    """Compute ratios of medians, and our microseconds, of the first subject."""
    first, out = [row for row in rows if row["subject"] == rows[0]["subject"]], []
    for count in dict.fromkeys(row["threads"] for row in first):
        for batch in BATCHES[device]:
            at = {row["name"]: row for row in first if (row["threads"], row["batch"]) == (count, batch)}
            if (own := at.get("fastflow")) is None:
                continue
            what = f"flow B={batch}: fastflow"
            peers = {words: [name] for words, name in FLOW[device].items()}
            peers["the fastest peer of all, compiled ones included"] = [n for n in at if not n.startswith("fastflow")]
            for words, names in peers.items():
                if (peer := find_fastest(at, names)) is not None:
                    name = f"{what} against {words} ({peer['name']})"
                    out.append(_make_entry(name, count, peer["median_ms"] / own["median_ms"], X))
            out.append(_make_entry(f"{what}, median", count, own["median_ms"] * 1e3, "us"))
    return out


def compute_encoder_ratios(
    rows: Sequence[Row], where: str = "encoder {}x{}", classes: Mapping[str, Iterable[Key]] = CLASSES
) -> list[Row]:
    """Compute ratios for each shape in ``rows`` to the fastest peer of ``classes``, by dtype."""
    out = []
    for shape, at in group(rows, "batch", "tokens"):
        for dtype, peers in classes.items():
            out += _divide(where.format(*shape), at, ("fastflow", dtype), peers)
    return out


def compute_list_ratios(rows: Sequence[Row]) -> list[Row]:
    """Compute ratios for lists of texts, to the fastest peer of CLASSES and to each of LIBRARIES."""
    out = []
    for (subject,), at in group(rows, "subject"):
        where = f"end-to-end, {subject}"
        for dtype, peers in CLASSES.items():
            own, texts = ("fastflow", dtype), [(name, dtype) for name in LIBRARIES]
            out += _divide(where, at, own, (*peers, *texts)) + _divide(where, at, own, (TEACHER,))
            for name in LIBRARIES:
                best = [(name, other) for other in AT_BEST[dtype]]
                out += _divide(f"{where}, {name} at its best", at, own, best)
    return out


def compute_startup_ratios(rows: Sequence[Row]) -> list[Row]:
    """Compute ratios of start and memory."""
    out = []
    for (subject,), at in group(rows, "subject"):
        for name, dtype in (key for key in at if key[0] == "fastflow"):
            row, where = at[name, dtype], f"startup, {subject}"
            what = f"{where}: {name} {dtype}"
            out.append(_make_entry(f"{what}, first vector", row["threads"], row["median_ms"] / 1e3, "s"))
            out += _divide(where, at, (name, dtype), (TEACHER,))
            for kind, mb in (("resident", row["resident_mb"]), ("peak resident", row["peak_mb"])):
                if mb is not None:  # measured only on Linux
                    out.append(_make_entry(f"{what}, {kind} memory", row["threads"], mb, "MB"))
    return out


def compute_static_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return ratios to each peer of token tables: in bulk, for one text and from a start."""
    out = []
    for (_, batch, tokens), at in group(rows, "subject", "batch", "tokens"):
        where = "static, " + ("startup" if tokens is None else f"{batch} texts" if batch > 1 else "one text")
        for key in at:
            if key[0] != "fastflow":
                out += _divide(where, at, ("fastflow", "float32"), [key])
    return out


def compute_duplicates_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return ratios to each engine by wall clock and processor time; our seconds, share of the peak and memory."""
    out = []
    for (subject, batch), at in group(rows, "subject", "batch"):
        where, own = f"duplicates, {batch:,} {subject}", ("fastflow", "float32")
        threads, mine = at[own]["threads"], f"{where}: fastflow"
        for key in (key for key in at if key != own):
            out += _divide(where, at, own, [key])
            ratio = at[key]["cpu_ms"] / at[own]["cpu_ms"]
            out.append(_make_entry(f"{mine} against {key[0]}, processor time", threads, ratio, X))
        out.append(_make_entry(f"{mine}, processor time", threads, at[own]["cpu_ms"] / 1e3, "s"))
        if at[own]["compute_fraction"] is not None:
            out.append(_make_entry(f"{mine}, share of the int8 peak", threads, at[own]["compute_fraction"] * 100, "%"))
            out.append(_make_entry(f"{mine}, anonymous memory added", threads, at[own]["anonymous_mb"], "MB"))
    return out


def compute_gpu_encoder_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return ratios to PyTorch in the same dtype on a GPU, for each shape."""
    out = []
    for (batch, tokens), at in group(rows, "batch", "tokens"):
        for own in (key for key in at if key[0] == "fastflow"):
            for peer in (key for key in at if key[0] != "fastflow" and key[1] == own[1]):
                out += _divide(f"encoder {batch}x{tokens}", at, own, [peer])
    return out


def compute_gpu_text_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return our time for one text on a GPU, and ratios to two peers in float32."""
    out = []
    for (subject, batch), at in group(rows, "subject", "batch"):
        where, own = f"end-to-end, {subject}, {'one text' if batch == 1 else f'{batch:,} texts'}", ("fastflow", LOW)
        if batch == 1 and (row := at.get(own)):
            name = f"{where}: fastflow {LOW}, text to vector"
            out.append(_make_entry(name, row["threads"], row["median_ms"], "ms"))
        out += _divide(where, at, own, [("torch-eager", "float32")]) + _divide(where, at, own, [TEACHER])
    return out


def compute_serve_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return throughput over the Runtime's, and p99 at half load, in overload and of refusals."""
    out: list[Row] = []
    for subject, found in groupby(rows, key=lambda row: row["subject"]):
        of_subject = list(found)
        alone = next(row for row in of_subject if row["name"] == "Runtime alone" and row["batch"] > 1)
        ours = [row for row in of_subject if row["name"] == "fastflow" and row["p99_ms"] is not None]
        usual = next((row for row in ours if row["batch"] == 1 and row["share"] == 0.9), None)
        entries: list[tuple[str, float, str]] = []
        for row in ours:
            share, most = row["share"], f"p99 of the admitted at {row['share']:.0%}"
            if row["batch"] > 1:
                texts = row["texts_per_s"] / alone["texts_per_s"]
                entries.append((f"lists of {row['batch']}, texts a second over the Runtime's own", texts, X))
            elif share == 0.5:
                in_batches = row["p99_ms"] / row["batch_ms"]
                entries.append(("p99 of one text at half load, in the kernel's batches", in_batches, "batches"))
            elif share > 1 and row["refused_p99_ms"] is not None:
                entries.append((f"p99 of a refusal at {share:.0%}", row["refused_p99_ms"], "ms"))
                entries.append((f"{most}, in the kernel's batches", row["p99_ms"] / row["batch_ms"], "batches"))
                if usual is not None:
                    entries.append((f"{most}, over that at 90%", row["p99_ms"] / usual["p99_ms"], "of 90%"))
        for what, value, unit in entries:
            out.append(_make_entry(f"serve, {subject}: {what}", alone["threads"], value, unit))
    return out
