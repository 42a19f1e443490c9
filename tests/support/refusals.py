"""The contract of a directory that cannot be used: one sentence, which a table gives for each fault.

A row of a table is (file, fault, sentence). The fault of a JSON file is its new fields, of safetensors its new arrays;
``...`` removes one. A text or bytes replace any file, None removes it, and a function changes the object in place.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from fastflow import Runtime
from fastflow.errors import FastflowError

NAN, INF = float("nan"), float("inf")
DEEP = '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"  # JSON that no reader follows to its end
Row = tuple[str, Any, str]


def each(file: str, field: str, values: Iterable[Any], sentence: str) -> list[Row]:
    return [(file, {field: value}, sentence) for value in values]


def spoil(directory: Path, file: str, fault: Any) -> Path:
    """Bring the fault of a row into a directory; returns the directory."""
    path = directory / file
    if fault is None:
        path.unlink()
    elif isinstance(fault, bytes):
        path.write_bytes(fault)
    elif isinstance(fault, str):
        path.write_text(fault, encoding="utf-8")
    elif path.suffix == ".safetensors":
        save_file(changed(load_file(path), fault), path, {"format": "pt"})
    else:
        path.write_text(json.dumps(changed(json.loads(path.read_text() if path.exists() else "{}"), fault)))
    return directory


def changed(old: Any, fault: Any) -> Any:
    """The object after ``fault``: new fields, or a function that changes the object or returns another."""
    if callable(fault):
        new = fault(old)
        return old if new is None else new
    return {name: value for name, value in {**old, **fault}.items() if value is not ...}


def copy_of(directory: Path, to: Path, file: str, fault: Any) -> Path:
    return spoil(Path(shutil.copytree(directory, to, dirs_exist_ok=True)), file, fault)


def refuses(opens: Callable[..., Any], directory: Any, sentence: str, **options: Any) -> None:
    """Check that ``opens(directory)`` raises one short line with the ``sentence``, of which … may be any text."""
    pattern = ".*".join(re.escape(part) for part in sentence.split("…"))
    with pytest.raises(FastflowError, match=pattern) as caught:
        opens(directory, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def refuses_to_run(directory: Path, sentence: str, backend: str) -> None:
    refuses(Runtime, directory, sentence, backend=backend)
