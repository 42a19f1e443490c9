"""``fastflow.export``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from fastflow.atomic import check_out, growing
from fastflow.errors import UsageError, missing_extra
from fastflow.exports.card import write_card
from fastflow.exports.record import Record, write_record
from fastflow.model.artifact import open_model
from fastflow.model.kinds import Model, VectorModel
from fastflow.stages.calibration import output_dim
from fastflow.stages.vectors import check_truncation

Write = Callable[[Model, Path, Record], None]
WRITERS = {
    "st": "fastflow.exports.sentence_transformers:write_sentence_transformers",
    "onnx": "fastflow.exports.onnx:write_onnx",
    "model2vec": "fastflow.exports.model2vec:write_model2vec",
    "adapter": "fastflow.exports.adapter:write_adapter",
}
NEEDS = {"onnx": "onnx"}
DTYPES = ("float32", "int8")


@dataclass(frozen=True)
class Exported:
    """Directory, format, width and model fingerprint of an export."""

    path: str
    format: str
    dim: int
    fingerprint: str

    @property
    def size(self) -> int:
        """The bytes of all files in the directory."""
        return sum(path.stat().st_size for path in Path(self.path).rglob("*") if path.is_file())


def export(
    model: str | os.PathLike[str] | None,
    to: str,
    directory: str | os.PathLike[str],
    dim: int | None = None,
    normalize: bool = False,
    dtype: str = "float32",
) -> Exported:
    """Write a model in the format of another library, which then gives the same vectors without fastflow.

    Args:
        model: The path of any model of texts that fastflow runs; None is the model in the package.
        to: st, a directory of Sentence Transformers; onnx, one graph from token ids to the embedding; model2vec, for
            token tables; or adapter, a calibrated model without the weights of its encoder.
        directory: The folder to write; must not exist.
        dim: The numbers of a vector to keep, as ``truncate_dim`` of ``Runtime.encode``. None: all.
        normalize: Whether to divide vectors by their L2 norm.
        dtype: How onnx multiplies in the encoder and stores a table of tokens: float32, or int8 with scales measured at
            run time. Calibrations stay in float32.

    Returns:
        An Exported: ``path``, ``format``, ``dim``, ``fingerprint``, ``size``.

    Raises:
        UsageError: The format is unknown, the directory exists, or an option does not fit the model.
        FastflowError: The format cannot hold a part of the model, which the message names; no file is written then.

    Example:
        >>> fastflow.export(None, "st", "default-st").dim  # doctest: +SKIP
        256
    """
    if to not in WRITERS:
        raise UsageError(f"unknown format {to!r}; known are {', '.join(WRITERS)}")
    if dtype not in DTYPES or (dtype != "float32" and to != "onnx"):
        raise UsageError(f"dtype {dtype!r} is not one of the format {to}: float32" + ", int8" * (to == "onnx"))
    if to in NEEDS and find_spec(NEEDS[to]) is None:
        raise missing_extra(NEEDS[to], NEEDS[to], f"an export to {to}")
    out = Path(directory)
    check_out(out, "directory")
    opened = open_model(model if model is None else os.fspath(model))
    if isinstance(opened, VectorModel):
        raise UsageError(
            f"{opened.path} calibrates vectors and has no encoder, and the format {to} is for models of texts"
        )
    width = output_dim(opened.calibration, opened.pooled_dim)
    check_truncation(dim, width, "dim")
    module, _, name = WRITERS[to].partition(":")
    write: Write = getattr(import_module(module), name)
    record = Record(to, opened.fingerprint, dim, normalize, dtype)
    with growing(out) as partial:
        write(opened, partial, record)
        if to != "adapter":  # an adapter has a card, and the hash of every file
            write_record(partial, record)
            write_card(partial, to, opened, dim or opened.truncate_dim or width, normalize)
    return Exported(str(out), to, dim or opened.truncate_dim or width, opened.fingerprint)
