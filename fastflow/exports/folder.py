"""The folder that an export writes: under a temporary name, and renamed when it is whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError


def check_target(out: Path) -> None:
    """Raise for a folder that is there already or cannot be made."""
    if out.exists():
        raise UsageError(f"{out} exists already; remove it or choose another directory")
    parent = next(p for p in out.absolute().parents if p.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise FastflowError(f"{out} cannot be written: {parent} is not a writable directory; choose another one")


@contextmanager
def growing(out: Path) -> Iterator[Path]:
    """A folder to write to that becomes ``out`` when the block ends, and nothing if it fails."""
    partial = out.with_name(out.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        partial.rename(out)
    except OSError as error:
        raise FastflowError(
            f"{out} cannot be written: {error.strerror or error}; free some space or choose another directory"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """``value`` as a JSON file, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """``arrays`` as a safetensors file, which transformers loads too, in a folder that is made."""
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(dict(arrays), path, {"format": "pt"})
