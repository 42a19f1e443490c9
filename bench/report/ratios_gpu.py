"""Ratios of the text suites on a GPU: ours against PyTorch, alone and in a graph, with the project's targets."""

from __future__ import annotations

from collections.abc import Sequence

from fastflow.bench.report.ratios import Row, against, by_key, entry
from fastflow.bench.report.ratios_encoder import TEACHER

ALONE_MS = 0.6  # text to vector, one text of at most 32 tokens
EAGER_AIM, GRAPH_AIM, TEACHER_AIM = 8.0, 1.2, 10.0
LOW = "bfloat16"


def encoder_ratios(rows: Sequence[Row]) -> list[Row]:
    """The ratios of fastflow to its peers for each shape (texts x tokens) in ``rows``: ``ratios.entry``."""
    out = []
    for batch, tokens in dict.fromkeys((row["batch"], row["tokens"]) for row in rows):
        at = by_key(rows, batch=batch, tokens=tokens)
        where, peers = f"encoder {batch}x{tokens}", [key for key in at if key[0] != "fastflow"]
        for dtype in ("float32", "float16", LOW):
            same = [key for key in peers if key[1] == dtype]
            out += against(where, at, ("fastflow", dtype), same)
        if batch == 1:
            out += against(where, at, ("fastflow", LOW), [("torch-eager", "float32")], aim=EAGER_AIM)
            out += against(where, at, ("fastflow", LOW), [("torch-graph", LOW)], aim=GRAPH_AIM)
    return out


def text_ratios(rows: Sequence[Row]) -> list[Row]:
    """The same for texts: one at a time against the clock, and whole lists."""
    out = []
    for subject, batch in dict.fromkeys((row["subject"], row["batch"]) for row in rows):
        at = by_key(rows, subject=subject, batch=batch)
        own = at.get(("fastflow", LOW))
        where = f"end-to-end, {subject}, {'one text' if batch == 1 else f'{batch:,} texts'}"
        if own is None:
            continue
        if batch == 1:
            name = f"{where}: fastflow {LOW}, text to vector"
            out.append(entry(name, own["threads"], own["median_ms"], "ms", aim=ALONE_MS))
        eager = EAGER_AIM if batch == 1 else None
        out += against(where, at, ("fastflow", LOW), [("torch-eager", "float32")], aim=eager)
        out += against(where, at, ("fastflow", LOW), [TEACHER], aim=TEACHER_AIM if batch == 1 else None)
    return out
