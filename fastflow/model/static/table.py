"""A static encoder (token table) on disk.

model2vec        config.json with normalize and max_length; in model.safetensors ``embeddings`` (R, D), optional
                 ``weights`` (V,), and ``mapping`` (V,), the row of each token id
StaticEmbedding  no config.json; ``embedding.weight`` (R, D), or the tensors of model2vec
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.encoder import HEAVIEST
from fastflow.kernels.stored import CHANGED, was_changed, widen
from fastflow.kernels.table.reference import RUN, STORED, WHOLE, Table
from fastflow.model.encoder.weights import WEIGHT_INDEX
from fastflow.model.hashing import MODULES, is_file
from fastflow.model.tensors import MappedTensors
from fastflow.values import MOST, is_whole, read_config, read_json, short

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
DEFAULT_LENGTH = 512
NAMES = ("embeddings", "weights", "mapping")
CHECKED = 4096
BAG = "embedding.weight"
# fields of config.json that decide vectors, or only describe the making
DECIDING = ("normalize", "max_length")
TOLD = (
    *("model_type", "architectures", "tokenizer_name", "apply_pca", "apply_zipf", "sif_coefficient", "hidden_dim"),
    *("seq_length", "pooling", "embedding_dtype", "vocabulary_quantization", "head_config", "transformers_version"),
)


class TableRules(NamedTuple):
    """Rules by which a library makes vectors of a table; ``max_length`` in tokens, MOST if unlimited.

    ``model2vec``: cut texts by characters too, and drop unknown tokens.
    """

    model2vec: bool
    normalize: bool
    max_length: int


def read_rules(directory: Path) -> TableRules:
    """Read the rules of a static encoder."""
    if not is_file(directory / CONFIG):
        return TableRules(False, False, MOST)
    config, where = read_config(directory), f"{directory / CONFIG}, field"
    if odd := [name for name in config if name not in (*DECIDING, *TOLD)]:
        raise FastflowError(f"{where} {short(odd[0])}: is unknown to this version of fastflow")
    normalize, length = config.get("normalize", False), config.get("max_length", DEFAULT_LENGTH)
    if not isinstance(normalize, bool):
        raise FastflowError(f"{where} normalize: must be true or false, not {short(normalize)}")
    if length is not None and not is_whole(length, 1):
        raise FastflowError(f"{where} max_length: must be a whole number of at least 1 or null, not {short(length)}")
    return TableRules(True, normalize, MOST if length is None else length)


def check_modules(directory: Path) -> None:
    """Raise if modules.json names modules that model2vec does not run."""
    if not is_file(directory / MODULES):
        return
    found = read_json(directory / MODULES)
    entries = found if isinstance(found, list) else [found]
    types = [str(entry.get("type")) if isinstance(entry, dict) else short(entry) for entry in entries]
    if odd := [kind for kind in types if kind.rpartition(".")[2] not in ("StaticEmbedding", "Normalize")]:
        raise FastflowError(
            f"{directory / MODULES}: {short(odd[0])} is a module that model2vec does not run, and config.json is "
            "model2vec's; remove one of the two files"
        )


def open_table(directory: Path) -> Table:
    """Open a static encoder's table in the mapped file; rows of float64 and bfloat16 become float32 in memory."""
    path = directory / WEIGHTS
    if is_file(index := directory / WEIGHT_INDEX):
        raise FastflowError(f"{index}: a token table is one file, {WEIGHTS}; save the model again")
    if not is_file(path):
        hint = f"{path} is missing"
        if is_file(directory / "pytorch_model.bin"):
            hint += ", and pytorch_model.bin is a pickle, which fastflow never opens: save the model as safetensors"
        raise FastflowError(hint)
    arrays = dict(MappedTensors(path).arrays)
    bag = BAG in arrays and not is_file(directory / CONFIG)
    name = BAG if bag else NAMES[0]
    if name not in arrays:
        raise FastflowError(f"{path}: tensor {name} is missing: it is no token table")
    if odd := sorted(set(arrays) - {name} - set(() if bag else NAMES)):
        raise FastflowError(f"{path}: tensor {odd[0]} is unknown to this version of fastflow")
    rows = np.require(_rows(arrays[name], f"{path}: tensor {name}"), requirements="A")
    mapping = _mapping(arrays["mapping"], len(rows), f"{path}: tensor mapping") if "mapping" in arrays else None
    table = Table(rows, None, mapping)
    if "weights" in arrays:
        table = table._replace(scales=_scales(arrays["weights"], table.vocabulary, f"{path}: tensor weights"))
    elif rows.dtype == np.int8 and not is_file(directory / CONFIG):
        raise FastflowError(f"{path}: tensor {name} is int8 without weights, which a StaticEmbedding cannot average")
    return table._replace(run=RUN if _is_summed_exactly(arrays, rows, is_file(directory / CONFIG)) else WHOLE)


def _is_summed_exactly(arrays: Mapping[str, NDArray[Any]], rows: NDArray[Any], model2vec: bool) -> bool:
    if any(array.dtype == np.float64 for name, array in arrays.items() if model2vec or name != "weights"):
        return True
    return model2vec and (rows.shape[1] == 1 or (rows.dtype == np.int8 and "weights" not in arrays))


def check_rows(directory: Path) -> int:
    """Count the table's rows; raises for NaN or infinity in one."""
    rows = open_table(directory).rows
    for start in range(0, len(rows), CHECKED):
        bad = np.flatnonzero(~np.isfinite(rows[start : start + CHECKED]).all(axis=1))
        if len(bad):
            raise FastflowError(f"{directory / WEIGHTS}: row {start + bad[0]} of the table holds NaN or infinity")
    if was_changed(rows):
        raise FastflowError(f"{directory / WEIGHTS}: {CHANGED}")
    return len(rows)


def _rows(found: NDArray[Any], where: str) -> NDArray[Any]:
    rows = widen(found)
    if rows.ndim != 2 or 0 in rows.shape:
        raise FastflowError(f"{where} has shape {rows.shape}; a table has rows and columns")
    if rows.dtype.kind == "f" and rows.dtype not in STORED:
        return rows.astype(np.float32)
    if rows.dtype not in STORED:
        raise FastflowError(f"{where} has dtype {rows.dtype}, which no table has")
    return rows


def _mapping(found: NDArray[Any], rows: int, where: str) -> NDArray[np.int32]:
    if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
        raise FastflowError(f"{where} must be one row of whole numbers, not {found.dtype} of shape {found.shape}")
    if found.min() < 0 or found.max() >= rows:
        raise FastflowError(f"{where} leads outside the table, which has {rows:,} rows")
    return found.astype(np.int32)


def _scales(found: NDArray[Any], vocabulary: int, where: str) -> NDArray[np.float32]:
    found = widen(found)
    if found.shape != (vocabulary,) or found.dtype.kind != "f":
        raise FastflowError(f"{where} must be floats of shape ({vocabulary},), not {found.dtype} of {found.shape}")
    if not (np.abs(found) <= HEAVIEST).all():  # false for NaN
        raise FastflowError(f"{where} holds NaN or infinity, or a magnitude above {HEAVIEST:g}")
    return found.astype(np.float32)
