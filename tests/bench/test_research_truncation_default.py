"""The table of the packaged model's truncation: bits, bytes and the order that a binary code keeps."""

from __future__ import annotations

import numpy as np

from fastflow import Runtime
from fastflow.bench.research import truncation_default
from fastflow.evaluation.evaluate import SEVEN

HEADER = "subset\tscore\tsentence1\tsentence2\n"
PAIRS = (("A dog runs.", "A dog is running.", 5), ("A dog runs.", "Shares fell.", 0), ("Rain fell.", "It rained.", 4))


def test_rows_have_the_bytes_and_scores_of_their_codes(tmp_path):
    for name in SEVEN:
        lines = "".join(f"x\t{score}\t{a}\t{b}\n" for a, b, score in PAIRS)
        (tmp_path / f"{name}.tsv").write_text(HEADER + lines)
    with Runtime(dtype="float32", device="cpu") as runtime:
        rows = [truncation_default.scored(runtime, tmp_path, 60, precision) for precision in ("float32", "binary")]
    assert [row["bytes"] for row in rows] == [240, 8]
    assert all(np.isfinite(row["all"]) for row in rows)
    assert rows[0]["all"] == 100.0
    page = truncation_default.markdown({"command": "c", "fingerprint": "f", "rows": rows})
    assert "| 60 | float32 | 240 | 100.0 | 100.0 |" in page
