"""Choose the class that writes an output file, by the suffix."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import cast

from fastflow.errors import UsageError
from fastflow.files.write.outputs import OutputFile

WRITERS = {  # suffix -> module, imported when needed, and class
    ".npy": ("outputs", "NpyFile"),
    ".jsonl": ("outputs", "JsonLinesFile"),
    ".csv": ("csv_output", "CsvFile"),
    ".parquet": ("parquet_output", "ParquetOutput"),
    ".db": ("database", "DatabaseFile"),
}


FORMER = (".npz", ".safetensors")  # suffixes that earlier versions wrote


def check_former(path: Path) -> None:
    """Raise a UsageError for a format that only earlier versions wrote."""
    if path.suffix in FORMER:
        raise UsageError(
            f"{path}: fastflow no longer writes or joins {path.suffix}; use .npy for vectors only, or .parquet, .jsonl "
            "or .db with ids and fields"
        )


def writer_for(target: Path) -> type[OutputFile]:
    """Return the class that writes ``target``; raises a UsageError."""
    check_former(target)
    if target.suffix not in WRITERS:
        raise UsageError(f"{target}: unknown suffix {target.suffix!r}; the output can be {', '.join(WRITERS)}")
    module, name = WRITERS[target.suffix]
    return cast("type[OutputFile]", getattr(import_module(f"fastflow.files.write.{module}"), name))
