"""A token table as a directory of model2vec."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fastflow.errors import FastflowError
from fastflow.exports.record import Record, write_json, write_tensors
from fastflow.kernels.encoder.shape import Unit
from fastflow.model.encoder.architecture import MODEL2VEC, is_static
from fastflow.model.kinds import Model
from fastflow.model.static.table import CONFIG, NAMES, TOKENIZER, WEIGHTS, open_table, read_rules
from fastflow.model.tokenizer.files import load_tokenizer
from fastflow.stages.calibration import describe
from fastflow.values import MOST


def write_model2vec(model: Model, folder: Path, record: Record) -> None:
    """Write the table to ``folder``."""
    if (reason := _find_obstacle(model)) is not None:
        raise FastflowError(f"{model.path} cannot be exported to model2vec: {reason}")
    table, kept = open_table(model.encoder), record.dim or model.truncate_dim
    arrays = {"embeddings": np.ascontiguousarray(table.rows[:, :kept])}
    if table.scales is not None:
        arrays["weights"] = table.scales
    if table.mapping is not None:
        arrays["mapping"] = table.mapping.astype(np.int64)
    assert set(arrays) <= set(NAMES)  # noqa: S101 - the reader takes no others
    write_tensors(folder / WEIGHTS, arrays)
    tokenizer = load_tokenizer(model.encoder)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(folder / TOKENIZER), pretty=False)
    write_json(folder / CONFIG, {
        "model_type": MODEL2VEC, "architectures": ["StaticModel"], "normalize": bool(model.head) or record.normalize,
        "max_length": None if model.max_length == MOST else model.max_length,
        "hidden_dim": arrays["embeddings"].shape[1], "embedding_dtype": str(table.rows.dtype),
    })  # fmt: skip


def _find_obstacle(model: Model) -> str | None:
    if not is_static(model.encoder):
        return "it is no table of token vectors; fastflow distill makes one of it"
    if model.calibration:
        return f"its calibration, {describe(model.calibration)}, comes after the mean; export it with --to st or onnx"
    if model.pooling.weights is not None:
        return "its token weights divide by their sum, and model2vec by the number of tokens; export it with --to st"
    if any(not isinstance(module, Unit) for module in model.head):
        return "it has modules after the mean; export it with --to st or onnx"
    if any(model.prompts.texts.values()):
        return "it has prompts; export it with --to st"
    if not read_rules(model.encoder).model2vec:
        return "its mean counts unknown tokens, and model2vec leaves them out; export it with --to st or onnx"
    return None
