"""``fastflow.export``: write a format, its record and its card."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from fastflow.atomic import check_out, growing
from fastflow.errors import FastflowError, UsageError, need_extra
from fastflow.exports.record import RECORD, ExportRecord, write_json, write_tensors
from fastflow.kernels.encoder import Unit
from fastflow.model import Model, VectorModel
from fastflow.model.artifact import open_model
from fastflow.model.encoder import MODEL2VEC, is_static
from fastflow.model.encoder.weights import weight_files
from fastflow.model.hashing import MANIFEST
from fastflow.model.static.table import CONFIG, NAMES, TOKENIZER, WEIGHTS, open_table, read_rules
from fastflow.model.tokenizer.files import load_tokenizer
from fastflow.transforms.calibration import describe, output_dim
from fastflow.transforms.vectors import check_truncation
from fastflow.values import MOST
from fastflow.version import __version__

Write = Callable[[Model, Path, ExportRecord], None]
WRITERS = {
    "st": "fastflow.exports.sentence_transformers:write_sentence_transformers",
    "onnx": "fastflow.exports.onnx:write_onnx",
    "model2vec": "fastflow.exports.export:write_model2vec",
    "adapter": "fastflow.exports.export:write_adapter",
}
DTYPES = ("float32", "int8")
USE = {
    "st": """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("this directory")
model.encode(["A text."])""",
    "onnx": """import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession("model.onnx")
batch = Tokenizer.from_file("tokenizer.json").encode_batch(["A text.", "Another."])
inputs = {"input_ids": [e.ids for e in batch], "attention_mask": [e.attention_mask for e in batch]}
session.run(None, inputs)[0]""",
    "model2vec": """from model2vec import StaticModel

StaticModel.from_pretrained("this directory").encode(["A text."])""",
}
KNOW = {
    "model2vec": "Unknown tokens are left out of the mean.",
    "onnx": "The graph has one output, sentence_embedding, which is final: pool and normalise nothing after it.",
    "st": "It runs in the PyTorch backend of Sentence Transformers only: its ONNX and OpenVINO backends, and servers "
    "that read only some of its modules, would leave parts of the model out.",
}
LIBRARIES = {"st": "Sentence Transformers", "onnx": "ONNX Runtime", "model2vec": "model2vec"}


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
    """Write a model in the format of another library, which gives the same vectors without fastflow.

    Args:
        model: The path of any model of texts that fastflow runs; None is the model ``default``.
        to: st, a directory of Sentence Transformers; onnx, one graph from token ids to the embedding; model2vec, for
            token tables; or adapter, a calibrated model without the weights of its encoder.
        directory: The folder to write; must not exist.
        dim: How many numbers of a vector to keep, as ``truncate_dim`` of ``Runtime.encode``. None: all.
        normalize: Whether to divide vectors by their L2 norm.
        dtype: How onnx multiplies in the encoder and stores a token table: float32, or int8 with scales measured at run
            time. Calibrations stay in float32.

    Returns:
        An Exported: ``path``, ``format``, ``dim``, ``fingerprint``, ``size``.

    Raises:
        UsageError: The format is unknown, the directory exists, or an option does not fit the model.
        FastflowError: The format cannot hold a part of the model, which the message names; no file is written.

    Example:
        >>> fastflow.export(None, "st", "default-st").dim  # doctest: +SKIP
        256
    """
    if to not in WRITERS:
        raise UsageError(f"unknown format {to!r}; known are {', '.join(WRITERS)}")
    if dtype not in DTYPES or (dtype != "float32" and to != "onnx"):
        raise UsageError(f"dtype {dtype!r} is not one of the format {to}: float32" + ", int8" * (to == "onnx"))
    if to == "onnx":
        need_extra("onnx", "onnx", f"an export to {to}")
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
    record = ExportRecord(to, opened.fingerprint, dim, normalize, dtype)
    with growing(out) as partial:
        write(opened, partial, record)
        if to != "adapter":  # an adapter keeps the model's card and hashes
            write_json(partial / RECORD, {"fastflow_version": __version__, **record._asdict()})
            _write_card(partial, to, opened, dim or opened.truncate_dim or width, normalize)
    return Exported(str(out), to, dim or opened.truncate_dim or width, opened.fingerprint)


def write_adapter(model: Model, folder: Path, record: ExportRecord) -> None:
    """Copy the model without its encoder's weights; the manifest keeps their sha256."""
    if not model.manifest:
        raise UsageError(f"{model.path} has no calibration of its own: without its weights nothing would be left")
    if record.dim is not None or record.normalize:
        raise UsageError("an adapter is the model itself: give --dim and --normalize where it is used")
    without = list[str]()
    if model.encoder.is_relative_to(model.path):
        without = [path.relative_to(model.path).as_posix() for path in weight_files(model.encoder)]
    for name in [MANIFEST, *model.manifest["files"]]:
        if name not in without:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model.path / name, folder / name)


def _write_card(folder: Path, to: str, model: Model, dim: int, normalize: bool) -> None:
    steps = [model.pooling.describe(), *(model.modules.names() if model.modules else [])]
    steps += [describe(model.calibration)] if model.calibration else []
    facts = {
        "made of": f"{model.path.resolve().name} (fingerprint {model.fingerprint[:16]})",
        "steps": ", then ".join(steps),
        "vectors": f"{dim} numbers" + ", of length 1" * normalize,
        "longest text": "any" if model.max_length > 10**6 else f"{model.max_length} tokens",
        "licence": "that of the model",
    }
    prompts = {name: text for name, text in model.prompts.texts.items() if text}
    if prompts:
        facts["prompts"] = "; ".join(f"{name}: {text!r}" for name, text in prompts.items())
    lines = [
        f"# A model for {LIBRARIES[to]}", "", f"Made by `fastflow export --to {to}`, version {__version__}.", "",
        "| | |", "| --- | --- |", *(f"| {name} | {fact} |" for name, fact in facts.items()), "",
        "```python", USE[to], "```", "", KNOW[to], "",
    ]  # fmt: skip
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def write_model2vec(model: Model, folder: Path, record: ExportRecord) -> None:
    """Write the token table as model2vec does."""
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
