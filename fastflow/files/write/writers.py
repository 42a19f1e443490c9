"""Which class writes an output file: its suffix decides."""

from __future__ import annotations

from pathlib import Path

from fastflow.errors import UsageError
from fastflow.files.write.database import DatabaseFile
from fastflow.files.write.npz import NpzFile
from fastflow.files.write.outputs import JsonLinesFile, NpyFile, OutputFile, SafetensorsFile
from fastflow.files.write.parquet_output import ParquetOutput

WRITERS: dict[str, type[OutputFile]] = {
    ".npy": NpyFile,
    ".npz": NpzFile,
    ".jsonl": JsonLinesFile,
    ".safetensors": SafetensorsFile,
    ".parquet": ParquetOutput,
    ".db": DatabaseFile,
}


def writer_for(target: Path) -> type[OutputFile]:
    """The class that writes ``target``, by its suffix."""
    if target.suffix not in WRITERS:
        raise UsageError(f"{target}: unknown suffix {target.suffix!r}; the output can be {', '.join(WRITERS)}")
    return WRITERS[target.suffix]
