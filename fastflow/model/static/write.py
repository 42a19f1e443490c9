"""Write a static encoder that fastflow, model2vec and Sentence Transformers open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.atomic import check_out, growing
from fastflow.errors import UsageError
from fastflow.kernels.stored import quantise
from fastflow.model.encoder import MODEL2VEC
from fastflow.model.hashing import MODULES
from fastflow.model.static.table import CONFIG, DEFAULT_LENGTH, NAMES, TOKENIZER, WEIGHTS
from fastflow.values import system_errors

DTYPES = ("float32", "float16", "int8")
LARGEST_HALF = 65504.0
OF_MODULES = "sentence_transformers.models."


def write_static(
    directory: Path,
    tokenizer: Any,
    table: NDArray[np.floating[Any]],
    weights: NDArray[np.floating[Any]] | None = None,
    normalize: bool = False,
    dtype: str = "float32",
    *,
    max_length: int | None = DEFAULT_LENGTH,
    name: str | None = None,
) -> None:
    """Save a table of token vectors with its tokenizer; model2vec makes the same vectors from it.

    Args:
        directory: Where to write; must not exist.
        tokenizer: The ``tokenizers.Tokenizer``; saved without padding and truncation.
        table: (V, D) finite floats, a row for each token id.
        weights: (V,) factors of the rows in the mean; None for 1.
        normalize: Whether vectors are divided by their L2 norm.
        dtype: Of the saved rows: float32, float16 or int8.
        max_length: The most tokens kept of a text; None for all.
        name: The encoder that the table was made from.

    Raises:
        UsageError: The arrays do not fit the tokenizer or ``dtype``, or the directory exists.
        FastflowError: The directory cannot be written.
    """
    arrays = _arrays(tokenizer, table, weights, dtype)
    config: dict[str, Any] = {
        "model_type": MODEL2VEC, "architectures": ["StaticModel"], "normalize": normalize, "max_length": max_length,
        "hidden_dim": table.shape[1], "embedding_dtype": dtype,
    }  # fmt: skip
    if name is not None:
        config["tokenizer_name"] = name
    entries = [{"idx": 0, "name": "0", "path": ".", "type": f"{OF_MODULES}StaticEmbedding"}]
    if normalize:
        entries.append({"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{OF_MODULES}Normalize"})
    check_out(directory, "directory")
    with growing(directory) as partial:
        _write(partial, tokenizer, arrays, config, entries)


def _arrays(
    tokenizer: Any, table: NDArray[np.floating[Any]], weights: NDArray[np.floating[Any]] | None, dtype: str
) -> dict[str, NDArray[Any]]:
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if dtype not in DTYPES:
        raise UsageError(f"a token table is saved as {', '.join(DTYPES)}, not as {dtype}")
    if table.ndim != 2 or len(table) != size or not table.shape[1]:
        raise UsageError(f"the table must have a row for each of the tokenizer's {size:,} entries, not {table.shape}")
    if weights is not None and weights.shape != (size,):
        raise UsageError(f"the weights must be of shape ({size},), not {weights.shape}")
    most = LARGEST_HALF if dtype == "float16" else float(np.finfo(np.float32).max)
    for what, array in (("table", table), ("weights", weights)):
        if array is not None and not (np.abs(array) <= (most if what == "table" else np.finfo(np.float32).max)).all():
            raise UsageError(f"the {what} must be finite, and within what {dtype} holds")
    factors = None if weights is None else np.ascontiguousarray(weights, np.float32)
    if dtype == "int8":
        rows, scales = quantise(np.ascontiguousarray(table, np.float32))
        return {NAMES[0]: rows, NAMES[1]: scales if factors is None else scales * factors}
    found = {NAMES[0]: np.ascontiguousarray(table, dtype)}
    return found if factors is None else found | {NAMES[1]: factors}


def _write(
    folder: Path, tokenizer: Any, arrays: dict[str, NDArray[Any]], config: dict[str, Any], modules: list[dict[str, Any]]
) -> None:
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer

    own = Tokenizer.from_str(tokenizer.to_str())
    own.no_padding()
    own.no_truncation()
    with system_errors():
        own.save(str(folder / TOKENIZER), pretty=False)
        save_file(arrays, folder / WEIGHTS)
    for file, content in ((CONFIG, config), (MODULES, modules)):
        (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
