"""Make a saved model smaller, and sign it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fastflow.kernels.stored import quantise
from fastflow.model.encoder.weights import SCALES, word_tensor
from fastflow.model.hashing import MANIFEST, file_hash
from fastflow.model.manifest import fingerprint
from fastflow.model.verify import verify

Array = NDArray[Any]


def write_int8_rows(path: Path, store: Callable[[str, Array], Array | None]) -> None:
    """Round the word rows in the file ``path`` to int8; ``store`` gives every other tensor, None: left out."""
    tensors, name = load_file(path), word_tensor("")
    rows, scales = quantise(tensors.pop(name).astype(np.float32))
    kept = {key: found for key, tensor in tensors.items() if (found := store(key, tensor)) is not None}
    save_file(kept | {name: rows, SCALES: scales}, path, {"format": "pt"})


def sign(directory: Path, manifest: dict[str, Any], changes: dict[str, Any]) -> str:
    """Write the manifest with ``changes`` and the hashes of all files; return its fingerprint."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST)
    made = manifest | changes | {"files": {str(path.relative_to(directory)): file_hash(path) for path in files}}
    made["fingerprint"] = fingerprint(made)
    (directory / MANIFEST).write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    verify(directory)
    return str(made["fingerprint"])
