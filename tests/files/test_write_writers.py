"""The class that writes an output: its suffix decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastflow.errors import UsageError
from fastflow.files.write.database import DatabaseFile
from fastflow.files.write.npz import NpzFile
from fastflow.files.write.outputs import JsonLinesFile, NpyFile, SafetensorsFile
from fastflow.files.write.parquet_output import ParquetOutput
from fastflow.files.write.writers import WRITERS, writer_for


def test_the_suffix_decides():
    kinds = [writer_for(Path(f"x{suffix}")) for suffix in (".npy", ".npz", ".jsonl", ".safetensors", ".parquet", ".db")]
    assert kinds == [NpyFile, NpzFile, JsonLinesFile, SafetensorsFile, ParquetOutput, DatabaseFile]
    assert len(WRITERS) == len(kinds)
    for name in ("x.arrow", "x", "x.npy.gz", "x.NPY"):
        with pytest.raises(UsageError, match=r"unknown suffix .* \.npy, \.npz, \.jsonl, \.safetensors"):
            writer_for(Path(name))
