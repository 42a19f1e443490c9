"""Writing embeddings to a .npz: the vectors grow as a .npy, and go into the archive with the rest at the end."""

from __future__ import annotations

import json
import shutil
import zipfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fastflow.files.read.records import Identity, plain
from fastflow.files.write.outputs import NpyFile, npy_header
from fastflow.files.write.printing import Block


class NpzFile(NpyFile):
    """.npz with ``embeddings``, ``index``, ``ids``, ``log_prob`` and an array of every field to keep where asked for,
    and the run's description as ``meta`` (JSON).

    A field is an array of strings. If not every value is one, all are JSON, texts in quotes too, so that a missing
    value (null) is no text; ``json`` in ``meta`` names these fields.
    """

    keeps_ids = keeps_log_prob = True
    own = ("embeddings", "index", "ids", "log_prob", "meta")

    def __init__(self, target: Path, meta: dict[str, Any]) -> None:
        super().__init__(target, meta)
        self._rows = array("q")  # eight bytes a row; a list would take forty
        self._ids: list[Identity] = []
        self._kept: dict[str, list[Any]] = {}

    def note(self, block: Block) -> None:
        self._rows.extend(block.rows)
        self._ids.extend(block.ids or ())
        for name, values in block.kept.items():
            self._kept.setdefault(name, []).extend(values)

    def finish(self) -> None:
        """Move the finished .npy into the archive, uncompressed, and rename that."""
        with self.apart() as archive:
            self.complete(self._handle)
            self._handle.flush()
            with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED, allowZip64=True) as bundle:
                self._add_rows(bundle)
                _add(bundle, "index.npy", np.asarray(self._rows, np.int64))
                if self._ids:
                    _add(bundle, "ids.npy", id_array(self._ids))
                plainly = {name: [plain(value) for value in values] for name, values in self._kept.items()}
                mixed = [name for name, values in plainly.items() if not all(isinstance(v, str) for v in values)]
                for name, values in plainly.items():
                    texts = [as_json(value) for value in values] if name in mixed else values
                    _add(bundle, f"{name}.npy", np.asarray(texts, np.str_))
                _add(bundle, "meta.npy", np.asarray(json.dumps(self.meta | ({"json": mixed} if mixed else {}))))

    def _add_rows(self, bundle: zipfile.ZipFile) -> None:
        """The vectors, and the log-densities if the rows hold any."""
        with bundle.open("embeddings.npy", "w", force_zip64=True) as entry:
            if self.scored:
                entry.write(self.header())
                entry.writelines(self.column("vector"))
            else:
                self._handle.seek(0)
                shutil.copyfileobj(self._handle, entry, 1 << 20)
        if self.scored:
            with bundle.open("log_prob.npy", "w", force_zip64=True) as entry:
                entry.write(npy_header((self.rows,), np.dtype("<f8"), self.header_bytes))
                entry.writelines(self.column("log_prob"))


def id_array(ids: Sequence[Identity]) -> NDArray[Any]:
    """(rows,) ids: int64 if all are whole numbers that fit, else strings, those of other JSON values as JSON."""
    if all(type(i) is int and -(2**63) <= i < 2**63 for i in ids):
        return np.asarray(ids, np.int64)
    return np.asarray([i if isinstance(i, str) else as_json(i) for i in map(plain, ids)], np.str_)


def as_json(value: Any) -> str:
    """``value`` as JSON, other letters than ASCII as they are."""
    return json.dumps(value, ensure_ascii=False)


def _add(bundle: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    with bundle.open(name, "w", force_zip64=True) as handle:
        npy.write_array(handle, array, allow_pickle=False)
